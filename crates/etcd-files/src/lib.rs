//! etcd's files: snapshots, and the database and the log of a stopped member.
//!
//! Everything here reads bytes that may be damaged or hostile: nothing panics, memory is bounded
//! by the size of the file, and an error names the place. `docs/formats.md` describes the bytes.
//!
//! # Reading order
//!
//! `bbolt/reader.rs` (pages), `schema.rs` (rows), `database.rs` (buckets), `wal.rs` (the log),
//! `data_dir.rs` (a member), `bbolt/writer.rs` (the way back).

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod bbolt;
mod data_dir;
mod database;
mod error;
pub mod fuzzing;
mod protobuf;
mod schema;
mod wal;

pub use bbolt::{BboltBucket, BboltFile, BboltRow, BboltSource, BboltWriteError, BboltWriter};
pub use data_dir::{EtcdDataDir, EtcdLog};
pub use database::{EtcdDatabase, EtcdMarks, EtcdStatus};
pub use error::{DamagePlace, EtcdFileError};
pub use protobuf::{ProtobufField, ProtobufFields, ProtobufValue};
pub use schema::{
    BUCKETS, EtcdAlarm, EtcdLease, EtcdPermission, EtcdPermissionKind, EtcdRole, EtcdRow, EtcdUser,
    alarm_row, auth_rows, compact_mark, lease_row, role_row, user_row,
};
pub use wal::{WalEntry, WalReader, WalTail};
