//! The write-ahead log and the snapshots of one member, over one trait for disks.

#![forbid(unsafe_code)]
