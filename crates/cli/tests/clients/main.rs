//! etcd's own client `etcdctl`, and hostile clients, against processes of the binary. Where
//! `etcdctl` or `etcd` is not installed, the tests that need it are skipped with a message.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod auth;
mod etcdctl;
mod growth;
mod hostile;
mod operators;
#[path = "../support/mod.rs"]
mod support;
mod tls;
mod transcript;
mod transcripts;
mod writers;
