//! Every request gets one answer, and the answer is true. (R2, R3, L5)
//!
//! Told what clients asked, what they were answered and what members applied, as it
//! happens. All members apply the same requests in the same order; the first one to
//! get somewhere says which, the others are held to it. What a state machine keeps in
//! its keys is not looked at here: see `linearizable`.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use quorate_core::{Index, MemberId, RequestId};

#[derive(Clone, Debug, Default)]
pub struct ReplyChecker {
    requests: HashMap<RequestId, RequestRecord>,
    /// Every request that took effect, in log order.
    order: Vec<(Index, RequestId)>,
    machines: BTreeMap<MemberId, MachineProgress>,
}

/// How far a member's state machine is.
#[derive(Clone, Copy, Debug, Default)]
struct MachineProgress {
    last: Index,
    /// How many of `order` it contains.
    contained: usize,
}

/// What a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckedRequest {
    /// A command for the log.
    Command,
    /// To read: never applied.
    Read,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyKind {
    /// It happened.
    Done,
    /// It did not happen and never will.
    Refused,
    /// It may have happened, or may still happen.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct RequestRecord {
    wish: CheckedRequest,
    answer: Option<ReplyKind>,
    applied: Option<Index>,
}

impl ReplyChecker {
    pub fn new() -> Self {
        Self::default()
    }

    /// A client sends a request, under an id that is its own.
    pub fn asked(&mut self, id: RequestId, wish: CheckedRequest) -> Result<(), ReplyViolation> {
        let request = RequestRecord { wish, answer: None, applied: None };
        match self.requests.insert(id, request) {
            Some(_) => Err(ReplyViolation::AskedTwice(id)),
            None => Ok(()),
        }
    }

    /// A client gets the reply to its request.
    pub fn answered(&mut self, id: RequestId, answer: ReplyKind) -> Result<(), ReplyViolation> {
        let Some(request) = self.requests.get_mut(&id) else {
            return Err(ReplyViolation::AnsweredUnasked(id));
        };
        if let Some(first) = request.answer {
            return Err(ReplyViolation::AnsweredTwice { id, first, second: answer });
        }
        request.answer = Some(answer);
        match request.applied {
            Some(index) if answer == ReplyKind::Refused => {
                Err(ReplyViolation::RefusedButApplied { id, index })
            }
            _ => Ok(()),
        }
    }

    /// A request took effect on a member's state machine. An entry that the machine
    /// recognises as a repetition and skips is not reported.
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
            Some(due) if *due == (index, id) => {}
            Some(&due) => {
                return Err(ReplyViolation::AppliedOther { member, due, found: (index, id) });
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
    /// beyond: it restarted there, or installed a snapshot. What it contains was
    /// reported as applied before, by whomever.
    pub fn resumed(&mut self, member: MemberId, at: Index) {
        let contained = self.order.partition_point(|(index, _)| *index <= at);
        self.machines.insert(member, MachineProgress { last: at, contained });
    }

    /// The run is over, and these members had the time to catch up. Everything that
    /// is left to complain about, the oldest requests first.
    pub fn finish(&self, caught_up: &[MemberId]) -> Vec<ReplyViolation> {
        let mut ids: Vec<&RequestId> = self.requests.keys().collect();
        ids.sort();
        let of_request = ids.into_iter().filter_map(|id| self.finish_request(*id));
        let of_member = caught_up.iter().filter_map(|member| self.finish_member(*member));
        of_request.chain(of_member).collect()
    }

    fn finish_request(&self, id: RequestId) -> Option<ReplyViolation> {
        let request = self.requests.get(&id)?;
        match (request.answer, request.wish, request.applied) {
            (None, ..) => Some(ReplyViolation::NeverAnswered(id)),
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

/// The first member applies this request.
fn note_effect(
    requests: &mut HashMap<RequestId, RequestRecord>,
    index: Index,
    id: RequestId,
) -> Result<(), ReplyViolation> {
    let Some(request) = requests.get_mut(&id) else {
        return Err(ReplyViolation::AppliedUnasked { id, index });
    };
    if request.wish == CheckedRequest::Read {
        return Err(ReplyViolation::AppliedRead { id, index });
    }
    if let Some(first) = request.applied {
        return Err(ReplyViolation::AppliedTwice { id, first, second: index });
    }
    if request.answer == Some(ReplyKind::Refused) {
        return Err(ReplyViolation::RefusedButApplied { id, index });
    }
    request.applied = Some(index);
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyViolation {
    /// Two requests under one id: a mistake of the test itself.
    AskedTwice(RequestId),
    AnsweredUnasked(RequestId),
    AnsweredTwice {
        id: RequestId,
        first: ReplyKind,
        second: ReplyKind,
    },
    /// A client never gets a reply. (L5)
    NeverAnswered(RequestId),
    /// An effect out of nothing.
    AppliedUnasked {
        id: RequestId,
        index: Index,
    },
    AppliedRead {
        id: RequestId,
        index: Index,
    },
    /// One request, two effects. (R2)
    AppliedTwice {
        id: RequestId,
        first: Index,
        second: Index,
    },
    RefusedButApplied {
        id: RequestId,
        index: Index,
    },
    /// A promise without an effect. (R3)
    DoneButNeverApplied(RequestId),
    /// A member applies what it has already applied.
    AppliedBackwards {
        member: MemberId,
        last: Index,
        index: Index,
    },
    /// A member skips a request that others applied, or applies another one instead.
    AppliedOther {
        member: MemberId,
        due: (Index, RequestId),
        found: (Index, RequestId),
    },
    /// A member had the time to catch up, and has not.
    AppliedNotByAll {
        member: MemberId,
        index: Index,
        id: RequestId,
    },
}

impl fmt::Display for ReplyViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AskedTwice(RequestId(id)) => write!(f, "request {id} was asked twice"),
            Self::AnsweredUnasked(RequestId(id)) => {
                write!(f, "request {id} was answered but never asked")
            }
            Self::AnsweredTwice { id: RequestId(id), first, second } => {
                write!(f, "request {id} was answered {first}, and then {second}")
            }
            Self::NeverAnswered(RequestId(id)) => write!(f, "request {id} was never answered"),
            Self::AppliedUnasked { id: RequestId(id), index } => {
                write!(f, "request {id} was applied at index {index} but never asked")
            }
            Self::AppliedRead { id: RequestId(id), index } => {
                write!(f, "request {id} only reads, and was applied at index {index}")
            }
            Self::AppliedTwice { id: RequestId(id), first, second } => {
                write!(f, "request {id} was applied at index {first} and again at {second}")
            }
            Self::RefusedButApplied { id: RequestId(id), index } => {
                write!(f, "request {id} was refused, and applied at index {index}")
            }
            Self::DoneButNeverApplied(RequestId(id)) => {
                write!(f, "request {id} was answered done, and no member applied it")
            }
            Self::AppliedBackwards { member, last, index } => {
                write!(f, "m{} applied index {index} after {last}", member.0)
            }
            Self::AppliedOther { member, due, found } => {
                let ((due_index, RequestId(due)), (index, RequestId(id))) = (due, found);
                write!(f, "m{} applied request {id} at index {index}, where others ", member.0)?;
                write!(f, "applied request {due} at index {due_index}")
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

    /// Three commands were asked.
    fn three_asked() -> ReplyChecker {
        let mut answers = ReplyChecker::new();
        for id in [A, B, C] {
            answers.asked(id, CheckedRequest::Command).unwrap();
        }
        answers
    }

    /// Three commands, done, and applied by two members.
    fn three_done() -> ReplyChecker {
        let mut answers = three_asked();
        for (index, id) in [(1, A), (2, B), (4, C)] {
            answers.applied(M1, index, id).unwrap();
            answers.answered(id, ReplyKind::Done).unwrap();
            answers.applied(M2, index, id).unwrap();
        }
        answers
    }

    #[test]
    fn an_honest_run_passes() {
        let mut answers = three_done();
        let (read, refused, unknown) = (RequestId(4), RequestId(5), RequestId(6));
        answers.asked(read, CheckedRequest::Read).unwrap();
        answers.answered(read, ReplyKind::Done).unwrap();
        answers.asked(refused, CheckedRequest::Command).unwrap();
        answers.answered(refused, ReplyKind::Refused).unwrap();
        answers.asked(unknown, CheckedRequest::Command).unwrap();
        answers.answered(unknown, ReplyKind::Unknown).unwrap();
        assert_eq!(answers.finish(&[M1, M2]), []);
        // A request with an unknown result may still happen.
        answers.applied(M2, 5, unknown).unwrap();
        answers.applied(M1, 5, unknown).unwrap();
        assert_eq!(answers.finish(&[M1, M2]), []);
    }

    #[test]
    fn a_restart_applies_again_and_a_snapshot_leaps() {
        let mut answers = three_done();
        answers.resumed(M1, 1);
        assert_eq!(
            answers.finish(&[M1]),
            [ReplyViolation::AppliedNotByAll { member: M1, index: 2, id: B }]
        );
        answers.applied(M1, 2, B).unwrap();
        let m3 = MemberId(3);
        answers.resumed(m3, 3);
        answers.applied(m3, 4, C).unwrap();
        answers.resumed(M1, 4);
        assert_eq!(answers.finish(&[M1, M2, m3]), []);
    }

    #[test]
    fn one_answer_and_no_other() {
        let mut answers = three_asked();
        assert_eq!(answers.finish(&[]).len(), 3);
        assert_eq!(answers.finish(&[])[0], ReplyViolation::NeverAnswered(A));
        answers.answered(A, ReplyKind::Unknown).unwrap();
        let second = answers.answered(A, ReplyKind::Done).unwrap_err();
        assert_eq!(second.to_string(), "request 1 was answered unknown, and then done");
        let stranger = answers.answered(RequestId(9), ReplyKind::Done);
        assert_eq!(stranger, Err(ReplyViolation::AnsweredUnasked(RequestId(9))));
        assert_eq!(answers.asked(B, CheckedRequest::Command), Err(ReplyViolation::AskedTwice(B)));
    }

    #[test]
    fn one_effect_and_no_other() {
        let mut answers = three_asked();
        answers.applied(M1, 1, A).unwrap();
        let again = answers.applied(M1, 3, A).unwrap_err();
        assert_eq!(again.to_string(), "request 1 was applied at index 1 and again at 3");
        let same_entry = answers.applied(M1, 1, A);
        assert_eq!(
            same_entry,
            Err(ReplyViolation::AppliedBackwards { member: M1, last: 1, index: 1 })
        );
        let invented = answers.applied(M1, 3, RequestId(9)).unwrap_err();
        assert_eq!(invented.to_string(), "request 9 was applied at index 3 but never asked");
        answers.asked(RequestId(4), CheckedRequest::Read).unwrap();
        let read = answers.applied(M1, 3, RequestId(4));
        assert_eq!(read, Err(ReplyViolation::AppliedRead { id: RequestId(4), index: 3 }));
    }

    #[test]
    fn an_answer_is_true() {
        let mut answers = three_asked();
        answers.answered(A, ReplyKind::Done).unwrap();
        answers.answered(B, ReplyKind::Refused).unwrap();
        answers.applied(M1, 2, C).unwrap();
        let refused_late = answers.answered(C, ReplyKind::Refused);
        assert_eq!(refused_late, Err(ReplyViolation::RefusedButApplied { id: C, index: 2 }));
        let refused_before = answers.applied(M1, 3, B).unwrap_err();
        assert_eq!(refused_before.to_string(), "request 2 was refused, and applied at index 3");
        assert_eq!(answers.finish(&[M1]), [ReplyViolation::DoneButNeverApplied(A)]);
    }

    #[test]
    fn members_apply_the_same() {
        let mut answers = three_done();
        let m3 = MemberId(3);
        answers.applied(m3, 1, A).unwrap();
        let mut skips = answers.clone();
        let skipped = skips.applied(m3, 4, C).unwrap_err();
        let text = "m3 applied request 3 at index 4, where others applied request 2 at index 2";
        assert_eq!(skipped.to_string(), text);
        let other_place = answers.applied(m3, 3, B).unwrap_err();
        assert_eq!(
            other_place,
            ReplyViolation::AppliedOther { member: m3, due: (2, B), found: (3, B) }
        );
        let behind = answers.finish(&[M1, m3])[0];
        assert_eq!(behind.to_string(), "m3 never applied request 2, which others did at index 2");
    }
}
