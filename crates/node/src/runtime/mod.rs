//! The tasks, threads and sockets around a [`Driver`](crate::Driver).
//!
//! # Reading order
//! `node` (what can be asked), `host` (how a member is put together), `member` (its one
//! task), `mailbox`, `disk_thread`, `apply_task`, `snapshots`; `storage` and `transport`
//! are what an embedder may replace.

#![allow(clippy::disallowed_methods, reason = "this is where time and threads come from")]

mod apply_task;
mod aside;
mod clock;
mod config;
mod directory;
pub(crate) mod disk_thread;
mod host;
pub(crate) mod inbox;
mod inquiry;
pub(crate) mod mailbox;
mod member;
mod memory_log;
mod memory_storage;
pub(crate) mod metrics;
mod node;
pub(crate) mod presence;
mod snapshots;
pub(crate) mod status;
mod storage;
mod transport;
mod waiting;

pub(crate) use mailbox::lock;

pub use config::{NodeConfig, NodeError};
pub use directory::DirectoryStorage;
pub use host::Host;
pub use inbox::{Gone, Inbox};
pub use inquiry::Inquiry;
pub use memory_storage::MemoryStorage;
pub use metrics::{Metrics, Observer};
pub use node::{CHANGE_TICKS, CommandReply, Node};
pub use snapshots::{IncomingSnapshot, LandingError, OutgoingSnapshot};
pub use status::{Ended, MembershipNews, MembershipWatch, NodeStatus};
pub use storage::{Opened, SnapshotSink, SnapshotSource, Storage, StorageError};
pub use transport::{
    Introduction, MemberKey, Parcel, Rejected, Resident, Transport, TransportError,
};
