//! One module per command.

pub(crate) mod auth;
pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod demo;
pub(crate) mod demo_member;
pub(crate) mod downgrade;
pub(crate) mod kv;
pub(crate) mod lease;
pub(crate) mod man;
pub(crate) mod member;
pub(crate) mod new_cluster;
pub(crate) mod recover;
pub(crate) mod server;
pub(crate) mod snapshot;
pub(crate) mod status;
