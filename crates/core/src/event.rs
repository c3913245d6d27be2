//! What a member reports to its operator: elections, memberships, goals, transfers.

use std::sync::Arc;

use crate::membership::{EndedGoal, GoalStep, Membership};
use crate::message::Identity;
use crate::status::RoleKind;
use crate::{EntryId, Index, MemberId, Stalled, Term};

/// Something that an operator may want to log or count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Event {
    /// This member changed its role.
    Role {
        /// The previous role.
        from: RoleKind,
        /// The new role.
        to: RoleKind,
        /// The term of the new role.
        term: Term,
    },
    /// This member follows another leader, or none.
    Leader {
        /// The leader that this member follows now.
        leader: Option<MemberId>,
        /// The current term.
        term: Term,
    },
    /// This membership counts from now on.
    Membership {
        /// The entry of the membership.
        id: EntryId,
        /// The membership.
        membership: Arc<Membership>,
    },
    /// Any majority of this membership can now elect a leader, also after restarts: the
    /// change that led to it is done, and so is every earlier one. Every member reports
    /// this once after each start.
    Settled {
        /// The entry of the membership.
        id: EntryId,
        /// The membership.
        membership: Arc<Membership>,
        /// Why this member considers it settled.
        evidence: SettledEvidence,
    },
    /// The goal's next step is due: the leader takes it, or waits for its condition.
    GoalStep {
        /// The step.
        step: GoalStep,
    },
    /// This goal has ended, and the membership in which it ended is settled. Every member
    /// reports this once; after a start only if nothing has changed since it ended.
    GoalEnded(EndedGoal),
    /// Other members know another member by this member's id, and its messages do not
    /// count: its disk was wiped, replaced or restored, or it was removed and its id given
    /// to another member. Add it again under a new id with an empty disk.
    IdentityRejected {
        /// The member that rejected the identity.
        by: MemberId,
        /// The identity that is recorded under this member's id.
        known: Identity,
    },
    /// This member's log lacks entries that it confirmed to its leader: its disk was rolled
    /// back or restored. It does not vote or campaign. Remove it, and add it again under a new
    /// id with an empty disk.
    LogLost {
        /// The leader.
        leader: MemberId,
        /// The index that this member had confirmed.
        confirmed: Index,
        /// The end of its log.
        last: Index,
    },
    /// This member's log has again everything that it confirmed: it votes again.
    LogComplete,
    /// A peer's log lacks entries that it confirmed to this leader: its disk was rolled back
    /// or restored. It counts no longer. Remove it, and add it again under a new id with an
    /// empty disk.
    PeerLostLog {
        /// The peer.
        peer: MemberId,
        /// The index that it had confirmed.
        confirmed: Index,
        /// The end of its log.
        last: Index,
    },
    /// A transfer of leadership began.
    TransferBegan {
        /// The target.
        to: MemberId,
    },
    /// A transfer of leadership was aborted.
    TransferAborted {
        /// The target.
        to: MemberId,
        /// Why.
        reason: AbortReason,
    },
    /// This member's disk or state machine began to stand still, or makes progress again.
    Stalled(Stalled),
    /// This leader's disk is much slower than those of a quorum of others: it hands over.
    DiskSlow {
        /// How many ticks the others take for an entry, at most.
        others_ticks: u64,
    },
    /// A peer's snapshot is durable and replaces this member's log. The state machine may not
    /// have it yet.
    SnapshotInstalled(EntryId),
}

/// Why a member considers a membership settled. Exhaustive because there is no third way to
/// know it: a leader counts, and its followers are told.
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
#[non_exhaustive]
pub enum AbortReason {
    /// The target did not take over within an election timeout.
    TimedOut,
    /// The target is no longer a voter.
    TargetLeft,
    /// Another transfer was requested.
    Replaced,
}
