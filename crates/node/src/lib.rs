//! Raft for your own state machine, embedded in your program. Members can be replaced while the
//! cluster serves requests.
//!
//! Implement [`Machine`] (or `typed::TypedMachine`, with serde types), start a [`Node`] on each
//! of your hosts, and [`propose`](Node::propose) commands to any of them. Each command runs once,
//! in the same order, on all members. [`Node::set_goal`] names the members that the cluster
//! should have; the leader takes the steps.
//!
//! ```
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use quorate::{KvCommand, KvReply, MemoryKv, MemoryNetwork, MemoryStorage, Node, NodeConfig};
//!
//! let network = MemoryNetwork::new();
//! let mut nodes = Vec::new();
//! for id in 1..=3 {
//!     let config = NodeConfig::first(7, id, [(1, "one"), (2, "two"), (3, "three")]);
//!     let storage = MemoryStorage::new();
//!     nodes.push(Node::start(config, storage, MemoryKv::default(), network.transport()).await?);
//! }
//! // Every member accepts requests. Done means committed, and applied on this member.
//! let put = KvCommand::Put { key: "color".into(), value: "green".into() };
//! nodes[0].propose(put.encode()).await?;
//! let reply = nodes[2].read("color").await?;
//! assert_eq!(KvReply::decode(&reply).and_then(|reply| reply.value), Some("green".into()));
//! # Ok(())
//! # }
//! ```
//!
//! Use [`DirectoryStorage`] and [`TcpTransport`] for members on disk and on several hosts.
//!
//! # How a request ends
//! A request ends in exactly one of three ways: **done**; **refused**, which means that it did not
//! happen and never will, so a retry is safe; or **unknown**, which means that it may have
//! happened or may still happen. See [`RequestError`]. A membership change that is done is
//! *settled*: any majority of the new members can continue without the others, also after
//! restarts. The member retries by itself; see [`RequestError::is_retryable`] before you add a
//! retry loop.
//!
//! # Reads
//! [`Node::read`] is linearizable on every member. [`Node::barrier`] waits until this member has
//! everything that was acknowledged before, for programs that look into their machine directly.
//! [`Node::read_local`] needs no leader and may be stale; it returns the index that it shows.
//!
//! # Test your state machine in simulated clusters
//! `quorate_sim::explore::try_machine` runs a machine in simulated clusters with crashes, lost
//! messages, failing disks, snapshots and membership changes, and checks that replies are
//! linearizable, that all members reach the same state, and that snapshots restore it:
//!
//! ```
//! use bytes::Bytes;
//! use quorate::{KvCommand, MemoryKv};
//! use quorate_sim::explore::{Workload, try_machine};
//! use quorate_sim::random::Random;
//!
//! /// What simulated clients do.
//! struct Puts;
//!
//! impl Workload for Puts {
//!     fn command(&mut self, random: &mut Random) -> Bytes {
//!         let key = Bytes::from(vec![random.below(5) as u8]);
//!         KvCommand::Put { key, value: "v".into() }.encode()
//!     }
//!
//!     fn query(&mut self, random: &mut Random) -> Bytes {
//!         Bytes::from(vec![random.below(5) as u8])
//!     }
//! }
//!
//! // One simulated cluster for each seed. A failure prints a short run that shows it.
//! let report = try_machine(0..5, MemoryKv::default, || Puts).unwrap();
//! assert_eq!(report.schedules, 5);
//! ```
//!
//! # Replaceable parts
//! [`storage::Storage`] and [`transport::Transport`] are traits. [`testkit`] has test suites for
//! your own implementations. [`tcp`] has hooks for addresses and encryption. Many members in one process share threads and connections: see [`Host`].
//!
//! # Modules
//! The root has what most programs need. [`membership`] has changes, goals and plans in detail,
//! [`metrics`] counters and events. [`storage`], [`transport`] and [`tcp`] are for programs that
//! replace a part. [`driver`] is for runtimes other than tokio: it does no I/O.
//!
//! # Feature flags
//! - `runtime` (default): [`Node`], storages and transports, on tokio. Without it only what does
//!   no I/O is left.
//! - `tls`: `tls::TlsSecurity`, which encrypts and authenticates the connections of
//!   [`TcpTransport`]. Without it no TLS crate is compiled.
//! - `typed`: `typed::TypedMachine` and `TypedNode`, with serde types instead of bytes.
//! - `serde`: serde implementations for options, errors and replies.
//!
//! # Examples and guides
//! In the repository, under `crates/node/examples`, each runs with
//! `cargo run -p quorate --example NAME`: `memory_kv` (a replicated map in under 100 lines),
//! `disk_kv` (on disk, over TCP, with three processes), `replace_a_node` (replaces a member while
//! clients write), `many_clusters` (many clusters in one process) and `tls_kv` (mutual TLS; with
//! `--features tls`). Guides for users of other
//! libraries are `docs/from-openraft.md` and `docs/from-raft-rs.md`.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod applied_bytes;
mod applier;
mod cluster_version;
mod command_id;
pub mod driver;
mod kv;
mod machine;
#[cfg(feature = "runtime")]
mod memory_network;
mod outcome;
mod request_table;
mod requests;
#[cfg(feature = "runtime")]
mod runtime;
mod start;
#[cfg(feature = "runtime")]
pub mod tcp;
#[cfg(feature = "runtime")]
pub mod testkit;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(feature = "typed")]
pub mod typed;

pub use cluster_version::{ClusterVersion, DowngradeRefusal, UnsupportedVersion, VersionRange};
pub use command_id::CommandBuffer;
pub use driver::DriverOptions;
pub use kv::{KvCommand, KvQuery, KvReply, MemoryKv};
pub use machine::{
    BadSnapshot, LoadedState, Machine, MachineError, MachineFailed, SnapshotChunks, SnapshotLoader,
    WorkProgress,
};
pub use outcome::{OutcomeUnknown, RequestError, RequestRefused};

#[cfg(feature = "runtime")]
pub use memory_network::MemoryNetwork;
#[cfg(feature = "runtime")]
pub use runtime::{
    CommandReply, DirectoryStorage, Host, LeaderQuery, LocalRead, MemoryStorage, Node, NodeConfig,
    NodeError, NodeStatus, StopReason,
};
#[cfg(feature = "runtime")]
pub use tcp::{TcpConfig, TcpTransport};

// What is asked for and answered with, so that most users need no other crate.
pub use quorate_core::config::{Activation, ReadMode};
pub use quorate_core::membership::MemberInfo;
pub use quorate_core::status::RoleKind;
pub use quorate_core::{Change, Config, EntryId, Index, MemberId, MemberSet, Membership, Refusal};

pub mod membership {
    //! Membership changes in detail: operations, goals and their plans, refusals, events.

    #[cfg(feature = "runtime")]
    pub use crate::runtime::{MembershipEvent, MembershipWatch};
    pub use quorate_core::membership::{
        ChangeKind, ChangeRefusal, EndedGoal, GoalEnd, GoalStep, Operation, Plan, PlanContext,
        PlannedStep, RemovedVoters, Transition,
    };
}

#[cfg(feature = "runtime")]
pub mod metrics {
    //! Counters and gauges of a member, and the hook that sees its events.

    pub use crate::runtime::{Metric, MetricKind, Metrics, NodeObserver};
    pub use quorate_core::Event;
}

pub mod storage {
    //! Where a member keeps its log: the trait to implement, and the parts of
    //! [`DirectoryStorage`](crate::DirectoryStorage). The suite for implementations is
    //! `testkit::storage`.

    #[cfg(feature = "runtime")]
    pub use crate::runtime::{
        SnapshotSink, SnapshotSource, SnapshotSync, Storage, StorageError, StoredState,
    };
    pub use quorate_storage::{FileDisk, MovedDirectory, StoreConfig, StoreIdentity};
}

#[cfg(feature = "runtime")]
pub mod transport {
    //! How members exchange messages: the trait to implement, and what it works with. The suite
    //! for implementations is [`testkit::transport`](crate::testkit::transport).

    pub use crate::memory_network::MemoryTransport;
    pub use crate::runtime::{
        HostedMember, Inbox, IncomingSnapshot, Introduction, MemberKey, MemberStopped,
        OutgoingSnapshot, PeerMessage, RejectReason, SnapshotReceiveError, Transport,
        TransportError,
    };
}

/// The Rust in the README and the guides is compiled and run as tests.
#[cfg(all(doctest, feature = "runtime"))]
mod guides {
    #[doc = include_str!("../../../README.md")]
    struct Readme;

    #[doc = include_str!("../../../docs/from-raft-rs.md")]
    struct FromRaftRs;

    #[doc = include_str!("../../../docs/from-openraft.md")]
    struct FromOpenraft;
}
