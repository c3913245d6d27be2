//! Incoming connections: which members are accepted, and what is received from them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::connections::{ConnectionSlot, IncomingConnections, PendingRejections};
use super::counters::TcpCounter;
use super::discovery;
use super::frame::{Frame, FrameBatch, FrameKind, FrameReadError, FrameReader, NO_TIMEOUT};
use super::handshake::{
    HELLO_BYTES_MAX, HandshakeError, IntroduceHead, PeerHello, Purpose, Reader, RefusedHead,
    Writer, answer_hello,
};
use super::message::{EmptyHead, MessageHead};
use super::port_budget::FrameBytes;
use super::security::{PeerIdentity, SecuredPeer};
use super::shared::TcpShared;
use super::snapshot_receive;
use crate::runtime::{HeldBytes, Inbox, Introduction, MemberKey, PeerMessage, RejectReason, lock};

/// Pause after the system could not accept: it may lack file descriptors for a moment.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections.
pub(crate) async fn listen(shared: Arc<TcpShared>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                shared.counts.one(TcpCounter::Accepted);
                IncomingConnections::accept(&shared, stream);
            }
            Err(why) => {
                shared.counts.one(TcpCounter::AcceptFailed);
                warn!(error = %why, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one connection until it ends.
pub(crate) async fn serve(stream: TcpStream, slot: ConnectionSlot, evicted: oneshot::Receiver<()>) {
    let shared = Arc::clone(&slot.shared);
    let Some(inbox) = shared.inbox.get() else { return };
    let identify = timeout(shared.config.handshake_timeout, identify(stream, &slot, inbox));
    let identified = tokio::select! {
        // Its place is needed.
        _ = evicted => return,
        identified = identify => identified,
    };
    let ended = match identified {
        Err(_) => Err(Disconnect::TcpCounter(TcpCounter::HandshakeTimeout)),
        Ok(Err(disconnect)) => Err(disconnect),
        Ok(Ok((mut connection, rejections))) => {
            let ended = connection.run(&rejections).await;
            connection.on_closed();
            ended
        }
    };
    if let Err(Disconnect::TcpCounter(what)) = ended {
        shared.counts.one(what);
    }
}

/// Why a connection ends.
pub(crate) enum Disconnect {
    /// With this counter.
    TcpCounter(TcpCounter),
    /// The peer closed it, or it broke, or it has been counted already.
    Lost,
}

impl From<FrameReadError> for Disconnect {
    fn from(why: FrameReadError) -> Self {
        why.counter().map_or(Self::Lost, Self::TcpCounter)
    }
}

/// Reads the hello and introductions, until a member is accepted.
async fn identify<'a>(
    stream: TcpStream,
    slot: &'a ConnectionSlot,
    inbox: &'a Inbox,
) -> Result<(IncomingConnection<'a>, Arc<PendingRejections>), Disconnect> {
    let shared = &*slot.shared;
    let _ = stream.set_nodelay(true);
    let secured = shared.config.security.accept(stream).await;
    let SecuredPeer { stream, identity } =
        secured.map_err(|_| Disconnect::TcpCounter(TcpCounter::NotSecured))?;
    let (reader, mut writer) = tokio::io::split(stream);
    let mut reader = FrameReader::new(reader, HELLO_BYTES_MAX);
    let hello = answer_hello(&mut reader, &mut writer, &shared.counts).await;
    let hello = match hello {
        Ok(hello) => hello,
        Err(HandshakeError::Lost) => return Err(Disconnect::Lost),
        Err(HandshakeError::TcpCounter(what)) => {
            shared.counts.one(what);
            close_gracefully(&mut reader, &mut writer).await;
            return Err(Disconnect::Lost);
        }
    };
    if hello.purpose == Purpose::Discovery {
        discovery::reply(inbox, &mut writer, shared).await;
        close_gracefully(&mut reader, &mut writer).await;
        return Err(Disconnect::Lost);
    }
    let mut connection = IncomingConnection {
        shared,
        inbox,
        number: slot.number,
        hello,
        identity,
        unchecked: BTreeSet::new(),
        reader,
        writer,
        replies: FrameBatch::default(),
        channels: BTreeMap::new(),
        channel_last: 0,
        arrived: Vec::new(),
        held: Vec::new(),
    };
    loop {
        connection.on_frames()?;
        if !connection.channels.is_empty() {
            break;
        }
        if connection.channel_last > 0 {
            connection.write_replies().await?;
            close_gracefully(&mut connection.reader, &mut connection.writer).await;
            return Err(Disconnect::Lost);
        }
        connection.reader.fill(NO_TIMEOUT).await?;
    }
    let rejections =
        slot.identified().ok_or(Disconnect::TcpCounter(TcpCounter::TooManyConnections))?;
    Ok((connection, rejections))
}

/// Closes a connection such that the peer can still read what was written.
pub(crate) async fn close_gracefully(reader: &mut Reader, writer: &mut Writer) {
    if timeout(CLOSE_TIMEOUT, writer.shutdown()).await.is_ok() {
        reader.drain(CLOSE_TIMEOUT).await;
    }
}

const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Messages that are decoded and not delivered.
const ARRIVED_MAX: usize = 4_096;

/// A connection with at least one accepted member.
pub(crate) struct IncomingConnection<'a> {
    pub(crate) shared: &'a TcpShared,
    pub(crate) inbox: &'a Inbox,
    number: u64,
    hello: PeerHello,
    /// Which members the other side may speak for; none: for all.
    identity: Option<Box<dyn PeerIdentity>>,
    /// Channels of peers that the local member does not know (yet).
    unchecked: BTreeSet<u32>,
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
    pub(crate) replies: FrameBatch,
    /// The accepted pairs of members.
    channels: BTreeMap<u32, Introduction>,
    /// Numbers only grow: all up to this one were opened, and maybe closed again.
    channel_last: u32,
    /// Messages that were received and are not delivered yet.
    arrived: Vec<(MemberKey, Vec<PeerMessage>)>,
    /// What they count for.
    held: Vec<FrameBytes>,
}

impl IncomingConnection<'_> {
    /// Runs until no channel is left.
    async fn run(&mut self, rejections: &PendingRejections) -> Result<(), Disconnect> {
        for pair in self.channels.values() {
            let Introduction { from: MemberKey { cluster, member: peer }, to, .. } = pair;
            let (cluster, address) = (format_args!("{cluster:016x}"), &self.hello.address);
            info!(%cluster, member = %to, %peer, %address, "peer connected");
        }
        if self.hello.purpose == Purpose::Snapshot {
            self.write_replies().await?;
            self.receive_snapshot().await?;
        }
        let mut has_frames = true;
        while !self.channels.is_empty() {
            self.deliver().await;
            self.write_replies().await?;
            if has_frames {
                has_frames = self.on_frames()?;
                continue;
            }
            tokio::select! {
                filled = self.reader.fill(self.shared.config.silence_timeout) => {
                    self.shared.counts.one(TcpCounter::Reads);
                    self.shared.counts.add(TcpCounter::BytesReceived, filled? as u64);
                }
                () = rejections.filled.notified() => {
                    for (to, from, why) in rejections.take() {
                        self.reject(to, from, why);
                    }
                }
            }
            has_frames = self.on_frames()?;
        }
        self.write_replies().await?;
        close_gracefully(&mut self.reader, &mut self.writer).await;
        Ok(())
    }

    /// Processes the frames that were read. Whether there may be more of them: a short frame may have many
    /// messages, and these are delivered before others are decoded.
    fn on_frames(&mut self) -> Result<bool, Disconnect> {
        self.check_identities()?;
        // The rest of a snapshot's connection is processed frame by frame.
        while self.hello.purpose == Purpose::Messages || self.channels.is_empty() {
            let Some(frame) = self.reader.take()? else { return Ok(false) };
            self.held.extend(self.reader.take_held());
            self.on_frame(frame)?;
            let arrived: usize = self.arrived.iter().map(|(_, messages)| messages.len()).sum();
            if arrived >= ARRIVED_MAX {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Checks the peers that have become known in the meantime.
    fn check_identities(&mut self) -> Result<(), Disconnect> {
        for channel in std::mem::take(&mut self.unchecked) {
            if let Some(pair) = self.channels.get(&channel).copied() {
                self.check_identity(channel, &pair)?;
            }
        }
        Ok(())
    }

    /// A connection whose other side speaks for a member that it is not is closed.
    fn check_identity(&mut self, channel: u32, pair: &Introduction) -> Result<(), Disconnect> {
        let Some(identity) = &self.identity else { return Ok(()) };
        let (to, peer) = (addressee(pair), pair.from.member);
        match lock(&self.shared.routes).is_identity(to, peer, &**identity) {
            Some(true) => Ok(()),
            None => {
                self.unchecked.insert(channel);
                Ok(())
            }
            Some(false) => {
                let (cluster, address) = (format_args!("{:016x}", to.cluster), &self.hello.address);
                warn!(%cluster, member = %to.member, %peer, %address,
                    "peer rejected: its certificate is not that of the member");
                Err(Disconnect::TcpCounter(TcpCounter::OtherCertificate))
            }
        }
    }

    fn on_frame(&mut self, frame: Frame) -> Result<(), Disconnect> {
        self.shared.counts.one(TcpCounter::FramesReceived);
        match frame.kind {
            FrameKind::Introduce => self.on_introduction(&frame),
            FrameKind::Message | FrameKind::SideMessage => self.on_message(frame),
            FrameKind::KeepAlive => {
                if self.replies.is_empty() {
                    self.replies.push(FrameKind::KeepAlive, 0, &EmptyHead {});
                }
                Ok(())
            }
            FrameKind::Leave => {
                if let Some(pair) = self.channels.remove(&frame.channel) {
                    self.lose(pair);
                }
                Ok(())
            }
            _ => Err(Disconnect::TcpCounter(TcpCounter::Unexpected)),
        }
    }

    fn on_introduction(&mut self, frame: &Frame) -> Result<(), Disconnect> {
        if frame.channel <= self.channel_last {
            return Err(Disconnect::TcpCounter(TcpCounter::ChannelReused));
        }
        if self.channels.len() >= self.shared.config.channels_max {
            return Err(Disconnect::TcpCounter(TcpCounter::TooManyChannels));
        }
        let pair = IntroduceHead::decode_introduction(&frame.head)
            .map_err(|_| Disconnect::TcpCounter(TcpCounter::Malformed))?;
        if !frame.body.is_empty() {
            return Err(Disconnect::TcpCounter(TcpCounter::Malformed));
        }
        self.channel_last = frame.channel;
        match self.inbox.admit(&pair) {
            Ok(()) => {
                self.check_identity(frame.channel, &pair)?;
                self.reader.set_frame_bytes_max(self.shared.config.frame_bytes_max);
                self.reader.set_budget(&self.shared.budget);
                self.channels.insert(frame.channel, pair);
                self.replies.push(FrameKind::Welcome, frame.channel, &EmptyHead {});
                if self.hello.purpose == Purpose::Messages {
                    let address = &self.hello.address;
                    let to = addressee(&pair);
                    lock(&self.shared.routes).on_connected(
                        to,
                        pair.from.member,
                        self.number,
                        address,
                    );
                }
            }
            Err(why) => self.refuse(frame.channel, pair, why),
        }
        Ok(())
    }

    fn refuse(&mut self, channel: u32, pair: Introduction, why: RejectReason) {
        let Introduction { from: MemberKey { cluster, member: peer }, to, .. } = pair;
        let (cluster, address) = (format_args!("{cluster:016x}"), &self.hello.address);
        if why.may_pass() {
            debug!(%cluster, member = %to, %peer, %address, reason = %why, "peer rejected");
        } else {
            warn!(%cluster, member = %to, %peer, %address, reason = %why, "peer rejected");
        }
        self.shared.counts.one(why.into());
        self.replies.push(FrameKind::Refused, channel, &RefusedHead::from(why));
    }

    fn on_message(&mut self, frame: Frame) -> Result<(), Disconnect> {
        let Some(pair) = self.channels.get(&frame.channel).copied() else {
            // Frames may follow an introduction before its refusal arrives.
            if frame.channel > self.channel_last || frame.channel == 0 {
                return Err(Disconnect::TcpCounter(TcpCounter::UnknownChannel));
            }
            self.shared.counts.one(TcpCounter::FramesIgnored);
            return Ok(());
        };
        let from = pair.from.member;
        let Introduction { incarnation, to, .. } = pair;
        let arrived = self.arrived_for(addressee(&pair));
        match frame.kind {
            FrameKind::SideMessage => {
                arrived.push(PeerMessage::Side { from, to, bytes: frame.body });
                Ok(())
            }
            _ => MessageHead::decode(&frame.head, frame.body, from, incarnation, to, |envelope| {
                arrived.push(PeerMessage::Raft(envelope));
            })
            .map_err(|_| Disconnect::TcpCounter(TcpCounter::Malformed)),
        }
    }

    /// The messages that have arrived for a member.
    fn arrived_for(&mut self, to: MemberKey) -> &mut Vec<PeerMessage> {
        let position = self.arrived.iter().position(|(key, _)| *key == to);
        let position = position.unwrap_or_else(|| {
            self.arrived.push((to, Vec::new()));
            self.arrived.len() - 1
        });
        &mut self.arrived[position].1
    }

    /// Nothing more is read in the meantime: backpressure on the peers of a busy member.
    async fn deliver(&mut self) {
        // The memory counts until the members have processed everything.
        let held: Arc<Vec<FrameBytes>> = Arc::new(std::mem::take(&mut self.held));
        for (key, messages) in std::mem::take(&mut self.arrived) {
            let held = (!held.is_empty()).then(|| Arc::clone(&held) as HeldBytes);
            if self.inbox.deliver_held(key, messages, held).await.is_err() {
                self.recheck(|pair| addressee(pair) == key);
            }
        }
    }

    /// Closes the channels of a rejected member. The filter knows which disk is meant; where it
    /// does not, all channels of that member are closed.
    fn reject(&mut self, to: MemberKey, from: quorate_core::MemberId, why: RejectReason) {
        let meant = |pair: &Introduction| addressee(pair) == to && pair.from.member == from;
        let closed = self.recheck(meant);
        if closed > 0 {
            return;
        }
        let all: Vec<_> = self.channels.iter().map(|(channel, pair)| (*channel, *pair)).collect();
        for (channel, pair) in all.into_iter().filter(|(_, pair)| meant(pair)) {
            self.close(channel, pair, why);
        }
    }

    /// Closes the channels that would no longer be accepted. Returns how many.
    fn recheck(&mut self, which: impl Fn(&Introduction) -> bool) -> usize {
        let mut unwanted = Vec::new();
        for (channel, pair) in self.channels.iter().filter(|(_, pair)| which(pair)) {
            if let Err(why) = self.inbox.admit(pair) {
                unwanted.push((*channel, *pair, why));
            }
        }
        let count = unwanted.len();
        for (channel, pair, why) in unwanted {
            self.close(channel, pair, why);
        }
        count
    }

    fn close(&mut self, channel: u32, pair: Introduction, why: RejectReason) {
        self.channels.remove(&channel);
        self.forget(pair);
        self.refuse(channel, pair, why);
    }

    fn forget(&self, pair: Introduction) -> bool {
        self.hello.purpose == Purpose::Messages
            && lock(&self.shared.routes).on_disconnected(
                addressee(&pair),
                pair.from.member,
                self.number,
            )
    }

    pub(crate) async fn write_replies(&mut self) -> Result<(), Disconnect> {
        if self.replies.is_empty() {
            return Ok(());
        }
        let TcpShared { config, counts, .. } = self.shared;
        let written = self.replies.write_to(&mut self.writer, config.write_timeout, counts).await;
        written.map_err(|_| Disconnect::Lost)
    }

    /// Receives the one snapshot of a connection for snapshots.
    async fn receive_snapshot(&mut self) -> Result<(), Disconnect> {
        let frame = self.reader.next(self.shared.config.silence_timeout).await?;
        let Some(pair) = self.channels.get(&frame.channel).copied() else {
            return Err(Disconnect::TcpCounter(TcpCounter::UnknownChannel));
        };
        if frame.kind != FrameKind::SnapshotBegin {
            return Err(Disconnect::TcpCounter(TcpCounter::Unexpected));
        }
        snapshot_receive::receive(self, frame, pair).await?;
        self.channels.clear();
        Ok(())
    }

    /// The connection is closed: local members are told, unless there is a newer one.
    fn on_closed(&mut self) {
        for pair in std::mem::take(&mut self.channels).into_values() {
            self.lose(pair);
        }
    }

    fn lose(&self, pair: Introduction) {
        if self.forget(pair) {
            self.inbox.connection_lost(addressee(&pair), pair.from.member);
        }
    }
}

/// However it ends, its advertised addresses are forgotten.
impl Drop for IncomingConnection<'_> {
    fn drop(&mut self) {
        for pair in self.channels.values() {
            self.forget(*pair);
        }
    }
}

/// The local member that a channel leads to.
pub(crate) fn addressee(pair: &Introduction) -> MemberKey {
    MemberKey { cluster: pair.from.cluster, member: pair.to }
}
