//! A picture of one member, to look at: for consoles, tests and scenarios. Its
//! `Display` is the line that scenarios print.

use std::fmt;
use std::sync::Arc;

pub use crate::goals::GoalStatus;
pub use crate::progress::Flow;

use crate::membership::Membership;
use crate::role::Role;
use crate::{Entry, EntryId, Index, MemberId, Raft, SnapshotMeta, Term};

/// Follower, candidate or leader, without what they know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum RoleKind {
    Follower,
    PreCandidate,
    Candidate,
    Leader,
}

/// Everything that can be seen of a member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Status {
    pub id: MemberId,
    pub role: RoleKind,
    pub term: Term,
    pub vote: Option<MemberId>,
    pub leader: Option<MemberId>,
    pub log: LogStatus,
    /// The membership that counts now, and the entry that brought it.
    pub membership: Arc<Membership>,
    pub membership_id: EntryId,
    /// The newest membership in the log; it may not count yet.
    pub newest_membership_id: EntryId,
    /// Replies to a candidate so far.
    pub votes: Vec<(MemberId, bool)>,
    /// How far each member is, itself included; only a leader knows.
    pub peers: Vec<PeerStatus>,
    /// Whom a leader is handing over to.
    pub transfer: Option<MemberId>,
    /// How a leader stands with the goal it pursues.
    pub goal: Option<GoalStatus>,
    /// The index of the entry that brought the newest membership known to be settled.
    pub settled: Index,
    /// Linearizable reads that a leader has not answered yet.
    pub reads_waiting: usize,
    /// Ticks since the leader was heard, or since the last campaign.
    pub elapsed_ticks: u32,
    /// Ticks after which a follower or candidate campaigns.
    pub timeout_ticks: u32,
}

/// Where the log stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LogStatus {
    /// The newest entry that was trimmed away; the log begins after it.
    pub base: EntryId,
    /// The oldest index still in memory.
    pub tail_first: Index,
    pub last: EntryId,
    /// Durable here up to this index.
    pub saved: Index,
    pub commit: Index,
    /// Handed to the state machine up to this index.
    pub applying: Index,
    /// Run by the state machine up to this index.
    pub applied: Index,
    /// The newest snapshot, of this member or installed from a peer.
    pub snapshot: EntryId,
    /// A snapshot is being installed.
    pub installing: bool,
}

/// How far a leader believes one member to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PeerStatus {
    pub id: MemberId,
    pub learner: bool,
    pub flow: Flow,
    /// Known to hold the leader's log up to here, durably.
    pub matched: Index,
    /// The first index to send next.
    pub next: Index,
    /// Nothing is sent until the peer answers.
    pub paused: bool,
    /// Heard from since the last check of the quorum.
    pub active: bool,
    /// Appends with entries on their way.
    pub inflight: usize,
    pub inflight_full: bool,
}

impl Raft {
    /// Whom this member takes for the leader of its term.
    pub fn leader(&self) -> Option<MemberId> {
        self.leader
    }

    pub fn term(&self) -> Term {
        self.term
    }

    pub fn role(&self) -> RoleKind {
        self.role.kind()
    }

    /// Leads, and has committed an entry of its own term.
    pub fn has_own_commit(&self) -> bool {
        self.role.leader().is_some_and(|leader| self.log.commit >= leader.first_own)
    }

    /// A picture of this member as it is now.
    pub fn status(&self) -> Status {
        let counts = self.membership_known();
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

    /// It refused a vote only because its own log is newer, and has heard of no leader
    /// since: with a membership that counts before it is committed it may stand, voter
    /// or not.
    pub fn holds_newer_log(&self) -> bool {
        self.holds_newer_log
    }

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

/// `m2 leader term=4 last=4.3 commit=3 applied=3 voters=(1 2 3) match=(m1:3 m3:2)`
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
        if let Some(to) = self.transfer {
            write!(f, " transfer={to}")?;
        }
        if let Some(goal) = &self.goal {
            write!(f, " step=\"{}\"", goal.step)?;
            if let Some(why) = goal.held_up {
                write!(f, " held_up=\"{why}\"")?;
            }
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

/// `m3:7`, `m3:7 probe`, `m3:0 snapshot=12`, with `paused` and `silent` where true.
impl fmt::Display for PeerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.id, self.matched)?;
        match self.flow {
            Flow::Replicate => {}
            Flow::Probe => f.write_str(" probe")?,
            Flow::Snapshot(index) => write!(f, " snapshot={index}")?,
        }
        if self.paused && !matches!(self.flow, Flow::Snapshot(_)) {
            f.write_str(" paused")?;
        }
        Ok(())
    }
}
