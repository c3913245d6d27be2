//! A small HTTP/2 server for gRPC, and a smaller client for load generators ([`client`]).
//!
//! Made for many short requests on few connections: all frames of a read are processed in one pass,
//! the calls of a connection are polled by its one task, and their responses are written with one
//! system call. Requests that arrive complete, such as most unary gRPC calls, skip the types of
//! general HTTP ([`Application::serve_message`]); all others are served as `http::Request`s.
//!
//! What a client can make the server do or hold is bounded: see [`ConnectionConfig`] and
//! `docs/decisions/023-own-http2-server.md`. HTTP/1, server push, and priorities are not
//! implemented.
//!
//! Start reading at `connection.rs`: it is the protocol without sockets. `serve.rs` runs it on one.

#![forbid(unsafe_code)]

mod application;
mod body;
mod calls;
pub mod client;
mod config;
mod connection;
mod control;
mod flood;
mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod head;
mod hpack;
mod ready;
mod serve;
mod stream_ids;
#[cfg(test)]
mod window_tests;

pub use application::{Application, MessageCall, MessageReply, MessageRequest, ResponseFuture};
pub use body::{IncomingBody, RequestAborted};
pub use config::ConnectionConfig;
pub use frame::{ConnectionError, Reason};
pub use head::RequestHead;
pub use serve::{PREFACE, ServeError, serve};
