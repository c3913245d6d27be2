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
//! Without the feature `runtime` nothing here does I/O: [`Driver`] is a member without its
//! threads, [`Applier`] runs committed entries on a [`Machine`]. The simulator in
//! `quorate-sim` runs these very values.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod answer;
mod applier;
mod asking;
mod driver;
mod kv;
mod machine;
#[cfg(feature = "runtime")]
mod memory_network;
mod origin;
mod requests;
#[cfg(feature = "runtime")]
mod runtime;
mod start;
#[cfg(feature = "runtime")]
mod tcp;
#[cfg(feature = "runtime")]
pub mod testkit;

pub use answer::{Answer, Done, Refused, Unknown};
pub use applier::{Applier, InstallError, Job, JobDone, Outcome};
pub use driver::{Driver, Options, Work};
pub use kv::{KvCommand, KvQuestion, KvReply, MemoryKv};
pub use machine::{BadSnapshot, Chunks, Machine};
pub use origin::{Origin, Origins};
pub use requests::Ticket;
pub use start::{StartError, Started, Startup, install, seed, start};

#[cfg(feature = "runtime")]
pub use memory_network::{MemoryNetwork, MemoryTransport};
#[cfg(feature = "runtime")]
pub use runtime::*;
#[cfg(feature = "runtime")]
pub use tcp::{
    AddressOf, InquiryError, OnRoundTrip, Plain, Secure, Securing, Stream, TcpConfig, TcpTransport,
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
pub use quorate_storage::{FileDisk, Identity, StoreConfig};

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
