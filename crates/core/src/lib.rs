//! The Raft rules as a pure value.
//!
//! No I/O, no clock, no thread, no randomness but a seed: [`Raft::step`] takes what
//! happened, [`Raft::take_output`] says what to do. The same inputs always lead to
//! the same outputs, so a list of inputs is a full replay, and a [`Raft`] can be
//! cloned, compared and hashed.
//!
//! # Reading order
//! `boundary` (the whole contract on one page), `message`, `raft` (what `step`
//! does with what), then the conversations: `election`, `replication`, `commit`,
//! `changes`, `goals`, `settled`, `snapshot`, `transfer`, `reads`. Who counts stands in
//! `membership`.
//!
//! # The promise
//! Nothing that a peer, a client or a disk says makes this code panic, loop or
//! allocate without bound; it is dropped with a reason ([`Dropped`]). An own broken
//! invariant does panic.
//!
//! # Features
//! With `serde`, configuration, status, memberships, changes, plans and refusals can be
//! written as JSON and the like, and read back. What goes into a member (configuration,
//! changes, memberships) is refused when it has a field that this version does not know:
//! a condition that is overlooked would be worse.
//!
//! # A cluster of one
//! ```
//! use quorate_core::{Boot, Config, Input, Membership, MemberId, Raft, RequestId, Accepted};
//!
//! let id = MemberId(1);
//! let boot = Boot::first(Membership::new([id], []));
//! let mut raft = Raft::new(Config::new(id), boot)?;
//! raft.step(Input::Campaign)?;
//! // Do what it asks: here, a disk that is always done at once.
//! while raft.has_output() {
//!     let output = raft.take_output();
//!     if let Some(save) = output.save {
//!         raft.step(Input::Saved(save.id))?;
//!     }
//!     if let Some(last) = output.apply.last() {
//!         raft.step(Input::Applied(last.id.index))?;
//!     }
//! }
//! let taken = raft.step(Input::Propose(RequestId(7), "hello".into()))?;
//! assert!(matches!(taken, Accepted::Logged(_)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

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
mod ids;
mod inflight;
pub mod invariants;
mod log;
pub mod membership;
pub mod message;
#[cfg(feature = "serde")]
pub mod opaque;
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
mod snapshot;
pub mod status;
mod terms;
mod timer;
mod transfer;
mod validate;

pub use boot::{Boot, BootError};
pub use boundary::{Accepted, HardState, Input, Load, LoadTarget, Output, Save};
pub use config::{Config, ConfigError};
pub use entry::{Entries, Entry, Payload};
pub use event::Event;
pub use ids::{EntryId, Index, MemberId, MemberSet, RequestId, SaveId, Term};
pub use membership::{Change, Membership};
pub use message::{Envelope, SnapshotMeta};
pub use raft::Raft;
pub use refusal::{Dropped, Refusal};
pub use status::Status;

pub(crate) use config::{Activation, ReadMode};
pub(crate) use event::SettledEvidence;
pub(crate) use message::{
    Append, AppendReply, Heartbeat, HeartbeatReply, Identity, Message, Proposal, Vote, VoteReply,
};
pub(crate) use refusal::Malformed;
pub(crate) use status::{PeerStatus, RoleKind};
