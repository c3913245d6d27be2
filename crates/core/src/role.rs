//! Follower, candidate, leader: what each of them knows that the others do not.

use crate::goals::Pace;
use crate::membership::{GoalStep, Membership};
use crate::progress::{Peer, Progress, Wanted};
use crate::reads::Reads;
use crate::transfer::Transfer;
use crate::{Config, Index, MemberId, RoleKind};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    Follower,
    PreCandidate(Tally),
    Candidate(Tally),
    Leader(Box<Leader>),
}

impl Role {
    pub(crate) fn kind(&self) -> RoleKind {
        match self {
            Self::Follower => RoleKind::Follower,
            Self::PreCandidate(_) => RoleKind::PreCandidate,
            Self::Candidate(_) => RoleKind::Candidate,
            Self::Leader(_) => RoleKind::Leader,
        }
    }

    pub(crate) fn is_leader(&self) -> bool {
        matches!(self, Self::Leader(_))
    }

    pub(crate) fn leader(&self) -> Option<&Leader> {
        match self {
            Self::Leader(leader) => Some(leader),
            _ => None,
        }
    }

    pub(crate) fn leader_mut(&mut self) -> Option<&mut Leader> {
        match self {
            Self::Leader(leader) => Some(leader),
            _ => None,
        }
    }

    pub(crate) fn tally(&self) -> Option<&Tally> {
        match self {
            Self::PreCandidate(tally) | Self::Candidate(tally) => Some(tally),
            _ => None,
        }
    }

    pub(crate) fn tally_mut(&mut self) -> Option<&mut Tally> {
        match self {
            Self::PreCandidate(tally) | Self::Candidate(tally) => Some(tally),
            _ => None,
        }
    }
}

/// Who answered a candidate, and how. Only the first answer of each counts, so a
/// message that arrives twice cannot vote twice.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Tally(Vec<(MemberId, bool)>);

impl Tally {
    pub(crate) fn record(&mut self, from: MemberId, granted: bool) {
        match self.0.binary_search_by_key(&from, |(id, _)| *id) {
            Err(at) => self.0.insert(at, (from, granted)),
            Ok(_) => {}
        }
    }

    pub(crate) fn reply(&self, from: MemberId) -> Option<bool> {
        let at = self.0.binary_search_by_key(&from, |(id, _)| *id).ok()?;
        self.0.get(at).map(|(_, granted)| *granted)
    }

    pub(crate) fn replies(&self) -> impl Iterator<Item = (MemberId, bool)> + '_ {
        self.0.iter().copied()
    }
}

/// What a leader knows of its members and its duties.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Leader {
    /// Everybody in the membership that counts, itself included, sorted by id.
    pub(crate) peers: Vec<Peer>,
    /// Its own place among them, unless it was removed.
    pub(crate) own: Option<usize>,
    /// The entry that opened this term. Only from here on does counting commit.
    pub(crate) first_own: Index,
    /// No membership change after this index is known to be possible: the newest
    /// change of its own, or the end of what it inherited.
    pub(crate) change_pending: Index,
    /// The step towards the goal that is due, and since when.
    pub(crate) step: Option<GoalStep>,
    pub(crate) step_since: u64,
    /// Where the log ended lately, to see who keeps pace.
    pub(crate) pace: Pace,
    /// Whom it asked to take over for a goal, and when it may ask again.
    pub(crate) heir_tried: Option<MemberId>,
    pub(crate) hand_over_after: u64,
    pub(crate) transfer: Option<Transfer>,
    /// A TimeoutNow has left in this term: somebody may win an election without
    /// waiting for the leader lease to end.
    pub(crate) lease_given_up: bool,
    pub(crate) reads: Reads,
    /// Payload bytes in the log that are not committed.
    pub(crate) uncommitted_bytes: u64,
    /// What everybody is to be sent when the output is taken.
    pub(crate) broadcast: Wanted,
    /// Ticks since it won, counted from above any lease.
    pub(crate) clock: u64,
    /// The clock when it won.
    pub(crate) begun_at: u64,
    /// The clock when the membership that counts began to.
    pub(crate) followed_at: u64,
}

impl Leader {
    pub(crate) fn new(config: &Config, membership: &Membership, last: Index, saved: Index) -> Self {
        let clock = 2 * u64::from(config.election_ticks);
        let members = membership.members();
        let peers = members.iter().map(|id| {
            let mut progress = Progress::new(last + 1, false, config);
            if id == config.id {
                // Only what is durable counts, here as everywhere. What is still
                // being written counts when it is.
                progress.matched = saved;
                progress.become_replicate();
                progress.next = last + 1;
                progress.active = true;
            }
            Peer::new(id, membership.is_learner(id), progress, clock)
        });
        let peers: Vec<Peer> = peers.collect();
        Self {
            own: peers.iter().position(|peer| peer.id == config.id),
            peers,
            first_own: last + 1,
            change_pending: last,
            step: None,
            step_since: 0,
            pace: Pace::new(last),
            heir_tried: None,
            hand_over_after: 0,
            transfer: None,
            lease_given_up: false,
            reads: Reads::default(),
            uncommitted_bytes: 0,
            broadcast: Wanted::Nothing,
            clock,
            begun_at: clock,
            followed_at: clock,
        }
    }

    pub(crate) fn slot(&self, id: MemberId) -> Option<usize> {
        self.peers.iter().position(|peer| peer.id == id)
    }

    pub(crate) fn peer(&self, id: MemberId) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.id == id)
    }

    pub(crate) fn peer_mut(&mut self, id: MemberId) -> Option<&mut Peer> {
        self.peers.iter_mut().find(|peer| peer.id == id)
    }

    /// What a quorum holds durably.
    pub(crate) fn quorum_matched(&self, membership: &Membership) -> Index {
        membership.quorum(|id| self.peer(id).map_or(0, |peer| peer.progress.matched))
    }

    /// A quorum was heard from lately.
    pub(crate) fn quorum_active(&self, membership: &Membership) -> bool {
        let active = |id| self.peer(id).is_some_and(|peer| peer.progress.active);
        membership.quorum(active)
    }

    /// Follows a membership that counts from now on. Who stays keeps its progress;
    /// who comes starts from the end of the log and counts as heard from, so that
    /// the next check of the quorum gives it time.
    pub(crate) fn follow(&mut self, membership: &Membership, last: Index, config: &Config) {
        self.followed_at = self.clock;
        let members = membership.members();
        self.peers.retain(|peer| members.contains(peer.id));
        for id in members.iter() {
            let learner = membership.is_learner(id);
            match self.peers.binary_search_by_key(&id, |peer| peer.id) {
                Ok(at) => self.peers[at].learner = learner,
                Err(at) => {
                    let progress = Progress::new(last.max(1), true, config);
                    self.peers.insert(at, Peer::new(id, learner, progress, self.clock));
                }
            }
        }
        self.own = self.slot(config.id);
    }
}
