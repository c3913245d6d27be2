//! One member of a Raft cluster, ready to run.
//!
//! [`Driver`] is a member without its threads: it owns the core and the open
//! requests. [`Applier`] runs committed entries on a [`Machine`]. Both are plain
//! values that do no I/O.

#![forbid(unsafe_code)]

mod answer;
mod applier;
mod asking;
mod driver;
mod kv;
mod machine;
mod origin;
mod requests;
#[cfg(feature = "runtime")]
mod runtime;
mod start;

pub use answer::{Answer, Done, Refused, Unknown};
pub use applier::{Applier, InstallError, Job, JobDone, Outcome};
pub use driver::{Driver, Options, Work};
pub use kv::{KvCommand, KvQuestion, KvReply, MemoryKv};
pub use machine::{BadSnapshot, Chunks, Machine};
pub use origin::{Origin, Origins};
pub use requests::Ticket;
pub use start::{StartError, Started, Startup, install, start};

#[cfg(feature = "runtime")]
pub use runtime::*;

/// The Rust in the README and the guides is compiled and run as tests.
#[cfg(doctest)]
mod guides {
    #[doc = include_str!("../../../README.md")]
    struct Readme;

    #[doc = include_str!("../../../docs/from-raft-rs.md")]
    struct FromRaftRs;

    #[doc = include_str!("../../../docs/from-openraft.md")]
    struct FromOpenraft;
}
