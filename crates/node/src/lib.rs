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
pub use start::{StartError, Started, Startup, install, start};

#[cfg(feature = "runtime")]
pub use memory_network::{MemoryNetwork, MemoryTransport};
#[cfg(feature = "runtime")]
pub use runtime::*;
#[cfg(feature = "runtime")]
pub use tcp::{AddressOf, Plain, Secure, Securing, Stream, TcpConfig, TcpTransport};
