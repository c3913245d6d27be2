//! etcd's API on Quorate's engine.
//!
//! One module of `service` for each of etcd's services: parse, ask, encode. What all of
//! them need is in [`context`]; what they answer when something goes wrong, in `errors`.

#![forbid(unsafe_code)]

mod context;
mod errors;
mod service;
pub mod snapshot_file;

pub use context::{Context, Limits, Store};
pub use service::maintenance::ETCD_VERSION;
pub use service::services;
