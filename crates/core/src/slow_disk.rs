//! A leader whose disk is much slower than those of the others, but not stalled
//! ([`stall`](crate::stall)): commands and membership changes wait for it, although a quorum
//! of faster disks exists. It hands over.
//!
//! The leader compares, and measures in ticks. For one entry after the other it counts how long
//! its own disk took, and how long until a quorum of others had confirmed it, which includes
//! their network. So a cluster whose disks are all slow, because of the load or of what they
//! share, keeps its leader. State machines are not judged: a client could depose a leader by
//! expensive commands.

use crate::pack::pack_fields;
use crate::progress::Peer;
use crate::role::Leader;
use crate::{Event, Index, MemberId, MemberSet, Raft, Stalled};

/// So many pieces of work in a row must be slow. One hiccup delays what it hits and what waits
/// behind it: two pieces.
const SLOW_IN_A_ROW: u32 = 4;

/// Election timeouts until a leader whose successor did not take over tries again: clients are
/// not served meanwhile.
const PAUSE_TIMEOUTS: u64 = 20;

/// A leader's measurements of its own disk and of the others'.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct DiskPace {
    entry: Option<TimedEntry>,
    /// The newest entry that was timed.
    timed: Index,
    load: Option<TimedLoad>,
    /// How many loads for peers have ended.
    loads_ended: u64,
    /// How long the others took for an entry, at most, of late.
    others_ticks: Option<u64>,
    /// Who was in time for the last entry.
    in_time: MemberSet,
    /// How many of the last pieces of work were slow, without a fast one in between.
    slow: u32,
    /// The clock before which this leader does not hand over.
    not_before: u64,
}

pack_fields!(DiskPace { timed, loads_ended, others_ticks, in_time, slow, not_before } unset { entry, load });

/// An entry, since when it is watched, and how long it took to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct TimedEntry {
    index: Index,
    since: u64,
    own: Option<u64>,
    others: Option<u64>,
}

/// Entries that the disk reads for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct TimedLoad {
    since: u64,
    ended_before: u64,
}

impl DiskPace {
    pub(crate) fn load_ended(&mut self) {
        self.loads_ended += 1;
    }

    pub(crate) fn is_at_rest(&self, last: Index) -> bool {
        self.entry.is_none() && self.timed >= last && self.load.is_none()
    }

    fn judge(&mut self, own: u64, limit: u64) {
        self.slow = if own >= limit { self.slow.saturating_add(1) } else { 0 };
    }
}

impl Raft {
    /// Watches the entries and the loads of a leader. Nothing to do for one without either.
    pub(crate) fn tick_disk_pace(&mut self) {
        if self.config.slow_disk_factor == 0 {
            return;
        }
        self.time_entry();
        self.time_load();
    }

    fn time_entry(&mut self) {
        let (id, last) = (self.config.id, self.log.last().index);
        let patience = u64::from(self.config.election_ticks);
        let Some(leader) = self.role.leader_mut() else { return };
        let clock = leader.clock;
        let pace = &mut leader.pace;
        if pace.entry.is_none() && pace.timed < last {
            pace.timed = last;
            pace.entry = Some(TimedEntry { index: last, since: clock, own: None, others: None });
        }
        let Some(mut entry) = pace.entry else { return };
        let on_quorum = entry.others.is_none() && self.is_on_quorum(entry.index);
        let Some(leader) = self.role.leader_mut() else { return };
        let has = |peer: &Peer| peer.counted_match() >= entry.index;
        let ticks = clock - entry.since;
        if leader.own.is_some_and(|own| has(&leader.peers[own])) {
            entry.own.get_or_insert(ticks);
        }
        if on_quorum {
            entry.others = Some(ticks);
            let in_time = leader.peers.iter().filter(|peer| peer.id != id && has(peer));
            leader.pace.in_time = in_time.map(|peer| peer.id).collect();
        }
        leader.pace.entry = Some(entry);
        // The others are slower, or too few: how much does not matter.
        let others = entry.others.or_else(|| (ticks >= patience).then_some(ticks));
        if let (Some(own), Some(others)) = (entry.own, others) {
            let recent = leader.pace.others_ticks.map_or(others, |before| others.max(before / 2));
            leader.pace.others_ticks = Some(recent);
            leader.pace.entry = None;
            let limit = self.slow_limit_ticks(others);
            self.judge_disk(own, limit);
        }
    }

    /// Whether a quorum has this entry. If this leader's disk is the slowest, it is not part of it;
    /// otherwise it is not slow.
    fn is_on_quorum(&self, index: Index) -> bool {
        let Some(leader) = self.role.leader() else { return false };
        let has = |peer: &Peer| peer.counted_match() >= index;
        self.membership().quorum(|id| leader.peer(id).is_some_and(has))
    }

    /// How fast the others read is not known. It is compared with how fast they write.
    fn time_load(&mut self) {
        let Some(leader) = self.role.leader_mut() else { return };
        let (clock, loading) = (leader.clock, leader.peers.iter().any(|peer| peer.loading));
        if !loading && leader.pace.load.is_none() {
            return;
        }
        let pace = &mut leader.pace;
        let ended = pace.load.take_if(|load| pace.loads_ended > load.ended_before || !loading);
        if loading && pace.load.is_none() {
            pace.load = Some(TimedLoad { since: clock, ended_before: pace.loads_ended });
        }
        let counts = ended.filter(|load| pace.loads_ended > load.ended_before);
        if let (Some(load), Some(others)) = (counts, pace.others_ticks) {
            let limit = self.slow_limit_ticks(others);
            self.judge_disk(clock - load.since, limit);
        }
    }

    fn judge_disk(&mut self, own: u64, limit: u64) {
        if let Some(leader) = self.role.leader_mut() {
            leader.pace.judge(own, limit);
        }
        self.hand_over_if_slow();
    }

    /// From how many ticks on a piece of work is slow, if the others take this many. What takes
    /// less than a quarter of an election timeout is not.
    fn slow_limit_ticks(&self, others: u64) -> u64 {
        let least = u64::from(self.config.election_ticks).div_ceil(4);
        others.saturating_mul(u64::from(self.config.slow_disk_factor)).saturating_add(least)
    }

    /// A slow leader hands over to a voter that was in time. If that one does not take over, it
    /// leads on: it is slow, but it works.
    /// Shown by scenarios/slow_leader_disk_hands_over.txt.
    fn hand_over_if_slow(&mut self) {
        let Some(leader) = self.role.leader() else { return };
        let pace = &leader.pace;
        if pace.slow < SLOW_IN_A_ROW || leader.clock < pace.not_before {
            return;
        }
        let busy = leader.transfer.is_some() || self.stalled().any();
        if busy || !self.membership().is_voter(self.config.id) {
            return;
        }
        let Some(successor) = self.successor_of_slow(leader) else { return };
        let pause = PAUSE_TIMEOUTS * u64::from(self.config.election_ticks);
        let others_ticks = pace.others_ticks.unwrap_or_default();
        if let Some(leader) = self.role.leader_mut() {
            leader.pace.slow = 0;
            leader.pace.not_before = leader.clock + pause;
        }
        self.out.rare().events.push(Event::DiskSlow { others_ticks });
        let _ = self.on_transfer(successor);
    }

    /// The others must have a quorum without this member's disk: otherwise the cluster is as
    /// slow as before, whoever leads.
    fn successor_of_slow(&self, leader: &Leader) -> Option<MemberId> {
        let in_time = |peer: &Peer| leader.pace.in_time.contains(peer.id);
        let successor = self.healthiest_voter(leader, in_time)?;
        let without_own_disk = Stalled { disk: true, machine: false };
        self.quorum_can_vote(leader, without_own_disk).then_some(successor)
    }
}
