//! Why an input had no effect.

use std::fmt;

use crate::membership::ChangeRefusal;
use crate::{Index, MemberId, RequestId, Term};

/// Why this member did not accept a request. Decided before the log is touched: refused
/// means "did not happen", never "unknown".
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Refusal {
    /// Another member leads, or none does. Retry there, or after an election.
    NotLeader {
        /// The leader, if known.
        leader: Option<MemberId>,
    },
    /// Leadership is being transferred. Retry at `to`.
    Transferring {
        /// The next leader.
        to: MemberId,
    },
    /// This leader is no longer in the membership. Retry after an election.
    LeaderRemoved,
    /// Too many bytes wait for a quorum. Retry later.
    TooMuchUncommitted {
        /// How many bytes wait.
        waiting: u64,
        /// The limit.
        limit: u64,
    },
    /// Too many reads wait. Retry later.
    TooManyReads {
        /// The limit.
        limit: usize,
    },
    /// The membership change is not possible now; the reason says why.
    Change(ChangeRefusal),
    /// The requested next leader is not a voter. Choose another one.
    TargetNotVoter {
        /// The requested next leader.
        to: MemberId,
    },
    /// The disk or the state machine of the requested next leader stands still. Choose
    /// another one.
    TargetStalled {
        /// The target or recipient.
        to: MemberId,
    },
}

/// Why an input had no effect. Each of these is normal in a running cluster; a caller may
/// count them by [`Dropped::name`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Dropped {
    /// A request that did not happen.
    Refused(Refusal),
    /// Addressed to another member.
    WrongRecipient {
        /// The member that the message is addressed to.
        to: MemberId,
    },
    /// A reply from a member that is not in the membership.
    UnknownSender {
        /// The sender.
        from: MemberId,
    },
    /// A promise from another disk than the one recorded for this member. Add the member
    /// again under a new id.
    OtherIncarnation {
        /// The sender.
        from: MemberId,
        /// The incarnation that it reported.
        incarnation: u64,
    },
    /// A promise from another member than the one recorded under this id: it was added by
    /// another entry. Add the member again under a new id.
    OtherJoinIndex {
        /// The sender.
        from: MemberId,
        /// The join index that it reported.
        joined_at: Index,
    },
    /// No correct member sends this.
    Malformed(Malformed),
    /// From a past term.
    OldTerm {
        /// The term of the message.
        term: Term,
        /// The current term.
        current: Term,
    },
    /// A term so far above the current one that no cluster reaches it by elections.
    ImplausibleTerm {
        /// The sender.
        from: MemberId,
        /// The term of the message.
        term: Term,
        /// The current term.
        current: Term,
    },
    /// A vote request while the leader is live: neither the vote nor the term counts.
    LeaderAlive {
        /// The live leader, if this member follows one; otherwise it heard from one recently.
        leader: Option<MemberId>,
    },
    /// A forwarded request that was answered before, or is so old that this is unknown.
    Repeated {
        /// The sender.
        from: MemberId,
        /// The request.
        request: RequestId,
    },
    /// A reply that no request of this member is waiting for.
    Unsolicited,
    /// A message that only another role can handle.
    NotForRole,
    /// Two members claim to lead the same term.
    SecondLeader {
        /// The sender.
        from: MemberId,
        /// The leader of that term.
        leader: MemberId,
    },
    /// The leader's commit index is beyond this log.
    CommitBeyondLog {
        /// The commit index.
        commit: Index,
        /// The last index of the log.
        last: Index,
    },
    /// It contradicts a committed entry.
    ContradictsCommitted {
        /// The index of the committed entry.
        index: Index,
        /// The commit index.
        commit: Index,
    },
    /// The sender's log lacks what it confirmed. Remove it, and add it again under a new id
    /// with an empty disk.
    PeerLostLog {
        /// The sender.
        from: MemberId,
        /// It had confirmed the log up to here.
        confirmed: Index,
        /// Its log ends here.
        last: Index,
    },
    /// This member's log lacks what it confirmed: it does not vote.
    LogLost,
    /// A snapshot that this member does not need, or that does not contain it.
    SnapshotNotNeeded,
    /// This member may not campaign now.
    MayNotCampaign(CampaignBlocked),
    /// A completion without a matching request.
    NothingPending,
    /// There is no snapshot up to that index, so the log may not be trimmed that far.
    NotSnapshotted {
        /// The index of the newest snapshot.
        newest: Index,
    },
    /// The request has no effect: it is done already or in progress.
    NothingToDo,
    /// Not allowed with leader-lease reads.
    LeaseReads,
    /// A hint that the leader is gone, without the means to verify it: enable pre-vote and
    /// check-quorum.
    NeedsPreVote,
}

/// What is wrong with a message that no correct member sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Malformed {
    /// The sender's id is 0.
    NoSender,
    /// The sender has the receiver's id.
    FromSelf,
    /// A term or index is out of range.
    NumberTooLarge,
    /// The entries do not follow each other.
    GapInEntries,
    /// The terms of the entries decrease.
    TermsDecrease,
    /// An entry's term is above the message's.
    TermAboveMessage,
    /// A membership is invalid.
    BadMembership,
    /// A membership of a cluster with another activation rule.
    OtherActivation,
    /// A match index is beyond the leader's log.
    MatchBeyondLog,
    /// Loaded entries are not those of this log.
    WrongEntries,
}

/// Why a member may not campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum CampaignBlocked {
    /// This member is the leader.
    AlreadyLeader,
    /// This member is not a voter.
    NotVoter,
    /// The membership records another disk, or another member, under this id.
    IdentityMismatch,
    /// The entry that added this member has not arrived yet.
    NotJoinedYet,
    /// A committed membership is not applied yet: counting votes by an older one could
    /// elect a second leader.
    MembershipNotApplied,
    /// A peer's snapshot is not durable yet.
    SnapshotNotSaved,
    /// A leader may be relying on this member for its lease.
    LeaderHoldsLease,
    /// Its disk or its state machine stands still.
    Stalled,
    /// The log lacks what this member confirmed.
    LogLost,
    /// No terms are left.
    TermsExhausted,
}

impl Dropped {
    /// A stable name for counters.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::WrongRecipient { .. } => "wrong_recipient",
            Self::UnknownSender { .. } => "unknown_sender",
            Self::OtherIncarnation { .. } => "other_incarnation",
            Self::OtherJoinIndex { .. } => "other_join_index",
            Self::Malformed(_) => "malformed",
            Self::OldTerm { .. } => "old_term",
            Self::ImplausibleTerm { .. } => "implausible_term",
            Self::LeaderAlive { .. } => "leader_alive",
            Self::Repeated { .. } => "repeated",
            Self::Unsolicited => "unsolicited",
            Self::NotForRole => "not_for_role",
            Self::SecondLeader { .. } => "second_leader",
            Self::CommitBeyondLog { .. } => "commit_beyond_log",
            Self::ContradictsCommitted { .. } => "contradicts_committed",
            Self::PeerLostLog { .. } => "peer_lost_log",
            Self::LogLost => "log_lost",
            Self::SnapshotNotNeeded => "snapshot_not_needed",
            Self::MayNotCampaign(_) => "may_not_campaign",
            Self::NothingPending => "nothing_pending",
            Self::NotSnapshotted { .. } => "not_snapshotted",
            Self::NothingToDo => "nothing_to_do",
            Self::LeaseReads => "lease_reads",
            Self::NeedsPreVote => "needs_pre_vote",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLeader { leader: Some(id) } => write!(f, "not leader; {id} leads"),
            Self::NotLeader { leader: None } => write!(f, "no leader"),
            Self::Transferring { to } => write!(f, "leadership is moving to {to}"),
            Self::LeaderRemoved => write!(f, "this leader was removed from the membership"),
            Self::TooMuchUncommitted { waiting, limit } => {
                write!(f, "{waiting} bytes wait for a quorum, limit is {limit}")
            }
            Self::TooManyReads { limit } => write!(f, "{limit} reads are waiting already"),
            Self::Change(reason) => write!(f, "{reason}"),
            Self::TargetNotVoter { to } => write!(f, "{to} is not a voter"),
            Self::TargetStalled { to } => {
                write!(f, "the disk or state machine of {to} stands still")
            }
        }
    }
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => write!(f, "{refusal}"),
            Self::WrongRecipient { to } => write!(f, "addressed to {to}"),
            Self::UnknownSender { from } => write!(f, "{from} is not in the membership"),
            Self::OtherIncarnation { from, incarnation } => {
                write!(f, "{from} has another disk, {incarnation}; add it again under a new id")
            }
            Self::OtherJoinIndex { from, joined_at } => {
                write!(
                    f,
                    "{from} is another member, added at {joined_at}; add it again under a new id"
                )
            }
            Self::Malformed(what) => write!(f, "malformed: {what}"),
            Self::OldTerm { term, current } => {
                write!(f, "old term {term}, current term is {current}")
            }
            Self::ImplausibleTerm { from, term, current } => {
                write!(f, "{from} names term {term}, too far above the current term {current}")
            }
            Self::LeaderAlive { leader: Some(id) } => write!(f, "leader {id} was just heard"),
            Self::LeaderAlive { leader: None } => write!(f, "a leader may hold its lease"),
            Self::Repeated { from, request } => {
                write!(f, "request {} of {from} may have been answered before", request.0)
            }
            Self::Unsolicited => write!(f, "no request is waiting for this reply"),
            Self::NotForRole => write!(f, "not for this role"),
            Self::SecondLeader { from, leader } => {
                write!(f, "{from} claims to lead a term that {leader} leads")
            }
            Self::CommitBeyondLog { commit, last } => {
                write!(f, "commit index {commit} is beyond the last entry {last}")
            }
            Self::ContradictsCommitted { index, commit } => {
                write!(f, "contradicts entry {index}; the log is committed up to {commit}")
            }
            Self::PeerLostLog { from, confirmed, last } => {
                write!(f, "{from} had confirmed {confirmed}, but its log ends at {last}")
            }
            Self::LogLost => write!(f, "this log lacks what this member confirmed"),
            Self::SnapshotNotNeeded => write!(f, "snapshot not needed"),
            Self::MayNotCampaign(reason) => write!(f, "may not campaign: {reason}"),
            Self::NothingPending => write!(f, "nothing is pending"),
            Self::NotSnapshotted { newest } => write!(f, "newest snapshot is at {newest}"),
            Self::NothingToDo => write!(f, "nothing to do"),
            Self::LeaseReads => write!(f, "not allowed with leader-lease reads"),
            Self::NeedsPreVote => write!(f, "needs pre-vote and check-quorum"),
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSender => "sender is 0",
            Self::FromSelf => "sender is the receiver",
            Self::NumberTooLarge => "a term or index is out of range",
            Self::GapInEntries => "entries do not follow each other",
            Self::TermsDecrease => "terms decrease along the entries",
            Self::TermAboveMessage => "an entry is newer than the message",
            Self::BadMembership => "invalid membership",
            Self::OtherActivation => "membership with another activation rule",
            Self::MatchBeyondLog => "claims to match beyond the leader's log",
            Self::WrongEntries => "entries are not those of this log",
        })
    }
}

impl fmt::Display for CampaignBlocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AlreadyLeader => "already leader",
            Self::NotVoter => "not a voter",
            Self::IdentityMismatch => "the membership records another member under this id",
            Self::NotJoinedYet => "the entry that added it has not arrived",
            Self::MembershipNotApplied => "a committed membership is not applied yet",
            Self::SnapshotNotSaved => "a snapshot is not saved yet",
            Self::LeaderHoldsLease => "a leader may hold its lease",
            Self::Stalled => "its disk or state machine stands still",
            Self::LogLost => "the log lacks what this member confirmed",
            Self::TermsExhausted => "no terms are left",
        })
    }
}

impl std::error::Error for Refusal {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Change(reason) => Some(reason),
            _ => None,
        }
    }
}

impl std::error::Error for Dropped {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}

impl From<Refusal> for Dropped {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Malformed> for Dropped {
    fn from(what: Malformed) -> Self {
        Self::Malformed(what)
    }
}
