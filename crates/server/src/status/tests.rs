use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use quorate::membership::{EndedGoal, GoalEnd};
use quorate::{EntryId, MemberId};
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
        (E::RootUserNotFound, 9, "etcdserver: root user does not exist"),
        (E::RootRoleNotFound, 9, "etcdserver: root user does not have root role"),
        (E::UserExists, 9, "etcdserver: user name already exists"),
        (E::UserNameEmpty, 3, "etcdserver: user name is empty"),
        (E::UserNotFound, 9, "etcdserver: user name not found"),
        (E::RoleExists, 9, "etcdserver: role name already exists"),
        (E::RoleNotFound, 9, "etcdserver: role name not found"),
        (E::RoleNameEmpty, 3, "etcdserver: role name is empty"),
        (E::AuthFailed, 3, "etcdserver: authentication failed, invalid user ID or password"),
        (E::PermissionNotGiven, 3, "etcdserver: permission not given"),
        (E::PermissionDenied, 7, "etcdserver: permission denied"),
        (E::RoleNotGranted, 9, "etcdserver: role is not granted to the user"),
        (E::PermissionNotGranted, 9, "etcdserver: permission is not granted to the role"),
        (E::AuthNotEnabled, 9, "etcdserver: authentication is not enabled"),
        (E::InvalidAuthToken, 16, "etcdserver: invalid auth token"),
        (E::InvalidAuthManagement, 3, "etcdserver: invalid auth management"),
        (E::AuthRevisionOld, 3, "etcdserver: revision of auth store is old"),
    ];
    for (error, code, text) in table {
        let status = status(error);
        assert_eq!((status.code() as i32, status.message()), (code, text), "{error:?}");
    }
    let tested: BTreeSet<_> = table.iter().map(|(error, ..)| name_of(error)).collect();
    assert_eq!(tested, variants("KvError"));
}

/// An error of a request with its code and text; `None` for our own text.
type RequestErrorRow = (RequestError, i32, Option<&'static str>);

const NO_LEADER_TEXT: Option<&str> = Some("etcdserver: no leader");
const CHANGED_TEXT: Option<&str> = Some("etcdserver: leader changed");
const STOPPED_TEXT: Option<&str> = Some("etcdserver: server stopped");
const TOO_MANY_TEXT: Option<&str> = Some("etcdserver: too many requests");
const NO_DOWNGRADE_TEXT: Option<&str> = Some("etcdserver: no inflight downgrade job");
const UNHEALTHY_TEXT: Option<&str> = Some("etcdserver: unhealthy cluster");

fn refused_requests() -> Vec<RequestErrorRow> {
    use RequestRefused as R;
    let (id, to) = (EntryId::new(3, 7), MemberId(9));
    let leader = R::ByLeader;
    let rows = [
        (R::NoLeader, 14, NO_LEADER_TEXT),
        (R::ReadTimedOut, 14, Some(TIMED_OUT)),
        (R::TooManyRequests { limit: 1 }, 8, TOO_MANY_TEXT),
        (R::TooLarge { bytes: 2, limit: 1 }, 3, Some("etcdserver: request is too large")),
        (R::SnapshotFailed, 2, None),
        (R::NotMember, 14, STOPPED_TEXT),
        (R::Stopped, 14, STOPPED_TEXT),
        (R::MemberFailed { reason: "x".into() }, 14, STOPPED_TEXT),
        (R::Overwritten { by: id }, 14, CHANGED_TEXT),
        (R::Superseded, 14, CHANGED_TEXT),
        (R::TransferAborted, 2, Some(TIMED_OUT_TRANSFER)),
        (R::Downgrade(DowngradeRefusal::Changed), 14, CHANGED_TEXT),
        (R::Downgrade(DowngradeRefusal::NotInProgress), 9, NO_DOWNGRADE_TEXT),
        (
            R::Downgrade(DowngradeRefusal::NotLower { target: 2, current: 2 }),
            3,
            Some("etcdserver: invalid downgrade target version"),
        ),
        (leader(Refusal::NotLeader { leader: None }), 14, CHANGED_TEXT),
        (leader(Refusal::Transferring { to }), 14, CHANGED_TEXT),
        (leader(Refusal::LeaderRemoved), 14, CHANGED_TEXT),
        (leader(Refusal::TooManyReads { limit: 1 }), 8, TOO_MANY_TEXT),
        (leader(Refusal::TooMuchUncommitted { waiting: 2, limit: 1 }), 8, TOO_MANY_TEXT),
        (leader(Refusal::TargetNotVoter { to }), 9, Some("etcdserver: bad leader transferee")),
        (leader(Refusal::TargetStalled { to }), 9, Some("etcdserver: bad leader transferee")),
    ];
    rows.map(|(error, code, text)| (RequestError::Refused(error), code, text)).into()
}

fn refused_changes() -> Vec<RequestErrorRow> {
    use ChangeRefusal as C;
    let id = MemberId(9);
    let rows = [
        (C::QuorumNotReady { voters: 4, quorum: 3, live: 2 }, 14, UNHEALTHY_TEXT),
        (C::ZoneWouldBlock, 14, UNHEALTHY_TEXT),
        (C::NoVotersLeft, 9, Some(NOT_ENOUGH_STARTED)),
        (C::UnknownMember { id }, 5, Some("etcdserver: member not found")),
        (C::IdUsedBefore { id }, 9, Some("etcdserver: member ID already exist")),
        (C::InFlight { index: 2, applied: 1 }, 14, None),
        (C::NoOwnCommit, 14, None),
        (C::Stale { newest: EntryId::new(3, 7) }, 9, None),
        (C::RemovesVoterDirectly { id }, 9, None),
        (C::UnsafeTransition, 9, None),
        (C::AlreadyJoint, 9, None),
        (C::NotJoint, 9, None),
        (C::SimpleInJoint, 9, None),
        (C::ManyVoters, 9, None),
        (C::NoVotersForJoint, 9, None),
        (C::MemberZero, 9, None),
        (C::GoalInProgress, 9, None),
        (C::AlreadyReached, 9, None),
        (C::AlreadyCancelled, 9, None),
        (C::NothingToCancel, 9, None),
        (C::InvalidMembership(MembershipError::NoVoters), 9, None),
    ];
    let change = |error| RequestError::Refused(RequestRefused::ByLeader(Refusal::Change(error)));
    rows.map(|(error, code, text)| (change(error), code, text)).into()
}

fn unknown_outcomes() -> Vec<RequestErrorRow> {
    use OutcomeUnknown as U;
    let id = EntryId::new(3, 7);
    let goal = EndedGoal { id, end: GoalEnd::Cancelled, at: id };
    let rows = [
        (U::TimedOut, 14, Some("etcdserver: request timed out")),
        (U::NotSettledInTime { id }, 14, Some(TIMED_OUT)),
        (U::ReplyLost, 14, Some(TIMED_OUT_CONNECTION)),
        (U::PassedBySnapshot, 14, Some(TIMED_OUT_CONNECTION)),
        (U::GoalAbandoned(goal), 14, Some(TIMED_OUT_LEADER)),
        (U::Removed, 14, STOPPED_TEXT),
        (U::Stopped, 14, STOPPED_TEXT),
        (U::MemberFailed { reason: "x".into() }, 14, STOPPED_TEXT),
    ];
    rows.map(|(error, code, text)| (RequestError::Unknown(error), code, text)).into()
}

#[test]
fn every_request_error_has_etcds_code_and_text() {
    let table = [refused_requests(), refused_changes(), unknown_outcomes()].concat();
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
    let needs = "quorate: this request needs cluster version 2; it is 1 until all members run a \
                 program that supports 2";
    let changed = "quorate: the data changed while it was written";
    let wrong = "etcdserver: wrong downgrade target version format";
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
        (ServiceError::NeedsClusterVersion { needs: 2, current: 1 }, 9, needs),
        (ServiceError::BadDowngradeVersion { version: "x".into() }, 3, wrong),
        (ServiceError::LockSessionExpired, 2, "mutex: session is expired"),
        (ServiceError::NotElectionLeader, 2, "election: not leader"),
        (ServiceError::NoElectionLeader, 2, "election: no leader"),
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
        (
            ServiceError::BadSnapshotFormat,
            3,
            "quorate: snapshots have the format quorate, etcd, etcd-3.5, etcd-3.6 or etcd-3.7",
        ),
        (ServiceError::EtcdExport(BboltWriteError::Changed), 13, changed),
        (ServiceError::UnexpectedReply, 13, "etcdserver: unexpected reply"),
        (ServiceError::Table(TableError::Busy), 13, &format!("etcdserver: {}", TableError::Busy)),
    ];
    for (error, code, text) in table {
        let name = format!("{error:?}");
        let status = status(error);
        assert_eq!((status.code() as i32, status.message()), (code, text), "{name}");
    }
}
