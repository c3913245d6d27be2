//! Clients that nobody wrote for this server, and clients that mean harm, against real
//! processes of the binary. Where `etcdctl` or `etcd` is not installed, what needs them is
//! skipped, by name.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

#[path = "../common/mod.rs"]
mod common;
mod etcdctl;
mod growth;
mod hostile;
mod operators;
mod transcript;
mod transcripts;
mod writers;
