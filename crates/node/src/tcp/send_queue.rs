//! The frames that wait to be written to one address: bounded, and fair between members.
//!
//! Nothing here blocks. A frame that finds no room is dropped, and the caller is told, so
//! that the member learns that the peer is unreachable.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::config::TcpConfig;
use super::counters::TcpCounter;
use super::frame::{FrameBatch, FrameBody, FrameKind, HEADER_BYTES};
#[cfg(doc)]
use super::handshake::RUNS_SINCE;
use super::message::{EmptyHead, MessageHead};
use crate::runtime::{Introduction, MemberKey, RejectReason};

/// A frame to be sent on the channel of this pair of members.
#[derive(Clone)]
pub(crate) struct QueuedFrame {
    pub(crate) pair: Introduction,
    content: FrameContent,
    at: Instant,
}

#[derive(Clone)]
enum FrameContent {
    Message(Box<MessageHead>, Option<FrameBody>),
    SideMessage(FrameBody),
}

/// Without the body; near enough for a bound.
const HEAD_BYTES: usize = HEADER_BYTES + 64;

impl QueuedFrame {
    pub(crate) fn message(
        pair: Introduction,
        head: MessageHead,
        body: Option<FrameBody>,
        at: Instant,
    ) -> Self {
        Self { pair, content: FrameContent::Message(Box::new(head), body), at }
    }

    pub(crate) fn side_message(pair: Introduction, body: FrameBody, at: Instant) -> Self {
        Self { pair, content: FrameContent::SideMessage(body), at }
    }

    /// Whether only a peer that speaks [`RUNS_SINCE`] understands it.
    pub(crate) fn is_run(&self) -> bool {
        matches!(&self.content, FrameContent::Message(head, _) if head.is_run())
    }

    pub(crate) fn bytes(&self) -> usize {
        let body = match &self.content {
            FrameContent::Message(_, body) => body.as_ref(),
            FrameContent::SideMessage(body) => Some(body),
        };
        HEAD_BYTES + body.map_or(0, |body| body.bytes.len())
    }

    pub(crate) fn push_to(&self, batch: &mut FrameBatch, channel: u32) {
        match &self.content {
            FrameContent::Message(head, body) => {
                batch.push_with_body(FrameKind::Message, channel, &**head, body.as_ref());
            }
            FrameContent::SideMessage(body) => {
                batch.push_with_body(FrameKind::SideMessage, channel, &EmptyHead {}, Some(body));
            }
        }
    }
}

/// The queue of one address, with the state of each pair of members that uses it.
#[derive(Default)]
pub(crate) struct SendQueue {
    waiting: VecDeque<QueuedFrame>,
    bytes: usize,
    shares: BTreeMap<Introduction, QueueShare>,
    /// Pairs that the peer refused, until their backoff has passed.
    refused: BTreeMap<Introduction, PairRefusal>,
    /// When members were last told that a peer is unreachable.
    reported: BTreeMap<Introduction, Instant>,
    /// Pairs with a channel, those of them that the peer accepted, and pairs whose channel is to
    /// be closed.
    open: BTreeSet<Introduction>,
    accepted: BTreeSet<Introduction>,
    leaving: Vec<Introduction>,
    pub(crate) online: bool,
    /// The last attempt to connect failed.
    pub(crate) failing: bool,
    pub(crate) closed: bool,
}

#[derive(Clone, Copy, Default)]
struct QueueShare {
    frames: usize,
    bytes: usize,
}

struct PairRefusal {
    /// As in the frame.
    reason: u32,
    since: Instant,
    until: Instant,
    backoff: Duration,
    warned: bool,
}

/// At which level a refusal is logged, if at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalLogLevel {
    /// It was logged before.
    Repeated,
    /// New, and it may pass by itself: the peer may have yet to start.
    MayPass,
    /// It needs an operator, or has lasted too long.
    Lasting,
}

/// The result of [`SendQueue::push`].
#[derive(Default)]
pub(crate) struct PushResult {
    /// How many frames were dropped, and the counter for them.
    pub(crate) dropped: Option<(TcpCounter, u64)>,
    /// Tell the member that the peer is unreachable.
    pub(crate) report: bool,
    /// Wake the link's task.
    pub(crate) wake: bool,
}

impl SendQueue {
    pub(crate) fn push(&mut self, queued: QueuedFrame, config: &TcpConfig) -> PushResult {
        let pair = queued.pair;
        let dropped = self.enqueue(queued, config);
        let lost = dropped.is_some() || self.failing;
        PushResult {
            dropped,
            report: lost && self.may_report(pair, config),
            wake: dropped.is_none(),
        }
    }

    fn enqueue(&mut self, queued: QueuedFrame, config: &TcpConfig) -> Option<(TcpCounter, u64)> {
        if self.closed {
            return Some((TcpCounter::DroppedLost, 1));
        }
        if self.is_refused(&queued.pair, queued.at) {
            return Some((TcpCounter::DroppedRefused, 1));
        }
        if self.online {
            if !self.has_room(&queued, config) {
                return Some((TcpCounter::DroppedFull, 1));
            }
            self.add(queued);
            return None;
        }
        // Newer frames matter more than older ones.
        let mut dropped = 0;
        self.add(queued);
        while self.waiting.len() > config.offline_frames_max.max(1)
            || (self.bytes > config.queue_bytes_max && self.waiting.len() > 1)
        {
            self.pop();
            dropped += 1;
        }
        (dropped > 0).then_some((TcpCounter::DroppedStale, dropped))
    }

    /// One pair may use as much as is still free: half of the queue when it is alone, and
    /// there is always room left for the next pair.
    fn has_room(&self, queued: &QueuedFrame, config: &TcpConfig) -> bool {
        let share = self.shares.get(&queued.pair).copied().unwrap_or_default();
        let frames_free = config.queue_frames_max.saturating_sub(self.waiting.len());
        let bytes_free = config.queue_bytes_max.saturating_sub(self.bytes);
        let fits = share.bytes.saturating_add(queued.bytes()) <= bytes_free;
        share.frames < frames_free && (fits || self.waiting.is_empty())
    }

    fn add(&mut self, queued: QueuedFrame) {
        let share = self.shares.entry(queued.pair).or_default();
        let bytes = queued.bytes();
        share.frames += 1;
        share.bytes += bytes;
        self.bytes += bytes;
        self.waiting.push_back(queued);
    }

    fn pop(&mut self) -> Option<QueuedFrame> {
        let queued = self.waiting.pop_front()?;
        let bytes = queued.bytes();
        self.bytes -= bytes;
        if let Some(share) = self.shares.get_mut(&queued.pair) {
            share.frames -= 1;
            share.bytes -= bytes;
            if share.frames == 0 {
                self.shares.remove(&queued.pair);
            }
        }
        Some(queued)
    }

    /// At most `TcpConfig::queue_bytes_max`, or one frame.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.leaving.is_empty()
    }

    /// Takes the next frames, until they have this many bytes.
    pub(crate) fn take(&mut self, bytes_max: usize, into: &mut Vec<QueuedFrame>) {
        let mut bytes = 0;
        while bytes < bytes_max {
            let Some(queued) = self.pop() else { return };
            bytes += queued.bytes();
            into.push(queued);
        }
    }

    /// Drops frames that have waited too long for a connection.
    pub(crate) fn drop_stale(&mut self, stale_after: Duration) -> u64 {
        let mut dropped = 0;
        while self.waiting.front().is_some_and(|queued| queued.at.elapsed() > stale_after) {
            self.pop();
            dropped += 1;
        }
        dropped
    }

    /// All pairs with queued frames whose members have not been told lately.
    pub(crate) fn pairs_to_report(&mut self, config: &TcpConfig) -> Vec<Introduction> {
        let pairs: Vec<_> = self.shares.keys().copied().collect();
        pairs.into_iter().filter(|pair| self.may_report(*pair, config)).collect()
    }

    pub(crate) fn may_report(&mut self, pair: Introduction, config: &TcpConfig) -> bool {
        let now = Instant::now();
        let last = self.reported.get(&pair);
        if last.is_some_and(|last| now.duration_since(*last) < config.unreachable_every) {
            return false;
        }
        self.reported.insert(pair, now);
        true
    }

    fn is_refused(&self, pair: &Introduction, now: Instant) -> bool {
        self.refused.get(pair).is_some_and(|refusal| now < refusal.until)
    }

    /// The peer refused this pair, for the reason that its frame names by number. Its frames
    /// are dropped until the backoff has passed. Reasons of a later version are unknown here,
    /// and treated as lasting.
    pub(crate) fn on_refused(
        &mut self,
        pair: Introduction,
        reason: u32,
        config: &TcpConfig,
    ) -> RefusalLogLevel {
        self.open.remove(&pair);
        self.accepted.remove(&pair);
        let now = Instant::now();
        let before = self.refused.get(&pair).filter(|before| before.reason == reason);
        let may_pass = RejectReason::from_code(reason).is_some_and(RejectReason::may_pass);
        let backoff =
            self.refused.get(&pair).map_or(config.refused_min, |before| before.backoff * 2);
        let max =
            if may_pass { MAY_PASS_BACKOFFS * config.refused_min } else { config.refused_max };
        let backoff = backoff.min(max);
        let since = before.map_or(now, |before| before.since);
        let lasts = !may_pass || now.duration_since(since) >= config.warn_after;
        let level = match before {
            Some(before) if before.warned || !lasts => RefusalLogLevel::Repeated,
            None if !lasts => RefusalLogLevel::MayPass,
            _ => RefusalLogLevel::Lasting,
        };
        let until = now + backoff;
        self.refused.insert(pair, PairRefusal { reason, since, until, backoff, warned: lasts });
        level
    }

    /// The peer accepted this pair.
    pub(crate) fn on_accepted(&mut self, pair: &Introduction) {
        self.refused.remove(pair);
        if self.open.contains(pair) {
            self.accepted.insert(*pair);
        }
    }

    /// Whether the peer has accepted this pair on the present connection.
    pub(crate) fn is_accepted(&self, pair: &Introduction) -> bool {
        self.accepted.contains(pair)
    }

    /// The member no longer sends to this peer; without a peer, the member has stopped.
    pub(crate) fn leave(&mut self, from: MemberKey, to: Option<quorate_core::MemberId>) {
        let leaves = |pair: &Introduction| pair.from == from && to.is_none_or(|to| pair.to == to);
        self.refused.retain(|pair, _| !leaves(pair));
        self.reported.retain(|pair, _| !leaves(pair));
        self.leaving.extend(self.open.iter().filter(|pair| leaves(pair)));
        self.open.retain(|pair| !leaves(pair));
        self.accepted.retain(|pair| !leaves(pair));
    }

    pub(crate) fn opened(&mut self, pair: Introduction) {
        self.open.insert(pair);
    }

    /// The connection is closed, and with it all channels. Returns the pairs that had one.
    pub(crate) fn disconnected(&mut self) -> BTreeSet<Introduction> {
        self.online = false;
        self.leaving.clear();
        self.accepted.clear();
        std::mem::take(&mut self.open)
    }

    pub(crate) fn take_leaving(&mut self) -> Vec<Introduction> {
        std::mem::take(&mut self.leaving)
    }
}

/// The longest backoff of a refusal that may pass, in units of the first one.
const MAY_PASS_BACKOFFS: u32 = 5;
