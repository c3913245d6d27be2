//! How two processes open a connection, and how a member identifies itself on it.
//!
//! The dialler sends the magic bytes and a hello with the versions it speaks; the reply names
//! the one to use, or refuses. That part never changes, so that any two versions can have
//! this exchange. Then the dialler opens a channel for each pair of members with an
//! introduction; the reply is a welcome or a refusal.

use quorate_core::MemberId;
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::config::TcpConfig;
use super::counters::{TcpCounter, TcpCounters};
use super::frame::{FrameBatch, FrameKind, FrameReadError, FrameReader, HEADER_BYTES, NO_TIMEOUT};
use super::message::MalformedMessage;
use super::security::PeerStream;
use crate::runtime::{Introduction, MemberKey, RejectReason};

pub(crate) const MAGIC: [u8; 8] = *b"quorate\n";

/// The versions of everything after the hello that this code speaks.
pub(crate) const VERSION_MIN: u32 = 1;
pub(crate) const VERSION_MAX: u32 = 3;
/// The first version in which a frame may have several messages (`message_run.rs`).
pub(crate) const RUNS_SINCE: u32 = 2;
/// The first version in which the size of a snapshot may be unknown when it begins.
pub(crate) const UNKNOWN_SIZES_SINCE: u32 = 3;

/// Longer frames are rejected until a member has introduced itself and was accepted; replies to
/// a dialler are never longer.
pub(crate) const HELLO_BYTES_MAX: usize = HEADER_BYTES + 4096;

/// A longer address is rejected.
const ADDRESS_BYTES_MAX: usize = 512;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Messages = 0,
    Snapshot = 1,
    /// To ask which members the process hosts, and nothing else.
    Discovery = 2,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Hello {
    #[prost(uint32, tag = "1")]
    pub(crate) version_min: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) version_max: u32,
    /// The address where the dialler is reached.
    #[prost(string, tag = "3")]
    pub(crate) address: String,
    #[prost(uint32, tag = "4")]
    pub(crate) purpose: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HelloReply {
    /// The version to use; 0 for none.
    #[prost(uint32, tag = "1")]
    pub(crate) version: u32,
    /// The versions that the listener speaks, if it refuses.
    #[prost(uint32, tag = "2")]
    pub(crate) version_min: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) version_max: u32,
    /// Why it refuses: [`NO_COMMON_VERSION`], or 0 if it does not. A later version may have more
    /// reasons; the text says what they mean.
    #[prost(uint32, tag = "4")]
    pub(crate) reason: u32,
    /// The reason in words, for the log.
    #[prost(string, tag = "5")]
    pub(crate) text: String,
}

/// The two ranges of versions do not overlap.
const NO_COMMON_VERSION: u32 = 1;

impl HelloReply {
    /// The highest version that both speak, or a refusal.
    fn to(hello: &Hello) -> Self {
        let version = hello.version_max.min(VERSION_MAX);
        let reply = Self { version_min: VERSION_MIN, version_max: VERSION_MAX, ..Self::default() };
        if version >= hello.version_min.max(VERSION_MIN) {
            return Self { version, ..reply };
        }
        let Hello { version_min, version_max, .. } = hello;
        let text = format!(
            "no common version of the peer protocol: {version_min} to {version_max} was offered, \
             this program speaks {VERSION_MIN} to {VERSION_MAX}"
        );
        Self { reason: NO_COMMON_VERSION, text, ..reply }
    }
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct IntroduceHead {
    #[prost(fixed64, tag = "1")]
    cluster: u64,
    #[prost(uint64, tag = "2")]
    from: u64,
    #[prost(fixed64, tag = "3")]
    incarnation: u64,
    #[prost(uint64, tag = "4")]
    to: u64,
}

/// Why a channel is closed.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RefusedHead {
    /// A [`RejectReason`] by its code. Decisions are made by this number only; 0, or a number
    /// of a later version, is an unknown reason.
    #[prost(uint32, tag = "1")]
    pub(crate) reason: u32,
    /// The reason in words, for the log.
    #[prost(string, tag = "2")]
    pub(crate) text: String,
}

impl From<Introduction> for IntroduceHead {
    fn from(Introduction { from, incarnation, to }: Introduction) -> Self {
        Self { cluster: from.cluster, from: from.member.0, incarnation, to: to.0 }
    }
}

impl IntroduceHead {
    pub(crate) fn decode_introduction(head: &[u8]) -> Result<Introduction, MalformedMessage> {
        let Self { cluster, from, incarnation, to } = prost::Message::decode(head)?;
        let from = MemberKey { cluster, member: MemberId(from) };
        Ok(Introduction { from, incarnation, to: MemberId(to) })
    }
}

impl From<RejectReason> for RefusedHead {
    fn from(why: RejectReason) -> Self {
        Self { reason: why.code(), text: why.to_string() }
    }
}

/// The two directions of a connection.
pub(crate) type Reader = FrameReader<ReadHalf<Box<dyn PeerStream>>>;
pub(crate) type Writer = WriteHalf<Box<dyn PeerStream>>;

/// A connection that was dialled.
pub(crate) struct Dialled {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
    /// The version that both sides speak.
    pub(crate) version: u32,
}

/// Connects and exchanges hellos. An error is text for the log.
pub(crate) async fn dial(
    config: &TcpConfig,
    counts: &TcpCounters,
    address: &str,
    advertise: &str,
    purpose: Purpose,
) -> Result<Dialled, String> {
    let exchange = exchange_hellos(config, counts, address, advertise, purpose);
    match timeout(config.handshake_timeout, exchange).await {
        Ok(connected) => connected,
        Err(_) => Err("no reply in time".to_owned()),
    }
}

async fn exchange_hellos(
    config: &TcpConfig,
    counts: &TcpCounters,
    address: &str,
    advertise: &str,
    purpose: Purpose,
) -> Result<Dialled, String> {
    let target = config.security.host_and_port(address);
    let stream = TcpStream::connect(target).await.map_err(|why| why.to_string())?;
    stream.set_nodelay(true).map_err(|why| why.to_string())?;
    let stream = config.security.dial(stream, address).await.map_err(|why| why.to_string())?;
    let (reader, mut writer) = tokio::io::split(stream);
    let mut reader = FrameReader::new(reader, HELLO_BYTES_MAX);

    let mut batch = FrameBatch::default();
    batch.push_bytes(&MAGIC);
    let hello = Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        address: advertise.to_owned(),
        purpose: purpose as u32,
    };
    batch.push(FrameKind::Hello, 0, &hello);
    batch.write_to(&mut writer, NO_TIMEOUT, counts).await.map_err(|why| why.to_string())?;

    let frame = reader.next(NO_TIMEOUT).await.map_err(|why| why.to_string())?;
    let reply: HelloReply = match frame.kind {
        FrameKind::HelloReply => prost::Message::decode(&frame.head[..])
            .map_err(|_| "the reply is not a hello reply".to_owned())?,
        _ => return Err("the reply is not a hello reply".to_owned()),
    };
    if !(VERSION_MIN..=VERSION_MAX).contains(&reply.version) {
        counts.one(TcpCounter::HandshakeRefused);
        let HelloReply { version_min, version_max, reason, text, .. } = reply;
        return Err(match reason {
            0 => format!("the peer speaks versions {version_min} to {version_max} only"),
            reason => format!("the peer refuses this connection (reason {reason}): {text}"),
        });
    }
    // All replies to a dialler are short, except for that to a discovery.
    Ok(Dialled { reader, writer, version: reply.version })
}

/// What a dialler said about itself.
#[derive(Clone, Debug)]
pub(crate) struct PeerHello {
    pub(crate) address: String,
    pub(crate) purpose: Purpose,
}

/// Why a connection was closed before a member identified itself.
pub(crate) enum HandshakeError {
    /// With this counter.
    TcpCounter(TcpCounter),
    /// The connection broke.
    Lost,
}

impl From<FrameReadError> for HandshakeError {
    fn from(why: FrameReadError) -> Self {
        why.counter().map_or(Self::Lost, Self::TcpCounter)
    }
}

/// Answers a hello, and leaves the reader behind it. Only short frames are read until the
/// caller allows more. The caller sets the timeout.
pub(crate) async fn answer_hello<R, W>(
    reader: &mut FrameReader<R>,
    writer: &mut W,
    counts: &TcpCounters,
) -> Result<PeerHello, HandshakeError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    reader.set_frame_bytes_max(HELLO_BYTES_MAX);
    let magic: [u8; 8] = loop {
        match reader.take_bytes() {
            Some(magic) => break magic,
            None => reader.fill(NO_TIMEOUT).await?,
        };
    };
    if magic != MAGIC {
        return Err(HandshakeError::TcpCounter(TcpCounter::BadMagic));
    }
    let frame = reader.next(NO_TIMEOUT).await?;
    if frame.kind != FrameKind::Hello {
        return Err(HandshakeError::TcpCounter(TcpCounter::Unexpected));
    }
    let malformed = HandshakeError::TcpCounter(TcpCounter::Malformed);
    let Ok(hello) = <Hello as prost::Message>::decode(&frame.head[..]) else {
        return Err(malformed);
    };
    let purpose = match hello.purpose {
        0 => Purpose::Messages,
        1 => Purpose::Snapshot,
        2 => Purpose::Discovery,
        _ => return Err(malformed),
    };
    let fits = hello.address.len() <= ADDRESS_BYTES_MAX && frame.body.is_empty();
    if !fits || hello.version_min > hello.version_max {
        return Err(malformed);
    }
    let reply = HelloReply::to(&hello);
    let agreed = reply.version != 0;
    let mut batch = FrameBatch::default();
    batch.push(FrameKind::HelloReply, 0, &reply);
    batch.write_to(writer, NO_TIMEOUT, counts).await.map_err(|_| HandshakeError::Lost)?;
    if !agreed {
        return Err(HandshakeError::TcpCounter(TcpCounter::WrongVersion));
    }
    Ok(PeerHello { address: hello.address, purpose })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_common_version_is_used_or_the_refusal_says_why() {
        let reply = |version_min, version_max| {
            HelloReply::to(&Hello { version_min, version_max, ..Hello::default() })
        };
        let agreed = reply(1, 9);
        assert_eq!((agreed.version, agreed.reason), (VERSION_MAX, 0));
        let refused = reply(8, 9);
        assert_eq!((refused.version, refused.reason), (0, NO_COMMON_VERSION));
        assert!(refused.text.contains("8 to 9 was offered"), "{}", refused.text);
    }
}
