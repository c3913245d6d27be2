//! What a member reports to its operator: elections, memberships, goals, transfers.

use std::sync::Arc;

use crate::membership::{EndedGoal, GoalStep, Membership};
use crate::message::Identity;
use crate::status::RoleKind;
use crate::{EntryId, Index, MemberId, Term};

/// Something an operator would like to see.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Event {
    Role {
        from: RoleKind,
        to: RoleKind,
        term: Term,
    },
    /// Whom this member takes for the leader.
    Leader {
        leader: Option<MemberId>,
        term: Term,
    },
    /// This membership counts from now on.
    Membership {
        id: EntryId,
        membership: Arc<Membership>,
    },
    /// Any majority of this membership can now elect a leader by itself, also after
    /// restarts: the change that brought it is done, and so is every one before. Told
    /// once since the start, by every member.
    Settled {
        id: EntryId,
        membership: Arc<Membership>,
        evidence: SettledEvidence,
    },
    /// The goal's next step is due: taken, or waited for.
    GoalStep {
        step: GoalStep,
    },
    /// This goal is pursued no more, and the membership in which it ended is settled. Told
    /// once since the start, by every member; after a start only if nothing has changed
    /// since it ended.
    GoalEnded(EndedGoal),
    /// This member is not the one that others know by its id, and nothing it says
    /// counts: its disk was wiped, swapped or restored, or it was removed and its id
    /// given to somebody else. Add it anew, under a new id, with an empty disk.
    IdentityRejected {
        by: MemberId,
        known: Identity,
    },
    TransferBegan {
        to: MemberId,
    },
    TransferAborted {
        to: MemberId,
        why: AbortReason,
    },
    /// A peer's snapshot replaced this member's log and state.
    SnapshotInstalled(EntryId),
}

/// Why a member takes a membership for settled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum SettledEvidence {
    /// It leads, and counted: who durably knows how much to be committed.
    Counted(Vec<(MemberId, Index)>),
    /// Its leader said so.
    ReportedBy(MemberId),
}

/// Why a transfer of leadership came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum AbortReason {
    /// The target did not take over within an election timeout.
    TimedOut,
    /// The target is no longer a voter.
    TargetLeft,
    /// Another transfer was asked for.
    Replaced,
}
