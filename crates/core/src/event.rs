//! What a member reports to its operator: elections, memberships, goals, transfers.

use std::sync::Arc;

use crate::membership::{EndedGoal, GoalStep, Membership};
use crate::message::Identity;
use crate::status::RoleKind;
use crate::{EntryId, Index, MemberId, Term};

/// Something that an operator may want to log or count.
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
    /// This member follows another leader, or none.
    Leader {
        leader: Option<MemberId>,
        term: Term,
    },
    /// This membership counts from now on.
    Membership {
        id: EntryId,
        membership: Arc<Membership>,
    },
    /// Any majority of this membership can now elect a leader, also after restarts: the
    /// change that led to it is done, and so is every earlier one. Every member reports
    /// this once after each start.
    Settled {
        id: EntryId,
        membership: Arc<Membership>,
        evidence: SettledEvidence,
    },
    /// The goal's next step is due: the leader takes it, or waits for its condition.
    GoalStep {
        step: GoalStep,
    },
    /// This goal has ended, and the membership in which it ended is settled. Every member
    /// reports this once; after a start only if nothing has changed since it ended.
    GoalEnded(EndedGoal),
    /// Other members know another member by this member's id, and its messages do not
    /// count: its disk was wiped, replaced or restored, or it was removed and its id given
    /// to another member. Add it again under a new id with an empty disk.
    IdentityRejected {
        by: MemberId,
        known: Identity,
    },
    TransferBegan {
        to: MemberId,
    },
    TransferAborted {
        to: MemberId,
        reason: AbortReason,
    },
    /// A peer's snapshot replaced this member's log and state.
    SnapshotInstalled(EntryId),
}

/// Why a member considers a membership settled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum SettledEvidence {
    /// This member leads and counted: the commit index that each member durably knows.
    Counted(Vec<(MemberId, Index)>),
    /// This member's leader reported it.
    ReportedBy(MemberId),
}

/// Why a transfer of leadership was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum AbortReason {
    /// The target did not take over within an election timeout.
    TimedOut,
    /// The target is no longer a voter.
    TargetLeft,
    /// Another transfer was requested.
    Replaced,
}
