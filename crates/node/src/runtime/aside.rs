//! What nodes say to each other beside their cores: what the leader sees of its members,
//! for whoever plans or waits somewhere else; and what applications ask the one that runs
//! where the leader is.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_core::{EntryId, MemberId, MemberSet, View};
use quorate_storage::codec::{Codec, DecodeError, Decoder};
use tokio::sync::oneshot;

use crate::outcome::RequestRefused;

/// What a leader sees of its members, and of which membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaderView {
    /// The newest membership in its log.
    pub(crate) newest: EntryId,
    pub(crate) view: View,
}

/// One of these, as bytes. A version that knows more kinds sends them only to those who
/// asked for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Aside {
    AskView(u64),
    /// Nothing when the one who was asked does not lead.
    ToldView(u64, Option<LeaderView>),
    /// From an application to the one at the leader.
    Ask(u64, Bytes),
    /// Nothing when the one who was asked does not lead, or has no answer.
    Told(u64, Option<Bytes>),
}

const ASK_VIEW: u8 = 1;
const TOLD_VIEW: u8 = 2;
const ASK: u8 = 3;
const TOLD: u8 = 4;

impl Aside {
    pub(crate) fn to_bytes(&self) -> Bytes {
        let mut bytes = Vec::new();
        match self {
            Self::AskView(number) => {
                bytes.push(ASK_VIEW);
                number.encode(&mut bytes);
            }
            Self::ToldView(number, view) => {
                bytes.push(TOLD_VIEW);
                number.encode(&mut bytes);
                view.is_some().encode(&mut bytes);
                if let Some(LeaderView { newest, view }) = view {
                    newest.encode(&mut bytes);
                    view.leader.encode(&mut bytes);
                    view.caught_up.encode(&mut bytes);
                    view.coming.encode(&mut bytes);
                    view.settled.encode(&mut bytes);
                }
            }
            Self::Ask(number, question) => {
                bytes.push(ASK);
                number.encode(&mut bytes);
                question.encode(&mut bytes);
            }
            Self::Told(number, answer) => {
                bytes.push(TOLD);
                number.encode(&mut bytes);
                answer.is_some().encode(&mut bytes);
                if let Some(answer) = answer {
                    answer.encode(&mut bytes);
                }
            }
        }
        bytes.into()
    }

    pub(crate) fn from_bytes(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut from = Decoder::new(bytes);
        let kind = u8::decode(&mut from)?;
        let number = u64::decode(&mut from)?;
        let aside = match kind {
            ASK_VIEW => Self::AskView(number),
            TOLD_VIEW if !bool::decode(&mut from)? => Self::ToldView(number, None),
            TOLD_VIEW => {
                let newest = EntryId::decode(&mut from)?;
                let view = View {
                    leader: MemberId::decode(&mut from)?,
                    caught_up: MemberSet::decode(&mut from)?,
                    coming: MemberSet::decode(&mut from)?,
                    settled: bool::decode(&mut from)?,
                };
                Self::ToldView(number, Some(LeaderView { newest, view }))
            }
            ASK => Self::Ask(number, Bytes::decode(&mut from)?),
            TOLD if !bool::decode(&mut from)? => Self::Told(number, None),
            TOLD => Self::Told(number, Some(Bytes::decode(&mut from)?)),
            _ => return Err(DecodeError::InvalidValue),
        };
        if from.remaining() == 0 { Ok(aside) } else { Err(DecodeError::TrailingBytes) }
    }
}

/// Who waits for what a leader elsewhere says.
#[derive(Default)]
pub(crate) struct Asides {
    last: u64,
    views: BTreeMap<u64, Waiting<LeaderView>>,
    answers: BTreeMap<u64, Waiting<Bytes>>,
}

struct Waiting<T> {
    reply: oneshot::Sender<Result<T, RequestRefused>>,
    ticks_left: u32,
}

impl Asides {
    pub(crate) fn ask_view(
        &mut self,
        reply: oneshot::Sender<Result<LeaderView, RequestRefused>>,
        ticks: u32,
    ) -> Aside {
        self.last += 1;
        self.views.insert(self.last, Waiting { reply, ticks_left: ticks });
        Aside::AskView(self.last)
    }

    pub(crate) fn ask(
        &mut self,
        question: Bytes,
        reply: oneshot::Sender<Result<Bytes, RequestRefused>>,
        ticks: u32,
    ) -> Aside {
        self.last += 1;
        self.answers.insert(self.last, Waiting { reply, ticks_left: ticks });
        Aside::Ask(self.last, question)
    }

    pub(crate) fn told_view(&mut self, number: u64, view: Option<LeaderView>) {
        tell(&mut self.views, number, view);
    }

    pub(crate) fn told(&mut self, number: u64, answer: Option<Bytes>) {
        tell(&mut self.answers, number, answer);
    }

    pub(crate) fn tick(&mut self) {
        tick(&mut self.views);
        tick(&mut self.answers);
    }
}

fn tell<T>(open: &mut BTreeMap<u64, Waiting<T>>, number: u64, told: Option<T>) {
    if let Some(waiting) = open.remove(&number) {
        let _ = waiting.reply.send(told.ok_or(RequestRefused::NoLeader));
    }
}

fn tick<T>(open: &mut BTreeMap<u64, Waiting<T>>) {
    let mut late = Vec::new();
    for (number, waiting) in &mut *open {
        waiting.ticks_left = waiting.ticks_left.saturating_sub(1);
        if waiting.ticks_left == 0 || waiting.reply.is_closed() {
            late.push(*number);
        }
    }
    for number in late {
        tell(open, number, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood_and_nothing_less() {
        let view = View {
            leader: MemberId(3),
            caught_up: [1, 2, 3].map(MemberId).into_iter().collect(),
            coming: [7].map(MemberId).into_iter().collect(),
            settled: true,
        };
        let told = LeaderView { newest: EntryId::new(4, 9), view };
        let said = [
            Aside::AskView(7),
            Aside::ToldView(8, None),
            Aside::ToldView(9, Some(told)),
            Aside::Ask(10, "how long".into()),
            Aside::Told(11, None),
            Aside::Told(12, Some("long".into())),
        ];
        for aside in said {
            let bytes = aside.to_bytes();
            assert_eq!(Aside::from_bytes(bytes.clone()), Ok(aside));
            for cut in 0..bytes.len() {
                assert!(Aside::from_bytes(bytes.slice(..cut)).is_err());
            }
        }
    }
}
