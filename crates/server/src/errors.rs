//! The only place where our errors become gRPC's: codes, and etcd's exact texts, which
//! clients compare. Where ours says more than etcd's text, it goes along as metadata.

use quorate::{ChangeRefusal, OutcomeUnknown, Refusal, RequestError, RequestRefused};
use quorate_kv::{KvError, TableError};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// What a request that is not done is answered with.
pub(crate) fn failed(why: &RequestError) -> Status {
    let (code, text) = match why {
        RequestError::Refused(why) => of_refused(why),
        RequestError::Unknown(why) => of_unknown(why),
    };
    with_reason(Status::new(code, text), &why.to_string())
}

/// What the data model refused.
pub(crate) fn refused(why: KvError) -> Status {
    Status::new(of_kv(why), why.text())
}

/// The table failed: the member is about to end.
pub(crate) fn table(why: &TableError) -> Status {
    Status::internal(format!("etcdserver: {why}"))
}

pub(crate) fn no_leader() -> Status {
    Status::unavailable(NO_LEADER)
}

pub(crate) fn not_leader() -> Status {
    Status::failed_precondition("etcdserver: not leader")
}

pub(crate) fn bad_leader_transferee() -> Status {
    Status::failed_precondition(BAD_TRANSFEREE)
}

pub(crate) fn not_for_learners() -> Status {
    Status::failed_precondition("etcdserver: rpc not supported for learner")
}

pub(crate) fn server_stopped() -> Status {
    Status::unavailable(STOPPED)
}

/// What a client of ours may show beside etcd's text.
pub(crate) const REASON: &str = "quorate-reason";

fn with_reason(mut status: Status, reason: &str) -> Status {
    if let Ok(reason) = MetadataValue::try_from(reason) {
        status.metadata_mut().insert(REASON, reason);
    }
    status
}

const NO_LEADER: &str = "etcdserver: no leader";
const LEADER_CHANGED: &str = "etcdserver: leader changed";
const STOPPED: &str = "etcdserver: server stopped";
const TIMED_OUT: &str = "etcdserver: request timed out";
const TIMED_OUT_LEADER: &str =
    "etcdserver: request timed out, possibly due to previous leader failure";
const TIMED_OUT_CONNECTION: &str = "etcdserver: request timed out, possibly due to connection lost";
const TIMED_OUT_TRANSFER: &str = "etcdserver: request timed out, leader transfer took too long";
const TOO_MANY_REQUESTS: &str = "etcdserver: too many requests";
const TOO_LARGE: &str = "etcdserver: request is too large";
const BAD_TRANSFEREE: &str = "etcdserver: bad leader transferee";
const UNHEALTHY: &str = "etcdserver: unhealthy cluster";
const NOT_ENOUGH_STARTED: &str =
    "etcdserver: re-configuration failed due to not enough started members";
const MEMBER_NOT_FOUND: &str = "etcdserver: member not found";
const MEMBER_EXISTS: &str = "etcdserver: member ID already exist";

fn of_refused(why: &RequestRefused) -> (Code, String) {
    let (code, text) = match why {
        RequestRefused::ByLeader(why) => return of_refusal(why),
        RequestRefused::NoLeader => (Code::Unavailable, NO_LEADER),
        RequestRefused::ReadTimedOut => (Code::Unavailable, TIMED_OUT),
        RequestRefused::TooManyRequests { .. } => (Code::ResourceExhausted, TOO_MANY_REQUESTS),
        RequestRefused::TooLarge { .. } => (Code::InvalidArgument, TOO_LARGE),
        RequestRefused::Overwritten { .. } => (Code::Unavailable, LEADER_CHANGED),
        RequestRefused::TransferAborted => (Code::Unknown, TIMED_OUT_TRANSFER),
        // A member that was removed is one that serves no more.
        RequestRefused::NotMember
        | RequestRefused::Stopped
        | RequestRefused::MemberFailed { .. } => (Code::Unavailable, STOPPED),
        other => return (Code::Unknown, format!("etcdserver: {other}")),
    };
    (code, text.into())
}

fn of_unknown(why: &OutcomeUnknown) -> (Code, String) {
    let (code, text) = match why {
        OutcomeUnknown::TimedOut | OutcomeUnknown::NotSettledInTime { .. } => {
            (Code::Unavailable, TIMED_OUT)
        }
        OutcomeUnknown::ReplyLost | OutcomeUnknown::PassedBySnapshot => {
            (Code::Unavailable, TIMED_OUT_CONNECTION)
        }
        OutcomeUnknown::GoalAbandoned(_) => (Code::Unavailable, TIMED_OUT_LEADER),
        OutcomeUnknown::Removed | OutcomeUnknown::Stopped | OutcomeUnknown::MemberFailed { .. } => {
            (Code::Unavailable, STOPPED)
        }
        other => return (Code::Unknown, format!("etcdserver: {other}")),
    };
    (code, text.into())
}

fn of_refusal(why: &Refusal) -> (Code, String) {
    let (code, text) = match why {
        Refusal::NotLeader { .. } | Refusal::Transferring { .. } | Refusal::LeaderRemoved => {
            (Code::Unavailable, LEADER_CHANGED)
        }
        Refusal::TooMuchUncommitted { .. } | Refusal::TooManyReads { .. } => {
            (Code::ResourceExhausted, TOO_MANY_REQUESTS)
        }
        Refusal::TargetNotVoter { .. } => (Code::FailedPrecondition, BAD_TRANSFEREE),
        Refusal::Change(why) => return of_change(why),
        other => return (Code::Unknown, format!("etcdserver: {other}")),
    };
    (code, text.into())
}

/// etcd has words for few of these; the others are told in ours.
fn of_change(why: &ChangeRefusal) -> (Code, String) {
    let (code, text) = match why {
        ChangeRefusal::QuorumNotReady { .. } | ChangeRefusal::ZoneWouldBlock => {
            (Code::Unavailable, UNHEALTHY)
        }
        ChangeRefusal::NoVotersLeft => (Code::FailedPrecondition, NOT_ENOUGH_STARTED),
        ChangeRefusal::UnknownMember { .. } => (Code::NotFound, MEMBER_NOT_FOUND),
        ChangeRefusal::IdUsedBefore { .. } => (Code::FailedPrecondition, MEMBER_EXISTS),
        // They pass: who asks again soon is served.
        ChangeRefusal::InFlight { .. } | ChangeRefusal::NoOwnCommit => {
            return (Code::Unavailable, format!("etcdserver: {why}"));
        }
        other => return (Code::FailedPrecondition, format!("etcdserver: {other}")),
    };
    (code, text.into())
}

fn of_kv(why: KvError) -> Code {
    match why {
        KvError::EmptyKey
        | KvError::KeyNotFound
        | KvError::ValueProvided
        | KvError::LeaseProvided
        | KvError::TooManyOperations
        | KvError::DuplicateKey
        | KvError::InvalidSortOption
        | KvError::RequestTooLarge => Code::InvalidArgument,
        KvError::Compacted | KvError::FutureRevision | KvError::LeaseTtlTooLarge => {
            Code::OutOfRange
        }
        KvError::NoSpace => Code::ResourceExhausted,
        KvError::LeaseNotFound => Code::NotFound,
        KvError::LeaseExists => Code::FailedPrecondition,
        KvError::Corrupt => Code::DataLoss,
        KvError::UnknownCommand => Code::Unavailable,
        _ => Code::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use quorate::{EndedGoal, EntryId, GoalEnd, MemberId};

    use super::*;

    #[test]
    fn every_refusal_of_the_data_model_has_etcds_code_and_text() {
        use KvError as E;
        let table = [
            (E::EmptyKey, 3, "etcdserver: key is not provided"),
            (E::KeyNotFound, 3, "etcdserver: key not found"),
            (E::ValueProvided, 3, "etcdserver: value is provided"),
            (E::LeaseProvided, 3, "etcdserver: lease is provided"),
            (E::TooManyOperations, 3, "etcdserver: too many operations in txn request"),
            (E::DuplicateKey, 3, "etcdserver: duplicate key given in txn request"),
            (E::InvalidSortOption, 3, "etcdserver: invalid sort option"),
            (E::Compacted, 11, "etcdserver: mvcc: required revision has been compacted"),
            (E::FutureRevision, 11, "etcdserver: mvcc: required revision is a future revision"),
            (E::NoSpace, 8, "etcdserver: mvcc: database space exceeded"),
            (E::LeaseNotFound, 5, "etcdserver: requested lease not found"),
            (E::LeaseExists, 9, "etcdserver: lease already exists"),
            (E::LeaseTtlTooLarge, 11, "etcdserver: too large lease TTL"),
            (E::RequestTooLarge, 3, "etcdserver: request is too large"),
            (E::Corrupt, 15, "etcdserver: corrupt cluster"),
            (E::UnknownCommand, 14, "etcdserver: not capable"),
        ];
        for (why, code, text) in table {
            let status = refused(why);
            assert_eq!((status.code() as i32, status.message()), (code, text), "{why:?}");
        }
    }

    #[test]
    fn every_end_of_a_request_has_etcds_code_and_text() {
        let id = EntryId::new(3, 7);
        let leader = |why| RequestError::Refused(RequestRefused::ByLeader(why));
        let change = |why| leader(Refusal::Change(why));
        let goal = EndedGoal { id, end: GoalEnd::Cancelled, at: id };
        let member = MemberId(9);
        let table = [
            (RequestError::Refused(RequestRefused::NoLeader), 14, "etcdserver: no leader"),
            (RequestError::Refused(RequestRefused::ReadTimedOut), 14, TIMED_OUT),
            (
                RequestError::Refused(RequestRefused::TooManyRequests { limit: 1 }),
                8,
                TOO_MANY_REQUESTS,
            ),
            (RequestError::Refused(RequestRefused::TooLarge { bytes: 2, limit: 1 }), 3, TOO_LARGE),
            (RequestError::Refused(RequestRefused::NotMember), 14, "etcdserver: server stopped"),
            (RequestError::Refused(RequestRefused::Stopped), 14, "etcdserver: server stopped"),
            (
                RequestError::Refused(RequestRefused::Overwritten { by: id }),
                14,
                "etcdserver: leader changed",
            ),
            (RequestError::Refused(RequestRefused::TransferAborted), 2, TIMED_OUT_TRANSFER),
            (leader(Refusal::NotLeader { leader: None }), 14, "etcdserver: leader changed"),
            (leader(Refusal::Transferring { to: member }), 14, "etcdserver: leader changed"),
            (leader(Refusal::LeaderRemoved), 14, "etcdserver: leader changed"),
            (leader(Refusal::TooManyReads { limit: 1 }), 8, "etcdserver: too many requests"),
            (
                leader(Refusal::TooMuchUncommitted { waiting: 2, limit: 1 }),
                8,
                "etcdserver: too many requests",
            ),
            (
                leader(Refusal::TargetNotVoter { to: member }),
                9,
                "etcdserver: bad leader transferee",
            ),
            (
                change(ChangeRefusal::QuorumNotReady { voters: 4, quorum: 3, live: 2 }),
                14,
                "etcdserver: unhealthy cluster",
            ),
            (change(ChangeRefusal::NoVotersLeft), 9, NOT_ENOUGH_STARTED),
            (
                change(ChangeRefusal::UnknownMember { id: member }),
                5,
                "etcdserver: member not found",
            ),
            (
                change(ChangeRefusal::IdUsedBefore { id: member }),
                9,
                "etcdserver: member ID already exist",
            ),
            (
                change(ChangeRefusal::GoalInProgress),
                9,
                "etcdserver: a goal is being pursued; cancel it first",
            ),
            (
                change(ChangeRefusal::NoOwnCommit),
                14,
                "etcdserver: no entry of this leader's term is committed yet",
            ),
            (RequestError::Unknown(OutcomeUnknown::TimedOut), 14, "etcdserver: request timed out"),
            (RequestError::Unknown(OutcomeUnknown::NotSettledInTime { id }), 14, TIMED_OUT),
            (RequestError::Unknown(OutcomeUnknown::ReplyLost), 14, TIMED_OUT_CONNECTION),
            (RequestError::Unknown(OutcomeUnknown::PassedBySnapshot), 14, TIMED_OUT_CONNECTION),
            (RequestError::Unknown(OutcomeUnknown::GoalAbandoned(goal)), 14, TIMED_OUT_LEADER),
            (RequestError::Unknown(OutcomeUnknown::Removed), 14, "etcdserver: server stopped"),
            (RequestError::Unknown(OutcomeUnknown::Stopped), 14, "etcdserver: server stopped"),
        ];
        for (why, code, text) in table {
            let status = failed(&why);
            assert_eq!((status.code() as i32, status.message()), (code, text), "{why:?}");
            let reason = status.metadata().get(REASON).unwrap().to_str().unwrap();
            assert_eq!(reason, why.to_string());
        }
    }
}
