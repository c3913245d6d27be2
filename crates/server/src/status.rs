//! The only place where errors of this server turn into gRPC statuses: codes, and etcd's exact
//! texts, which clients compare. Services return [`ServiceError`]; no other module builds a
//! [`Status`].
//!
//! Where our reason says more than etcd's text, it is sent as metadata (`quorate-reason`).

use axum::http::HeaderMap;
use quorate::membership::ChangeRefusal;
use quorate::{DowngradeRefusal, OutcomeUnknown, Refusal, RequestError, RequestRefused};
use quorate_etcd_files::BboltWriteError;
use quorate_kv::{KvError, TableError};
use tokio::task::JoinError;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::access::AccessDenied;
use crate::grpc_timeout::MalformedTimeout;

/// Why a request was not served.
#[derive(Debug)]
pub(crate) enum ServiceError {
    /// The member did not carry out the request, or its outcome is unknown.
    Request(RequestError),
    /// The data model refused the request.
    Kv(KvError),
    /// The table failed: the member is about to stop.
    Table(TableError),
    /// A snapshot cannot be written in etcd's format.
    EtcdExport(BboltWriteError<TableError>),
    /// A request asks for a snapshot in an unknown format.
    BadSnapshotFormat,
    Access(AccessDenied),
    NoLeader,
    NotLeader,
    BadLeaderTransferee,
    NotServedByLearners,
    ServerStopped,
    /// Peer URLs are missing or malformed.
    BadPeerUrls,
    /// More peer URLs than a member can have.
    TooManyPeerUrls {
        count: usize,
        limit: usize,
    },
    PeerUrlsExist,
    MemberNotFound,
    /// Only learners can be promoted.
    NotALearner,
    LearnerNotInSync {
        reason: &'static str,
    },
    TooManyLearners {
        started: usize,
        limit: usize,
    },
    /// The change would leave no voters.
    NoVotersLeft,
    /// Too few of the voters after the change are live and caught up.
    UnhealthyCluster {
        voters: usize,
        quorum: usize,
        live: usize,
    },
    /// A target membership that cannot be resolved to members.
    BadTarget(BadTarget),
    /// A downgrade to something that is not one of our cluster versions.
    BadDowngradeVersion {
        version: String,
    },
    /// Not all members know the command.
    NeedsClusterVersion {
        needs: u32,
        current: u32,
    },
    UnknownMethod {
        path: String,
    },
    UnknownHealthService,
    /// The health of a single service cannot be watched.
    HealthWatchOfOneService,
    /// gRPC's own limit for a message, with the numbers that it prints.
    MessageTooLarge {
        bytes: String,
        limit: String,
    },
    /// The timeout of a call is zero.
    DeadlineExceeded,
    MalformedTimeout(MalformedTimeout),
    /// The message of a request did not arrive in time.
    RequestNotSent,
    /// Too many requests of one connection or one client address lack their message.
    TooManyOpenRequests {
        limit: usize,
    },
    /// Incomplete requests take all memory for them.
    RequestMemoryUsedUp {
        limit: u64,
    },
    /// Other responses take all memory for responses, and their clients are still reading.
    ResponseMemoryUsedUp {
        limit: u64,
    },
    /// More than the memory for all responses.
    ResponseAboveLimit {
        bytes: u64,
        limit: u64,
    },
    /// A write is done, and there is no memory for its response.
    ReplyDropped {
        bytes: u64,
    },
    /// Beyond what gRPC can send in one message.
    ResponseTooLarge {
        bytes: usize,
    },
    /// The client did not read the response while others waited for its memory.
    ResponseNotRead,
    /// The data model replied with bytes or a type that the request does not have.
    UnexpectedReply,
    PasswordTooLong {
        limit: usize,
    },
    /// Too many failed attempts to authenticate come from the address of the client.
    TooManyLogins,
    /// The server has only the key to check tokens.
    CannotSignTokens,
    /// A blocking task panicked or was cancelled.
    Task(JoinError),
    /// The key of a lock was deleted while it waited.
    LockSessionExpired,
    /// The caller's key of an election no longer exists.
    NotElectionLeader,
    /// No one campaigns.
    NoElectionLeader,
    /// A request of an election lacks its leader.
    MissingLeaderKey,
    /// A range stream cannot sort.
    RangeStreamSorted,
    /// A range stream cannot select by revisions.
    RangeStreamFiltered,
    /// The JSON of a gateway request cannot be read.
    BadJson(String),
    /// The timeout of a gateway request cannot be read.
    BadGatewayTimeout {
        timeout: String,
    },
    /// The gateway has this path, for another method.
    GatewayMethodNotAllowed,
    /// The gateway does not have this path.
    GatewayPathNotFound,
}

/// Why a target membership cannot be resolved.
#[derive(Debug)]
pub(crate) enum BadTarget {
    Missing,
    UnnamedMember,
    AmbiguousName(String),
}

impl From<RequestError> for ServiceError {
    fn from(error: RequestError) -> Self {
        Self::Request(error)
    }
}

impl From<KvError> for ServiceError {
    fn from(error: KvError) -> Self {
        Self::Kv(error)
    }
}

impl From<TableError> for ServiceError {
    fn from(error: TableError) -> Self {
        Self::Table(error)
    }
}

impl From<AccessDenied> for ServiceError {
    fn from(error: AccessDenied) -> Self {
        Self::Access(error)
    }
}

impl From<JoinError> for ServiceError {
    fn from(error: JoinError) -> Self {
        Self::Task(error)
    }
}

impl From<ServiceError> for Status {
    fn from(error: ServiceError) -> Self {
        let (code, text) = error.code_and_text();
        let mut status = Self::new(code, text);
        if let ServiceError::Request(RequestError::Refused(RequestRefused::ByLeader(
            Refusal::Change(ChangeRefusal::Stale { newest }),
        ))) = &error
            && let Ok(newest) = MetadataValue::try_from(newest.to_string())
        {
            status.metadata_mut().insert(NEWEST_MEMBERSHIP, newest);
        }
        match error.reason() {
            Some(reason) => with_reason(status, &reason),
            None => status,
        }
    }
}

impl ServiceError {
    /// etcd's code and text.
    pub(crate) fn code_and_text(&self) -> (Code, String) {
        let (code, text) = match self {
            Self::Request(RequestError::Refused(error)) => return refused(error),
            Self::Request(RequestError::Unknown(error)) => return unknown_outcome(error),
            Self::Kv(error) => (kv_code(*error), error.text()),
            Self::Table(error) => return (Code::Internal, format!("etcdserver: {error}")),
            Self::EtcdExport(error) => return (Code::Internal, format!("quorate: {error}")),
            Self::BadSnapshotFormat => (
                Code::InvalidArgument,
                "quorate: snapshots have the format quorate, etcd, etcd-3.5, etcd-3.6 or etcd-3.7",
            ),
            Self::Access(AccessDenied::PermissionDenied) => {
                (Code::PermissionDenied, "etcdserver: permission denied")
            }
            Self::Access(AccessDenied::ConsoleReadOnly) => (
                Code::PermissionDenied,
                "quorate: this port of the console only reads while authentication is disabled; \
                 enable it, and sign in",
            ),
            Self::Access(AccessDenied::OriginNotAllowed) => (
                Code::PermissionDenied,
                "quorate: web pages of this origin may not use the gateway (see --cors)",
            ),
            Self::NoLeader => (Code::Unavailable, NO_LEADER),
            Self::NotLeader => (Code::FailedPrecondition, "etcdserver: not leader"),
            Self::BadLeaderTransferee => (Code::FailedPrecondition, BAD_TRANSFEREE),
            Self::NotServedByLearners => {
                (Code::FailedPrecondition, "etcdserver: rpc not supported for learner")
            }
            Self::ServerStopped => (Code::Unavailable, STOPPED),
            Self::BadPeerUrls | Self::TooManyPeerUrls { .. } => {
                (Code::InvalidArgument, "etcdserver: given member URLs are invalid")
            }
            Self::PeerUrlsExist => {
                (Code::FailedPrecondition, "etcdserver: Peer URLs already exists")
            }
            Self::MemberNotFound => (Code::NotFound, MEMBER_NOT_FOUND),
            Self::NotALearner => {
                (Code::FailedPrecondition, "etcdserver: can only promote a learner member")
            }
            Self::LearnerNotInSync { .. } => (Code::FailedPrecondition, LEARNER_NOT_IN_SYNC),
            Self::TooManyLearners { .. } => {
                (Code::FailedPrecondition, "etcdserver: too many learner members in cluster")
            }
            Self::NoVotersLeft => (Code::FailedPrecondition, NOT_ENOUGH_STARTED),
            Self::BadDowngradeVersion { .. } => {
                (Code::InvalidArgument, "etcdserver: wrong downgrade target version format")
            }
            Self::UnhealthyCluster { .. } => (Code::Unavailable, UNHEALTHY),
            own => return own.own_code_and_text(),
        };
        (code, text.into())
    }

    /// The same for errors that etcd has no text for.
    fn own_code_and_text(&self) -> (Code, String) {
        match self {
            Self::BadTarget(BadTarget::Missing) => {
                (Code::InvalidArgument, "quorate: no target was given".into())
            }
            Self::BadTarget(BadTarget::UnnamedMember) => {
                (Code::InvalidArgument, "quorate: a member of the target is not named".into())
            }
            Self::BadTarget(BadTarget::AmbiguousName(name)) => {
                (Code::InvalidArgument, format!("quorate: several members have the name {name:?}"))
            }
            Self::NeedsClusterVersion { needs, current } => (
                Code::FailedPrecondition,
                format!(
                    "quorate: this request needs cluster version {needs}; it is {current} until \
                     all members run a program that supports {needs}"
                ),
            ),
            Self::UnknownMethod { path } => (Code::Unimplemented, format!("unknown method {path}")),
            Self::UnknownHealthService => (Code::NotFound, "unknown service".into()),
            Self::HealthWatchOfOneService => {
                (Code::Unimplemented, "only the health of the whole server can be watched".into())
            }
            Self::MessageTooLarge { bytes, limit } => (
                Code::ResourceExhausted,
                format!("grpc: received message larger than max ({bytes} vs. {limit})"),
            ),
            Self::DeadlineExceeded => (Code::DeadlineExceeded, "context deadline exceeded".into()),
            Self::MalformedTimeout(error) => {
                (Code::Internal, format!("malformed grpc-timeout: {error}"))
            }
            Self::RequestNotSent => {
                (Code::DeadlineExceeded, "quorate: the request was not sent in time".into())
            }
            Self::TooManyOpenRequests { limit } => (
                Code::ResourceExhausted,
                format!("quorate: {limit} requests of this client were begun and not sent"),
            ),
            Self::PasswordTooLong { limit } => (
                Code::InvalidArgument,
                format!("quorate: a password may have at most {limit} bytes"),
            ),
            Self::TooManyLogins => (Code::ResourceExhausted, TOO_MANY_REQUESTS.into()),
            Self::CannotSignTokens => {
                (Code::Unknown, "auth: token signing attempted with verify-only key".into())
            }
            Self::UnexpectedReply => (Code::Internal, "etcdserver: unexpected reply".into()),
            Self::Task(error) => (Code::Internal, format!("etcdserver: {error}")),
            Self::LockSessionExpired => (Code::Unknown, "mutex: session is expired".into()),
            Self::NotElectionLeader => (Code::Unknown, "election: not leader".into()),
            Self::NoElectionLeader => (Code::Unknown, "election: no leader".into()),
            Self::MissingLeaderKey => (Code::Unknown, "\"leader\" field must be provided".into()),
            Self::RangeStreamSorted => {
                (Code::Unimplemented, "RangeStream does not support custom sort orders".into())
            }
            Self::RangeStreamFiltered => {
                (Code::Unimplemented, "RangeStream does not support revision filters".into())
            }
            other => other.gateway_code_and_text(),
        }
    }

    /// The same for errors of the JSON gateway.
    fn gateway_code_and_text(&self) -> (Code, String) {
        match self {
            Self::BadJson(text) => (Code::InvalidArgument, text.clone()),
            Self::BadGatewayTimeout { timeout } => {
                (Code::InvalidArgument, format!("invalid grpc-timeout: {timeout}"))
            }
            Self::GatewayMethodNotAllowed => (Code::Unimplemented, "Method Not Allowed".into()),
            Self::GatewayPathNotFound => (Code::NotFound, "Not Found".into()),
            other => other.response_code_and_text(),
        }
    }

    /// The same for responses that take too much memory.
    fn response_code_and_text(&self) -> (Code, String) {
        let text = match self {
            Self::RequestMemoryUsedUp { limit } => format!(
                "quorate: requests that were begun and not sent take all {limit} bytes that they may (half of --max-response-memory); try again later"
            ),
            Self::ResponseMemoryUsedUp { limit } => format!(
                "quorate: unread responses take all {limit} bytes of --max-response-memory; try again later"
            ),
            Self::ResponseAboveLimit { bytes, limit } => format!(
                "quorate: a response of {bytes} bytes is above the limit of {limit} (7/8 of --max-response-memory); read fewer keys at once"
            ),
            Self::ReplyDropped { bytes } => format!(
                "quorate: the request was carried out, and its response of {bytes} bytes was dropped: unread responses take all of --max-response-memory"
            ),
            Self::ResponseTooLarge { bytes } => format!(
                "quorate: a response of {bytes} bytes cannot be sent; read fewer keys at once"
            ),
            Self::ResponseNotRead => {
                "quorate: the response was dropped, since the client did not read it".into()
            }
            // `code_and_text` has handled all others.
            other => return (Code::Unknown, format!("etcdserver: {other:?}")),
        };
        (Code::ResourceExhausted, text)
    }

    /// What our error says beyond etcd's text.
    fn reason(&self) -> Option<String> {
        match self {
            Self::Request(error) => Some(error.to_string()),
            Self::LearnerNotInSync { reason } => Some((*reason).to_owned()),
            Self::TooManyLearners { started, limit } => {
                Some(format!("{started} learners have started, the limit is {limit}"))
            }
            Self::TooManyPeerUrls { count, limit } => {
                Some(format!("{count} URLs were given, a member may have {limit}"))
            }
            Self::NoVotersLeft => Some("no voters would be left".into()),
            Self::BadDowngradeVersion { version } => {
                Some(format!("cluster versions are numbers such as 1, not {version:?}"))
            }
            Self::UnhealthyCluster { voters, quorum, live } => Some(format!(
                "afterwards: {voters} voters, quorum {quorum}, live and caught up {live}"
            )),
            _ => None,
        }
    }
}

/// gRPC's own error for a message above the limit, in the words of etcd's gRPC library. `None`
/// if the response is something else.
pub(crate) fn message_too_large(headers: &HeaderMap) -> Option<Status> {
    if headers.get("grpc-status")? != "11" {
        return None;
    }
    let status = Status::from_header_map(headers)?;
    let numbers = status.message().strip_prefix(TONIC_TOO_LARGE)?;
    let mut numbers = numbers.split(|letter: char| !letter.is_ascii_digit());
    let mut number = || numbers.find(|number| !number.is_empty()).map(str::to_owned);
    Some(ServiceError::MessageTooLarge { bytes: number()?, limit: number()? }.into())
}

/// The status of a response, in its headers or trailers.
pub(crate) fn status_of(headers: &HeaderMap) -> Option<Status> {
    Status::from_header_map(headers)
}

/// The metadata key under which our own reason is sent beside etcd's text.
pub(crate) const REASON: &str = "quorate-reason";
/// The metadata key of a refusal because the membership is not the expected one: the entry of
/// the newest membership. Clients read that membership, and decide again.
pub(crate) const NEWEST_MEMBERSHIP: &str = "quorate-newest-membership";

fn with_reason(mut status: Status, reason: &str) -> Status {
    if let Ok(reason) = MetadataValue::try_from(reason) {
        status.metadata_mut().insert(REASON, reason);
    }
    status
}

fn refused(error: &RequestRefused) -> (Code, String) {
    let (code, text) = match error {
        RequestRefused::ByLeader(error) => return refused_by_leader(error),
        RequestRefused::NoLeader => (Code::Unavailable, NO_LEADER),
        RequestRefused::ReadTimedOut => (Code::Unavailable, TIMED_OUT),
        RequestRefused::TooManyRequests { .. } => (Code::ResourceExhausted, TOO_MANY_REQUESTS),
        RequestRefused::TooLarge { .. } => (Code::InvalidArgument, TOO_LARGE),
        RequestRefused::Overwritten { .. } | RequestRefused::Superseded => {
            (Code::Unavailable, LEADER_CHANGED)
        }
        RequestRefused::TransferAborted => (Code::Unknown, TIMED_OUT_TRANSFER),
        // A removed member no longer serves requests.
        RequestRefused::NotMember
        | RequestRefused::Stopped
        | RequestRefused::MemberFailed { .. } => (Code::Unavailable, STOPPED),
        RequestRefused::Downgrade(DowngradeRefusal::NotInProgress) => {
            (Code::FailedPrecondition, "etcdserver: no inflight downgrade job")
        }
        RequestRefused::Downgrade(DowngradeRefusal::Changed) => (Code::Unavailable, LEADER_CHANGED),
        RequestRefused::Downgrade(_) => {
            (Code::InvalidArgument, "etcdserver: invalid downgrade target version")
        }
        RequestRefused::SnapshotFailed => return (Code::Unknown, format!("etcdserver: {error}")),
        other => return (Code::Unknown, format!("etcdserver: {other}")),
    };
    (code, text.into())
}

fn unknown_outcome(error: &OutcomeUnknown) -> (Code, String) {
    let (code, text) = match error {
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

fn refused_by_leader(error: &Refusal) -> (Code, String) {
    let (code, text) = match error {
        Refusal::NotLeader { .. } | Refusal::Transferring { .. } | Refusal::LeaderRemoved => {
            (Code::Unavailable, LEADER_CHANGED)
        }
        Refusal::TooMuchUncommitted { .. } | Refusal::TooManyReads { .. } => {
            (Code::ResourceExhausted, TOO_MANY_REQUESTS)
        }
        Refusal::TargetNotVoter { .. } | Refusal::TargetStalled { .. } => {
            (Code::FailedPrecondition, BAD_TRANSFEREE)
        }
        Refusal::Change(error) => return change_refused(error),
        other => return (Code::Unknown, format!("etcdserver: {other}")),
    };
    (code, text.into())
}

/// etcd has texts for few of these; the others have ours.
fn change_refused(error: &ChangeRefusal) -> (Code, String) {
    let own_text = || format!("etcdserver: {error}");
    let (code, text) = match error {
        ChangeRefusal::QuorumNotReady { .. } | ChangeRefusal::ZoneWouldBlock => {
            (Code::Unavailable, UNHEALTHY)
        }
        ChangeRefusal::NoVotersLeft => (Code::FailedPrecondition, NOT_ENOUGH_STARTED),
        ChangeRefusal::UnknownMember { .. } => (Code::NotFound, MEMBER_NOT_FOUND),
        ChangeRefusal::IdUsedBefore { .. } => {
            (Code::FailedPrecondition, "etcdserver: member ID already exist")
        }
        // Temporary: a client that retries soon succeeds.
        ChangeRefusal::InFlight { .. } | ChangeRefusal::NoOwnCommit => {
            return (Code::Unavailable, own_text());
        }
        ChangeRefusal::Stale { .. }
        | ChangeRefusal::RemovesVoterDirectly { .. }
        | ChangeRefusal::UnsafeTransition
        | ChangeRefusal::AlreadyJoint
        | ChangeRefusal::NotJoint
        | ChangeRefusal::SimpleInJoint
        | ChangeRefusal::ManyVoters
        | ChangeRefusal::NoVotersForJoint
        | ChangeRefusal::MemberZero
        | ChangeRefusal::GoalInProgress
        | ChangeRefusal::AlreadyReached
        | ChangeRefusal::AlreadyCancelled
        | ChangeRefusal::NothingToCancel
        | ChangeRefusal::InvalidMembership(_) => return (Code::FailedPrecondition, own_text()),
        _ => return (Code::FailedPrecondition, own_text()),
    };
    (code, text.into())
}

fn kv_code(error: KvError) -> Code {
    match error {
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
        KvError::RootUserNotFound
        | KvError::RootRoleNotFound
        | KvError::UserExists
        | KvError::UserNotFound
        | KvError::RoleExists
        | KvError::RoleNotFound
        | KvError::RoleNotGranted
        | KvError::PermissionNotGranted
        | KvError::AuthNotEnabled => Code::FailedPrecondition,
        KvError::UserNameEmpty
        | KvError::RoleNameEmpty
        | KvError::AuthFailed
        | KvError::PermissionNotGiven
        | KvError::InvalidAuthManagement
        | KvError::AuthRevisionOld => Code::InvalidArgument,
        KvError::PermissionDenied => Code::PermissionDenied,
        KvError::InvalidAuthToken => Code::Unauthenticated,
        KvError::UnknownCommand => Code::Unavailable,
        _ => Code::Unknown,
    }
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
const LEARNER_NOT_IN_SYNC: &str =
    "etcdserver: can only promote a learner member which is in sync with leader";
/// How tonic begins its text for a message above the limit.
const TONIC_TOO_LARGE: &str = "Error, decoded message length too large: ";

#[cfg(test)]
mod tests;
