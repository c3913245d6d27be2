//! One address that members here talk to: its queue, and the connection that empties it.
//!
//! There is a connection only while there is something to say. Members share it, each
//! pair of them with a channel of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use tracing::{info, warn};

use super::counters::TcpCounter;
use super::frame::{Frame, FrameBatch, FrameKind};
use super::handshake::{IntroduceHead, Purpose, Reader, RefusedHead, Writer, dial};
use super::incoming::close_gracefully;
use super::message::EmptyHead;
use super::send_queue::{QueuedFrame, SendQueue};
use super::shared::TcpShared;
use crate::runtime::{Introduction, MemberKey, lock};

/// So much is written at once, about.
const BATCH_BYTES: usize = 256 << 10;

/// The way to one address. Closes, when what waits has been written, once nobody holds it.
pub(crate) struct Link {
    core: Arc<LinkCore>,
}

struct LinkCore {
    address: String,
    queue: Mutex<SendQueue>,
    filled: Notify,
}

impl Link {
    pub(crate) fn open(shared: &Arc<TcpShared>, address: &str) -> Self {
        let core = Arc::new(LinkCore {
            address: address.to_owned(),
            queue: Mutex::default(),
            filled: Notify::new(),
        });
        let link = Self { core: Arc::clone(&core) };
        let task = LinkTask { core, shared: Arc::clone(shared), failures: 0 };
        let _ = shared.spawn(task.run());
        link
    }

    pub(crate) fn address(&self) -> &str {
        &self.core.address
    }

    pub(crate) fn send(&self, queued: QueuedFrame, shared: &TcpShared) {
        let pair = queued.pair;
        let pushed = lock(&self.core.queue).push(queued, &shared.config);
        if pushed.wake {
            self.core.filled.notify_one();
        }
        if let Some((what, count)) = pushed.dropped {
            shared.counts.add(what, count);
        }
        if pushed.tell {
            shared.unreachable(pair);
        }
    }

    /// A member does not talk to this peer any more; without one, it is not here any more.
    pub(crate) fn leave(&self, from: MemberKey, to: Option<quorate_core::MemberId>) {
        lock(&self.core.queue).leave(from, to);
        self.core.filled.notify_one();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        lock(&self.core.queue).closed = true;
        self.core.filled.notify_one();
    }
}

struct LinkTask {
    core: Arc<LinkCore>,
    shared: Arc<TcpShared>,
    /// Attempts in a row that led nowhere.
    failures: u32,
}

impl LinkTask {
    async fn run(mut self) {
        let config = &self.shared.config;
        while self.wait_for_work().await {
            let address = &self.core.address;
            let (counts, advertise) = (&self.shared.counts, &self.shared.advertise);
            match dial(config, counts, address, advertise, Purpose::Messages).await {
                Ok((reader, writer)) => {
                    counts.one(TcpCounter::Connected);
                    info!(%address, "connected");
                    let ended = self.converse(reader, writer).await;
                    counts.one(TcpCounter::Disconnected);
                    info!(%address, why = ended.why, "disconnected");
                    self.failures = if ended.heard { 0 } else { self.failures + 1 };
                }
                Err(why) => {
                    counts.one(TcpCounter::ConnectFailed);
                    if self.failures == 0 {
                        warn!(%address, why, "cannot connect");
                    }
                    self.failures += 1;
                    self.fail();
                }
            }
            self.pause().await;
        }
    }

    /// False when there never will be any.
    async fn wait_for_work(&self) -> bool {
        loop {
            {
                let mut queue = lock(&self.core.queue);
                let stale = queue.drop_stale(self.shared.config.stale_after);
                self.shared.counts.add(TcpCounter::DroppedStale, stale);
                if queue.closed && (queue.failing || queue.is_empty()) {
                    return false;
                }
                if !queue.is_empty() {
                    return true;
                }
            }
            self.core.filled.notified().await;
        }
    }

    /// Whoever has something to say is told that it cannot.
    fn fail(&self) {
        let pairs = {
            let mut queue = lock(&self.core.queue);
            queue.failing = true;
            queue.tell_all(&self.shared.config)
        };
        pairs.into_iter().for_each(|pair| self.shared.unreachable(pair));
    }

    async fn pause(&self) {
        let config = &self.shared.config;
        let doubled = config.reconnect_min * 2u32.saturating_pow(self.failures.min(16));
        let longest = doubled.min(config.reconnect_max);
        // Somewhere in the upper half, so that many do not come back at the same moment.
        let chance = getrandom::u32().unwrap_or(0);
        let pause = longest / 2 + (longest / 2).mul_f64(f64::from(chance) / f64::from(u32::MAX));
        sleep(pause).await;
    }

    async fn converse(&self, reader: Reader, writer: Writer) -> ConnectionEnd {
        {
            let mut queue = lock(&self.core.queue);
            let stale = queue.drop_stale(self.shared.config.stale_after);
            self.shared.counts.add(TcpCounter::DroppedStale, stale);
            queue.online = true;
            queue.failing = false;
        }
        let mut connection = OutgoingConnection {
            core: &self.core,
            shared: &self.shared,
            reader,
            writer,
            batch: FrameBatch::default(),
            channels: BTreeMap::new(),
            pairs: BTreeMap::new(),
            channel_last: 0,
            heard: false,
            asked_at: None,
        };
        let why = connection.run().await;
        let heard = connection.heard;
        // What was on its way may be lost: who relied on it has to hear that.
        let pairs = lock(&self.core.queue).disconnected();
        pairs.into_iter().for_each(|pair| self.shared.unreachable(pair));
        ConnectionEnd { why, heard }
    }
}

struct ConnectionEnd {
    why: String,
    /// Somebody was welcome there.
    heard: bool,
}

/// What is message while a connection lasts.
struct OutgoingConnection<'a> {
    core: &'a LinkCore,
    shared: &'a TcpShared,
    reader: Reader,
    writer: Writer,
    batch: FrameBatch,
    channels: BTreeMap<Introduction, u32>,
    pairs: BTreeMap<u32, Introduction>,
    /// Numbers are not used again, so that late answers cannot be mistaken.
    channel_last: u32,
    heard: bool,
    /// When the sign of life that has no answer yet was sent.
    asked_at: Option<Instant>,
}

impl OutgoingConnection<'_> {
    /// Until the connection ends; says why.
    async fn run(&mut self) -> String {
        let config = &self.shared.config;
        let first = Instant::now() + config.keep_alive_every;
        let mut keep_alive = interval_at(first, config.keep_alive_every);
        keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard_at = Instant::now();
        let mut taken = Vec::new();
        loop {
            let limit = config.silence_timeout.saturating_sub(heard_at.elapsed());
            tokio::select! {
                frame = self.reader.next(limit) => {
                    heard_at = Instant::now();
                    if let Err(why) = self.hear(frame) {
                        return why;
                    }
                }
                () = wait_filled(self.core) => {
                    let closes;
                    let leaving = {
                        let mut queue = lock(&self.core.queue);
                        queue.take(BATCH_BYTES, &mut taken);
                        closes = taken.is_empty() && queue.closed;
                        queue.take_leaving()
                    };
                    if closes {
                        close_gracefully(&mut self.reader, &mut self.writer).await;
                        return "not needed any more".to_owned();
                    }
                    taken.drain(..).for_each(|queued| self.say(&queued));
                    leaving.iter().for_each(|pair| self.leave(pair));
                }
                _ = keep_alive.tick() => {
                    self.batch.push(FrameKind::KeepAlive, 0, &EmptyHead {});
                    self.asked_at = Some(Instant::now());
                }
            }
            if let Err(why) = self.write().await {
                return why;
            }
        }
    }

    async fn write(&mut self) -> Result<(), String> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let TcpShared { config, counts, .. } = self.shared;
        let written = self.batch.write_to(&mut self.writer, config.write_timeout, counts).await;
        written.map_err(|why| why.to_string())
    }

    /// Puts it into the batch, after an introduction if it is the first of its pair.
    fn say(&mut self, queued: &QueuedFrame) {
        let pair = queued.pair;
        let channel = match self.channels.get(&pair) {
            Some(channel) => *channel,
            None if self.channels.len() >= self.shared.config.channels_max => {
                self.shared.counts.one(TcpCounter::DroppedFull);
                return;
            }
            None => self.introduce(pair),
        };
        queued.push_to(&mut self.batch, channel);
    }

    fn introduce(&mut self, pair: Introduction) -> u32 {
        self.channel_last += 1;
        let channel = self.channel_last;
        self.channels.insert(pair, channel);
        self.pairs.insert(channel, pair);
        self.batch.push(FrameKind::Introduce, channel, &IntroduceHead::from(pair));
        lock(&self.core.queue).opened(pair);
        channel
    }

    fn leave(&mut self, pair: &Introduction) {
        if let Some(channel) = self.channels.remove(pair) {
            self.pairs.remove(&channel);
            self.batch.push(FrameKind::Leave, channel, &EmptyHead {});
        }
    }

    fn hear(&mut self, frame: Result<Frame, super::frame::ReadError>) -> Result<(), String> {
        let frame = frame.map_err(|why| {
            why.counted().into_iter().for_each(|what| self.shared.counts.one(what));
            why.to_string()
        })?;
        match frame.kind {
            FrameKind::KeepAlive => {
                if let Some(asked_at) = self.asked_at.take() {
                    (self.shared.config.on_round_trip)(&self.core.address, asked_at.elapsed());
                }
            }
            FrameKind::Welcome => {
                self.heard = true;
                if let Some(pair) = self.pairs.get(&frame.channel) {
                    lock(&self.core.queue).welcome(pair);
                }
            }
            FrameKind::Refused => self.on_refused(&frame),
            _ => {
                self.shared.counts.one(TcpCounter::Unexpected);
                return Err("a frame that has no place here".to_owned());
            }
        }
        Ok(())
    }

    fn on_refused(&mut self, frame: &Frame) {
        let Some(pair) = self.pairs.remove(&frame.channel) else { return };
        self.channels.remove(&pair);
        self.shared.counts.one(TcpCounter::RejectedByPeer);
        let refused: RefusedHead = prost::Message::decode(&frame.head[..]).unwrap_or_default();
        let news = lock(&self.core.queue).refuse(pair, &refused.text, &self.shared.config);
        if news {
            let Introduction { from, to, .. } = pair;
            let address = &self.core.address;
            warn!(member = %from, peer = %to, %address, why = refused.text, "peer does not listen");
        }
        self.shared.unreachable(pair);
    }
}

async fn wait_filled(core: &LinkCore) {
    let ready = {
        let queue = lock(&core.queue);
        !queue.is_empty() || queue.closed
    };
    if !ready {
        core.filled.notified().await;
    }
}
