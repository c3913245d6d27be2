//! The tasks, threads and sockets around a [`Driver`](crate::driver::Driver).
//!
//! # Reading order
//! `node` (the requests), `host` (how a member is started and stopped), `member` (its task),
//! `mailbox`, `disk_thread`, `apply_task`, `snapshots`; `storage` and `transport` are the
//! traits that an embedder may implement.

#![allow(clippy::disallowed_methods, reason = "the runtime is where time and threads come from")]

mod apply_task;
mod arrivals;
mod batch_pace;
pub(crate) mod batch_queue;
mod capture;
mod clock;
#[cfg(test)]
mod concurrency_tests;
mod config;
mod cpu_pressure;
mod delayed_messages;
mod directory;
pub(crate) mod disk_thread;
pub(crate) mod disk_use;
mod early_sync;
mod host;
pub(crate) mod inbox;
mod job_queue;
mod leader_query;
pub(crate) mod mailbox;
mod member;
mod memory_log;
mod memory_storage;
pub(crate) mod metrics;
mod node;
mod pending_replies;
mod raft_threads;
mod shared_barriers;
mod side_messages;
pub(crate) mod snapshots;
pub(crate) mod status;
mod storage;
mod sync;
mod transport;
mod versions;
mod wake_timer;

pub(crate) use mailbox::HeldBytes;
#[cfg(feature = "tls")]
pub(crate) use raft_threads::OwnThread;
pub(crate) use sync::lock;

pub use config::{NodeConfig, NodeError};
pub use directory::DirectoryStorage;
pub use host::Host;
pub use inbox::{Inbox, MemberStopped};
pub use leader_query::LeaderQuery;
pub use memory_storage::MemoryStorage;
pub use metrics::{Metric, MetricKind, Metrics, NodeObserver};
pub use node::{CommandReply, LocalRead, Node};
pub use snapshots::{IncomingSnapshot, OutgoingSnapshot, SnapshotReceiveError};
pub use status::{MembershipEvent, MembershipWatch, NodeStatus, StopReason};
pub use storage::{SnapshotSink, SnapshotSource, SnapshotSync, Storage, StorageError, StoredState};
pub use transport::{
    HostedMember, Introduction, MemberKey, PeerMessage, RejectReason, Transport, TransportError,
};
