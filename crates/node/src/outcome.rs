//! How a request ends: done, refused, or unknown. Exactly one of them, once.

use std::fmt;

use bytes::Bytes;
use quorate_core::membership::EndedGoal;
use quorate_core::{EntryId, Index, MemberId, Refusal};

/// How a request ended.
pub type RequestOutcome = Result<RequestReply, RequestError>;

/// Why a request is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum RequestError {
    /// It did not happen and never will. Asking again is safe.
    Refused(RequestRefused),
    /// It may have happened, or may still. Look before asking again.
    Unknown(OutcomeUnknown),
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum RequestReply {
    /// The command ran, once.
    Ran {
        /// The entry that carried it.
        index: Index,
        /// What [`Machine::apply`](crate::Machine::apply) returned.
        #[cfg_attr(feature = "serde", serde(with = "quorate_core::opaque"))]
        reply: Bytes,
    },
    /// The question was answered.
    Read {
        /// What [`Machine::query`](crate::Machine::query) returned, of a state that is not
        /// older than the question.
        #[cfg_attr(feature = "serde", serde(with = "quorate_core::opaque"))]
        reply: Bytes,
    },
    /// The change is committed and settled: any majority of the new membership can
    /// go on by itself.
    Changed {
        /// The entry that carried it, by which the membership is known
        /// ([`Membership::since`](quorate_core::Membership::since)).
        id: EntryId,
    },
    /// The goal is pursued no more, and what came of it is settled: it is reached, or
    /// somebody cancelled or replaced it.
    GoalEnded(EndedGoal),
    /// Leadership was handed over.
    Transferred {
        /// Who leads now.
        to: MemberId,
    },
}

/// Why a request did not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum RequestRefused {
    /// The leader would not take it, and says why.
    ByLeader(Refusal),
    /// Nobody led, for as long as the request was allowed to wait.
    NoLeader,
    /// A read was not confirmed in time. Ask again.
    ReadTimedOut,
    /// Too many requests are open here. Ask after a pause.
    TooManyRequests {
        /// [`DriverOptions::requests_max`](crate::DriverOptions::requests_max).
        limit: usize,
    },
    /// The command is longer than [`DriverOptions::command_bytes_max`](crate::DriverOptions).
    TooLarge {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        limit: usize,
    },
    /// The snapshot could not be written. The log has the reason.
    SnapshotFailed,
    /// This member is not in the cluster. Ask another one.
    NotMember,
    /// A newer leader put another entry in its place.
    Overwritten {
        /// The committed entry that stands there.
        by: EntryId,
    },
    /// The transfer was given up.
    TransferAborted,
    /// This member was stopped. No leader was offered the request, or it was a read.
    Stopped,
}

/// Why nobody can say what became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum OutcomeUnknown {
    /// A leader may have taken it; no word came in time.
    TimedOut,
    /// The change is committed at `id`, but it was not settled, or its goal had not
    /// ended, in time. It still may.
    NotSettledInTime {
        /// The entry that carried the change.
        id: EntryId,
    },
    /// A snapshot that this member received covers the moment. The command has run.
    ReplyLost,
    /// A snapshot that this member received covers the moment.
    PassedBySnapshot,
    /// The goal that would have led there is pursued no more: somebody cancelled or
    /// replaced it. Parts of it may have been done.
    GoalAbandoned(EndedGoal),
    /// This member was removed from the cluster meanwhile. Ask one that is in it.
    Removed,
    /// This member was stopped.
    Stopped,
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => write!(f, "refused: {why}"),
            Self::Unknown(why) => write!(f, "unknown: {why}"),
        }
    }
}

impl std::error::Error for RequestError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused(why) => Some(why),
            Self::Unknown(why) => Some(why),
        }
    }
}

impl From<RequestRefused> for RequestError {
    fn from(why: RequestRefused) -> Self {
        Self::Refused(why)
    }
}

impl From<OutcomeUnknown> for RequestError {
    fn from(why: OutcomeUnknown) -> Self {
        Self::Unknown(why)
    }
}

impl fmt::Display for RequestRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByLeader(why) => write!(f, "{why}"),
            Self::NoLeader => write!(f, "no leader was found in time"),
            Self::ReadTimedOut => write!(f, "the read was not confirmed in time"),
            Self::TooManyRequests { limit } => write!(f, "{limit} requests are open already"),
            Self::TooLarge { bytes, limit } => {
                write!(f, "the command has {bytes} bytes, limit is {limit}")
            }
            Self::SnapshotFailed => write!(f, "the snapshot could not be written"),
            Self::NotMember => write!(f, "this member is not in the cluster"),
            Self::Overwritten { by } => write!(f, "a newer leader logged {by} in its place"),
            Self::TransferAborted => write!(f, "the transfer of leadership was given up"),
            Self::Stopped => write!(f, "this member was stopped"),
        }
    }
}

impl fmt::Display for OutcomeUnknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut => write!(f, "no word from the leader in time; it may have happened"),
            Self::NotSettledInTime { id } => {
                write!(f, "committed as {id}, but not settled in time; it still may be")
            }
            Self::ReplyLost => write!(f, "it ran, but its reply was lost to a snapshot"),
            Self::PassedBySnapshot => write!(f, "a snapshot passed it; it may have happened"),
            Self::GoalAbandoned(goal) => {
                write!(f, "the goal of {} was given up at {}", goal.id, goal.at)
            }
            Self::Removed => write!(f, "this member was removed; it may have happened"),
            Self::Stopped => write!(f, "this member was stopped; it may have happened"),
        }
    }
}

impl std::error::Error for RequestRefused {}
impl std::error::Error for OutcomeUnknown {}
