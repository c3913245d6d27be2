//! What the application of one member asks the application where the leader is: things
//! that only it knows and that stand in no log, such as how long a lease still lasts.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use quorate_core::MemberId;
use tokio::sync::oneshot;

use super::side_messages::SideMessage;
use super::transport::{MemberKey, PeerMessage, Transport};
use crate::outcome::RequestRefused;

/// A question to the application at the leader; see
/// [`Node::leader_queries`](crate::Node::leader_queries). Dropped without an answer, it tells the one
/// who asked to try again.
pub struct LeaderQuery {
    from: MemberId,
    question: Bytes,
    reply_to: Option<ReplyTo>,
}

/// Where the answer goes.
pub(crate) enum ReplyTo {
    Local(oneshot::Sender<Result<Bytes, RequestRefused>>),
    Remote { key: MemberKey, transport: Arc<dyn Transport>, number: u64 },
}

impl LeaderQuery {
    pub(crate) fn new(from: MemberId, question: Bytes, reply_to: ReplyTo) -> Self {
        Self { from, question, reply_to: Some(reply_to) }
    }

    /// The member whose application asks.
    pub fn from(&self) -> MemberId {
        self.from
    }

    /// What it asks. It comes from another process: it may be anything.
    pub fn payload(&self) -> &Bytes {
        &self.question
    }

    /// Answers it. Whether the answer arrives nobody knows.
    pub fn reply(mut self, answer: impl Into<Bytes>) {
        self.tell(Some(answer.into()));
    }

    fn tell(&mut self, answer: Option<Bytes>) {
        match self.reply_to.take() {
            Some(ReplyTo::Local(reply)) => {
                let _ = reply.send(answer.ok_or(RequestRefused::NoLeader));
            }
            Some(ReplyTo::Remote { key, transport, number }) => {
                let bytes = SideMessage::QueryReply(number, answer).to_bytes();
                let message = PeerMessage::Side { from: key.member, to: self.from, bytes };
                transport.send(key, vec![message]);
            }
            None => {}
        }
    }
}

impl Drop for LeaderQuery {
    fn drop(&mut self) {
        self.tell(None);
    }
}

impl fmt::Debug for LeaderQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderQuery").field("from", &self.from).finish_non_exhaustive()
    }
}

/// Inquiries that may wait for the application; one more is dropped.
pub(crate) const QUERIES_WAITING_MAX: usize = 1_024;
/// What a question may weigh: it travels beside the log and must not hold it up.
pub(crate) const QUESTION_BYTES_MAX: usize = 64 << 10;
