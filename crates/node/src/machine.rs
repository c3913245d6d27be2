//! What a cluster replicates: the one trait that an embedder implements.

use std::fmt;

use bytes::Bytes;
use quorate_core::{Index, Membership};
use quorate_storage::StoreIdentity;

/// A state machine. Every member runs the same commands in the same order, so
/// everything here must depend on nothing else: no clock, no chance, no order of
/// hashing, nothing of the process it runs in.
///
/// A counter: a command adds to it, any question asks for it.
/// ```
/// use bytes::Bytes;
/// use quorate::{BadSnapshot, SnapshotChunks, Machine};
/// use quorate_core::Index;
///
/// #[derive(Default)]
/// struct Counter(u64);
///
/// impl Machine for Counter {
///     fn apply(&mut self, _index: Index, command: &Bytes) -> Bytes {
///         // Bytes that are no number add nothing, on every member alike.
///         let number = command[..].try_into().map_or(0, u64::from_le_bytes);
///         self.0 = self.0.wrapping_add(number);
///         self.query(command)
///     }
///
///     fn query(&self, _question: &Bytes) -> Bytes {
///         Bytes::copy_from_slice(&self.0.to_le_bytes())
///     }
///
///     fn snapshot(&self) -> SnapshotChunks {
///         Box::new(std::iter::once(self.query(&Bytes::new())))
///     }
///
///     fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), BadSnapshot> {
///         let chunk = chunks.next().ok_or(BadSnapshot)?;
///         self.0 = chunk[..].try_into().map(u64::from_le_bytes).map_err(|_| BadSnapshot)?;
///         Ok(())
///     }
/// }
///
/// let mut counter = Counter::default();
/// counter.apply(1, &Bytes::copy_from_slice(&5u64.to_le_bytes()));
/// let mut copy = Counter::default();
/// copy.install(&mut counter.snapshot())?;
/// assert_eq!(copy.0, 5);
/// # Ok::<(), BadSnapshot>(())
/// ```
pub trait Machine {
    /// A member starts: this is whose machine it is, and the answer is up to which entry it
    /// has the state already. Called once, before anything else.
    ///
    /// Only for a machine with a disk of its own; any other answers 0, and is made of the
    /// newest snapshot and the log. One that answers more goes on from there: commands up
    /// to that entry do not run again, and no snapshot is installed that is not newer. So
    /// the answer has to be saved together with the state, in one write that happens whole
    /// or not at all. What may be lost is how recent it is: the log has the rest.
    ///
    /// A state that was kept for another owner is not this member's. Drop it and answer 0.
    fn resume(&mut self, _owner: &StoreIdentity) -> Index {
        0
    }

    /// Makes durable what it keeps on a disk of its own. Called when a snapshot is captured,
    /// which lets the log forget, and when the member stops; may be ignored, and the next
    /// start then takes longer.
    fn save(&mut self) {}

    /// Runs one command. What it returns goes to whoever proposed the command.
    fn apply(&mut self, index: Index, command: &Bytes) -> Bytes;

    /// Answers a question and changes nothing.
    fn query(&self, question: &Bytes) -> Bytes;

    /// The members are these from here on. Only to mirror them: who counts is
    /// decided elsewhere. After a start it hears again of those that it may have kept.
    fn on_membership(&mut self, _index: Index, _membership: &Membership) {}

    /// The whole state as it is now, in chunks of any size. The iterator must keep
    /// showing this state while further commands are applied.
    fn snapshot(&self) -> SnapshotChunks;

    /// Replaces the state by one that [`Machine::snapshot`] captured, here or on
    /// another member.
    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), BadSnapshot>;
}

/// The parts of a snapshot, in order.
pub type SnapshotChunks = Box<dyn Iterator<Item = Bytes> + Send>;

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
