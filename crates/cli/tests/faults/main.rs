//! What happens to real servers: killed, stopped, robbed of their disk, cut off from each
//! other. In each case no acknowledged write is lost, no answer is old, the others go on, and
//! who was hit comes back or says why it does not.
//!
//! Where the machine lets tests mount a file system and make network namespaces, they do; a
//! test that may not says so by name. Nothing here depends on how fast anything is.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../common/mod.rs"]
mod common;

mod client;
mod damage;
mod full_disk;
mod kills;
mod leases;
mod linearizable;
mod members;
mod network;
mod partitions;
mod watches;
mod wiped;
mod workload;
mod writers;
