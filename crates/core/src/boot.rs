//! What a member starts from: what its disk said, or a first membership.

use std::fmt;
use std::sync::Arc;

use crate::membership::{Membership, MembershipError};
use crate::{Activation, ConfigError, Entries, EntryId, HardState, Index, SnapshotMeta};

/// Everything a member remembers of its former life. Whatever reads the disk fills
/// this in; [`Raft::new`](crate::Raft::new) checks that it fits together.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Boot {
    pub hard_state: HardState,
    /// The newest snapshot on disk.
    pub snapshot: SnapshotMeta,
    /// The newest entry that was trimmed away: the saved log begins after it. Not
    /// above the snapshot.
    pub base: EntryId,
    /// Of the saved log below `tail`: the first entry of every term in it.
    pub terms: Vec<EntryId>,
    /// Of the saved log below `tail`: the membership changes after the snapshot.
    pub memberships: Vec<(EntryId, Arc<Membership>)>,
    /// The newest entries of the saved log: all of them, or as many as fit memory.
    pub tail: Entries,
    /// The index up to which the state machine has run the log.
    pub applied: Index,
}

impl Boot {
    /// A member that knows nothing and waits to be told.
    pub fn empty() -> Self {
        Self::default()
    }

    /// The first start of a cluster. Every first member has to be given the same
    /// membership. It stands at index 1, so that whoever joins later receives it
    /// with a snapshot.
    pub fn first(membership: Membership) -> Self {
        let id = EntryId::new(1, 1);
        let membership = Arc::new(membership.brought_by(id));
        let mut boot = Self::from_snapshot(SnapshotMeta { id, membership });
        boot.hard_state.term = 1;
        boot
    }

    /// A member whose disk holds this snapshot and nothing after it.
    pub fn from_snapshot(snapshot: SnapshotMeta) -> Self {
        Self {
            hard_state: HardState { commit: snapshot.id.index, ..HardState::default() },
            base: snapshot.id,
            applied: snapshot.id.index,
            snapshot,
            ..Self::default()
        }
    }

    pub fn with_tail(mut self, tail: impl Into<Entries>) -> Self {
        self.tail = tail.into();
        self
    }
}

/// Why a member cannot start from what it was given. Nothing here is mended by
/// guessing: a log that does not fit its own records may have lost entries that
/// this member has promised to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BootError {
    Config(ConfigError),
    /// The snapshot's membership is impossible.
    Membership {
        at: Index,
        why: MembershipError,
    },
    /// The snapshot is older than the start of the log: entries are missing.
    SnapshotBeforeLog {
        snapshot: EntryId,
        base: EntryId,
    },
    /// The entries do not follow each other, or their terms decrease.
    BrokenLog {
        at: Index,
    },
    /// The commit index points beyond the log.
    CommitBeyondLog {
        commit: Index,
        last: Index,
    },
    /// The state machine ran entries that the log does not have.
    AppliedBeyondLog {
        applied: Index,
        last: Index,
    },
    /// The state machine is behind the start of the log: entries it needs are gone.
    AppliedBeforeLog {
        applied: Index,
        base: Index,
    },
    NumberTooLarge,
    /// The cluster was created with this activation rule. Start with the same one.
    OtherActivation {
        kept: Activation,
    },
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(why) => write!(f, "{why}"),
            Self::Membership { at, why } => write!(f, "membership at {at}: {why}"),
            Self::SnapshotBeforeLog { snapshot, base } => {
                write!(f, "snapshot {snapshot} is older than the log's start {base}")
            }
            Self::BrokenLog { at } => write!(f, "log is broken at index {at}"),
            Self::CommitBeyondLog { commit, last } => {
                write!(f, "commit {commit} is beyond the log's last {last}")
            }
            Self::AppliedBeyondLog { applied, last } => {
                write!(f, "applied {applied} is beyond the log's last {last}")
            }
            Self::AppliedBeforeLog { applied, base } => {
                write!(f, "applied {applied} is before the log's start {base}")
            }
            Self::NumberTooLarge => write!(f, "a term or index is out of range"),
            Self::OtherActivation { kept } => {
                write!(f, "the cluster's activation is {kept:?}, want the same in the config")
            }
        }
    }
}

impl std::error::Error for BootError {}
