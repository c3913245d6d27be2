//! Every request gets exactly one reply, and the reply is correct. (R2, R3, L5)
//!
//! The checker gets all requests, replies and applied requests as events. All members must
//! apply the same requests in the same order: the first member to apply an index defines
//! the order for the others. The content of the state machine is not checked here: see
//! `linearizable`.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use quorate_core::{Index, MemberId, RequestId};

/// Checks all requests and replies of one run.
#[derive(Clone, Debug, Default)]
pub struct ReplyChecker {
    requests: HashMap<RequestId, RequestRecord>,
    /// Every request that took effect, in log order.
    order: Vec<(Index, RequestId)>,
    machines: BTreeMap<MemberId, MachineProgress>,
    /// The highest index that a machine got.
    committed: Index,
}

/// The progress of a member's state machine.
#[derive(Clone, Copy, Debug, Default)]
struct MachineProgress {
    last: Index,
    /// How many requests of `order` it contains.
    contained: usize,
}

/// The kind of a client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckedRequest {
    /// A command for the log.
    Command,
    /// A read, which is never applied.
    Read,
}

/// What a reply tells its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyKind {
    /// The request took effect.
    Done,
    /// The request had no effect and never will.
    Refused,
    /// The request may have taken effect, or may still do so.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct RequestRecord {
    kind: CheckedRequest,
    reply: Option<ReplyKind>,
    applied: Option<Index>,
    /// What was committed when it was sent.
    after: Index,
}

impl ReplyChecker {
    pub fn new() -> Self {
        Self::default()
    }

    /// A client sends a request with a unique id.
    pub fn request_sent(
        &mut self,
        id: RequestId,
        kind: CheckedRequest,
    ) -> Result<(), ReplyViolation> {
        let request = RequestRecord { kind, reply: None, applied: None, after: self.committed };
        match self.requests.insert(id, request) {
            Some(_) => Err(ReplyViolation::SentTwice(id)),
            None => Ok(()),
        }
    }

    /// A client gets the reply to its request.
    pub fn reply_received(
        &mut self,
        id: RequestId,
        reply: ReplyKind,
    ) -> Result<(), ReplyViolation> {
        let Some(request) = self.requests.get_mut(&id) else {
            return Err(ReplyViolation::ReplyWithoutRequest(id));
        };
        if let Some(first) = request.reply {
            return Err(ReplyViolation::TwoReplies { id, first, second: reply });
        }
        request.reply = Some(reply);
        match request.applied {
            Some(index) if reply == ReplyKind::Refused => {
                Err(ReplyViolation::RefusedButApplied { id, index })
            }
            _ => Ok(()),
        }
    }

    /// A machine got the entry of this index: reads that are sent later must see it.
    pub fn committed(&mut self, index: Index) {
        self.committed = self.committed.max(index);
    }

    /// A read was served as of this index.
    pub fn served(&self, id: RequestId, at: Index) -> Result<(), ReplyViolation> {
        let Some(request) = self.requests.get(&id) else {
            return Err(ReplyViolation::ReplyWithoutRequest(id));
        };
        let after = request.after;
        if at < after { Err(ReplyViolation::StaleRead { id, at, after }) } else { Ok(()) }
    }

    /// A member's state machine applied a request. An entry that the machine skips as a
    /// duplicate is not reported.
    pub fn applied(
        &mut self,
        member: MemberId,
        index: Index,
        id: RequestId,
    ) -> Result<(), ReplyViolation> {
        let machine = self.machines.entry(member).or_default();
        if index <= machine.last {
            return Err(ReplyViolation::AppliedBackwards { member, last: machine.last, index });
        }
        match self.order.get(machine.contained) {
            Some(expected) if *expected == (index, id) => {}
            Some(&expected) => {
                return Err(ReplyViolation::AppliedOther {
                    member,
                    expected,
                    applied: (index, id),
                });
            }
            None => {
                note_effect(&mut self.requests, index, id)?;
                self.order.push((index, id));
            }
        }
        *machine = MachineProgress { last: index, contained: machine.contained + 1 };
        Ok(())
    }

    /// A member's state machine now contains everything up to this index and nothing
    /// beyond: it restarted there, or installed a snapshot. A member has reported all of it
    /// as applied before.
    pub fn resumed(&mut self, member: MemberId, at: Index) {
        let contained = self.order.partition_point(|(index, _)| *index <= at);
        self.machines.insert(member, MachineProgress { last: at, contained });
    }

    /// The run has ended, and these members had time to catch up. Returns all remaining
    /// violations, the oldest requests first.
    pub fn finish(&self, caught_up: &[MemberId]) -> Vec<ReplyViolation> {
        let mut ids: Vec<&RequestId> = self.requests.keys().collect();
        ids.sort();
        let of_request = ids.into_iter().filter_map(|id| self.finish_request(*id));
        let of_member = caught_up.iter().filter_map(|member| self.finish_member(*member));
        of_request.chain(of_member).collect()
    }

    fn finish_request(&self, id: RequestId) -> Option<ReplyViolation> {
        let request = self.requests.get(&id)?;
        match (request.reply, request.kind, request.applied) {
            (None, ..) => Some(ReplyViolation::NoReply(id)),
            (Some(ReplyKind::Done), CheckedRequest::Command, None) => {
                Some(ReplyViolation::DoneButNeverApplied(id))
            }
            _ => None,
        }
    }

    fn finish_member(&self, member: MemberId) -> Option<ReplyViolation> {
        let contained = self.machines.get(&member).map_or(0, |machine| machine.contained);
        let (index, id) = *self.order.get(contained)?;
        Some(ReplyViolation::AppliedNotByAll { member, index, id })
    }
}

/// A request is applied by a member for the first time.
fn note_effect(
    requests: &mut HashMap<RequestId, RequestRecord>,
    index: Index,
    id: RequestId,
) -> Result<(), ReplyViolation> {
    let Some(request) = requests.get_mut(&id) else {
        return Err(ReplyViolation::AppliedWithoutRequest { id, index });
    };
    if request.kind == CheckedRequest::Read {
        return Err(ReplyViolation::AppliedRead { id, index });
    }
    if let Some(first) = request.applied {
        return Err(ReplyViolation::AppliedTwice { id, first, second: index });
    }
    if request.reply == Some(ReplyKind::Refused) {
        return Err(ReplyViolation::RefusedButApplied { id, index });
    }
    request.applied = Some(index);
    Ok(())
}

/// A broken rule about replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyViolation {
    /// Two requests with one id: an error of the test itself.
    SentTwice(RequestId),
    ReplyWithoutRequest(RequestId),
    TwoReplies {
        id: RequestId,
        first: ReplyKind,
        second: ReplyKind,
    },
    /// A client never gets a reply. (L5)
    NoReply(RequestId),
    /// A request was applied that no client sent.
    AppliedWithoutRequest {
        id: RequestId,
        index: Index,
    },
    AppliedRead {
        id: RequestId,
        index: Index,
    },
    /// A read was served without what was committed when it was sent.
    StaleRead {
        id: RequestId,
        at: Index,
        after: Index,
    },
    /// A request was applied twice. (R2)
    AppliedTwice {
        id: RequestId,
        first: Index,
        second: Index,
    },
    RefusedButApplied {
        id: RequestId,
        index: Index,
    },
    /// A request was reported as done but not applied. (R3)
    DoneButNeverApplied(RequestId),
    /// A member applies an index again.
    AppliedBackwards {
        member: MemberId,
        last: Index,
        index: Index,
    },
    /// A member skips a request that others applied, or applies a different one.
    AppliedOther {
        member: MemberId,
        expected: (Index, RequestId),
        applied: (Index, RequestId),
    },
    /// A member had time to catch up and did not.
    AppliedNotByAll {
        member: MemberId,
        index: Index,
        id: RequestId,
    },
}

impl fmt::Display for ReplyViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SentTwice(RequestId(id)) => write!(f, "request {id} was sent twice"),
            Self::ReplyWithoutRequest(RequestId(id)) => {
                write!(f, "request {id} got a reply but was never sent")
            }
            Self::TwoReplies { id: RequestId(id), first, second } => {
                write!(f, "request {id} got the reply {first}, then {second}")
            }
            Self::NoReply(RequestId(id)) => write!(f, "request {id} never got a reply"),
            Self::AppliedWithoutRequest { id: RequestId(id), index } => {
                write!(f, "request {id} was applied at index {index} but never sent")
            }
            Self::AppliedRead { id: RequestId(id), index } => {
                write!(f, "request {id} is a read but was applied at index {index}")
            }
            Self::StaleRead { id: RequestId(id), at, after } => {
                write!(f, "read {id} was sent after {after} was committed and is served at {at}")
            }
            Self::AppliedTwice { id: RequestId(id), first, second } => {
                write!(f, "request {id} was applied at index {first} and again at {second}")
            }
            Self::RefusedButApplied { id: RequestId(id), index } => {
                write!(f, "request {id} was refused but applied at index {index}")
            }
            Self::DoneButNeverApplied(RequestId(id)) => {
                write!(f, "request {id} got the reply done, but no member applied it")
            }
            Self::AppliedBackwards { member, last, index } => {
                write!(f, "m{} applied index {index} after {last}", member.0)
            }
            Self::AppliedOther { member, expected, applied } => {
                let ((expected_index, RequestId(expected)), (index, RequestId(id))) =
                    (expected, applied);
                write!(f, "m{} applied request {id} at index {index}, but others ", member.0)?;
                write!(f, "applied request {expected} at index {expected_index}")
            }
            Self::AppliedNotByAll { member, index, id: RequestId(id) } => {
                write!(
                    f,
                    "m{} never applied request {id}, which others did at index {index}",
                    member.0
                )
            }
        }
    }
}

impl std::error::Error for ReplyViolation {}

impl fmt::Display for ReplyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "done",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const M1: MemberId = MemberId(1);
    const M2: MemberId = MemberId(2);
    const A: RequestId = RequestId(1);
    const B: RequestId = RequestId(2);
    const C: RequestId = RequestId(3);

    /// Three commands were sent.
    fn three_sent() -> ReplyChecker {
        let mut checker = ReplyChecker::new();
        for id in [A, B, C] {
            checker.request_sent(id, CheckedRequest::Command).unwrap();
        }
        checker
    }

    /// Three commands that are done and applied by two members.
    fn three_done() -> ReplyChecker {
        let mut checker = three_sent();
        for (index, id) in [(1, A), (2, B), (4, C)] {
            checker.applied(M1, index, id).unwrap();
            checker.reply_received(id, ReplyKind::Done).unwrap();
            checker.applied(M2, index, id).unwrap();
        }
        checker
    }

    #[test]
    fn a_correct_run_passes() {
        let mut checker = three_done();
        let (read, refused, unknown) = (RequestId(4), RequestId(5), RequestId(6));
        checker.request_sent(read, CheckedRequest::Read).unwrap();
        checker.reply_received(read, ReplyKind::Done).unwrap();
        checker.request_sent(refused, CheckedRequest::Command).unwrap();
        checker.reply_received(refused, ReplyKind::Refused).unwrap();
        checker.request_sent(unknown, CheckedRequest::Command).unwrap();
        checker.reply_received(unknown, ReplyKind::Unknown).unwrap();
        assert_eq!(checker.finish(&[M1, M2]), []);
        // A request with an unknown result may still take effect.
        checker.applied(M2, 5, unknown).unwrap();
        checker.applied(M1, 5, unknown).unwrap();
        assert_eq!(checker.finish(&[M1, M2]), []);
    }

    #[test]
    fn a_restart_applies_again_and_a_snapshot_skips_entries() {
        let mut checker = three_done();
        checker.resumed(M1, 1);
        assert_eq!(
            checker.finish(&[M1]),
            [ReplyViolation::AppliedNotByAll { member: M1, index: 2, id: B }]
        );
        checker.applied(M1, 2, B).unwrap();
        let m3 = MemberId(3);
        checker.resumed(m3, 3);
        checker.applied(m3, 4, C).unwrap();
        checker.resumed(M1, 4);
        assert_eq!(checker.finish(&[M1, M2, m3]), []);
    }

    #[test]
    fn each_request_gets_exactly_one_reply() {
        let mut checker = three_sent();
        assert_eq!(checker.finish(&[]).len(), 3);
        assert_eq!(checker.finish(&[])[0], ReplyViolation::NoReply(A));
        checker.reply_received(A, ReplyKind::Unknown).unwrap();
        let second = checker.reply_received(A, ReplyKind::Done).unwrap_err();
        assert_eq!(second.to_string(), "request 1 got the reply unknown, then done");
        let unknown_request = checker.reply_received(RequestId(9), ReplyKind::Done);
        assert_eq!(unknown_request, Err(ReplyViolation::ReplyWithoutRequest(RequestId(9))));
        assert_eq!(
            checker.request_sent(B, CheckedRequest::Command),
            Err(ReplyViolation::SentTwice(B))
        );
    }

    #[test]
    fn each_request_is_applied_at_most_once() {
        let mut checker = three_sent();
        checker.applied(M1, 1, A).unwrap();
        let again = checker.applied(M1, 3, A).unwrap_err();
        assert_eq!(again.to_string(), "request 1 was applied at index 1 and again at 3");
        let same_entry = checker.applied(M1, 1, A);
        assert_eq!(
            same_entry,
            Err(ReplyViolation::AppliedBackwards { member: M1, last: 1, index: 1 })
        );
        let never_sent = checker.applied(M1, 3, RequestId(9)).unwrap_err();
        assert_eq!(never_sent.to_string(), "request 9 was applied at index 3 but never sent");
        checker.request_sent(RequestId(4), CheckedRequest::Read).unwrap();
        let read = checker.applied(M1, 3, RequestId(4));
        assert_eq!(read, Err(ReplyViolation::AppliedRead { id: RequestId(4), index: 3 }));
    }

    #[test]
    fn a_reply_is_correct() {
        let mut checker = three_sent();
        checker.reply_received(A, ReplyKind::Done).unwrap();
        checker.reply_received(B, ReplyKind::Refused).unwrap();
        checker.applied(M1, 2, C).unwrap();
        let refused_late = checker.reply_received(C, ReplyKind::Refused);
        assert_eq!(refused_late, Err(ReplyViolation::RefusedButApplied { id: C, index: 2 }));
        let refused_before = checker.applied(M1, 3, B).unwrap_err();
        assert_eq!(refused_before.to_string(), "request 2 was refused but applied at index 3");
        assert_eq!(checker.finish(&[M1]), [ReplyViolation::DoneButNeverApplied(A)]);
    }

    #[test]
    fn a_read_sees_what_was_committed_before() {
        let mut checker = ReplyChecker::new();
        checker.committed(4);
        checker.request_sent(A, CheckedRequest::Read).unwrap();
        checker.committed(5);
        assert_eq!(checker.served(A, 4), Ok(()));
        let stale = checker.served(A, 3).unwrap_err();
        assert_eq!(stale.to_string(), "read 1 was sent after 4 was committed and is served at 3");
        assert_eq!(checker.served(B, 4), Err(ReplyViolation::ReplyWithoutRequest(B)));
    }

    #[test]
    fn members_apply_the_same_requests() {
        let mut checker = three_done();
        let m3 = MemberId(3);
        checker.applied(m3, 1, A).unwrap();
        let mut skips = checker.clone();
        let skipped = skips.applied(m3, 4, C).unwrap_err();
        let text = "m3 applied request 3 at index 4, but others applied request 2 at index 2";
        assert_eq!(skipped.to_string(), text);
        let other_index = checker.applied(m3, 3, B).unwrap_err();
        assert_eq!(
            other_index,
            ReplyViolation::AppliedOther { member: m3, expected: (2, B), applied: (3, B) }
        );
        let behind = checker.finish(&[M1, m3])[0];
        assert_eq!(behind.to_string(), "m3 never applied request 2, which others did at index 2");
    }
}
