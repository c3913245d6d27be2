//! What the application of one member asks the application where the leader is: things
//! that only it knows and that stand in no log, such as how long a lease still lasts.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use quorate_core::MemberId;
use tokio::sync::oneshot;

use super::aside::Aside;
use super::transport::{MemberKey, Parcel, Transport};
use crate::outcome::RequestRefused;

/// A question to the application at the leader; see
/// [`Node::inquiries`](crate::Node::inquiries). Dropped without an answer, it tells the one
/// who asked to try again.
pub struct Inquiry {
    from: MemberId,
    question: Bytes,
    asker: Option<Asker>,
}

/// Where the answer goes.
pub(crate) enum Asker {
    Here(oneshot::Sender<Result<Bytes, RequestRefused>>),
    Elsewhere { key: MemberKey, transport: Arc<dyn Transport>, number: u64 },
}

impl Inquiry {
    pub(crate) fn new(from: MemberId, question: Bytes, asker: Asker) -> Self {
        Self { from, question, asker: Some(asker) }
    }

    /// The member whose application asks.
    pub fn from(&self) -> MemberId {
        self.from
    }

    /// What it asks. It comes from another process: it may be anything.
    pub fn question(&self) -> &Bytes {
        &self.question
    }

    /// Answers it. Whether the answer arrives nobody knows.
    pub fn answer(mut self, answer: impl Into<Bytes>) {
        self.tell(Some(answer.into()));
    }

    fn tell(&mut self, answer: Option<Bytes>) {
        match self.asker.take() {
            Some(Asker::Here(reply)) => {
                let _ = reply.send(answer.ok_or(RequestRefused::NoLeader));
            }
            Some(Asker::Elsewhere { key, transport, number }) => {
                let bytes = Aside::Told(number, answer).to_bytes();
                let parcel = Parcel::Aside { from: key.member, to: self.from, bytes };
                transport.send(key, vec![parcel]);
            }
            None => {}
        }
    }
}

impl Drop for Inquiry {
    fn drop(&mut self) {
        self.tell(None);
    }
}

impl fmt::Debug for Inquiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inquiry").field("from", &self.from).finish_non_exhaustive()
    }
}

/// Inquiries that may wait for the application; one more is dropped.
pub(crate) const INQUIRIES_WAITING_MAX: usize = 1_024;
/// What a question may weigh: it travels beside the log and must not hold it up.
pub(crate) const QUESTION_BYTES_MAX: usize = 64 << 10;
