//! Queries from the application of any member to the application of the leader, for state
//! that only the leader has and that is not in the log, such as the time left of a lease.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use quorate_core::MemberId;
use tokio::sync::oneshot;

use super::side_messages::SideMessage;
use super::transport::{MemberKey, PeerMessage, Transport};
use crate::outcome::RequestRefused;

/// A query to the application of the leader; see
/// [`Node::leader_queries`](crate::Node::leader_queries). If it is dropped without a reply, the
/// sender is told to retry.
#[must_use = "the sender waits for a reply"]
pub struct LeaderQuery {
    from: MemberId,
    payload: Bytes,
    reply_to: Option<ReplyTo>,
}

/// Where the reply goes.
pub(crate) enum ReplyTo {
    Local(oneshot::Sender<Result<Bytes, RequestRefused>>),
    Remote { key: MemberKey, transport: Arc<dyn Transport>, number: u64 },
}

impl LeaderQuery {
    pub(crate) fn new(from: MemberId, payload: Bytes, reply_to: ReplyTo) -> Self {
        Self { from, payload, reply_to: Some(reply_to) }
    }

    /// The member whose application sent it.
    pub fn from(&self) -> MemberId {
        self.from
    }

    /// The query. It comes from another process: do not trust it.
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// Replies. The reply may get lost.
    pub fn reply(mut self, reply: impl Into<Bytes>) {
        self.send_reply(Some(reply.into()));
    }

    fn send_reply(&mut self, payload: Option<Bytes>) {
        match self.reply_to.take() {
            Some(ReplyTo::Local(reply)) => {
                let _ = reply.send(payload.ok_or(RequestRefused::NoLeader));
            }
            Some(ReplyTo::Remote { key, transport, number }) => {
                let bytes = SideMessage::QueryReply(number, payload).to_bytes();
                let message = PeerMessage::Side { from: key.member, to: self.from, bytes };
                transport.send(key, vec![message]);
            }
            None => {}
        }
    }
}

impl Drop for LeaderQuery {
    fn drop(&mut self) {
        self.send_reply(None);
    }
}

impl fmt::Debug for LeaderQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderQuery").field("from", &self.from).finish_non_exhaustive()
    }
}

/// Queries that may wait for the application; further ones are dropped.
pub(crate) const QUERIES_WAITING_MAX: usize = 1_024;
/// The largest query: queries share the connection with the log and must not delay it.
pub(crate) const QUERY_BYTES_MAX: usize = 64 << 10;
