//! Sending a snapshot on a connection of its own, so that it delays no heartbeat.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;
use tracing::{info, warn};

use super::counters::TcpCounter;
use super::frame::{FrameBatch, FrameBody, FrameKind, NO_TIMEOUT};
use super::handshake::{IntroduceHead, Purpose, Reader, RefusedHead, Writer, dial};
use super::message::{EmptyHead, MessageHead};
use super::shared::{Route, TcpShared};
use super::snapshot_stream::{SnapshotProgress, SnapshotRefusedHead};
use crate::runtime::{Introduction, MemberKey, OutgoingSnapshot};

/// Longer pieces are cut, so that the rate is even and signs of life find room.
const CHUNK_BYTES: usize = 256 << 10;

/// The only channel of such a connection.
const CHANNEL: u32 = 1;

/// Sends it when its turn comes. Dropped on any other way, it reports itself as lost.
pub(crate) fn send_snapshot(shared: &Arc<TcpShared>, from: MemberKey, snapshot: OutgoingSnapshot) {
    let to = snapshot.envelope().to;
    let Some(route) = shared.route(from, to) else {
        shared.counts.one(TcpCounter::DroppedNoAddress);
        shared.counts.one(TcpCounter::SnapshotsLost);
        return;
    };
    if shared.snapshots_waiting.fetch_add(1, Ordering::Relaxed)
        >= shared.config.snapshots_waiting_max
    {
        shared.snapshots_waiting.fetch_sub(1, Ordering::Relaxed);
        shared.counts.one(TcpCounter::SnapshotsNoPlace);
        shared.counts.one(TcpCounter::SnapshotsLost);
        return;
    }
    let _ = shared.spawn(send_in_turn(Arc::clone(shared), route, snapshot));
}

async fn send_in_turn(shared: Arc<TcpShared>, route: Route, mut snapshot: OutgoingSnapshot) {
    let place = shared.snapshot_places.acquire().await;
    shared.snapshots_waiting.fetch_sub(1, Ordering::Relaxed);
    let Route { pair, link } = route;
    let Introduction { from, to, .. } = pair;
    let (address, bytes) = (link.address(), snapshot.bytes());
    match transmit(&shared, address, pair, &mut snapshot).await {
        Ok(()) => {
            shared.counts.one(TcpCounter::SnapshotsSent);
            info!(member = %from, peer = %to, address, bytes, "snapshot sent");
            snapshot.arrived();
        }
        Err(SendError::Refused(why)) => {
            shared.counts.one(TcpCounter::SnapshotsRefusedByPeer);
            warn!(member = %from, peer = %to, address, why, "peer refused a snapshot");
        }
        Err(SendError::Lost(why)) => {
            shared.counts.one(TcpCounter::SnapshotsLost);
            warn!(member = %from, peer = %to, address, why, "snapshot lost");
        }
    }
    drop(place);
}

/// Why a snapshot did not arrive.
enum SendError {
    Refused(String),
    Lost(String),
}

fn lost(why: impl ToString) -> SendError {
    SendError::Lost(why.to_string())
}

async fn transmit(
    shared: &TcpShared,
    address: &str,
    pair: Introduction,
    snapshot: &mut OutgoingSnapshot,
) -> Result<(), SendError> {
    let TcpShared { config, counts, advertise, .. } = shared;
    let envelope = snapshot.envelope();
    let head = MessageHead::new(envelope, pair.from.member, pair.incarnation);
    let mut head = head.map_err(|_| lost("in another member's name"))?;
    head.snapshot_bytes = snapshot.bytes();
    let (reader, writer) =
        dial(config, counts, address, advertise, Purpose::Snapshot).await.map_err(lost)?;
    let mut stream = SnapshotStream { shared, reader, writer, batch: FrameBatch::default() };
    stream.batch.push(FrameKind::Introduce, CHANNEL, &IntroduceHead::from(pair));
    stream.batch.push(FrameKind::SnapshotBegin, CHANNEL, &head);
    stream.write().await?;
    let mut passed = SnapshotProgress::default();
    while let Some(mut chunk) = snapshot.next_chunk().await.map_err(lost)? {
        while !chunk.is_empty() {
            let piece = chunk.split_to(chunk.len().min(CHUNK_BYTES));
            stream.pause(shared.snapshot_rate.take(piece.len())).await?;
            let head = passed.add(&piece);
            let body = FrameBody::new(piece);
            stream.batch.push_with_body(FrameKind::SnapshotChunk, CHANNEL, &head, Some(&body));
            stream.write().await?;
        }
    }
    stream.batch.push(FrameKind::SnapshotEnd, CHANNEL, &passed.end());
    stream.write().await?;
    answer(&mut stream.reader, config.silence_timeout).await
}

struct SnapshotStream<'a> {
    shared: &'a TcpShared,
    reader: Reader,
    writer: Writer,
    batch: FrameBatch,
}

impl SnapshotStream<'_> {
    /// Writes what is in the batch. EmptyHead has to be heard meanwhile; an answer that comes
    /// too early ends it.
    async fn write(&mut self) -> Result<(), SendError> {
        let TcpShared { config, counts, .. } = self.shared;
        let written = self.batch.write_to(&mut self.writer, config.write_timeout, counts);
        tokio::select! {
            biased;
            ended = answer(&mut self.reader, NO_TIMEOUT) => Err(early(ended)),
            written = written => written.map_err(lost),
        }
    }

    /// Gives signs of life meanwhile.
    async fn pause(&mut self, mut left: Duration) -> Result<(), SendError> {
        while !left.is_zero() {
            let step = left.min(self.shared.config.keep_alive_every);
            tokio::select! {
                ended = answer(&mut self.reader, NO_TIMEOUT) => return Err(early(ended)),
                () = sleep(step) => {}
            }
            left -= step;
            if !left.is_zero() {
                self.batch.push(FrameKind::KeepAlive, 0, &EmptyHead {});
                self.write().await?;
            }
        }
        Ok(())
    }
}

fn early(ended: Result<(), SendError>) -> SendError {
    ended.err().unwrap_or_else(|| lost("taken for complete before it was"))
}

/// What the other side says in the end.
async fn answer(reader: &mut Reader, limit: Duration) -> Result<(), SendError> {
    loop {
        let frame = reader.next(limit).await.map_err(lost)?;
        match frame.kind {
            FrameKind::Welcome | FrameKind::KeepAlive => {}
            FrameKind::SnapshotDone => return Ok(()),
            FrameKind::SnapshotRefused => {
                let head: SnapshotRefusedHead =
                    prost::Message::decode(&frame.head[..]).unwrap_or_default();
                return Err(SendError::Refused(head.text));
            }
            FrameKind::Refused => {
                let head: RefusedHead = prost::Message::decode(&frame.head[..]).unwrap_or_default();
                return Err(SendError::Refused(head.text));
            }
            _ => return Err(lost("an answer that has no place here")),
        }
    }
}
