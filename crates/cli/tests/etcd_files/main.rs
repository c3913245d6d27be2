//! Files of a real etcd become a Quorate cluster that answers as the etcd did, and the way back.
//!
//! The files were made by etcd 3.4.23, 3.5.35, 3.6.16 and 3.7.3 with `scripts/etcd-fixtures.py`, which also
//! recorded the answers. `QUORATE_ETCD_FIXTURES` names a directory with newer ones.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod adopt;
mod answers;
mod export;
mod import;
#[path = "../support/mod.rs"]
mod support;
