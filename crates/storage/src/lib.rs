//! The write-ahead log and the snapshots of one member.
//!
//! A [`Store`] writes the saves that [`quorate_core`] requests, and reads back what a member
//! starts with. All I/O goes through the [`Disk`] trait, so that a simulator can crash, tear
//! and corrupt exactly the code that runs in production. [`FileDisk`] is the real one.
//!
//! ```
//! use quorate_core::{Boot, Entry, HardState, MemberId, Membership, Save, SaveId};
//! use quorate_storage::{FileDisk, OpenedStore, Store, StoreConfig, StoreIdentity};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("data");
//! let identity =
//!     StoreIdentity { cluster: 1, member: MemberId(1), incarnation: 42, joined_at: 0 };
//! let first = Boot::first(Membership::new([MemberId(1)], []));
//! let config = StoreConfig::default();
//! let OpenedStore { mut store, .. } =
//!     Store::open_or_create(FileDisk::open(&path)?, identity, &first, &config)?;
//! store.write(&Save {
//!     id: SaveId(1),
//!     hard_state: Some(HardState { term: 2, vote: Some(MemberId(1)), commit: 1 }),
//!     entries: vec![Entry::command(2, 2, "hello")].into(),
//!     install: None,
//!     must_sync: true,
//!     then_send: Vec::new(),
//! })?;
//! store.sync()?; // The save is durable now.
//! store.close()?;
//!
//! let opened = Store::open_or_create(FileDisk::open(&path)?, identity, &first, &config)?;
//! assert_eq!(opened.boot.hard_state.term, 2);
//! assert_eq!(opened.boot.tail.last().map(|entry| entry.id.index), Some(2));
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//! After a crash the store holds a prefix of the saves that were written, and that prefix
//! includes every synced save. Any other damage is reported with file and offset, and never
//! mistaken for the end of the log. After a disk failure no operation is retried: every later
//! call returns the same error, and the member must stop.
//!
//! # Reading order
//! `disk`, `store`, `wal` (record, segment, index, reader, mark), `recover`, `snapshots`.
//! `docs/formats.md` in the repository describes the file formats.
//!
//! The crate uses no clock, no threads, no async and no locks.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod codec;
mod disk;
mod error;
mod file_disk;
#[doc(hidden)]
pub mod fuzzing;
mod names;
mod place;
mod recover;
mod reserved_file;
mod snapshots;
mod store;
#[cfg(test)]
mod test_random;
mod wal;

pub use disk::Disk;
pub use error::{
    Corruption, CorruptionKind, CreateError, DiskFailure, DiskOperation, OpenError, ReadError,
    StoreError,
};
pub use file_disk::FileDisk;
pub use names::FileName;
pub use place::{FilePlace, MovedDirectory};
pub use reserved_file::ReservedFile;
pub use snapshots::{
    CHUNK_BYTES_MAX, SealedSnapshot, SnapshotReader, SnapshotSyncer, SnapshotWriter,
};
pub use store::{OpenedStore, Store, StoreConfig, StoreIdentity, StoreOwner};

/// The Rust in the README is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct StorageReadme;
