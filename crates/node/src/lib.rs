//! One member of a Raft cluster, for embedding: a replicated state machine whose
//! members can be exchanged while it serves.
//!
//! Implement [`Machine`], start a [`Node`] on each of your machines, and
//! [`propose`](Node::propose) commands to any of them. Each runs once, in the same order,
//! on all. [`Node::set_goal`] says who the members shall be; whoever leads takes the steps.
//!
//! # What an answer means
//! A request ends in one of three ways, and only one: **done**; **refused**, which means
//! that it did not happen and never will, so asking again is safe; or **unknown**, which
//! means that it may have happened, or may still. A membership change that is done is
//! *settled*: any majority of the new members can go on by itself, also after restarts.
//!
//! # What can be replaced
//! [`Storage`] is [`DirectoryStorage`] unless you bring your own, [`Transport`] is
//! [`TcpTransport`]. `testkit` has the suites that yours should pass. Many members in one
//! process share their threads and connections: see [`Host`].
//!
//! # Without a runtime
//! Without the feature `runtime` nothing here does I/O: [`driver::Driver`] is a member without its
//! threads, [`driver::Applier`] runs committed entries on a [`Machine`]. The simulator in
//! `quorate-sim` runs these very values.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod applier;
mod asking;
mod command_id;
pub mod driver;
mod kv;
mod machine;
#[cfg(feature = "runtime")]
mod memory_network;
mod outcome;
mod requests;
#[cfg(feature = "runtime")]
mod runtime;
mod start;
#[cfg(feature = "runtime")]
mod tcp;
#[cfg(feature = "runtime")]
pub mod testkit;

pub use applier::SnapshotInstallError;
pub use driver::DriverOptions;
pub use kv::{KvCommand, KvQuery, KvReply, MemoryKv};
pub use machine::{BadSnapshot, Machine, MachineError, MachineFailed, SnapshotChunks};
pub use outcome::{OutcomeUnknown, RequestError, RequestRefused};

#[cfg(feature = "runtime")]
pub use memory_network::{MemoryNetwork, MemoryTransport};
#[cfg(feature = "runtime")]
pub use runtime::*;
#[cfg(feature = "runtime")]
#[doc(hidden)]
pub use tcp::fuzzing;
#[cfg(feature = "runtime")]
pub use tcp::{
    AddressResolver, ConnectionSecurity, DiscoveryError, PeerStream, Plaintext, RoundTripCallback,
    SecurityFuture, TcpConfig, TcpTransport,
};

// What is asked for and answered with, so that most users need no other crate.
pub use quorate_core::config::{Activation, ReadMode};
pub use quorate_core::membership::{
    ChangeRefusal, EndedGoal, GoalEnd, GoalStep, MemberInfo, Operation, Plan, PlanContext,
    PlannedStep, Transition,
};
pub use quorate_core::status::RoleKind;
pub use quorate_core::{
    Change, Config, EntryId, Event, Index, MemberId, MemberSet, Membership, Refusal,
};
pub use quorate_storage::{FileDisk, StoreConfig, StoreIdentity};

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
