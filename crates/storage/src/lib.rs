//! The write-ahead log and the snapshots of one member, over one trait for disks.
//!
//! What the core asks to save is written here, and what a member starts with is read
//! back: see [`Store`]. Everything goes through [`Disk`], so that the simulator can
//! crash, tear and damage what production relies on.
//!
//! # The promise
//! After a crash the store holds a prefix of the saves that were written, with every
//! one that was synced. What is damaged otherwise is reported with its place and never
//! taken for the end of the log. Nothing is tried twice on a disk that failed.
//!
//! # Reading order
//! `disk`, `store`, `wal` (record, segment, index, reader, mark), `recover`,
//! `snapshots`. The bytes stand in docs/formats.md.
//!
//! No clock, no thread, no async, no locks.

#![forbid(unsafe_code)]

#[cfg(test)]
mod chance;
pub mod codec;
mod disk;
mod error;
mod file_disk;
mod names;
mod recover;
mod snapshots;
mod store;
mod wal;

pub use disk::Disk;
pub use error::{
    Corruption, CorruptionKind, CreateError, DiskFailure, DiskOperation, OpenError, ReadError,
    StoreError,
};
pub use file_disk::FileDisk;
pub use names::FileName;
pub use snapshots::{CHUNK_BYTES_MAX, SealedSnapshot, SnapshotReader, SnapshotWriter};
pub use store::{OpenedStore, Store, StoreConfig, StoreIdentity, StoreOwner};
