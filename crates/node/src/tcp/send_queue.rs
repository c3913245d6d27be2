//! What waits to be written to one address: bounded, and fair between members.
//!
//! EmptyHead here waits. What finds no place is dropped, and the advertised_peer told, so that the
//! member can be.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::config::TcpConfig;
use super::counters::TcpCounter;
use super::frame::{FrameBatch, FrameBody, FrameKind, HEADER_BYTES};
use super::message::{EmptyHead, MessageHead};
use crate::runtime::{Introduction, MemberKey, RejectReason};

/// Something to be sent on the channel of this pair of members.
pub(crate) struct QueuedFrame {
    pub(crate) pair: Introduction,
    content: FrameContent,
    at: Instant,
}

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

/// The queue of one address, with what is known about who may use it.
#[derive(Default)]
pub(crate) struct SendQueue {
    waiting: VecDeque<QueuedFrame>,
    bytes: usize,
    shares: BTreeMap<Introduction, QueueShare>,
    /// Pairs that the other side does not want to hear from for now.
    refused: BTreeMap<Introduction, PairRefusal>,
    /// When members were last told that a peer is unreachable.
    told: BTreeMap<Introduction, Instant>,
    /// Pairs that have a channel, and those whose channel is to be closed.
    open: BTreeSet<Introduction>,
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
    reason: String,
    until: Instant,
    pause: Duration,
}

/// What became of something that was to be queued.
#[derive(Default)]
pub(crate) struct PushResult {
    /// What was dropped, if anything, as what to count it.
    pub(crate) dropped: Option<(TcpCounter, u64)>,
    /// Say that the peer is unreachable.
    pub(crate) tell: bool,
    /// Somebody may sleep for lack of work.
    pub(crate) wake: bool,
}

impl SendQueue {
    pub(crate) fn push(&mut self, queued: QueuedFrame, config: &TcpConfig) -> PushResult {
        let pair = queued.pair;
        let dropped = self.place(queued, config);
        let lost = dropped.is_some() || self.failing;
        PushResult { dropped, tell: lost && self.may_tell(pair, config), wake: dropped.is_none() }
    }

    fn place(&mut self, queued: QueuedFrame, config: &TcpConfig) -> Option<(TcpCounter, u64)> {
        if self.closed {
            return Some((TcpCounter::DroppedLost, 1));
        }
        if self.is_refused(&queued.pair, queued.at) {
            return Some((TcpCounter::DroppedRefused, 1));
        }
        if self.online {
            if !self.has_place(&queued, config) {
                return Some((TcpCounter::DroppedFull, 1));
            }
            self.add(queued);
            return None;
        }
        // What is newer says more than what is older.
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

    /// One pair gets at most what is still free: alone half of everything, and there is
    /// always something left for the next.
    fn has_place(&self, queued: &QueuedFrame, config: &TcpConfig) -> bool {
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

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.leaving.is_empty()
    }

    /// The next ones, until so many bytes are in hand.
    pub(crate) fn take(&mut self, bytes_max: usize, into: &mut Vec<QueuedFrame>) {
        let mut bytes = 0;
        while bytes < bytes_max {
            let Some(queued) = self.pop() else { return };
            bytes += queued.bytes();
            into.push(queued);
        }
    }

    /// Drops what has waited too long for a connection.
    pub(crate) fn drop_stale(&mut self, stale_after: Duration) -> u64 {
        let mut dropped = 0;
        while self.waiting.front().is_some_and(|queued| queued.at.elapsed() > stale_after) {
            self.pop();
            dropped += 1;
        }
        dropped
    }

    /// Everybody who waits here and has not been told lately.
    pub(crate) fn tell_all(&mut self, config: &TcpConfig) -> Vec<Introduction> {
        let pairs: Vec<_> = self.shares.keys().copied().collect();
        pairs.into_iter().filter(|pair| self.may_tell(*pair, config)).collect()
    }

    pub(crate) fn may_tell(&mut self, pair: Introduction, config: &TcpConfig) -> bool {
        let now = Instant::now();
        let told = self.told.get(&pair);
        if told.is_some_and(|told| now.duration_since(*told) < config.unreachable_every) {
            return false;
        }
        self.told.insert(pair, now);
        true
    }

    fn is_refused(&self, pair: &Introduction, now: Instant) -> bool {
        self.refused.get(pair).is_some_and(|refusal| now < refusal.until)
    }

    /// The other side does not listen to this pair for now. True when that is news.
    pub(crate) fn refuse(&mut self, pair: Introduction, reason: &str, config: &TcpConfig) -> bool {
        self.open.remove(&pair);
        let before = self.refused.get(&pair);
        let news = before.is_none_or(|before| before.reason != reason);
        let pause = before.map_or(config.refused_min, |before| before.pause * 2);
        // One that does not live there may be on its way; the others have to be added anew.
        let passes = [RejectReason::ForeignCluster, RejectReason::OtherMember];
        let passes = passes.iter().any(|why| why.to_string() == reason);
        let max = if passes { PASSING_REFUSALS * config.refused_min } else { config.refused_max };
        let pause = pause.min(max);
        let until = Instant::now() + pause;
        self.refused.insert(pair, PairRefusal { reason: reason.to_owned(), until, pause });
        news
    }

    /// The other side listens to this pair.
    pub(crate) fn welcome(&mut self, pair: &Introduction) {
        self.refused.remove(pair);
    }

    /// A member does not talk to a peer any more; or, without one, is not here any more.
    pub(crate) fn leave(&mut self, from: MemberKey, to: Option<quorate_core::MemberId>) {
        let leaves = |pair: &Introduction| pair.from == from && to.is_none_or(|to| pair.to == to);
        self.refused.retain(|pair, _| !leaves(pair));
        self.told.retain(|pair, _| !leaves(pair));
        self.leaving.extend(self.open.iter().filter(|pair| leaves(pair)));
        self.open.retain(|pair| !leaves(pair));
    }

    pub(crate) fn opened(&mut self, pair: Introduction) {
        self.open.insert(pair);
    }

    /// There is no connection any more, and no channel. Says who had one.
    pub(crate) fn disconnected(&mut self) -> BTreeSet<Introduction> {
        self.online = false;
        self.leaving.clear();
        std::mem::take(&mut self.open)
    }

    pub(crate) fn take_leaving(&mut self) -> Vec<Introduction> {
        std::mem::take(&mut self.leaving)
    }
}

/// How often the first pause is waited at most for a member that may still come.
const PASSING_REFUSALS: u32 = 5;
