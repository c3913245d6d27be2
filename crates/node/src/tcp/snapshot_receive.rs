//! Receiving a snapshot: from its connection to the member's disk, at the speed of the disk.

use std::future::Future;
use std::pin::pin;

use quorate_core::Envelope;
use quorate_core::message::Message;
use tokio::time::sleep;
use tracing::{info, warn};

use super::counters::TcpCounter;
use super::frame::{Frame, FrameKind, FrameReadError};
use super::incoming::{Disconnect, IncomingConnection, addressee};
use super::message::{EmptyHead, MessageHead};
use super::port_budget::FrameBytes;
use super::snapshot_stream::{ChunkHead, EndHead, SnapshotProgress, SnapshotRefusedHead};
use crate::runtime::{Introduction, SnapshotReceiveError};

/// Receives the snapshot that this frame begins, and replies with the result.
pub(crate) async fn receive(
    connection: &mut IncomingConnection<'_>,
    begin: Frame,
    pair: Introduction,
) -> Result<(), Disconnect> {
    let (envelope, announced_bytes) = announced(begin, pair)?;
    let channel = 1;
    match receive_chunks(connection, envelope, announced_bytes, pair).await {
        Ok(bytes) => {
            connection.shared.counts.one(TcpCounter::SnapshotsReceived);
            info!(member = %pair.to, peer = %pair.from.member, bytes, "snapshot received");
            connection.replies.push(FrameKind::SnapshotDone, channel, &EmptyHead {});
        }
        Err(ReceiveError::Refused(why)) => {
            connection.shared.counts.one(TcpCounter::SnapshotsRefused);
            warn!(member = %pair.to, peer = %pair.from.member, reason = %why, "snapshot refused");
            let head = SnapshotRefusedHead { text: why.to_string(), reason: why.code() };
            connection.replies.push(FrameKind::SnapshotRefused, channel, &head);
        }
        Err(ReceiveError::Broken(disconnect)) => {
            connection.shared.counts.one(TcpCounter::SnapshotsBroken);
            return Err(disconnect);
        }
    }
    Ok(())
}

/// The message, and how many bytes follow, if that is known.
fn announced(begin: Frame, pair: Introduction) -> Result<(Envelope, Option<u64>), Disconnect> {
    let malformed = Disconnect::TcpCounter(TcpCounter::Malformed);
    let Ok(head) = <MessageHead as prost::Message>::decode(&begin.head[..]) else {
        return Err(malformed);
    };
    let bytes = (!head.snapshot_size_unknown).then_some(head.snapshot_bytes);
    match head.into_envelope(begin.body, pair.from.member, pair.incarnation, pair.to) {
        Ok(envelope) if matches!(envelope.message, Message::Snapshot(_)) => Ok((envelope, bytes)),
        _ => Err(malformed),
    }
}

/// Why a snapshot was not received.
enum ReceiveError {
    /// The member refused it.
    Refused(SnapshotReceiveError),
    /// The sender violated the protocol, or the connection broke.
    Broken(Disconnect),
}

impl<T: Into<Disconnect>> From<T> for ReceiveError {
    fn from(disconnect: T) -> Self {
        Self::Broken(disconnect.into())
    }
}

/// Returns the number of bytes.
async fn receive_chunks(
    connection: &mut IncomingConnection<'_>,
    envelope: Envelope,
    announced_bytes: Option<u64>,
    pair: Introduction,
) -> Result<u64, ReceiveError> {
    let begun = connection.inbox.begin_snapshot(addressee(&pair), envelope);
    let begun = while_alive(connection, begun, None).await?;
    let mut snapshot = begun.map_err(ReceiveError::Refused)?;
    let mut passed = SnapshotProgress::default();
    let malformed = || ReceiveError::Broken(Disconnect::TcpCounter(TcpCounter::Malformed));
    let mut next = None;
    loop {
        let (frame, _held) = match next.take() {
            Some(frame) => frame,
            None => read_frame(connection).await?,
        };
        match frame.kind {
            FrameKind::KeepAlive => {}
            FrameKind::SnapshotChunk => {
                let head: ChunkHead = decode(&frame).ok_or_else(malformed)?;
                let after = passed.bytes + frame.body.len() as u64;
                let fits = announced_bytes.is_none_or(|bytes| after <= bytes);
                if !fits || frame.body.is_empty() || passed.add(&frame.body) != head {
                    return Err(malformed());
                }
                // The next frame is read while the disk writes this one.
                let appended = snapshot.append(frame.body);
                let appended = while_alive(connection, appended, Some(&mut next)).await?;
                appended.map_err(ReceiveError::Refused)?;
            }
            FrameKind::SnapshotEnd => {
                let head: EndHead = decode(&frame).ok_or_else(malformed)?;
                let is_announced = announced_bytes.is_none_or(|bytes| passed.bytes == bytes);
                if passed.end() != head || !is_announced {
                    return Err(malformed());
                }
                let finished = snapshot.finish();
                let finished = while_alive(connection, finished, None).await?;
                finished.map_err(ReceiveError::Refused)?;
                return Ok(passed.bytes);
            }
            _ => return Err(ReceiveError::Broken(Disconnect::TcpCounter(TcpCounter::Unexpected))),
        }
    }
}

fn decode<T: prost::Message + Default>(frame: &Frame) -> Option<T> {
    T::decode(&frame.head[..]).ok()
}

/// A frame, with what it counts for until it is processed.
type HeldFrame = (Frame, Option<FrameBytes>);

async fn read_frame(connection: &mut IncomingConnection<'_>) -> Result<HeldFrame, FrameReadError> {
    let frame = connection.reader.next(connection.shared.config.silence_timeout).await?;
    Ok((frame, connection.reader.take_held()))
}

/// Sends keep-alives while the disk works, and reads one frame ahead into `next`.
async fn while_alive<T>(
    connection: &mut IncomingConnection<'_>,
    work: impl Future<Output = T>,
    mut next: Option<&mut Option<HeldFrame>>,
) -> Result<T, Disconnect> {
    let mut work = pin!(work);
    loop {
        let keep_alive_every = connection.shared.config.keep_alive_every;
        tokio::select! {
            done = &mut work => return Ok(done),
            read = read_frame(connection), if next.is_some() => {
                if let Some(next) = next.take() {
                    *next = Some(read?);
                }
            }
            () = sleep(keep_alive_every) => {
                connection.replies.push(FrameKind::KeepAlive, 0, &EmptyHead {});
                connection.write_replies().await?;
            }
        }
    }
}
