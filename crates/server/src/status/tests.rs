use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use quorate::{EndedGoal, EntryId, GoalEnd, MemberId};
use quorate_core::membership::MembershipError;

use super::*;

/// The variants of an enum of this workspace, read from its source. The enums are
/// `non_exhaustive` across crates, so the compiler does not notice a missing line here.
fn variants(enum_name: &str) -> BTreeSet<String> {
    fn search(directory: &Path, start: &str) -> Option<String> {
        let mut entries: Vec<_> =
            fs::read_dir(directory).unwrap().map(|e| e.unwrap().path()).collect();
        entries.sort();
        entries.iter().find_map(|path| match path.is_dir() {
            true => search(path, start),
            false if path.extension().is_some_and(|extension| extension == "rs") => {
                let text = fs::read_to_string(path).unwrap();
                let (_, body) = text.split_once(start)?;
                Some(body.split_once("\n}").unwrap().0.to_owned())
            }
            false => None,
        })
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let start = format!("pub enum {enum_name} {{");
    let sources = ["core", "node", "kv"].map(|name| crates.join(name).join("src"));
    let body = sources.iter().find_map(|source| search(source, &start)).unwrap();
    let is_name = |letter: char| letter.is_ascii_alphanumeric();
    let lines = body.lines().filter_map(|line| line.strip_prefix("    "));
    lines
        .filter(|line| line.starts_with(|letter: char| letter.is_ascii_uppercase()))
        .map(|line| line.split(|letter| !is_name(letter)).next().unwrap().to_owned())
        .collect()
}

/// The name of a variant, as `Debug` begins.
fn name_of(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.split(|letter: char| !letter.is_ascii_alphanumeric()).next().unwrap().to_owned()
}

fn status(error: impl Into<ServiceError>) -> Status {
    error.into().into()
}

#[test]
fn every_kv_error_has_etcds_code_and_text() {
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
    for (error, code, text) in table {
        let status = status(error);
        assert_eq!((status.code() as i32, status.message()), (code, text), "{error:?}");
    }
    let tested: BTreeSet<_> = table.iter().map(|(error, ..)| name_of(error)).collect();
    assert_eq!(tested, variants("KvError"));
}

/// Each error of a request with its code and text; `None` for our own text.
fn request_errors() -> Vec<(RequestError, i32, Option<&'static str>)> {
    use ChangeRefusal as C;
    let id = EntryId::new(3, 7);
    let member = MemberId(9);
    let refused = RequestError::Refused;
    let leader = |error| RequestError::Refused(RequestRefused::ByLeader(error));
    let change = |error| leader(Refusal::Change(error));
    let goal = EndedGoal { id, end: GoalEnd::Cancelled, at: id };
    let overflow = Refusal::TooMuchUncommitted { waiting: 2, limit: 1 };
    vec![
        (refused(RequestRefused::NoLeader), 14, Some("etcdserver: no leader")),
        (refused(RequestRefused::ReadTimedOut), 14, Some(TIMED_OUT)),
        (refused(RequestRefused::TooManyRequests { limit: 1 }), 8, Some(TOO_MANY_REQUESTS)),
        (refused(RequestRefused::TooLarge { bytes: 2, limit: 1 }), 3, Some(TOO_LARGE)),
        (refused(RequestRefused::SnapshotFailed), 2, None),
        (refused(RequestRefused::NotMember), 14, Some("etcdserver: server stopped")),
        (refused(RequestRefused::Stopped), 14, Some("etcdserver: server stopped")),
        (
            refused(RequestRefused::MemberFailed { reason: "x".into() }),
            14,
            Some("etcdserver: server stopped"),
        ),
        (refused(RequestRefused::Overwritten { by: id }), 14, Some("etcdserver: leader changed")),
        (refused(RequestRefused::TransferAborted), 2, Some(TIMED_OUT_TRANSFER)),
        (leader(Refusal::NotLeader { leader: None }), 14, Some("etcdserver: leader changed")),
        (leader(Refusal::Transferring { to: member }), 14, Some("etcdserver: leader changed")),
        (leader(Refusal::LeaderRemoved), 14, Some("etcdserver: leader changed")),
        (leader(Refusal::TooManyReads { limit: 1 }), 8, Some("etcdserver: too many requests")),
        (leader(overflow), 8, Some("etcdserver: too many requests")),
        (
            leader(Refusal::TargetNotVoter { to: member }),
            9,
            Some("etcdserver: bad leader transferee"),
        ),
        (
            change(C::QuorumNotReady { voters: 4, quorum: 3, live: 2 }),
            14,
            Some("etcdserver: unhealthy cluster"),
        ),
        (change(C::ZoneWouldBlock), 14, Some("etcdserver: unhealthy cluster")),
        (change(C::NoVotersLeft), 9, Some(NOT_ENOUGH_STARTED)),
        (change(C::UnknownMember { id: member }), 5, Some("etcdserver: member not found")),
        (change(C::IdUsedBefore { id: member }), 9, Some("etcdserver: member ID already exist")),
        (change(C::InFlight { index: 2, applied: 1 }), 14, None),
        (change(C::NoOwnCommit), 14, None),
        (change(C::Stale { newest: id }), 9, None),
        (change(C::RemovesVoterDirectly { id: member }), 9, None),
        (change(C::UnsafeTransition), 9, None),
        (change(C::AlreadyJoint), 9, None),
        (change(C::NotJoint), 9, None),
        (change(C::SimpleInJoint), 9, None),
        (change(C::ManyVoters), 9, None),
        (change(C::NoVotersForJoint), 9, None),
        (change(C::MemberZero), 9, None),
        (change(C::GoalInProgress), 9, None),
        (change(C::AlreadyReached), 9, None),
        (change(C::AlreadyCancelled), 9, None),
        (change(C::NothingToCancel), 9, None),
        (change(C::InvalidMembership(MembershipError::NoVoters)), 9, None),
        (
            RequestError::Unknown(OutcomeUnknown::TimedOut),
            14,
            Some("etcdserver: request timed out"),
        ),
        (RequestError::Unknown(OutcomeUnknown::NotSettledInTime { id }), 14, Some(TIMED_OUT)),
        (RequestError::Unknown(OutcomeUnknown::ReplyLost), 14, Some(TIMED_OUT_CONNECTION)),
        (RequestError::Unknown(OutcomeUnknown::PassedBySnapshot), 14, Some(TIMED_OUT_CONNECTION)),
        (RequestError::Unknown(OutcomeUnknown::GoalAbandoned(goal)), 14, Some(TIMED_OUT_LEADER)),
        (RequestError::Unknown(OutcomeUnknown::Removed), 14, Some("etcdserver: server stopped")),
        (RequestError::Unknown(OutcomeUnknown::Stopped), 14, Some("etcdserver: server stopped")),
        (
            RequestError::Unknown(OutcomeUnknown::MemberFailed { reason: "x".into() }),
            14,
            Some("etcdserver: server stopped"),
        ),
    ]
}

#[test]
fn every_request_error_has_etcds_code_and_text() {
    let table = request_errors();
    let mut tested: [BTreeSet<String>; 4] = Default::default();
    for (error, code, text) in &table {
        let status = status(error.clone());
        let own_text = error.to_string().replacen("refused: ", "etcdserver: ", 1);
        let text = text.unwrap_or(&own_text);
        assert_eq!((status.code() as i32, status.message()), (*code, text), "{error:?}");
        let reason = status.metadata().get(REASON).unwrap().to_str().unwrap();
        assert_eq!(reason, error.to_string());
        match error {
            RequestError::Refused(error) => {
                tested[0].insert(name_of(error));
                if let RequestRefused::ByLeader(error) = error {
                    tested[1].insert(name_of(error));
                    if let Refusal::Change(error) = error {
                        tested[2].insert(name_of(error));
                    }
                }
            }
            RequestError::Unknown(error) => drop(tested[3].insert(name_of(error))),
        }
    }
    let all = ["RequestRefused", "Refusal", "ChangeRefusal", "OutcomeUnknown"].map(variants);
    assert_eq!(tested, all);
}

#[test]
fn every_own_error_has_its_code_and_text() {
    let not_supported = "etcdserver: x is not supported by this server yet";
    let no_older = "etcdserver: there is no older version to downgrade to";
    let twice = "quorate: several members have the name \"a\"";
    let table = [
        (ServiceError::Access(AccessDenied::PermissionDenied), 7, "etcdserver: permission denied"),
        (ServiceError::NoLeader, 14, "etcdserver: no leader"),
        (ServiceError::NotLeader, 9, "etcdserver: not leader"),
        (ServiceError::BadLeaderTransferee, 9, "etcdserver: bad leader transferee"),
        (ServiceError::NotServedByLearners, 9, "etcdserver: rpc not supported for learner"),
        (ServiceError::ServerStopped, 14, "etcdserver: server stopped"),
        (ServiceError::BadPeerUrls, 3, "etcdserver: given member URLs are invalid"),
        (ServiceError::PeerUrlsExist, 9, "etcdserver: Peer URLs already exists"),
        (ServiceError::MemberNotFound, 5, "etcdserver: member not found"),
        (ServiceError::NotALearner, 9, "etcdserver: can only promote a learner member"),
        (ServiceError::LearnerNotInSync { reason: "r" }, 9, LEARNER_NOT_IN_SYNC),
        (
            ServiceError::TooManyLearners { started: 1, limit: 1 },
            9,
            "etcdserver: too many learner members in cluster",
        ),
        (ServiceError::NoVotersLeft, 9, NOT_ENOUGH_STARTED),
        (
            ServiceError::UnhealthyCluster { voters: 2, quorum: 2, live: 1 },
            14,
            "etcdserver: unhealthy cluster",
        ),
        (ServiceError::BadTarget(BadTarget::Missing), 3, "quorate: no target was given"),
        (
            ServiceError::BadTarget(BadTarget::UnnamedMember),
            3,
            "quorate: a member of the target is not named",
        ),
        (ServiceError::BadTarget(BadTarget::AmbiguousName("a".into())), 3, twice),
        (ServiceError::NoOlderVersion, 12, no_older),
        (ServiceError::Unsupported("x"), 12, not_supported),
        (ServiceError::UnknownMethod { path: "/x".into() }, 12, "unknown method /x"),
        (ServiceError::UnknownHealthService, 5, "unknown service"),
        (
            ServiceError::HealthWatchOfOneService,
            12,
            "only the health of the whole server can be watched",
        ),
        (
            ServiceError::MessageTooLarge { bytes: "2".into(), limit: "1".into() },
            8,
            "grpc: received message larger than max (2 vs. 1)",
        ),
        (ServiceError::UnexpectedReply, 13, "etcdserver: unexpected reply"),
        (ServiceError::Table(TableError::Busy), 13, &format!("etcdserver: {}", TableError::Busy)),
    ];
    for (error, code, text) in table {
        let name = format!("{error:?}");
        let status = status(error);
        assert_eq!((status.code() as i32, status.message()), (code, text), "{name}");
    }
}
