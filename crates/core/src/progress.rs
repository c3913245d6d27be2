//! A leader's view of one peer: how far it is, and how fast to send.

use crate::goals::Rounds;
use crate::inflight::Inflight;
use crate::{Config, Index, MemberId, PeerStatus};

/// How entries flow to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Flow {
    /// Where the logs meet is not known: one append at a time.
    Probe,
    /// The logs meet: send ahead of the answers, within the window.
    Replicate,
    /// The log does not reach back far enough: a snapshot up to this index is on
    /// its way, and nothing else is sent.
    Snapshot(Index),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Progress {
    pub(crate) flow: Flow,
    /// Known to be equal to ours up to here, durably.
    pub(crate) matched: Index,
    /// The first index to send next. Above `matched`.
    pub(crate) next: Index,
    /// The highest commit index told, as far as it can have been understood.
    told_commit: Index,
    /// An append that must be answered before the next one is out.
    paused: bool,
    /// Heard from since the quorum was last checked.
    pub(crate) active: bool,
    pub(crate) inflight: Inflight,
}

/// What to send to a peer when the output is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Wanted {
    Nothing,
    /// An append if there are entries for it.
    Entries,
    /// An append in any case: it tells a commit index, or probes.
    Append,
}

/// One member as its leader sees it. The leader itself is one of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Peer {
    pub(crate) id: MemberId,
    pub(crate) learner: bool,
    pub(crate) progress: Progress,
    pub(crate) wanted: Wanted,
    /// Entries for it are being loaded.
    pub(crate) loading: bool,
    /// How far it durably knows the log to be committed.
    pub(crate) committed: Index,
    /// The newest read round it confirmed.
    pub(crate) round: u64,
    /// The leader's clock when it sent the newest heartbeat that was answered.
    pub(crate) heard_at: u64,
    /// The leader's clock when it last had an answer of any kind.
    pub(crate) answered_at: u64,
    pub(crate) rounds: Rounds,
    /// The disk behind it, as it last said; 0 before that.
    pub(crate) incarnation: u64,
}

impl Progress {
    pub(crate) fn new(next: Index, active: bool, config: &Config) -> Self {
        Self {
            flow: Flow::Probe,
            matched: 0,
            next,
            told_commit: 0,
            paused: false,
            active,
            inflight: Inflight::new(config.inflight_messages_max, config.inflight_bytes_max),
        }
    }

    /// Nothing may be sent until the peer answers.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused || matches!(self.flow, Flow::Snapshot(_))
    }

    /// Only an append without entries may be sent.
    pub(crate) fn is_full(&self) -> bool {
        self.flow == Flow::Replicate && self.inflight.is_full()
    }

    pub(crate) fn become_probe(&mut self) {
        // After a snapshot was sent, what follows it is the best guess.
        let after_snapshot = match self.flow {
            Flow::Snapshot(index) => index + 1,
            _ => 0,
        };
        self.enter(Flow::Probe);
        self.next = after_snapshot.max(self.matched + 1);
        self.told_commit = self.told_commit.min(self.next - 1);
    }

    pub(crate) fn become_replicate(&mut self) {
        self.enter(Flow::Replicate);
        self.next = self.matched + 1;
    }

    pub(crate) fn become_snapshot(&mut self, index: Index) {
        self.enter(Flow::Snapshot(index));
        self.next = index + 1;
        self.told_commit = index;
    }

    /// The snapshot never arrived: probe from where the peer is known to be, after
    /// a while.
    pub(crate) fn snapshot_lost(&mut self) {
        self.flow = Flow::Probe;
        self.become_probe();
        self.paused = true;
    }

    /// The snapshot arrived: probe behind it, once the peer has said so.
    pub(crate) fn snapshot_sent(&mut self) {
        self.become_probe();
        self.paused = true;
    }

    fn enter(&mut self, flow: Flow) {
        self.flow = flow;
        self.paused = false;
        self.inflight.clear();
    }

    /// An append with this many entries left for the peer.
    pub(crate) fn sent(&mut self, entries: u64, bytes: u64, commit: Index) {
        match self.flow {
            Flow::Replicate => {
                if entries > 0 {
                    self.next += entries;
                    self.inflight.add(self.next - 1, bytes);
                }
                // A full window is like a probe: one more append, to be answered,
                // in case everything before it was lost.
                self.paused = self.inflight.is_full();
            }
            Flow::Probe => self.paused |= entries > 0,
            Flow::Snapshot(_) => unreachable!("nothing is sent beside a snapshot"),
        }
        self.told_commit = commit;
    }

    pub(crate) fn told_commit(&mut self, commit: Index) {
        self.told_commit = commit;
    }

    /// Telling this commit index would be news to the peer.
    pub(crate) fn wants_commit(&self, commit: Index) -> bool {
        commit > self.told_commit && self.told_commit < self.next - 1
    }

    /// The peer's log equals ours up to here. False when that was known.
    pub(crate) fn match_to(&mut self, index: Index) -> bool {
        if index <= self.matched {
            return false;
        }
        self.matched = index;
        self.next = self.next.max(index + 1);
        self.paused = false;
        true
    }

    /// The peer refused an append after `prev` and hinted where the logs may meet.
    /// False when the refusal answers something older.
    pub(crate) fn step_back(&mut self, prev: Index, hint: Index) -> bool {
        if self.flow == Flow::Replicate {
            if prev <= self.matched {
                return false;
            }
            self.next = self.matched + 1;
        } else {
            // Probes go out one at a time, so the answer must be to the last one.
            if self.next - 1 != prev {
                return false;
            }
            self.next = prev.min(hint + 1).max(self.matched + 1);
            self.paused = false;
        }
        self.told_commit = self.told_commit.min(self.next - 1);
        true
    }

    /// A heartbeat was answered: whatever was out has had its time.
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
            wanted: Wanted::Nothing,
            loading: false,
            committed: 0,
            round: 0,
            heard_at: 0,
            answered_at: clock,
            rounds: Rounds::default(),
            incarnation: 0,
        }
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
        }
    }
}
