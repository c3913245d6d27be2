//! The Raft consensus algorithm as a pure value.
//!
//! No I/O, no clock, no thread, no randomness except a seed: [`Raft::step`] processes an
//! [`Input`], [`Raft::take_output`] returns what the caller has to do. The same inputs always
//! give the same outputs, so a list of inputs is a full replay, and a [`Raft`] can be cloned,
//! compared and hashed.
//!
//! # A cluster of one
//! ```
//! use quorate_core::{Accepted, Boot, Config, Input, MemberId, Membership, Raft, RequestId};
//!
//! let id = MemberId(1);
//! let boot = Boot::first(Membership::new([id], []));
//! let mut raft = Raft::new(Config::new(id), boot)?;
//! raft.step(Input::Campaign)?;
//! // Perform each output: here, with a disk that completes every save at once.
//! while raft.has_output() {
//!     let output = raft.take_output();
//!     if let Some(save) = output.save {
//!         raft.step(Input::Saved(save.id))?;
//!     }
//!     if let Some(last) = output.apply.last() {
//!         raft.step(Input::Applied(last.id.index))?;
//!     }
//! }
//! let accepted = raft.step(Input::Propose(RequestId(7), "hello".into()))?;
//! assert!(matches!(accepted, Accepted::Logged(_)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Layout
//! The crate root has what is needed to drive a member: [`Raft`], its [`Input`] and [`Output`],
//! its [`Config`], and what it starts from, [`Boot`]. The details are in modules: [`config`],
//! [`event`], [`membership`], [`message`], [`refusal`], [`status`].
//!
//! To read the source, start with `boundary` (the whole contract on one page), `message` and
//! `raft` (the dispatch of inputs), then the conversations: `election`, `replication`, `commit`,
//! `changes`, `goals`, `settled`, `snapshot`, `transfer`, `reads`, `stall`. A process with thousands of members
//! can keep those that are idle as a [`HibernatedRaft`].
//!
//! # Guarantees
//! No message, request or disk content makes this code panic, loop or allocate without bound;
//! it is dropped with a reason ([`Dropped`]). A violated internal invariant does panic.
//!
//! # Features
//! - `serde`: configuration, status, memberships, changes, plans, events and refusals implement
//!   `Serialize` and `Deserialize`. Unknown fields in configurations, changes and memberships
//!   are errors, because ignoring a condition would be worse.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod awaited;
mod boot;
mod boundary;
mod canonical;
mod changes;
mod commit;
pub mod config;
mod duplicates;
mod election;
mod entry;
pub mod event;
mod goals;
mod hibernation;
mod idle;
mod ids;
mod inflight;
pub mod invariants;
mod log;
mod lost_log;
pub mod membership;
pub mod message;
#[cfg(feature = "serde")]
pub mod opaque;
mod outbox;
mod pack;
mod progress;
mod raft;
mod random;
mod reads;
pub mod refusal;
mod refusal_parts;
mod replication;
mod role;
mod saves;
mod settled;
mod slow_disk;
mod snapshot;
mod stall;
pub mod status;
mod steady;
mod terms;
mod timer;
mod transfer;
mod validate;

pub use boot::{Boot, BootError};
pub use boundary::{Accepted, HardState, Input, Load, LoadTarget, Output, Save};
pub use config::{Config, ConfigError};
pub use entry::{Entries, Entry, Payload};
pub use event::Event;
pub use hibernation::HibernatedRaft;
pub use ids::{EntryId, Index, MemberId, MemberSet, RequestId, SaveId, Term};
pub use membership::{Change, Membership};
pub use message::{Envelope, SnapshotMeta};
pub use raft::Raft;
pub use refusal::{Dropped, Refusal};
pub use stall::Stalled;
pub use status::Status;

pub(crate) use config::{Activation, ReadMode};
pub(crate) use event::SettledEvidence;
pub(crate) use message::{
    Append, AppendReply, Heartbeat, HeartbeatReply, Identity, Message, Proposal, Vote, VoteReply,
};
pub(crate) use refusal::Malformed;
pub(crate) use status::{PeerStatus, RoleKind};
