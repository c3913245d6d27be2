//! etcd's API on Quorate's engine.
//!
//! # Reading order
//! `server` (how it is put together), `config` and `bootstrap` (what it is started with),
//! then one module of `service` for each of etcd's services: parse, ask, encode. What all of
//! them need is in `context`; what they answer when something goes wrong, in `errors`.

#![forbid(unsafe_code)]

mod authority;
mod bootstrap;
mod compaction;
pub mod config;
mod connections;
mod context;
mod duties;
mod errors;
mod http;
pub mod logs;
mod member_errors;
mod member_info;
mod members;
mod metrics;
mod notify;
pub mod recover;
mod server;
mod service;
pub mod snapshot_file;
mod stopping;
mod strict;
mod table;
mod url;

pub use bootstrap::BootstrapError;
pub use context::{Context, Limits, Store};
pub use quorate_core::membership::quorum_size;
pub use server::{Running, ServerError, run};
pub use service::maintenance::ETCD_VERSION;
pub use service::services;
pub use url::{Url, UrlError};
