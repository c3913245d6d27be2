//! What a cluster replicates: the one trait that an embedder implements.

use std::fmt;

use bytes::Bytes;
use quorate_core::{Index, Membership};

/// A state machine. Every member runs the same commands in the same order, so
/// everything here must depend on nothing else: no clock, no chance, no order of
/// hashing, nothing of the process it runs in.
pub trait Machine {
    /// Runs one command. What it returns goes to whoever proposed the command.
    fn apply(&mut self, index: Index, command: &Bytes) -> Bytes;

    /// Answers a question and changes nothing.
    fn query(&self, question: &Bytes) -> Bytes;

    /// The members are these from here on. Only to mirror them: who counts is
    /// decided elsewhere.
    fn on_membership(&mut self, _index: Index, _membership: &Membership) {}

    /// The whole state as it is now, in chunks of any size. The iterator must keep
    /// showing this state while further commands are applied.
    fn snapshot(&self) -> Chunks;

    /// Replaces the state by one that [`Machine::snapshot`] captured, here or on
    /// another member.
    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), BadSnapshot>;
}

/// The parts of a snapshot, in order.
pub type Chunks = Box<dyn Iterator<Item = Bytes> + Send>;

/// The bytes are not a snapshot of this machine. The member cannot go on: find out
/// which version wrote them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadSnapshot;

impl fmt::Display for BadSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes are no snapshot of this state machine, want one that it captured")
    }
}

impl std::error::Error for BadSnapshot {}
