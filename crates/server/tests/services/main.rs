//! etcd's services on members in this process, asked by generated clients over loopback.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod errors;
mod keys;
mod leases;
mod maintenance;
mod members;
mod support;
mod watches;
