//! Asking a process who lives there: a connection for one question, by somebody who is no
//! member yet and learns from the answer whether it is to be one.
//!
//! It counts as a connection that has not said who it is, so the limits on those bound it.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use quorate_core::{MemberId, SnapshotMeta};
use quorate_storage::codec::Codec;
use tokio::time::timeout;

use super::counts::Counted;
use super::frame::{Batch, FOR_EVER, Kind};
use super::handshake::{Purpose, Writer, dial};
use super::message::Undecodable;
use super::shared::Shared;
use crate::runtime::{Inbox, MemberKey, Resident};

/// No answer names more.
const RESIDENTS_MAX: usize = 64;

/// No answer is longer.
const ANSWER_BYTES_MAX: usize = 4 << 20;

#[derive(Clone, PartialEq, prost::Message)]
struct ResidentsHead {
    #[prost(message, repeated, tag = "1")]
    residents: Vec<ResidentHead>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ResidentHead {
    #[prost(fixed64, tag = "1")]
    cluster: u64,
    #[prost(uint64, tag = "2")]
    member: u64,
    /// A `SnapshotMeta`.
    #[prost(bytes = "bytes", tag = "3")]
    membership: Bytes,
}

/// Why nobody said who lives there. Ask another one, or again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InquiryError {
    why: String,
}

impl fmt::Display for InquiryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for InquiryError {}

pub(crate) async fn ask(
    shared: &Shared,
    address: &str,
    patience: Duration,
) -> Result<Vec<Resident>, InquiryError> {
    let asked = timeout(patience, converse(shared, address)).await;
    asked
        .unwrap_or_else(|_| Err("no answer in time".to_owned()))
        .map_err(|why| InquiryError { why })
}

async fn converse(shared: &Shared, address: &str) -> Result<Vec<Resident>, String> {
    let Shared { config, counts, advertise, .. } = shared;
    let (mut reader, _writer) = dial(config, counts, address, advertise, Purpose::Inquiry).await?;
    reader.set_frame_bytes_max(ANSWER_BYTES_MAX);
    let frame = reader.next(FOR_EVER).await.map_err(|why| why.to_string())?;
    if frame.kind != Kind::Residents {
        return Err("not an answer to an inquiry".to_owned());
    }
    decode(&frame.head).map_err(|_| "an answer that cannot be read".to_owned())
}

fn decode(head: &[u8]) -> Result<Vec<Resident>, Undecodable> {
    let ResidentsHead { residents } = prost::Message::decode(head)?;
    let resident = |ResidentHead { cluster, member, membership }| {
        let key = MemberKey { cluster, member: MemberId(member) };
        Ok(Resident { key, membership: SnapshotMeta::from_bytes(membership)? })
    };
    residents.into_iter().map(resident).collect()
}

/// Says who lives here.
pub(crate) async fn answer(inbox: &Inbox, writer: &mut Writer, shared: &Shared) {
    shared.counts.one(Counted::Inquired);
    let residents = inbox.residents(RESIDENTS_MAX).into_iter().map(|resident| ResidentHead {
        cluster: resident.key.cluster,
        member: resident.key.member.0,
        membership: resident.membership.to_bytes().into(),
    });
    let mut batch = Batch::default();
    batch.push(Kind::Residents, 0, &ResidentsHead { residents: residents.collect() });
    // Who is gone before it was answered asks again.
    let _ = batch.write_to(writer, shared.config.write_timeout, &shared.counts).await;
}
