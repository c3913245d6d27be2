//! Faults of real servers: killed, suspended, disk lost, full or hanging, network partitioned. In each
//! case no acknowledged write is lost, no read is stale, the other members continue, and the
//! affected member recovers or reports why it cannot.
//!
//! Some tests mount a file system or create network namespaces; where that is not permitted,
//! they are skipped with a message. No test depends on the speed of the machine.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../support/mod.rs"]
mod support;

mod client;
mod cluster;
mod damage;
mod faulty_disk;
mod full_disk;
mod hung_disk;
mod kills;
mod leases;
mod linearizable;
mod network;
mod partitions;
mod restored;
mod soak;
mod watches;
mod wiped;
mod workload;
mod writers;
