//! Which members a goal's step waits for, and why: a step that does not proceed must not
//! look like one that does.

use std::fmt;

use crate::membership::GoalStep;
use crate::progress::{Flow, Peer};
use crate::role::Leader;
use crate::{MemberId, Raft, Stalled};

/// A member that is not ready for the step that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AwaitedMember {
    /// The member.
    pub id: MemberId,
    /// Why it is not ready.
    pub reason: AwaitedReason,
}

/// Why a member is not ready: the first of these that applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum AwaitedReason {
    /// It does not reply: it is down, or a link to or from this leader is broken.
    Silent {
        /// Ticks since it replied, or since it was added.
        ticks: u64,
    },
    /// Its disk stands still, as it reports.
    DiskStalled,
    /// Its state machine stands still, as it reports.
    MachineStalled,
    /// It replies, but its log does not grow: entries do not reach it, or its replies to them
    /// are lost.
    NoProgress {
        /// Ticks since its log grew.
        ticks: u64,
        /// How many entries it lacks.
        entries: u64,
    },
    /// It is being sent a snapshot.
    Snapshot,
    /// It is catching up.
    Behind {
        /// How many entries it lacks.
        entries: u64,
    },
}

impl AwaitedReason {
    /// A stable name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Silent { .. } => "silent",
            Self::DiskStalled => "disk_stalled",
            Self::MachineStalled => "machine_stalled",
            Self::NoProgress { .. } => "no_progress",
            Self::Snapshot => "snapshot",
            Self::Behind { .. } => "behind",
        }
    }
}

impl Raft {
    /// The members that this step needs and that are not ready. Where a quorum is enough,
    /// all voters that are not ready are listed.
    pub(crate) fn awaited_by(&self, leader: &Leader, step: &GoalStep) -> Vec<AwaitedMember> {
        let needed = |id| match step {
            GoalStep::CatchUp(ids) | GoalStep::HandOver(ids) => ids.contains(id),
            _ => self.membership().is_voter(id),
        };
        let waiting = leader.peers.iter().filter(|peer| {
            (needed(peer.id) || peer.id == self.config.id) && !self.is_ready(leader, peer)
        });
        waiting
            .map(|peer| AwaitedMember { id: peer.id, reason: self.not_ready_reason(leader, peer) })
            .collect()
    }

    fn not_ready_reason(&self, leader: &Leader, peer: &Peer) -> AwaitedReason {
        let own = peer.id == self.config.id;
        let stalled = if own { self.stalled() } else { peer.stalled };
        let silent = if own { 0 } else { leader.silent_ticks(peer) };
        let still = leader.clock.saturating_sub(peer.grew_at);
        let entries = self.log.last().index.saturating_sub(peer.progress.matched);
        match (stalled, peer.progress.flow) {
            _ if silent >= self.live_ticks() => AwaitedReason::Silent { ticks: silent },
            (Stalled { disk: true, .. }, _) => AwaitedReason::DiskStalled,
            (Stalled { machine: true, .. }, _) => AwaitedReason::MachineStalled,
            (_, Flow::Snapshot(_)) => AwaitedReason::Snapshot,
            _ if still >= self.live_ticks() => AwaitedReason::NoProgress { ticks: still, entries },
            _ => AwaitedReason::Behind { entries },
        }
    }
}

impl fmt::Display for AwaitedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent { ticks } => write!(f, "no reply for {ticks} ticks"),
            Self::DiskStalled => write!(f, "its disk stands still"),
            Self::MachineStalled => write!(f, "its state machine stands still"),
            Self::NoProgress { ticks, entries } => {
                write!(f, "its log has not grown for {ticks} ticks, {entries} entries behind")
            }
            Self::Snapshot => write!(f, "receives a snapshot"),
            Self::Behind { entries } => write!(f, "{entries} entries behind"),
        }
    }
}

impl fmt::Display for AwaitedMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, self.reason)
    }
}
