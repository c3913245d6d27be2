//! What a member starts from: the state on its disk, or a first membership.

use std::fmt;
use std::sync::Arc;

use crate::membership::{Membership, MembershipError};
use crate::{Activation, ConfigError, Entries, EntryId, HardState, Index, SnapshotMeta};

/// Everything that a member restores when it starts. The caller fills it in from the disk;
/// [`Raft::new`](crate::Raft::new) checks that the parts are consistent.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Boot {
    pub hard_state: HardState,
    /// The newest snapshot on disk.
    pub snapshot: SnapshotMeta,
    /// The newest entry that was trimmed: the saved log begins after it. Not above the
    /// snapshot.
    pub base: EntryId,
    /// Of the saved log below `tail`: the first entry of every term in it.
    pub terms: Vec<EntryId>,
    /// Of the saved log below `tail`: the membership changes after the snapshot.
    pub memberships: Vec<(EntryId, Arc<Membership>)>,
    /// The newest entries of the saved log: all of them, or as many as fit into memory.
    pub tail: Entries,
    /// The index up to which the state machine has applied the log.
    pub applied: Index,
}

impl Boot {
    /// A joining member with an empty disk. It waits for a leader.
    pub fn empty() -> Self {
        Self::default()
    }

    /// The first start of a cluster. Every first member must be given the same membership.
    /// It is at index 1, so that later members receive it with a snapshot.
    pub fn first(membership: Membership) -> Self {
        let id = EntryId::new(1, 1);
        let membership = Arc::new(membership.logged_at(id));
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

/// Why a member cannot start from this state. Nothing is repaired by guessing: an
/// inconsistent log may have lost entries that this member has acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BootError {
    Config(ConfigError),
    /// The membership is invalid.
    Membership {
        index: Index,
        error: MembershipError,
    },
    /// The snapshot is older than the start of the log: entries are missing.
    SnapshotBeforeLog {
        snapshot: EntryId,
        base: EntryId,
    },
    /// The entries do not follow each other, or their terms decrease.
    BrokenLog {
        index: Index,
    },
    /// The commit index points beyond the log.
    CommitBeyondLog {
        commit: Index,
        last: Index,
    },
    /// The state machine has applied entries that the log does not have.
    AppliedBeyondLog {
        applied: Index,
        last: Index,
    },
    /// The state machine is behind the start of the log: the entries it needs are trimmed.
    AppliedBeforeLog {
        applied: Index,
        base: Index,
    },
    NumberTooLarge,
    /// The cluster was created with this activation rule. Start with the same one.
    OtherActivation {
        recorded: Activation,
    },
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(_) => write!(f, "invalid configuration"),
            Self::Membership { index, error } => write!(f, "membership at index {index}: {error}"),
            Self::SnapshotBeforeLog { snapshot, base } => {
                write!(f, "snapshot {snapshot} is older than the start of the log {base}")
            }
            Self::BrokenLog { index } => write!(f, "log is inconsistent at index {index}"),
            Self::CommitBeyondLog { commit, last } => {
                write!(f, "commit index {commit} is beyond the last entry {last}")
            }
            Self::AppliedBeyondLog { applied, last } => {
                write!(f, "applied index {applied} is beyond the last entry {last}")
            }
            Self::AppliedBeforeLog { applied, base } => {
                write!(f, "applied index {applied} is before the start of the log {base}")
            }
            Self::NumberTooLarge => write!(f, "a term or index is out of range"),
            Self::OtherActivation { recorded } => {
                write!(f, "the cluster uses activation {recorded:?}; set the same in the config")
            }
        }
    }
}

impl std::error::Error for BootError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Config(error) => Some(error),
            Self::Membership { error, .. } => Some(error),
            _ => None,
        }
    }
}
