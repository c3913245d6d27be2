//! Asking a process which members it hosts: a connection for one question, opened by a
//! process that has no member yet and learns from the answer what to join.
//!
//! It counts as a connection that has not identified itself, so the limits on those apply.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use quorate_core::{MemberId, SnapshotMeta};
use quorate_storage::codec::Codec;
use tokio::time::timeout;

use super::counters::TcpCounter;
use super::frame::{FrameBatch, FrameKind, NO_TIMEOUT};
use super::handshake::{Purpose, Writer, dial};
use super::message::MalformedMessage;
use super::shared::TcpShared;
use crate::cluster_version::ClusterVersion;
use crate::runtime::{HostedMember, Inbox, MemberKey};

/// A reply names at most this many members.
const HOSTED_MEMBERS_MAX: usize = 64;

/// A longer reply is rejected.
const ANSWER_BYTES_MAX: usize = 4 << 20;

#[derive(Clone, PartialEq, prost::Message)]
struct HostedMembersHead {
    #[prost(message, repeated, tag = "1")]
    members: Vec<HostedMemberHead>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HostedMemberHead {
    #[prost(fixed64, tag = "1")]
    cluster: u64,
    #[prost(uint64, tag = "2")]
    member: u64,
    /// A `SnapshotMeta`.
    #[prost(bytes = "bytes", tag = "3")]
    membership: Bytes,
    /// 0 from a process that does not know of it.
    #[prost(uint32, tag = "4")]
    cluster_version: u32,
}

/// Why a process did not tell which members it hosts. Retry, or ask another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryError {
    reason: String,
}

impl fmt::Display for DiscoveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for DiscoveryError {}

pub(crate) async fn discover(
    shared: &TcpShared,
    address: &str,
    limit: Duration,
) -> Result<Vec<HostedMember>, DiscoveryError> {
    let reply = timeout(limit, exchange(shared, address)).await;
    reply
        .unwrap_or_else(|_| Err("no reply in time".to_owned()))
        .map_err(|reason| DiscoveryError { reason })
}

async fn exchange(shared: &TcpShared, address: &str) -> Result<Vec<HostedMember>, String> {
    let TcpShared { config, counts, advertise, .. } = shared;
    let mut dialled = dial(config, counts, address, advertise, Purpose::Discovery).await?;
    let reader = &mut dialled.reader;
    reader.set_frame_bytes_max(ANSWER_BYTES_MAX);
    let frame = reader.next(NO_TIMEOUT).await.map_err(|why| why.to_string())?;
    if frame.kind != FrameKind::HostedMembers {
        return Err("the reply is not a discovery reply".to_owned());
    }
    decode(&frame.head).map_err(|_| "the reply is malformed".to_owned())
}

pub(super) fn decode(head: &[u8]) -> Result<Vec<HostedMember>, MalformedMessage> {
    let HostedMembersHead { members } = prost::Message::decode(head)?;
    let member = |HostedMemberHead { cluster, member, membership, cluster_version }| {
        let key = MemberKey { cluster, member: MemberId(member) };
        let membership = SnapshotMeta::from_bytes(membership)?;
        let cluster_version = cluster_version.max(ClusterVersion::FIRST);
        Ok(HostedMember { key, membership, cluster_version })
    };
    members.into_iter().map(member).collect()
}

/// Sends which members this process hosts.
pub(crate) async fn reply(inbox: &Inbox, writer: &mut Writer, shared: &TcpShared) {
    shared.counts.one(TcpCounter::DiscoveryAnswered);
    let members =
        inbox.hosted_members(HOSTED_MEMBERS_MAX).into_iter().map(|member| HostedMemberHead {
            cluster: member.key.cluster,
            member: member.key.member.0,
            membership: member.membership.to_bytes().into(),
            cluster_version: member.cluster_version,
        });
    let mut batch = FrameBatch::default();
    batch.push(FrameKind::HostedMembers, 0, &HostedMembersHead { members: members.collect() });
    // A process that disconnects before the reply retries.
    let _ = batch.write_to(writer, shared.config.write_timeout, &shared.counts).await;
}
