//! Messages between the runtimes of members, beside the Raft core: what the leader knows of
//! its members, for plans on other members; and queries to the leader's application.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_core::membership::PlanContext;
use quorate_core::{EntryId, MemberId, MemberSet};
use quorate_storage::codec::{Codec, DecodeError, Decoder};
use tokio::sync::oneshot;

use crate::cluster_version::VersionRange;
use crate::outcome::RequestRefused;

/// What a leader knows of its members, and of which membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaderView {
    /// The newest membership in its log.
    pub(crate) newest: EntryId,
    pub(crate) view: PlanContext,
}

/// The messages, encoded as bytes. The number matches a reply with its request. A receiver drops
/// kinds that it does not know: the request then times out, and its sender must expect that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SideMessage {
    ViewRequest(u64),
    /// None when the receiver of the request does not lead.
    ViewReply(u64, Option<LeaderView>),
    /// From an application to the leader's application.
    Query(u64, Bytes),
    /// None when the receiver of the query does not lead, or has no reply.
    QueryReply(u64, Option<Bytes>),
    /// From a leader: which cluster versions does your program support?
    VersionRequest(u64),
    VersionReply(u64, VersionRange),
}

const VIEW_REQUEST: u8 = 1;
const VIEW_REPLY: u8 = 2;
const QUERY: u8 = 3;
const QUERY_REPLY: u8 = 4;
const VERSION_REQUEST: u8 = 5;
const VERSION_REPLY: u8 = 6;

impl SideMessage {
    pub(crate) fn to_bytes(&self) -> Bytes {
        let mut bytes = Vec::new();
        match self {
            Self::ViewRequest(number) => {
                bytes.push(VIEW_REQUEST);
                number.encode(&mut bytes);
            }
            Self::ViewReply(number, view) => {
                bytes.push(VIEW_REPLY);
                number.encode(&mut bytes);
                view.is_some().encode(&mut bytes);
                if let Some(LeaderView { newest, view }) = view {
                    newest.encode(&mut bytes);
                    view.leader.encode(&mut bytes);
                    view.caught_up.encode(&mut bytes);
                    view.catching_up.encode(&mut bytes);
                    view.settled.encode(&mut bytes);
                }
            }
            Self::Query(number, question) => {
                bytes.push(QUERY);
                number.encode(&mut bytes);
                question.encode(&mut bytes);
            }
            Self::QueryReply(number, reply) => {
                bytes.push(QUERY_REPLY);
                number.encode(&mut bytes);
                reply.is_some().encode(&mut bytes);
                if let Some(reply) = reply {
                    reply.encode(&mut bytes);
                }
            }
            Self::VersionRequest(number) => {
                bytes.push(VERSION_REQUEST);
                number.encode(&mut bytes);
            }
            Self::VersionReply(number, VersionRange { min, max }) => {
                bytes.push(VERSION_REPLY);
                number.encode(&mut bytes);
                min.encode(&mut bytes);
                max.encode(&mut bytes);
            }
        }
        bytes.into()
    }

    pub(crate) fn from_bytes(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut from = Decoder::new(bytes);
        let kind = u8::decode(&mut from)?;
        let number = u64::decode(&mut from)?;
        let message = match kind {
            VIEW_REQUEST => Self::ViewRequest(number),
            VIEW_REPLY if !bool::decode(&mut from)? => Self::ViewReply(number, None),
            VIEW_REPLY => {
                let newest = EntryId::decode(&mut from)?;
                let view = PlanContext {
                    leader: MemberId::decode(&mut from)?,
                    caught_up: MemberSet::decode(&mut from)?,
                    catching_up: MemberSet::decode(&mut from)?,
                    settled: bool::decode(&mut from)?,
                };
                Self::ViewReply(number, Some(LeaderView { newest, view }))
            }
            QUERY => Self::Query(number, Bytes::decode(&mut from)?),
            QUERY_REPLY if !bool::decode(&mut from)? => Self::QueryReply(number, None),
            QUERY_REPLY => Self::QueryReply(number, Some(Bytes::decode(&mut from)?)),
            VERSION_REQUEST => Self::VersionRequest(number),
            VERSION_REPLY => {
                let (min, max) = (u32::decode(&mut from)?, u32::decode(&mut from)?);
                Self::VersionReply(number, VersionRange { min, max })
            }
            _ => return Err(DecodeError::InvalidValue),
        };
        if from.remaining() == 0 { Ok(message) } else { Err(DecodeError::TrailingBytes) }
    }
}

/// The requests that wait for a reply of the leader.
#[derive(Default)]
pub(crate) struct SideRequests {
    last: u64,
    views: BTreeMap<u64, PendingReply<LeaderView>>,
    queries: BTreeMap<u64, PendingReply<Bytes>>,
}

struct PendingReply<T> {
    reply: oneshot::Sender<Result<T, RequestRefused>>,
    ticks_left: u32,
}

impl SideRequests {
    pub(crate) fn request_view(
        &mut self,
        reply: oneshot::Sender<Result<LeaderView, RequestRefused>>,
        ticks: u32,
    ) -> SideMessage {
        self.last += 1;
        self.views.insert(self.last, PendingReply { reply, ticks_left: ticks });
        SideMessage::ViewRequest(self.last)
    }

    pub(crate) fn query(
        &mut self,
        question: Bytes,
        reply: oneshot::Sender<Result<Bytes, RequestRefused>>,
        ticks: u32,
    ) -> SideMessage {
        self.last += 1;
        self.queries.insert(self.last, PendingReply { reply, ticks_left: ticks });
        SideMessage::Query(self.last, question)
    }

    pub(crate) fn on_view_reply(&mut self, number: u64, view: Option<LeaderView>) {
        complete(&mut self.views, number, view);
    }

    pub(crate) fn on_query_reply(&mut self, number: u64, reply: Option<Bytes>) {
        complete(&mut self.queries, number, reply);
    }

    pub(crate) fn tick(&mut self) {
        tick(&mut self.views);
        tick(&mut self.queries);
    }
}

fn complete<T>(open: &mut BTreeMap<u64, PendingReply<T>>, number: u64, reply: Option<T>) {
    if let Some(pending) = open.remove(&number) {
        let _ = pending.reply.send(reply.ok_or(RequestRefused::NoLeader));
    }
}

fn tick<T>(open: &mut BTreeMap<u64, PendingReply<T>>) {
    let mut expired = Vec::new();
    for (number, pending) in &mut *open {
        pending.ticks_left = pending.ticks_left.saturating_sub(1);
        if pending.ticks_left == 0 || pending.reply.is_closed() {
            expired.push(*number);
        }
    }
    for number in expired {
        complete(open, number, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_encoding_and_truncated_ones_are_rejected() {
        let view = PlanContext {
            leader: MemberId(3),
            caught_up: [1, 2, 3].map(MemberId).into_iter().collect(),
            catching_up: [7].map(MemberId).into_iter().collect(),
            settled: true,
        };
        let view = LeaderView { newest: EntryId::new(4, 9), view };
        let messages = [
            SideMessage::ViewRequest(7),
            SideMessage::ViewReply(8, None),
            SideMessage::ViewReply(9, Some(view)),
            SideMessage::Query(10, "how long".into()),
            SideMessage::QueryReply(11, None),
            SideMessage::QueryReply(12, Some("long".into())),
            SideMessage::VersionRequest(13),
            SideMessage::VersionReply(14, VersionRange::new(2, 3)),
        ];
        for message in messages {
            let bytes = message.to_bytes();
            assert_eq!(SideMessage::from_bytes(bytes.clone()), Ok(message));
            for cut in 0..bytes.len() {
                assert!(SideMessage::from_bytes(bytes.slice(..cut)).is_err());
            }
        }
    }
}
