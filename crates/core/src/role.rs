//! Follower, candidate and leader, and the state of each.

use crate::goals::RecentLogEnd;
use crate::membership::{GoalStep, Membership, VoterSlots};
use crate::pack::{Pack, Reader, Writer, pack_fields};
use crate::progress::{AppendNeeded, Peer, Progress};
use crate::reads::Reads;
use crate::slow_disk::DiskPace;
use crate::transfer::Transfer;
use crate::{Config, Index, MemberId, RoleKind};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    Follower,
    PreCandidate(Box<Tally>),
    Candidate(Box<Tally>),
    Leader(Box<Leader>),
}

/// A candidate is not idle.
impl Pack for Role {
    fn pack(&self, to: &mut Writer) {
        match self {
            Self::Follower => to.pack_none(),
            Self::Leader(leader) => to.pack_some(&**leader),
            Self::PreCandidate(_) | Self::Candidate(_) => to.fail(),
        }
    }

    fn unpack(from: &mut Reader<'_>) -> Self {
        let leader = Option::<Leader>::unpack(from);
        leader.map_or(Self::Follower, |leader| Self::Leader(Box::new(leader)))
    }
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

/// The replies to a candidate. Only the first reply of each member counts, so a duplicated
/// message cannot vote twice.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Tally(Vec<(MemberId, bool)>);

impl Tally {
    pub(crate) fn record(&mut self, from: MemberId, granted: bool) {
        if let Err(at) = self.0.binary_search_by_key(&from, |(id, _)| *id) {
            self.0.insert(at, (from, granted));
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

/// A leader's state: its peers and its work in progress.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Leader {
    /// All members of the active membership, this one included, sorted by id.
    pub(crate) peers: Vec<Peer>,
    /// The voters of that membership, as positions among them.
    voters: VoterSlots,
    /// The position of this member among them, unless it was removed.
    pub(crate) own: Option<usize>,
    /// The first entry of this term. Only this and later entries are committed by counting
    /// (thesis §3.6.2).
    pub(crate) first_of_term: Index,
    /// A membership change may be in progress up to this index: this leader's newest
    /// change, or the end of the inherited log.
    pub(crate) change_pending: Index,
    /// The due step towards the goal, and since when it is due.
    pub(crate) step: Option<GoalStep>,
    pub(crate) step_since: u64,
    /// Where the log ended recently, to find out which peers keep up.
    pub(crate) recent_log_end: RecentLogEnd,
    /// The successor that was asked last for a goal, and when the next may be asked.
    pub(crate) last_successor: Option<MemberId>,
    pub(crate) hand_over_after: u64,
    pub(crate) transfer: Option<Transfer>,
    /// The clock when this leader began to hand over because it is stalled.
    pub(crate) handing_over_since: Option<u64>,
    /// How fast its disk and those of the others are.
    pub(crate) pace: DiskPace,
    /// A TimeoutNow was sent in this term: another member may win an election without
    /// waiting for the leader lease to end.
    pub(crate) lease_given_up: bool,
    pub(crate) reads: Reads,
    /// Payload bytes in the log that are not committed.
    pub(crate) uncommitted_bytes: u64,
    /// What all peers are to be sent when the output is taken.
    pub(crate) broadcast: AppendNeeded,
    /// Ticks since the election, counted from a value above any lease.
    pub(crate) clock: u64,
    /// The clock at the election.
    pub(crate) elected_at: u64,
    /// The clock when the active membership began to count.
    pub(crate) membership_since: u64,
}

pack_fields!(Leader { peers, voters, own, first_of_term, change_pending, step_since, recent_log_end, last_successor, hand_over_after, pace, lease_given_up, reads, uncommitted_bytes, clock, elected_at, membership_since } unset { step, transfer, handing_over_since, broadcast });

impl Leader {
    pub(crate) fn new(config: &Config, membership: &Membership, last: Index, saved: Index) -> Self {
        let clock = 2 * u64::from(config.election_ticks);
        let members = membership.members();
        let peers = members.iter().map(|id| {
            let mut progress = Progress::new(last + 1, false, config);
            if id == config.id {
                // Only durable entries count, also on the leader. What is being written
                // counts when it is saved.
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
            voters: VoterSlots::new(membership),
            first_of_term: last + 1,
            change_pending: last,
            step: None,
            step_since: 0,
            recent_log_end: RecentLogEnd::new(last),
            last_successor: None,
            hand_over_after: 0,
            transfer: None,
            handing_over_since: None,
            pace: DiskPace::default(),
            lease_given_up: false,
            reads: Reads::default(),
            uncommitted_bytes: 0,
            broadcast: AppendNeeded::No,
            clock,
            elected_at: clock,
            membership_since: clock,
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

    #[inline]
    pub(crate) fn has_pending_appends(&self) -> bool {
        self.broadcast != AppendNeeded::No
            || self.peers.iter().any(|peer| peer.append_needed != AppendNeeded::No)
    }

    /// Ticks have nothing to do but count while the log ends here.
    pub(crate) fn is_at_rest(&self, last: Index) -> bool {
        self.handing_over_since.is_none()
            && self.pace.is_at_rest(last)
            && !self.peers.iter().any(|peer| peer.loading)
    }

    pub(crate) fn free_buffers(&mut self) {
        self.peers.iter_mut().for_each(|peer| peer.progress.inflight.free_buffer());
    }

    /// Ticks since the peer replied, or was added.
    pub(crate) fn silent_ticks(&self, peer: &Peer) -> u64 {
        self.clock.saturating_sub(peer.replied_at)
    }

    /// What a quorum holds durably (thesis §3.6.2).
    #[inline]
    pub(crate) fn quorum_matched(&self) -> Index {
        self.voters.quorum(|slot| self.peers[slot].counted_match())
    }

    /// The same if this member held its log durably up to `last`.
    pub(crate) fn quorum_matched_with_own(&self, last: Index) -> Index {
        let own = self.own;
        self.voters.quorum(|slot| match own {
            Some(own) if own == slot => last,
            _ => self.peers[slot].counted_match(),
        })
    }

    /// A quorum has replied recently.
    pub(crate) fn quorum_active(&self) -> bool {
        self.voters.quorum(|slot| self.peers[slot].progress.active)
    }

    /// Switches to a new active membership. A staying peer keeps its progress; a new one
    /// starts from the end of the log and counts as active until the next quorum check.
    pub(crate) fn follow(&mut self, membership: &Membership, last: Index, config: &Config) {
        self.membership_since = self.clock;
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
        self.voters = VoterSlots::new(membership);
        self.own = self.slot(config.id);
    }
}
