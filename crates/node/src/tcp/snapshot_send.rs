//! Sending a snapshot on a separate connection, so that it delays no heartbeat.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;
use tracing::{info, warn};

use super::counters::TcpCounter;
use super::frame::{FrameBatch, FrameBody, FrameKind, NO_TIMEOUT};
use super::handshake::{
    Dialled, IntroduceHead, Purpose, Reader, RefusedHead, UNKNOWN_SIZES_SINCE, Writer, dial,
};
use super::message::{EmptyHead, MessageHead};
use super::shared::{Route, TcpShared};
use super::snapshot_stream::{SnapshotProgress, SnapshotRefusedHead};
use crate::runtime::{Introduction, MemberKey, OutgoingSnapshot};

/// Longer pieces are split, so that the rate is even and keep-alives are not delayed.
const CHUNK_BYTES: usize = 512 << 10;

/// The only channel of such a connection.
const CHANNEL: u32 = 1;

/// Sends it when its turn comes. A snapshot that is dropped instead reports itself as lost.
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
    let permit = shared.snapshot_permits.acquire().await;
    shared.snapshots_waiting.fetch_sub(1, Ordering::Relaxed);
    let Route { pair, link, .. } = route;
    let Introduction { from, to, .. } = pair;
    let address = link.address();
    match transmit(&shared, address, pair, &mut snapshot).await {
        Ok(bytes) => {
            shared.counts.one(TcpCounter::SnapshotsSent);
            info!(member = %from.member, peer = %to, address, bytes, "snapshot sent");
            snapshot.arrived();
        }
        Err(SendError::Refused(head)) => {
            let reason = head.text;
            shared.counts.one(TcpCounter::SnapshotsRefusedByPeer);
            warn!(member = %from.member, peer = %to, address, reason, "peer refused a snapshot");
        }
        Err(SendError::Lost(error)) => {
            shared.counts.one(TcpCounter::SnapshotsLost);
            warn!(member = %from.member, peer = %to, address, error, "snapshot not sent");
        }
    }
    drop(permit);
}

/// Why a snapshot did not arrive.
enum SendError {
    Refused(SnapshotRefusedHead),
    Lost(String),
}

fn lost(why: impl ToString) -> SendError {
    SendError::Lost(why.to_string())
}

/// Returns the number of bytes.
async fn transmit(
    shared: &TcpShared,
    address: &str,
    pair: Introduction,
    snapshot: &mut OutgoingSnapshot,
) -> Result<u64, SendError> {
    let TcpShared { config, counts, advertise, .. } = shared;
    let envelope = snapshot.envelope();
    let head = MessageHead::new(envelope, pair.from.member, pair.incarnation);
    let mut head = head.map_err(|_| lost("the snapshot is of another member"))?;
    head.snapshot_bytes = snapshot.bytes().unwrap_or_default();
    head.snapshot_size_unknown = snapshot.bytes().is_none();
    let Dialled { reader, writer, version } =
        dial(config, counts, address, advertise, Purpose::Snapshot).await.map_err(lost)?;
    if head.snapshot_size_unknown && version < UNKNOWN_SIZES_SINCE {
        return Err(lost("the peer's program is too old for a snapshot of unknown size"));
    }
    let mut stream = SnapshotStream { shared, reader, writer, batch: FrameBatch::default() };
    stream.batch.push(FrameKind::Introduce, CHANNEL, &IntroduceHead::from(pair));
    stream.batch.push(FrameKind::SnapshotBegin, CHANNEL, &head);
    stream.write().await?;
    let mut passed = SnapshotProgress::default();
    let mut next = snapshot.next_chunk().await.map_err(lost)?;
    while let Some(chunk) = next {
        // The disk reads the next chunk while this one is sent.
        let sent = stream.send(chunk, &mut passed);
        let read = async { snapshot.next_chunk().await.map_err(lost) };
        ((), next) = tokio::try_join!(sent, read)?;
    }
    stream.batch.push(FrameKind::SnapshotEnd, CHANNEL, &passed.end());
    stream.write().await?;
    read_reply(&mut stream.reader, config.silence_timeout).await?;
    Ok(passed.bytes)
}

struct SnapshotStream<'a> {
    shared: &'a TcpShared,
    reader: Reader,
    writer: Writer,
    batch: FrameBatch,
}

impl SnapshotStream<'_> {
    async fn send(
        &mut self,
        mut chunk: Bytes,
        passed: &mut SnapshotProgress,
    ) -> Result<(), SendError> {
        while !chunk.is_empty() {
            let piece = chunk.split_to(chunk.len().min(CHUNK_BYTES));
            self.pause(self.shared.snapshot_rate.take(piece.len())).await?;
            let head = passed.add(&piece);
            let body = FrameBody::new(piece);
            self.batch.push_with_body(FrameKind::SnapshotChunk, CHANNEL, &head, Some(&body));
            self.write().await?;
        }
        Ok(())
    }

    /// Writes the batch. No reply is expected in the meantime; one that comes too early ends
    /// the transfer.
    async fn write(&mut self) -> Result<(), SendError> {
        let TcpShared { config, counts, .. } = self.shared;
        let written = self.batch.write_to(&mut self.writer, config.write_timeout, counts);
        tokio::select! {
            biased;
            ended = read_reply(&mut self.reader, NO_TIMEOUT) => Err(early(ended)),
            written = written => written.map_err(lost),
        }
    }

    /// Sends keep-alives in the meantime.
    async fn pause(&mut self, mut left: Duration) -> Result<(), SendError> {
        while !left.is_zero() {
            let step = left.min(self.shared.config.keep_alive_every);
            tokio::select! {
                ended = read_reply(&mut self.reader, NO_TIMEOUT) => return Err(early(ended)),
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
    ended.err().unwrap_or_else(|| lost("the peer confirmed it before its end"))
}

/// The peer's final reply.
async fn read_reply(reader: &mut Reader, limit: Duration) -> Result<(), SendError> {
    loop {
        let frame = reader.next(limit).await.map_err(lost)?;
        match frame.kind {
            FrameKind::Welcome | FrameKind::KeepAlive => {}
            FrameKind::SnapshotDone => return Ok(()),
            FrameKind::SnapshotRefused => {
                let head: SnapshotRefusedHead =
                    prost::Message::decode(&frame.head[..]).unwrap_or_default();
                return Err(SendError::Refused(head));
            }
            FrameKind::Refused => {
                let head: RefusedHead = prost::Message::decode(&frame.head[..]).unwrap_or_default();
                // The codes of this frame are those of members, not of snapshots.
                let head = SnapshotRefusedHead { text: head.text, reason: 0 };
                return Err(SendError::Refused(head));
            }
            _ => return Err(lost("unexpected reply")),
        }
    }
}
