//! etcd's API on Quorate's engine.
//!
//! # Reading order
//! `server` (how it is put together), `config` and `bootstrap` (how it is configured), then
//! one module of `service` for each gRPC service: parse the request, run it, encode the reply.
//! What all services share is in `context`; who may do what, in `access`; errors as gRPC
//! statuses, in `status`.

#![forbid(unsafe_code)]

pub mod access;
mod auto_compaction;
mod background;
mod bootstrap;
pub mod config;
mod connections;
mod context;
mod grpc_guard;
mod grpc_timeout;
mod http;
mod http2_authority;
pub mod logs;
mod member_change;
mod member_details;
mod metrics;
pub mod recover;
mod request_body;
mod response_body;
mod response_budget;
mod server;
mod service;
mod shutdown;
pub mod snapshot_file;
mod status;
mod systemd;
mod table;
mod url;

pub use bootstrap::BootstrapError;
pub use context::{ServiceContext, ServiceLimits, SharedStore};
pub use quorate_core::membership::quorum_size;
pub use server::{RunningServer, ServerError, run};
pub use service::maintenance::{ETCD_VERSION, VERSION};
pub use service::services;
pub use url::{Url, UrlError};

/// The Rust in the README is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ServerReadme;
