//! Receiving a snapshot: from its connection to the member's disk, no faster than that
//! takes it.

use std::future::Future;
use std::pin::pin;

use quorate_core::{Envelope, Message};
use tokio::time::sleep;
use tracing::{info, warn};

use super::counts::Counted;
use super::frame::{Frame, Kind};
use super::incoming::{Guest, Hangup, addressee};
use super::message::{MessageHead, Nothing};
use super::snapshot_stream::{ChunkHead, EndHead, Passed, SnapshotRefusedHead};
use crate::runtime::{Introduction, SnapshotReceiveError};

/// Receives what this frame begins, and answers what became of it.
pub(crate) async fn receive(
    guest: &mut Guest<'_>,
    begin: Frame,
    pair: Introduction,
) -> Result<(), Hangup> {
    let (envelope, bytes) = announced(begin, pair)?;
    let channel = 1;
    match land(guest, envelope, bytes, pair).await {
        Ok(()) => {
            guest.shared.counts.one(Counted::SnapshotsReceived);
            info!(peer = %pair.from, member = %pair.to, bytes, "snapshot received");
            guest.answers.push(Kind::SnapshotDone, channel, &Nothing {});
        }
        Err(Failure::Refused(why)) => {
            guest.shared.counts.one(Counted::SnapshotsRefused);
            warn!(peer = %pair.from, member = %pair.to, %why, "snapshot refused");
            let head = SnapshotRefusedHead { text: why.to_string() };
            guest.answers.push(Kind::SnapshotRefused, channel, &head);
        }
        Err(Failure::Broken(hangup)) => {
            guest.shared.counts.one(Counted::SnapshotsBroken);
            return Err(hangup);
        }
    }
    Ok(())
}

/// The message, and how many bytes are to follow.
fn announced(begin: Frame, pair: Introduction) -> Result<(Envelope, u64), Hangup> {
    let malformed = Hangup::Counted(Counted::Malformed);
    let Ok(head) = <MessageHead as prost::Message>::decode(&begin.head[..]) else {
        return Err(malformed);
    };
    let bytes = head.snapshot_bytes;
    match head.into_envelope(begin.body, pair.from.member, pair.incarnation, pair.to) {
        Ok(envelope) if matches!(envelope.message, Message::Snapshot(_)) => Ok((envelope, bytes)),
        _ => Err(malformed),
    }
}

/// Why a snapshot did not land.
enum Failure {
    /// The member does not take it.
    Refused(SnapshotReceiveError),
    /// Its sender did not do as it should, or the connection broke.
    Broken(Hangup),
}

impl<T: Into<Hangup>> From<T> for Failure {
    fn from(hangup: T) -> Self {
        Self::Broken(hangup.into())
    }
}

async fn land(
    guest: &mut Guest<'_>,
    envelope: Envelope,
    bytes: u64,
    pair: Introduction,
) -> Result<(), Failure> {
    let begun = guest.inbox.begin_snapshot(addressee(&pair), envelope);
    let mut snapshot = while_alive(guest, begun).await?.map_err(Failure::Refused)?;
    let mut passed = Passed::default();
    let malformed = || Failure::Broken(Hangup::Counted(Counted::Malformed));
    loop {
        let frame = guest.reader.next(guest.shared.config.silence_timeout).await?;
        match frame.kind {
            Kind::KeepAlive => {}
            Kind::SnapshotChunk => {
                let head: ChunkHead = decode(&frame).ok_or_else(malformed)?;
                let fits = passed.bytes + frame.body.len() as u64 <= bytes;
                if !fits || frame.body.is_empty() || passed.add(&frame.body) != head {
                    return Err(malformed());
                }
                let appended = snapshot.append(frame.body);
                while_alive(guest, appended).await?.map_err(Failure::Refused)?;
            }
            Kind::SnapshotEnd => {
                let head: EndHead = decode(&frame).ok_or_else(malformed)?;
                if passed.end() != head || passed.bytes != bytes {
                    return Err(malformed());
                }
                let finished = snapshot.finish();
                return while_alive(guest, finished).await?.map_err(Failure::Refused);
            }
            _ => return Err(Failure::Broken(Hangup::Counted(Counted::Unexpected))),
        }
    }
}

fn decode<T: prost::Message + Default>(frame: &Frame) -> Option<T> {
    T::decode(&frame.head[..]).ok()
}

/// Gives signs of life while a disk takes its time.
async fn while_alive<T>(guest: &mut Guest<'_>, work: impl Future<Output = T>) -> Result<T, Hangup> {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Ok(done),
            () = sleep(guest.shared.config.keep_alive_every) => {
                guest.answers.push(Kind::KeepAlive, 0, &Nothing {});
                guest.answer().await?;
            }
        }
    }
}
