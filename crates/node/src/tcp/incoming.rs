//! Connections that others open: who is let in, and what is heard from them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::connections::{ConnectionSlot, IncomingConnections, PendingRejections};
use super::counters::TcpCounter;
use super::discovery;
use super::frame::{Frame, FrameBatch, FrameKind, FrameReader, NO_TIMEOUT, ReadError};
use super::handshake::{
    HandshakeError, IntroduceHead, PeerHello, Purpose, Reader, RefusedHead, Writer, answer_hello,
};
use super::message::{EmptyHead, MessageHead};
use super::shared::TcpShared;
use super::snapshot_receive;
use crate::runtime::{Inbox, Introduction, MemberKey, PeerMessage, RejectReason, lock};

/// Pause after the system refused to accept: it lacks something that others hold.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Takes whoever comes.
pub(crate) async fn listen(shared: Arc<TcpShared>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                shared.counts.one(TcpCounter::Accepted);
                IncomingConnections::accept(&shared, stream);
            }
            Err(why) => {
                shared.counts.one(TcpCounter::AcceptFailed);
                warn!(%why, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// One connection, from its first byte to its last.
pub(crate) async fn serve(stream: TcpStream, place: ConnectionSlot) {
    let shared = Arc::clone(&place.shared);
    let Some(inbox) = shared.inbox.get() else { return };
    let identify = identify(stream, &place, inbox);
    let ended = match timeout(shared.config.handshake_timeout, identify).await {
        Err(_) => Err(Disconnect::TcpCounter(TcpCounter::HandshakeTimeout)),
        Ok(Err(disconnect)) => Err(disconnect),
        Ok(Ok((mut connection, rejections))) => {
            let ended = connection.listen(&rejections).await;
            connection.hang_up();
            ended
        }
    };
    if let Err(Disconnect::TcpCounter(what)) = ended {
        shared.counts.one(what);
    }
}

/// Why a connection ends.
pub(crate) enum Disconnect {
    /// To be counted as this.
    TcpCounter(TcpCounter),
    /// The other side closed it, or it broke; or it has been counted.
    Lost,
}

impl From<ReadError> for Disconnect {
    fn from(why: ReadError) -> Self {
        why.counted().map_or(Self::Lost, Self::TcpCounter)
    }
}

/// Hears hello and introductions, until a member is let in.
async fn identify<'a>(
    stream: TcpStream,
    place: &'a ConnectionSlot,
    inbox: &'a Inbox,
) -> Result<(IncomingConnection<'a>, Arc<PendingRejections>), Disconnect> {
    let shared = &*place.shared;
    let _ = stream.set_nodelay(true);
    let stream = shared.config.security.accept(stream).await.map_err(|_| Disconnect::Lost)?;
    let (reader, mut writer) = tokio::io::split(stream);
    let mut reader = FrameReader::new(reader, shared.config.frame_bytes_max);
    let greeted = answer_hello(&mut reader, &mut writer, &shared.config, &shared.counts).await;
    let greeted = match greeted {
        Ok(greeted) => greeted,
        Err(HandshakeError::Lost) => return Err(Disconnect::Lost),
        Err(HandshakeError::TcpCounter(what)) => {
            shared.counts.one(what);
            close_gracefully(&mut reader, &mut writer).await;
            return Err(Disconnect::Lost);
        }
    };
    if greeted.purpose == Purpose::Discovery {
        discovery::answer(inbox, &mut writer, shared).await;
        close_gracefully(&mut reader, &mut writer).await;
        return Err(Disconnect::Lost);
    }
    let mut connection = IncomingConnection {
        shared,
        inbox,
        number: place.number,
        greeted,
        reader,
        writer,
        answers: FrameBatch::default(),
        channels: BTreeMap::new(),
        channel_last: 0,
        arrived: Vec::new(),
    };
    loop {
        connection.hear_all()?;
        if !connection.channels.is_empty() {
            break;
        }
        if connection.channel_last > 0 {
            connection.answer().await?;
            close_gracefully(&mut connection.reader, &mut connection.writer).await;
            return Err(Disconnect::Lost);
        }
        connection.reader.fill(NO_TIMEOUT).await?;
    }
    let rejections =
        place.identified().ok_or(Disconnect::TcpCounter(TcpCounter::TooManyConnections))?;
    Ok((connection, rejections))
}

/// Closes a connection such that the other side can still read what was message.
pub(crate) async fn close_gracefully(reader: &mut Reader, writer: &mut Writer) {
    if timeout(CLOSE_TIMEOUT, writer.shutdown()).await.is_ok() {
        reader.drain(CLOSE_TIMEOUT).await;
    }
}

const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// A connection with a member that was let in.
pub(crate) struct IncomingConnection<'a> {
    pub(crate) shared: &'a TcpShared,
    pub(crate) inbox: &'a Inbox,
    number: u64,
    greeted: PeerHello,
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
    pub(crate) answers: FrameBatch,
    /// Who speaks to whom.
    channels: BTreeMap<u32, Introduction>,
    /// Numbers grow: up to here every one was opened, and maybe closed again.
    channel_last: u32,
    /// What was heard and not yet delivered.
    arrived: Vec<(MemberKey, Vec<PeerMessage>)>,
}

impl IncomingConnection<'_> {
    /// Until there is nobody left to listen to.
    async fn listen(&mut self, rejections: &PendingRejections) -> Result<(), Disconnect> {
        for pair in self.channels.values() {
            info!(peer = %pair.from, member = %pair.to, address = self.greeted.address, "let in");
        }
        if self.greeted.purpose == Purpose::Snapshot {
            self.answer().await?;
            self.hear_snapshot().await?;
        }
        while !self.channels.is_empty() {
            self.deliver().await;
            self.answer().await?;
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
            self.hear_all()?;
        }
        self.answer().await?;
        close_gracefully(&mut self.reader, &mut self.writer).await;
        Ok(())
    }

    /// Everything that was read.
    fn hear_all(&mut self) -> Result<(), Disconnect> {
        // The rest of a snapshot's connection is heard frame by frame.
        while self.greeted.purpose == Purpose::Messages || self.channels.is_empty() {
            let Some(frame) = self.reader.take()? else { return Ok(()) };
            self.hear(frame)?;
        }
        Ok(())
    }

    fn hear(&mut self, frame: Frame) -> Result<(), Disconnect> {
        self.shared.counts.one(TcpCounter::FramesReceived);
        match frame.kind {
            FrameKind::Introduce => self.on_introduction(&frame),
            FrameKind::Message | FrameKind::SideMessage => self.on_peer_message(frame),
            FrameKind::KeepAlive => {
                if self.answers.is_empty() {
                    self.answers.push(FrameKind::KeepAlive, 0, &EmptyHead {});
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
                self.channels.insert(frame.channel, pair);
                self.answers.push(FrameKind::Welcome, frame.channel, &EmptyHead {});
                if self.greeted.purpose == Purpose::Messages {
                    let at = &self.greeted.address;
                    let to = addressee(&pair);
                    lock(&self.shared.routes).called(to, pair.from.member, self.number, at);
                }
            }
            Err(why) => self.refuse(frame.channel, pair, why),
        }
        Ok(())
    }

    fn refuse(&mut self, channel: u32, pair: Introduction, why: RejectReason) {
        let Introduction { from, to, .. } = pair;
        warn!(peer = %from, member = %to, address = self.greeted.address, %why, "not let in");
        self.shared.counts.one(why.into());
        self.answers.push(FrameKind::Refused, channel, &RefusedHead::from(why));
    }

    fn on_peer_message(&mut self, frame: Frame) -> Result<(), Disconnect> {
        let Some(pair) = self.channels.get(&frame.channel).copied() else {
            // Frames may follow an introduction before its refusal is heard.
            if frame.channel > self.channel_last || frame.channel == 0 {
                return Err(Disconnect::TcpCounter(TcpCounter::UnknownChannel));
            }
            self.shared.counts.one(TcpCounter::FramesIgnored);
            return Ok(());
        };
        let from = pair.from.member;
        let message = match frame.kind {
            FrameKind::SideMessage => PeerMessage::Side { from, to: pair.to, bytes: frame.body },
            _ => {
                let incarnation = pair.incarnation;
                MessageHead::decode(&frame.head, frame.body, from, incarnation, pair.to)
                    .map(PeerMessage::Raft)
                    .map_err(|_| Disconnect::TcpCounter(TcpCounter::Malformed))?
            }
        };
        let to = addressee(&pair);
        match self.arrived.iter_mut().find(|(key, _)| *key == to) {
            Some((_, messages)) => messages.push(message),
            None => self.arrived.push((to, vec![message])),
        }
        Ok(())
    }

    /// EmptyHead more is read meanwhile: that is how a busy member slows its peers down.
    async fn deliver(&mut self) {
        for (key, messages) in std::mem::take(&mut self.arrived) {
            if self.inbox.deliver(key, messages).await.is_err() {
                self.recheck(|pair| addressee(pair) == key);
            }
        }
    }

    /// The filter knows which disk is meant. Where it does not, everybody of that name is.
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

    /// Closes those channels that would not be let in any more. Says how many.
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
        self.greeted.purpose == Purpose::Messages
            && lock(&self.shared.routes).hung_up(addressee(&pair), pair.from.member, self.number)
    }

    pub(crate) async fn answer(&mut self) -> Result<(), Disconnect> {
        if self.answers.is_empty() {
            return Ok(());
        }
        let TcpShared { config, counts, .. } = self.shared;
        let written = self.answers.write_to(&mut self.writer, config.write_timeout, counts).await;
        written.map_err(|_| Disconnect::Lost)
    }

    /// All that comes on a connection for a snapshot.
    async fn hear_snapshot(&mut self) -> Result<(), Disconnect> {
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

    /// The connection is gone: members here are told, unless there is a newer one.
    fn hang_up(&mut self) {
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

/// However it ends, nobody is answered over it any more.
impl Drop for IncomingConnection<'_> {
    fn drop(&mut self) {
        for pair in self.channels.values() {
            self.forget(*pair);
        }
    }
}

/// The member here that a channel leads to.
pub(crate) fn addressee(pair: &Introduction) -> MemberKey {
    MemberKey { cluster: pair.from.cluster, member: pair.to }
}
