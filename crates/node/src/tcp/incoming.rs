//! Connections that others open: who is let in, and what is heard from them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::counts::Counted;
use super::frame::{Batch, FOR_EVER, Frame, FrameReader, Kind, ReadError};
use super::guests::{Guests, Place, TurnedAway};
use super::handshake::{
    GreetError, Greeted, IntroduceHead, Purpose, Reader, RefusedHead, Writer, answer_hello,
};
use super::inquiry;
use super::message::{MessageHead, Nothing};
use super::shared::Shared;
use super::snapshot_receive;
use crate::runtime::{Inbox, Introduction, MemberKey, PeerMessage, RejectReason, lock};

/// Pause after the system refused to accept: it lacks something that others hold.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Takes whoever comes.
pub(crate) async fn listen(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                shared.counts.one(Counted::Accepted);
                Guests::let_in(&shared, stream);
            }
            Err(why) => {
                shared.counts.one(Counted::AcceptFailed);
                warn!(%why, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// One connection, from its first byte to its last.
pub(crate) async fn serve(stream: TcpStream, place: Place) {
    let shared = Arc::clone(&place.shared);
    let Some(inbox) = shared.inbox.get() else { return };
    let identify = identify(stream, &place, inbox);
    let ended = match timeout(shared.config.handshake_timeout, identify).await {
        Err(_) => Err(Hangup::Counted(Counted::HandshakeTimeout)),
        Ok(Err(hangup)) => Err(hangup),
        Ok(Ok((mut guest, turned_away))) => {
            let ended = guest.listen(&turned_away).await;
            guest.hang_up();
            ended
        }
    };
    if let Err(Hangup::Counted(what)) = ended {
        shared.counts.one(what);
    }
}

/// Why a connection ends.
pub(crate) enum Hangup {
    /// To be counted as this.
    Counted(Counted),
    /// The other side closed it, or it broke; or it has been counted.
    Lost,
}

impl From<ReadError> for Hangup {
    fn from(why: ReadError) -> Self {
        why.counted().map_or(Self::Lost, Self::Counted)
    }
}

/// Hears hello and introductions, until a member is let in.
async fn identify<'a>(
    stream: TcpStream,
    place: &'a Place,
    inbox: &'a Inbox,
) -> Result<(Guest<'a>, Arc<TurnedAway>), Hangup> {
    let shared = &*place.shared;
    let _ = stream.set_nodelay(true);
    let stream = shared.config.secure.accept(stream).await.map_err(|_| Hangup::Lost)?;
    let (reader, mut writer) = tokio::io::split(stream);
    let mut reader = FrameReader::new(reader, shared.config.frame_bytes_max);
    let greeted = answer_hello(&mut reader, &mut writer, &shared.config, &shared.counts).await;
    let greeted = match greeted {
        Ok(greeted) => greeted,
        Err(GreetError::Lost) => return Err(Hangup::Lost),
        Err(GreetError::Counted(what)) => {
            shared.counts.one(what);
            part(&mut reader, &mut writer).await;
            return Err(Hangup::Lost);
        }
    };
    if greeted.purpose == Purpose::Inquiry {
        inquiry::answer(inbox, &mut writer, shared).await;
        part(&mut reader, &mut writer).await;
        return Err(Hangup::Lost);
    }
    let mut guest = Guest {
        shared,
        inbox,
        number: place.number,
        greeted,
        reader,
        writer,
        answers: Batch::default(),
        channels: BTreeMap::new(),
        channel_last: 0,
        arrived: Vec::new(),
    };
    loop {
        guest.hear_all()?;
        if !guest.channels.is_empty() {
            break;
        }
        if guest.channel_last > 0 {
            guest.answer().await?;
            part(&mut guest.reader, &mut guest.writer).await;
            return Err(Hangup::Lost);
        }
        guest.reader.fill(FOR_EVER).await?;
    }
    let turned_away = place.identified().ok_or(Hangup::Counted(Counted::TooManyConnections))?;
    Ok((guest, turned_away))
}

/// Closes a connection such that the other side can still read what was said.
pub(crate) async fn part(reader: &mut Reader, writer: &mut Writer) {
    if timeout(PART_TIMEOUT, writer.shutdown()).await.is_ok() {
        reader.drain(PART_TIMEOUT).await;
    }
}

const PART_TIMEOUT: Duration = Duration::from_millis(500);

/// A connection with a member that was let in.
pub(crate) struct Guest<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) inbox: &'a Inbox,
    number: u64,
    greeted: Greeted,
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
    pub(crate) answers: Batch,
    /// Who speaks to whom.
    channels: BTreeMap<u32, Introduction>,
    /// Numbers grow: up to here every one was opened, and maybe closed again.
    channel_last: u32,
    /// What was heard and not yet delivered.
    arrived: Vec<(MemberKey, Vec<PeerMessage>)>,
}

impl Guest<'_> {
    /// Until there is nobody left to listen to.
    async fn listen(&mut self, turned_away: &TurnedAway) -> Result<(), Hangup> {
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
                    self.shared.counts.one(Counted::Reads);
                    self.shared.counts.add(Counted::BytesReceived, filled? as u64);
                }
                () = turned_away.filled.notified() => {
                    for (to, from, why) in turned_away.take() {
                        self.turn_away(to, from, why);
                    }
                }
            }
            self.hear_all()?;
        }
        self.answer().await?;
        part(&mut self.reader, &mut self.writer).await;
        Ok(())
    }

    /// Everything that was read.
    fn hear_all(&mut self) -> Result<(), Hangup> {
        // The rest of a snapshot's connection is heard frame by frame.
        while self.greeted.purpose == Purpose::Messages || self.channels.is_empty() {
            let Some(frame) = self.reader.take()? else { return Ok(()) };
            self.hear(frame)?;
        }
        Ok(())
    }

    fn hear(&mut self, frame: Frame) -> Result<(), Hangup> {
        self.shared.counts.one(Counted::FramesReceived);
        match frame.kind {
            Kind::Introduce => self.on_introduction(&frame),
            Kind::Message | Kind::Aside => self.on_parcel(frame),
            Kind::KeepAlive => {
                if self.answers.is_empty() {
                    self.answers.push(Kind::KeepAlive, 0, &Nothing {});
                }
                Ok(())
            }
            Kind::Leave => {
                if let Some(pair) = self.channels.remove(&frame.channel) {
                    self.lose(pair);
                }
                Ok(())
            }
            _ => Err(Hangup::Counted(Counted::Unexpected)),
        }
    }

    fn on_introduction(&mut self, frame: &Frame) -> Result<(), Hangup> {
        if frame.channel <= self.channel_last {
            return Err(Hangup::Counted(Counted::ChannelReused));
        }
        if self.channels.len() >= self.shared.config.channels_max {
            return Err(Hangup::Counted(Counted::TooManyChannels));
        }
        let pair = IntroduceHead::decode_introduction(&frame.head)
            .map_err(|_| Hangup::Counted(Counted::Malformed))?;
        if !frame.body.is_empty() {
            return Err(Hangup::Counted(Counted::Malformed));
        }
        self.channel_last = frame.channel;
        match self.inbox.admit(&pair) {
            Ok(()) => {
                self.channels.insert(frame.channel, pair);
                self.answers.push(Kind::Welcome, frame.channel, &Nothing {});
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
        self.answers.push(Kind::Refused, channel, &RefusedHead::from(why));
    }

    fn on_parcel(&mut self, frame: Frame) -> Result<(), Hangup> {
        let Some(pair) = self.channels.get(&frame.channel).copied() else {
            // Frames may follow an introduction before its refusal is heard.
            if frame.channel > self.channel_last || frame.channel == 0 {
                return Err(Hangup::Counted(Counted::UnknownChannel));
            }
            self.shared.counts.one(Counted::FramesIgnored);
            return Ok(());
        };
        let from = pair.from.member;
        let parcel = match frame.kind {
            Kind::Aside => PeerMessage::Side { from, to: pair.to, bytes: frame.body },
            _ => {
                let incarnation = pair.incarnation;
                MessageHead::decode(&frame.head, frame.body, from, incarnation, pair.to)
                    .map(PeerMessage::Raft)
                    .map_err(|_| Hangup::Counted(Counted::Malformed))?
            }
        };
        let to = addressee(&pair);
        match self.arrived.iter_mut().find(|(key, _)| *key == to) {
            Some((_, parcels)) => parcels.push(parcel),
            None => self.arrived.push((to, vec![parcel])),
        }
        Ok(())
    }

    /// Nothing more is read meanwhile: that is how a busy member slows its peers down.
    async fn deliver(&mut self) {
        for (key, parcels) in std::mem::take(&mut self.arrived) {
            if self.inbox.deliver(key, parcels).await.is_err() {
                self.recheck(|pair| addressee(pair) == key);
            }
        }
    }

    /// The gate knows which disk is meant. Where it does not, everybody of that name is.
    fn turn_away(&mut self, to: MemberKey, from: quorate_core::MemberId, why: RejectReason) {
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

    pub(crate) async fn answer(&mut self) -> Result<(), Hangup> {
        if self.answers.is_empty() {
            return Ok(());
        }
        let Shared { config, counts, .. } = self.shared;
        let written = self.answers.write_to(&mut self.writer, config.write_timeout, counts).await;
        written.map_err(|_| Hangup::Lost)
    }

    /// All that comes on a connection for a snapshot.
    async fn hear_snapshot(&mut self) -> Result<(), Hangup> {
        let frame = self.reader.next(self.shared.config.silence_timeout).await?;
        let Some(pair) = self.channels.get(&frame.channel).copied() else {
            return Err(Hangup::Counted(Counted::UnknownChannel));
        };
        if frame.kind != Kind::SnapshotBegin {
            return Err(Hangup::Counted(Counted::Unexpected));
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
impl Drop for Guest<'_> {
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
