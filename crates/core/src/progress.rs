//! A leader's view of one peer: how far its log matches, and how fast to send.

use crate::goals::CatchUpRounds;
use crate::inflight::Inflight;
use crate::pack::{Pack, Reader, Writer, pack_fields};
use crate::{Config, Entries, Index, MemberId, PeerStatus, Stalled};

/// How a leader sends entries to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Flow {
    /// The last matching entry is not known: one append at a time.
    Probe,
    /// The logs match: send ahead of the replies, within the window.
    Replicate,
    /// The leader's log does not reach back far enough: a snapshot up to this index is
    /// being sent, and nothing else.
    Snapshot(Index),
}

impl Pack for Flow {
    fn pack(&self, to: &mut Writer) {
        let snapshot = if let Self::Snapshot(index) = self { Some(*index) } else { None };
        snapshot.pack(to);
        (*self == Self::Replicate).pack(to);
    }

    fn unpack(from: &mut Reader<'_>) -> Self {
        match (Option::unpack(from), bool::unpack(from)) {
            (Some(index), _) => Self::Snapshot(index),
            (None, true) => Self::Replicate,
            (None, false) => Self::Probe,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Progress {
    pub(crate) flow: Flow,
    /// The peer's log matches this member's up to here, durably.
    pub(crate) matched: Index,
    /// The first index to send next. Above `matched`.
    pub(crate) next: Index,
    /// The highest commit index sent that the peer can use.
    sent_commit: Index,
    /// An append is in flight that must be answered before the next one is sent.
    paused: bool,
    /// Has replied since the last quorum check.
    pub(crate) active: bool,
    pub(crate) inflight: Inflight,
}

pack_fields!(Progress { flow, matched, next, sent_commit, paused, active, inflight });

/// What to send to a peer when the output is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) enum AppendNeeded {
    #[default]
    No,
    /// An append if there are entries to send.
    IfEntries,
    /// An append even without entries: it carries a commit index, or probes.
    Always,
}

/// One member as its leader sees it, including the leader itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Peer {
    pub(crate) id: MemberId,
    pub(crate) learner: bool,
    pub(crate) progress: Progress,
    pub(crate) append_needed: AppendNeeded,
    /// Entries for it are being loaded.
    pub(crate) loading: bool,
    /// Entries for it that were loaded while its window was full.
    pub(crate) read_ahead: Option<Box<Entries>>,
    /// How far the peer durably knows the log to be committed.
    pub(crate) committed: Index,
    /// The newest read round it confirmed.
    pub(crate) round: u64,
    /// The leader's clock when it sent the newest answered heartbeat.
    pub(crate) heard_at: u64,
    /// The leader's clock when the peer last replied.
    pub(crate) replied_at: u64,
    /// The leader's clock when the peer's log last grew or was complete.
    pub(crate) grew_at: u64,
    /// How far its state machine has applied the log, as it last reported.
    pub(crate) applied: Index,
    /// Which work stands still, as it last reported.
    pub(crate) stalled: Stalled,
    pub(crate) rounds: CatchUpRounds,
    /// The incarnation of the peer's disk, as it last reported; 0 before that.
    pub(crate) incarnation: u64,
    /// The leader's clock when this view of the peer, and of its disk, began.
    pub(crate) since: u64,
    /// Its log lacks what it confirmed.
    pub(crate) lost: Option<Box<LostLog>>,
}

pack_fields!(Peer { id, learner, progress, committed, round, heard_at, replied_at, grew_at, applied, rounds, incarnation, since } unset { append_needed, loading, read_ahead, stalled, lost });

/// Of a peer whose log lacks what it confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LostLog {
    /// It had confirmed to hold the log up to here.
    pub(crate) confirmed: Index,
    /// The leader's clock when it sent the heartbeat that showed it.
    pub(crate) sent_at: u64,
}

impl Progress {
    pub(crate) fn new(next: Index, active: bool, config: &Config) -> Self {
        Self {
            flow: Flow::Probe,
            matched: 0,
            next,
            sent_commit: 0,
            paused: false,
            active,
            inflight: Inflight::new(config.inflight_messages_max, config.inflight_bytes_max),
        }
    }

    /// Nothing may be sent until the peer replies.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused || matches!(self.flow, Flow::Snapshot(_))
    }

    /// Only an append without entries may be sent.
    pub(crate) fn is_full(&self) -> bool {
        self.flow == Flow::Replicate && self.inflight.is_full()
    }

    pub(crate) fn become_probe(&mut self) {
        // After a snapshot was sent, the entry after it is the best guess.
        let after_snapshot = match self.flow {
            Flow::Snapshot(index) => index + 1,
            _ => 0,
        };
        self.enter(Flow::Probe);
        self.next = after_snapshot.max(self.matched + 1);
        self.sent_commit = self.sent_commit.min(self.next - 1);
    }

    pub(crate) fn become_replicate(&mut self) {
        self.enter(Flow::Replicate);
        self.next = self.matched + 1;
    }

    pub(crate) fn become_snapshot(&mut self, index: Index) {
        self.enter(Flow::Snapshot(index));
        self.next = index + 1;
        self.sent_commit = index;
    }

    /// The snapshot was lost: probe from the last known match, after the next heartbeat.
    pub(crate) fn snapshot_lost(&mut self) {
        self.flow = Flow::Probe;
        self.become_probe();
        self.paused = true;
    }

    /// The snapshot arrived: probe after it, once the peer has replied.
    pub(crate) fn snapshot_sent(&mut self) {
        self.become_probe();
        self.paused = true;
    }

    fn enter(&mut self, flow: Flow) {
        self.flow = flow;
        self.paused = false;
        self.inflight.clear();
    }

    /// An append with this many entries was sent to the peer.
    pub(crate) fn sent(&mut self, entries: u64, bytes: u64, commit: Index) {
        match self.flow {
            Flow::Replicate => {
                if entries > 0 {
                    self.next += entries;
                    self.inflight.add(self.next - 1, bytes);
                }
                // A full window works like a probe: one more append that must be answered,
                // in case all earlier ones were lost.
                self.paused = self.inflight.is_full();
            }
            Flow::Probe => self.paused |= entries > 0,
            Flow::Snapshot(_) => unreachable!("nothing is sent beside a snapshot"),
        }
        self.sent_commit = commit;
    }

    pub(crate) fn set_sent_commit(&mut self, commit: Index) {
        self.sent_commit = commit;
    }

    /// The peer has not been sent this commit index and can use it.
    pub(crate) fn needs_commit(&self, commit: Index) -> bool {
        commit > self.sent_commit && self.sent_commit < self.next - 1
    }

    /// The peer's log matches up to here. False when that was known already.
    pub(crate) fn match_to(&mut self, index: Index) -> bool {
        if index <= self.matched {
            return false;
        }
        self.matched = index;
        self.next = self.next.max(index + 1);
        self.paused = false;
        true
    }

    /// The peer rejected an append after `prev` and hinted where the logs may match. False
    /// when the reply is to an older append.
    pub(crate) fn step_back(&mut self, prev: Index, hint: Index) -> bool {
        if self.flow == Flow::Replicate {
            if prev <= self.matched {
                return false;
            }
            self.next = self.matched + 1;
        } else {
            // Probes are sent one at a time, so the reply must be to the last one. A peer that
            // rejects what it confirmed has lost it, or the reply is old: the next heartbeat
            // tells which, and until then another probe would get the same reply.
            // Shown by scenarios/identity_rolled_back_voter_is_not_counted.txt.
            if self.next - 1 != prev || prev <= self.matched {
                return false;
            }
            self.next = prev.min(hint + 1).max(self.matched + 1);
            self.paused = false;
        }
        self.sent_commit = self.sent_commit.min(self.next - 1);
        true
    }

    /// A heartbeat was answered: appends sent before it have arrived or are lost.
    pub(crate) fn unpause(&mut self) {
        self.paused = false;
    }
}

impl Peer {
    pub(crate) fn new(id: MemberId, learner: bool, progress: Progress, clock: u64) -> Self {
        Self {
            id,
            learner,
            progress,
            append_needed: AppendNeeded::No,
            loading: false,
            read_ahead: None,
            committed: 0,
            round: 0,
            heard_at: 0,
            replied_at: clock,
            grew_at: clock,
            applied: 0,
            stalled: Stalled::NO,
            rounds: CatchUpRounds::default(),
            incarnation: 0,
            since: clock,
            lost: None,
        }
    }

    /// What counts for a quorum.
    pub(crate) fn counted_match(&self) -> Index {
        if self.lost.is_some() { 0 } else { self.progress.matched }
    }
}

impl From<&Peer> for PeerStatus {
    fn from(peer: &Peer) -> Self {
        let progress = &peer.progress;
        Self {
            id: peer.id,
            learner: peer.learner,
            flow: progress.flow,
            matched: progress.matched,
            next: progress.next,
            paused: progress.is_paused(),
            active: progress.active,
            inflight: progress.inflight.count(),
            inflight_full: progress.inflight.is_full(),
            applied: peer.applied,
            stalled: peer.stalled,
            lost: peer.lost.as_ref().map(|lost| lost.confirmed),
        }
    }
}
