//! How a request ends: done, refused, or unknown. Exactly one of them, once.

use std::fmt;

use bytes::Bytes;
use quorate_core::{EndedGoal, EntryId, Index, MemberId, Refusal};

/// The end of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Done(Done),
    /// It did not happen and never will. Asking again is safe.
    Refused(Refused),
    /// It may have happened, or may still. Look before asking again.
    Unknown(Unknown),
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// The command ran at this index; the reply is the machine's.
    Ran { index: Index, reply: Bytes },
    /// What the machine said to a question, not older than the question.
    Read { reply: Bytes },
    /// The change is committed and settled: any majority of the new membership can
    /// go on by itself.
    Changed { id: EntryId },
    /// The goal is pursued no more, and what came of it is settled: it is reached, or
    /// somebody cancelled or replaced it.
    GoalEnded(EndedGoal),
    /// This member leads.
    Transferred { to: MemberId },
}

/// Why a request did not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// The leader would not take it, and says why.
    ByLeader(Refusal),
    /// Nobody led, for as long as the request was allowed to wait.
    NoLeader,
    /// A read was not confirmed in time. Ask again.
    ReadTimedOut,
    /// Too many requests are open here. Ask after a pause.
    TooManyRequests { limit: usize },
    /// This member is not in the cluster. Ask another one.
    NotMember,
    /// A newer leader put another entry in its place.
    Overtaken { by: EntryId },
    /// The transfer was given up.
    TransferAborted,
    /// This member was stopped before it offered the request to a leader.
    Stopped,
}

/// Why nobody can say what became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unknown {
    /// A leader may have taken it; no word came in time.
    TimedOut,
    /// The change is committed at `id`, but was not settled in time. It still may be.
    NotSettledInTime { id: EntryId },
    /// A snapshot that this member received covers the moment. The command has run.
    ReplyLost,
    /// A snapshot that this member received covers the moment.
    PassedBySnapshot,
    /// This member was stopped.
    Stopped,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByLeader(why) => write!(f, "{why}"),
            Self::NoLeader => write!(f, "no leader was found in time"),
            Self::ReadTimedOut => write!(f, "the read was not confirmed in time"),
            Self::TooManyRequests { limit } => write!(f, "{limit} requests are open already"),
            Self::NotMember => write!(f, "this member is not in the cluster"),
            Self::Overtaken { by } => write!(f, "a newer leader logged {by} in its place"),
            Self::TransferAborted => write!(f, "the transfer of leadership was given up"),
            Self::Stopped => write!(f, "this member was stopped"),
        }
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut => write!(f, "no word from the leader in time; it may have happened"),
            Self::NotSettledInTime { id } => {
                write!(f, "committed as {id}, but not settled in time; it still may be")
            }
            Self::ReplyLost => write!(f, "it ran, but its reply was lost to a snapshot"),
            Self::PassedBySnapshot => write!(f, "a snapshot passed it; it may have happened"),
            Self::Stopped => write!(f, "this member was stopped; it may have happened"),
        }
    }
}

impl std::error::Error for Refused {}
impl std::error::Error for Unknown {}
