//! etcd's API on Quorate's engine.
//!
//! # Reading order
//! `server` (how it is put together), `config` and `bootstrap` (how it is configured), then
//! one module of `service` for each gRPC service: parse the request, run it, encode the reply.
//! What all services share is in `context`; who may do what, in `access` and `auth`; errors as gRPC
//! statuses, in `status`.

#![forbid(unsafe_code)]

pub mod access;
mod auth;
mod auto_compaction;
mod background;
mod bootstrap;
mod client_certificate;
pub mod client_threads;
pub mod config;
mod connections;
mod console;
mod context;
mod corruption;
mod debug_vars;
mod etcd_export;
mod etcd_import;
mod etcd_release;
mod front;
#[doc(hidden)]
pub mod fuzzing;
mod gateway;
mod grpc_guard;
mod grpc_timeout;
mod http;
pub mod logs;
mod lost_peers;
mod member_change;
mod member_details;
mod message_scan;
mod metrics;
mod overview;
mod playground;
pub mod recover;
mod request_body;
mod request_budget;
mod request_kinds;
mod response_body;
mod response_budget;
mod response_queue;
mod server;
mod service;
mod shutdown;
pub mod snapshot_file;
mod status;
mod systemd;
mod table;
pub mod tls;
mod url;

pub use auth::{AuthConfig, AuthConfigError, AuthTokenConfig, JwtConfig, SignMethod};
pub use bootstrap::BootstrapError;
pub use context::{ServiceContext, ServiceLimits, SharedStore};
pub use corruption::DataMismatch;
pub use etcd_release::EtcdRelease;
#[doc(hidden)]
#[cfg(feature = "counted-calls")]
pub use front::counted;
pub use quorate::testkit::ports::free_ports;
pub use quorate_core::membership::quorum_size;
pub use server::{RunningServer, ServerError, run};
pub use service::maintenance::{SNAPSHOT_FORMAT_KEY, VERSION};
pub use service::services;
pub use shutdown::LeadershipTransfer;
pub use url::{Url, UrlError};

/// The Rust in the README is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ServerReadme;
