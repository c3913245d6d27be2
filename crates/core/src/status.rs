//! The status of one member, for tools, tests and stories. Stories print its `Display`
//! form.

use std::fmt;
use std::sync::Arc;

pub use crate::awaited::{AwaitedMember, AwaitedReason};
pub use crate::goals::GoalStatus;
pub use crate::progress::Flow;

use crate::membership::Membership;
use crate::role::Role;
use crate::{Entry, EntryId, Index, MemberId, Raft, SnapshotMeta, Stalled, Term};

/// Follower, candidate or leader, without their state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum RoleKind {
    /// Follows a leader or waits for one.
    Follower,
    /// Sends pre-votes.
    PreCandidate,
    /// Requests votes.
    Candidate,
    /// Leads.
    Leader,
}

/// Everything that a member reports about itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Status {
    /// The id of this member.
    pub id: MemberId,
    /// Its role.
    pub role: RoleKind,
    /// Its term.
    pub term: Term,
    /// The member that got its vote in this term.
    pub vote: Option<MemberId>,
    /// The leader of this term, if known.
    pub leader: Option<MemberId>,
    /// The state of its log.
    pub log: LogStatus,
    /// The membership that counts now, and its entry.
    pub membership: Arc<Membership>,
    /// The entry of that membership.
    pub membership_id: EntryId,
    /// The newest membership in the log; it may not count yet.
    pub newest_membership_id: EntryId,
    /// Replies to a candidate so far.
    pub votes: Vec<(MemberId, bool)>,
    /// The progress of each member, this one included; only on a leader.
    pub peers: Vec<PeerStatus>,
    /// The target of a transfer in progress.
    pub transfer: Option<MemberId>,
    /// The progress of a leader's goal.
    pub goal: Option<GoalStatus>,
    /// The index of the newest settled membership's entry.
    pub settled: Index,
    /// Which work of this member stands still.
    pub stalled: Stalled,
    /// This member had confirmed the log up to here to its leader, and does not have it: its
    /// disk was rolled back or restored. It does not vote.
    pub lost: Option<Index>,
    /// Linearizable reads that wait at this leader.
    pub reads_waiting: usize,
    /// Ticks since the leader was heard, or since the last campaign.
    pub elapsed_ticks: u32,
    /// Ticks after which a follower or candidate campaigns.
    pub timeout_ticks: u32,
}

/// The state of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LogStatus {
    /// The newest entry that was trimmed; the log begins after it.
    pub base: EntryId,
    /// The oldest index still in memory.
    pub tail_first: Index,
    /// The last entry.
    pub last: EntryId,
    /// Durable here up to this index.
    pub saved: Index,
    /// Committed up to this index.
    pub commit: Index,
    /// Handed to the state machine up to this index.
    pub applying: Index,
    /// Applied by the state machine up to this index, or covered by a durable snapshot that the
    /// state machine gets next.
    pub applied: Index,
    /// The newest snapshot, taken by this member or installed from a peer.
    pub snapshot: EntryId,
    /// A peer's snapshot is not durable yet.
    pub installing: bool,
}

/// The progress of one member as its leader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PeerStatus {
    /// The member.
    pub id: MemberId,
    /// Whether it is a learner.
    pub learner: bool,
    /// How entries are sent to it.
    pub flow: Flow,
    /// Matches the leader's log up to here, durably.
    pub matched: Index,
    /// The first index to send next.
    pub next: Index,
    /// Nothing is sent until the peer replies.
    pub paused: bool,
    /// Has replied since the last quorum check.
    pub active: bool,
    /// Appends with entries in flight.
    pub inflight: usize,
    /// Whether the window of appends in flight is full.
    pub inflight_full: bool,
    /// Its state machine has applied the log up to here, as it last reported.
    pub applied: Index,
    /// Which of its work stands still, as it last reported.
    pub stalled: Stalled,
    /// It had confirmed the log up to here, and does not have it: its disk was rolled back or
    /// restored. It counts no longer. Remove it, and add it again under a new id with an empty
    /// disk.
    pub lost: Option<Index>,
}

impl Raft {
    /// The leader of this term, if this member knows one.
    pub fn leader(&self) -> Option<MemberId> {
        self.leader
    }

    /// The current term.
    pub fn term(&self) -> Term {
        self.term
    }

    /// The current role.
    pub fn role(&self) -> RoleKind {
        self.role.kind()
    }

    /// Whether this member leads and has committed an entry of its own term.
    pub fn has_own_commit(&self) -> bool {
        self.role.leader().is_some_and(|leader| self.log.commit >= leader.first_of_term)
    }

    /// The present status of this member.
    pub fn status(&self) -> Status {
        let counts = &self.active.logged;
        Status {
            id: self.config.id,
            role: self.role.kind(),
            term: self.term,
            vote: self.vote,
            leader: self.leader,
            log: self.log_status(),
            membership: counts.membership.clone(),
            membership_id: counts.since(),
            newest_membership_id: self.newest_membership_id(),
            votes: self.role.tally().map(|tally| tally.replies().collect()).unwrap_or_default(),
            peers: match &self.role {
                Role::Leader(leader) => leader.peers.iter().map(PeerStatus::from).collect(),
                _ => Vec::new(),
            },
            transfer: self.role.leader().and_then(|leader| leader.transfer).map(|open| open.to),
            goal: self.goal_status(),
            settled: self.reports.settled,
            stalled: self.stalled(),
            lost: self.lost_log.as_ref().map(|lost| lost.confirmed),
            reads_waiting: self.role.leader().map_or(0, |leader| leader.reads.waiting()),
            elapsed_ticks: self.timer.elapsed,
            timeout_ticks: self.timer.timeout,
        }
    }

    /// The entries in memory: all after the log's base, unless older ones were evicted.
    pub fn held_entries(&self) -> impl Iterator<Item = &Entry> {
        self.log.held()
    }

    /// The entry of the newest membership in the log; it may not count yet.
    pub fn newest_membership_id(&self) -> EntryId {
        self.memberships.newest().since()
    }

    /// The newest snapshot that can be sent to peers.
    pub fn snapshot(&self) -> &SnapshotMeta {
        &self.snapshot
    }

    /// Whether this member refused a vote only because its own log is newer, and has not
    /// heard a leader since: on append it may then campaign, voter or not.
    pub fn holds_newer_log(&self) -> bool {
        self.holds_newer_log
    }

    /// The state of the log.
    pub fn log_status(&self) -> LogStatus {
        LogStatus {
            base: self.log.base(),
            tail_first: self.log.tail_first(),
            last: self.log.last(),
            saved: self.log.saved(),
            commit: self.log.commit,
            applying: self.log.applying,
            applied: self.log.applied,
            snapshot: self.snapshot.id,
            installing: self.installing.is_some(),
        }
    }
}

impl fmt::Display for RoleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Follower => "follower",
            Self::PreCandidate => "pre-candidate",
            Self::Candidate => "candidate",
            Self::Leader => "leader",
        })
    }
}

/// `0000000000000002 leader term=4 last=4.3 commit=3 applied=3 voters=(…) match=(…:3 …:2)`
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.id, self.role)?;
        if let (RoleKind::Follower, Some(leader)) = (self.role, self.leader) {
            write!(f, " of {leader}")?;
        }
        write!(f, " term={}", self.term)?;
        if let (Some(vote), true) = (self.vote, self.role != RoleKind::Leader) {
            write!(f, " vote={vote}")?;
        }
        write!(f, " last={} commit={}", self.log.last, self.log.commit)?;
        write!(f, " applied={} {}", self.log.applied, self.membership)?;
        if self.log.installing {
            write!(f, " installing={}", self.log.snapshot)?;
        }
        if self.stalled.any() {
            write!(f, " stalled={}", self.stalled)?;
        }
        if let Some(to) = self.transfer {
            write!(f, " transfer={to}")?;
        }
        if let Some(goal) = &self.goal {
            write!(f, " step=\"{}\"", goal.step)?;
            if let Some(why) = goal.held_up {
                write!(f, " held_up=\"{why}\"")?;
            }
            for awaited in &goal.awaited {
                write!(f, " awaits=\"{awaited}\"")?;
            }
        }
        if let Some(confirmed) = self.lost {
            write!(f, " lost={confirmed}")?;
        }
        if self.reads_waiting > 0 {
            write!(f, " reads={}", self.reads_waiting)?;
        }
        let others = || self.peers.iter().filter(|peer| peer.id != self.id);
        if others().next().is_some() {
            f.write_str(" match=(")?;
            for (at, peer) in others().enumerate() {
                write!(f, "{}{}", if at > 0 { " " } else { "" }, peer)?;
            }
            f.write_str(")")?;
        }
        Ok(())
    }
}

/// The id and the matched index, then `probe` or `snapshot=12`, and `paused` if it is.
impl fmt::Display for PeerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.id, self.matched)?;
        match self.flow {
            Flow::Replicate => {}
            Flow::Probe => f.write_str(" probe")?,
            Flow::Snapshot(index) => write!(f, " snapshot={index}")?,
        }
        if self.lost.is_some() {
            f.write_str(" lost")?;
        }
        if self.paused && !matches!(self.flow, Flow::Snapshot(_)) {
            f.write_str(" paused")?;
        }
        Ok(())
    }
}
