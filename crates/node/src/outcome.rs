//! How a request ends: done, refused, or unknown. Exactly one of them, once.

use std::error::Error;
use std::fmt;

use bytes::Bytes;
use quorate_core::membership::{ChangeRefusal, EndedGoal};
use quorate_core::{EntryId, Index, MemberId, Refusal};

use crate::cluster_version::DowngradeRefusal;

/// How a request ended.
pub type RequestOutcome = Result<RequestReply, RequestError>;

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
#[must_use]
pub enum RequestReply {
    /// The command ran, once.
    Ran {
        /// The entry that carried it.
        index: Index,
        /// What [`Machine::apply`](crate::Machine::apply) returned.
        #[cfg_attr(feature = "serde", serde(with = "quorate_core::opaque"))]
        reply: Bytes,
    },
    /// The query ran.
    Read {
        /// The newest entry whose effect the reply shows.
        index: Index,
        /// What [`Machine::query`](crate::Machine::query) returned; empty for a barrier.
        #[cfg_attr(feature = "serde", serde(with = "quorate_core::opaque"))]
        reply: Bytes,
    },
    /// The change is committed and settled: any majority of the new membership can continue
    /// without the other members.
    Changed {
        /// The entry that carried it, which identifies the membership
        /// ([`Membership::since`](quorate_core::Membership::since)).
        id: EntryId,
    },
    /// The change is committed, and the caller did not want to wait until it is settled.
    ChangeCommitted {
        /// The entry that carried it.
        id: EntryId,
    },
    /// The goal has ended and the resulting membership is settled: the goal was reached,
    /// cancelled or replaced.
    GoalEnded(EndedGoal),
    /// Leadership was transferred.
    Transferred {
        /// The new leader.
        to: MemberId,
    },
}

/// Why a request is not done.
///
/// The member has retried for as long as [`DriverOptions::request_ticks`] allows: it waits for
/// a leader, sends a command again to the next leader (it still runs once), and waits while
/// another membership change is in progress. Callers need a retry loop only to wait longer than
/// that, or to use another member; [`RequestError::is_retryable`] says when that is worth it.
///
/// [`DriverOptions::request_ticks`]: crate::DriverOptions::request_ticks
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum RequestError {
    /// The request did not happen and never will. Sending it again is safe.
    Refused(RequestRefused),
    /// The request may have happened, or may still happen. Read before sending it again.
    Unknown(OutcomeUnknown),
}

/// Why a request did not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum RequestRefused {
    /// The leader refused it, for this reason.
    ByLeader(Refusal),
    /// No leader was known before the request timed out. Retry after an election.
    NoLeader,
    /// A read was not confirmed in time. Retry.
    ReadTimedOut,
    /// Too many requests are open at this member. Retry after a pause.
    TooManyRequests {
        /// [`DriverOptions::requests_max`](crate::DriverOptions::requests_max).
        limit: usize,
    },
    /// The command is longer than
    /// [`DriverOptions::command_bytes_max`](crate::DriverOptions::command_bytes_max).
    TooLarge {
        /// Its length in the log.
        bytes: usize,
        /// The greatest length.
        limit: usize,
    },
    /// The snapshot could not be written. The log output has the reason.
    SnapshotFailed,
    /// This member is not in the cluster. Use another member.
    NotMember,
    /// The log has a command in this member's name that this member did not propose, with
    /// later numbers. Retry: the next attempt has numbers after those.
    Superseded,
    /// A newer leader put another entry in its place.
    Overwritten {
        /// The committed entry at that index.
        by: EntryId,
    },
    /// The leadership transfer was aborted.
    TransferAborted,
    /// The cluster version cannot be lowered like this.
    Downgrade(DowngradeRefusal),
    /// This member was stopped. The request was sent to no leader, or was a read.
    Stopped,
    /// This member failed and has stopped. Use another member.
    MemberFailed {
        /// What failed.
        reason: String,
    },
}

/// Why it is unknown whether a request happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum OutcomeUnknown {
    /// A leader may have accepted it; no reply came in time.
    TimedOut,
    /// The change is committed at `id`, but it did not settle, or its goal did not end, in
    /// time. It may later.
    NotSettledInTime {
        /// The entry that carried the change.
        id: EntryId,
    },
    /// The command has run, but this member received a snapshot instead of the entry, so the
    /// reply is lost.
    ReplyLost,
    /// This member received a snapshot instead of the entry.
    PassedBySnapshot,
    /// The goal was cancelled or replaced before the change was complete. Parts of it may have
    /// been done.
    GoalAbandoned(EndedGoal),
    /// This member was removed from the cluster meanwhile. Use another member.
    Removed,
    /// This member was stopped.
    Stopped,
    /// This member failed and has stopped. Use another member.
    MemberFailed {
        /// What failed.
        reason: String,
    },
}

impl RequestError {
    /// Whether to send the request again after a pause: it certainly did not happen, so a retry
    /// cannot make it happen twice, and the reason may go away without an operator.
    ///
    /// False for every unknown outcome. A read or an idempotent command may still be sent again;
    /// for any other command, first read whether it happened.
    ///
    /// A refused membership change should be computed again from the current membership, as
    /// after a failed compare-and-set: another change may have come first.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Refused(refused) => refused.is_retryable(),
            Self::Unknown(_) => false,
        }
    }
}

impl RequestRefused {
    /// See [`RequestError::is_retryable`].
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::ByLeader(Refusal::Change(refusal)) => matches!(
                refusal,
                ChangeRefusal::InFlight { .. }
                    | ChangeRefusal::NoOwnCommit
                    | ChangeRefusal::Stale { .. }
                    | ChangeRefusal::AlreadyJoint
                    | ChangeRefusal::SimpleInJoint
                    | ChangeRefusal::GoalInProgress
            ),
            Self::ByLeader(Refusal::TargetNotVoter { .. } | Refusal::TargetStalled { .. }) => false,
            Self::ByLeader(_)
            | Self::NoLeader
            | Self::ReadTimedOut
            | Self::TooManyRequests { .. }
            | Self::Superseded
            | Self::Overwritten { .. }
            | Self::TransferAborted
            | Self::Downgrade(DowngradeRefusal::Changed) => true,
            Self::TooLarge { .. }
            | Self::SnapshotFailed
            | Self::NotMember
            | Self::Downgrade(_)
            | Self::Stopped
            | Self::MemberFailed { .. } => false,
        }
    }
}

/// Whether the driver itself retries: the next leader may accept the request, or the same one
/// after the change that it has in progress.
pub(crate) fn is_transient(refusal: &Refusal) -> bool {
    matches!(
        refusal,
        Refusal::NotLeader { .. }
            | Refusal::Transferring { .. }
            | Refusal::LeaderRemoved
            | Refusal::Change(ChangeRefusal::InFlight { .. } | ChangeRefusal::NoOwnCommit)
    )
}

impl From<RequestRefused> for RequestError {
    fn from(refused: RequestRefused) -> Self {
        Self::Refused(refused)
    }
}

impl From<OutcomeUnknown> for RequestError {
    fn from(unknown: OutcomeUnknown) -> Self {
        Self::Unknown(unknown)
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refused) => write!(f, "refused: {refused}"),
            Self::Unknown(unknown) => write!(f, "unknown: {unknown}"),
        }
    }
}

impl Error for RequestError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Refused(refused) => Some(refused),
            Self::Unknown(unknown) => Some(unknown),
        }
    }
}

impl fmt::Display for RequestRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByLeader(refusal) => write!(f, "{refusal}"),
            Self::NoLeader => write!(f, "no leader was found in time"),
            Self::ReadTimedOut => write!(f, "the read was not confirmed in time"),
            Self::TooManyRequests { limit } => {
                write!(f, "too many open requests, the limit is {limit}")
            }
            Self::TooLarge { bytes, limit } => {
                write!(f, "the command has {bytes} bytes, the limit is {limit}")
            }
            Self::SnapshotFailed => write!(f, "the snapshot could not be written"),
            Self::NotMember => write!(f, "this member is not in the cluster"),
            Self::Superseded => {
                write!(f, "a command in this member's name has later numbers; retry")
            }
            Self::Overwritten { by } => write!(f, "a newer leader logged {by} in its place"),
            Self::TransferAborted => write!(f, "the leadership transfer was aborted"),
            Self::Downgrade(refusal) => write!(f, "{refusal}"),
            Self::Stopped => write!(f, "this member was stopped"),
            Self::MemberFailed { reason } => write!(f, "this member failed: {reason}"),
        }
    }
}

impl fmt::Display for OutcomeUnknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut => write!(f, "no reply from the leader in time; it may have happened"),
            Self::NotSettledInTime { id } => {
                write!(f, "committed as {id}, but not settled in time; it may settle later")
            }
            Self::ReplyLost => write!(f, "it ran, but a snapshot replaced its reply"),
            Self::PassedBySnapshot => {
                write!(f, "a snapshot replaced its entry; it may have happened")
            }
            Self::GoalAbandoned(goal) => {
                write!(f, "the goal {} was cancelled or replaced at {}", goal.id, goal.at)
            }
            Self::Removed => write!(f, "this member was removed; it may have happened"),
            Self::Stopped => write!(f, "this member was stopped; it may have happened"),
            Self::MemberFailed { reason } => {
                write!(f, "this member failed: {reason}; it may have happened")
            }
        }
    }
}

impl Error for RequestRefused {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::ByLeader(refusal) => Some(refusal),
            _ => None,
        }
    }
}

impl Error for OutcomeUnknown {}
