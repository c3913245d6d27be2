//! One address that local members send to: its queue, and the connection that drains it.
//!
//! A connection is opened when there is something to send. All members share it, with one
//! channel for each pair of members.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use tracing::{Instrument, debug, info, info_span, warn};

use super::counters::TcpCounter;
use super::frame::{Frame, FrameBatch, FrameKind, FrameReadError};
use super::handshake::{
    Dialled, IntroduceHead, Purpose, RUNS_SINCE, Reader, RefusedHead, Writer, dial,
};
use super::incoming::close_gracefully;
use super::message::EmptyHead;
use super::send_queue::{QueuedFrame, RefusalLogLevel, SendQueue};
use super::shared::TcpShared;
use crate::runtime::{Introduction, MemberKey, RejectReason, lock};

/// About how much is written at once.
const BATCH_BYTES: usize = 256 << 10;

/// The link to one address. When the last handle is dropped, it writes what is queued and
/// closes.
pub(crate) struct Link {
    core: Arc<LinkCore>,
}

struct LinkCore {
    address: String,
    queue: Mutex<SendQueue>,
    filled: Notify,
    /// Whether the peer of the present connection understands frames with several messages.
    accepts_runs: AtomicBool,
}

impl Link {
    pub(crate) fn open(shared: &Arc<TcpShared>, address: &str) -> Self {
        let core = Arc::new(LinkCore {
            address: address.to_owned(),
            queue: Mutex::default(),
            filled: Notify::new(),
            accepts_runs: AtomicBool::new(false),
        });
        let link = Self { core: Arc::clone(&core) };
        let task = LinkTask {
            core,
            shared: Arc::clone(shared),
            failures: 0,
            failing_since: None,
            warned: false,
        };
        let span = info_span!(parent: None, "link", %address);
        let _ = shared.spawn(task.run().instrument(span));
        link
    }

    pub(crate) fn address(&self) -> &str {
        &self.core.address
    }

    /// The bytes that wait to be written.
    pub(crate) fn queued_bytes(&self) -> usize {
        lock(&self.core.queue).bytes()
    }

    /// Whether the peer has accepted this pair of members on the present connection.
    pub(crate) fn serves(&self, pair: &Introduction) -> bool {
        lock(&self.core.queue).is_accepted(pair)
    }

    pub(crate) fn accepts_runs(&self) -> bool {
        self.core.accepts_runs.load(Ordering::Relaxed)
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
        if pushed.report {
            shared.unreachable(pair, &self.core.address);
        }
    }

    /// The member no longer sends to this peer; without a peer, the member has stopped.
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
    /// Failed attempts in a row.
    failures: u32,
    /// When the first of them was.
    failing_since: Option<Instant>,
    /// Whether the failure was logged as a warning.
    warned: bool,
}

impl LinkTask {
    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let TcpShared { config, counts, advertise, .. } = &*shared;
        while self.wait_for_work().await {
            let address = &self.core.address;
            match dial(config, counts, address, advertise, Purpose::Messages).await {
                Ok(dialled) => {
                    counts.one(TcpCounter::Connected);
                    info!("connected to peer");
                    let ended = self.run_connection(dialled).await;
                    counts.one(TcpCounter::Disconnected);
                    info!(reason = ended.reason, "disconnected from peer");
                    if ended.accepted {
                        (self.failures, self.failing_since, self.warned) = (0, None, false);
                    } else {
                        self.failures += 1;
                    }
                }
                Err(error) => {
                    counts.one(TcpCounter::ConnectFailed);
                    self.on_connect_failed(&error);
                }
            }
            self.pause().await;
        }
    }

    /// Waits until a frame is queued. False when the link is closed.
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

    /// Tells all members that have frames queued here that the peer is unreachable. A peer
    /// that has not started yet refuses connections: that is ordinary, so it is a warning
    /// only when it lasts.
    fn on_connect_failed(&mut self, error: &str) {
        self.failures += 1;
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        if since.elapsed() < self.shared.config.warn_after {
            debug!(error, failures = self.failures, "cannot connect to peer");
        } else if !self.warned {
            self.warned = true;
            warn!(error, failures = self.failures, "still cannot connect to peer");
        }
        let pairs = {
            let mut queue = lock(&self.core.queue);
            queue.failing = true;
            queue.pairs_to_report(&self.shared.config)
        };
        let address = &self.core.address;
        pairs.into_iter().for_each(|pair| self.shared.unreachable(pair, address));
    }

    /// Backoff before the next attempt, with jitter.
    async fn pause(&self) {
        let config = &self.shared.config;
        let doubled = config.reconnect_min * 2u32.saturating_pow(self.failures.min(16));
        let longest = doubled.min(config.reconnect_max);
        // Jitter: many peers must not reconnect at the same moment.
        let jitter = getrandom::u32().unwrap_or(0);
        let pause = longest / 2 + (longest / 2).mul_f64(f64::from(jitter) / f64::from(u32::MAX));
        sleep(pause).await;
    }

    async fn run_connection(&self, dialled: Dialled) -> ConnectionEnd {
        let Dialled { reader, writer, version } = dialled;
        let accepts_runs = version >= RUNS_SINCE;
        self.core.accepts_runs.store(accepts_runs, Ordering::Relaxed);
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
            accepts_runs,
            batch: FrameBatch::default(),
            channels: BTreeMap::new(),
            pairs: BTreeMap::new(),
            channel_last: 0,
            accepted: false,
            keep_alive_sent_at: None,
        };
        let reason = connection.run().await;
        let accepted = connection.accepted;
        // The next connection may be to another program.
        self.core.accepts_runs.store(false, Ordering::Relaxed);
        // Frames in flight may be lost: the members that sent them have to know.
        let pairs = lock(&self.core.queue).disconnected();
        let address = &self.core.address;
        pairs.into_iter().for_each(|pair| self.shared.unreachable(pair, address));
        ConnectionEnd { reason, accepted }
    }
}

struct ConnectionEnd {
    reason: String,
    /// The peer accepted a channel.
    accepted: bool,
}

/// One connection to a peer process.
struct OutgoingConnection<'a> {
    core: &'a LinkCore,
    shared: &'a TcpShared,
    reader: Reader,
    writer: Writer,
    accepts_runs: bool,
    batch: FrameBatch,
    channels: BTreeMap<Introduction, u32>,
    pairs: BTreeMap<u32, Introduction>,
    /// Channel numbers are not reused, so that late replies cannot be mistaken.
    channel_last: u32,
    /// The peer accepted a channel.
    accepted: bool,
    /// When the keep-alive that has no reply yet was sent.
    keep_alive_sent_at: Option<Instant>,
}

impl OutgoingConnection<'_> {
    /// Runs until the connection ends; returns the reason.
    async fn run(&mut self) -> String {
        let config = &self.shared.config;
        let first = Instant::now() + config.keep_alive_every;
        let mut keep_alive = interval_at(first, config.keep_alive_every);
        keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut received_at = Instant::now();
        let mut taken = Vec::new();
        loop {
            let limit = config.silence_timeout.saturating_sub(received_at.elapsed());
            tokio::select! {
                frame = self.reader.next(limit) => {
                    received_at = Instant::now();
                    if let Err(reason) = self.on_frame(frame) {
                        return reason;
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
                        return "no longer needed".to_owned();
                    }
                    taken.drain(..).for_each(|queued| self.push(&queued));
                    leaving.iter().for_each(|pair| self.leave(pair));
                }
                _ = keep_alive.tick() => {
                    self.batch.push(FrameKind::KeepAlive, 0, &EmptyHead {});
                    self.keep_alive_sent_at = Some(Instant::now());
                }
            }
            if let Err(reason) = self.write().await {
                return reason;
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

    /// Adds a frame to the batch, after an introduction if it is the first of its pair.
    fn push(&mut self, queued: &QueuedFrame) {
        if queued.is_run() && !self.accepts_runs {
            // It was queued for the connection before. Commands in it are sent again, and their replies are not
            // needed once they have run.
            self.shared.counts.one(TcpCounter::DroppedLost);
            return;
        }
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

    fn on_frame(&mut self, frame: Result<Frame, FrameReadError>) -> Result<(), String> {
        let frame = frame.map_err(|why| {
            why.counter().into_iter().for_each(|what| self.shared.counts.one(what));
            why.to_string()
        })?;
        match frame.kind {
            FrameKind::KeepAlive => {
                if let Some(sent_at) = self.keep_alive_sent_at.take() {
                    (self.shared.config.on_round_trip)(&self.core.address, sent_at.elapsed());
                }
            }
            FrameKind::Welcome => {
                self.accepted = true;
                if let Some(pair) = self.pairs.get(&frame.channel) {
                    lock(&self.core.queue).on_accepted(pair);
                }
            }
            FrameKind::Refused => self.on_refused(&frame),
            _ => {
                self.shared.counts.one(TcpCounter::Unexpected);
                return Err("unexpected frame".to_owned());
            }
        }
        Ok(())
    }

    fn on_refused(&mut self, frame: &Frame) {
        let Some(pair) = self.pairs.remove(&frame.channel) else { return };
        self.channels.remove(&pair);
        self.shared.counts.one(TcpCounter::RejectedByPeer);
        let refused: RefusedHead = prost::Message::decode(&frame.head[..]).unwrap_or_default();
        let RefusedHead { reason, text } = refused;
        let Introduction { from: MemberKey { cluster, member }, to, .. } = pair;
        if let Some(reason) = RejectReason::from_code(reason) {
            (self.shared.config.on_rejected)(pair.from, to, reason);
        }
        let cluster = format_args!("{cluster:016x}");
        match lock(&self.core.queue).on_refused(pair, reason, &self.shared.config) {
            RefusalLogLevel::Repeated => {}
            RefusalLogLevel::MayPass => {
                info!(%cluster, %member, peer = %to, reason = text, "peer does not accept messages");
            }
            RefusalLogLevel::Lasting => {
                warn!(%cluster, %member, peer = %to, reason = text, "peer rejects this member");
            }
        }
        self.shared.unreachable(pair, &self.core.address);
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
