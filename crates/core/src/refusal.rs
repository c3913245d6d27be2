//! Why an input was not acted on.

use std::fmt;

use crate::membership::ChangeRefusal;
use crate::{Index, MemberId, RequestId, Term};

/// Why this member would not take a request. Decided before the log is touched:
/// refused means "did not happen", never "unknown".
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Refusal {
    /// Another member leads, or none does. Ask there, or after an election.
    NotLeader { leader: Option<MemberId> },
    /// Leadership is moving. Ask `to`.
    Transferring { to: MemberId },
    /// This leader is no longer in the membership. Ask after an election.
    LeaderRemoved,
    /// Too many bytes wait for a quorum. Ask after a pause.
    TooMuchUncommitted { waiting: u64, limit: u64 },
    /// Too many reads wait. Ask after a pause.
    TooManyReads { limit: usize },
    /// The membership change is not possible now; the reason says what would be.
    Change(ChangeRefusal),
    /// The member named as the next leader is not a voter. Name another one.
    TargetNotVoter { to: MemberId },
}

/// Why an input had no effect. Every one of these is normal somewhere in the life
/// of a cluster; a caller may count them by [`Dropped::name`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Dropped {
    /// A request that did not happen.
    Refused(Refusal),
    /// Addressed to somebody else.
    WrongRecipient { to: MemberId },
    /// An answer from a member that is not in the membership.
    UnknownSender { from: MemberId },
    /// A promise by another disk than the one known as this member's. It has to be
    /// added anew, under a new id.
    OtherIncarnation { from: MemberId, incarnation: u64 },
    /// A promise by another member than the one that the membership means by this id:
    /// it was added by another entry. It has to be added anew, under a new id.
    OtherJoinIndex { from: MemberId, joined_at: Index },
    /// No honest member sends this.
    Malformed(Malformed),
    /// From a term that is over.
    OldTerm { term: Term, current: Term },
    /// A vote asked for while the leader was heard from: neither vote nor term counts.
    LeaderAlive { leader: Option<MemberId> },
    /// A request that was passed on, and answered, before; or so old that this cannot be
    /// told.
    Repeated { from: MemberId, request: RequestId },
    /// A reply to a question that is settled or was never asked.
    Unsolicited,
    /// A message that only another role could use.
    NotForRole,
    /// Two members claim to lead the same term.
    SecondLeader { from: MemberId, leader: MemberId },
    /// The commit index told is beyond this log.
    CommitBeyondLog { commit: Index, last: Index },
    /// It contradicts an entry that is known to be committed.
    ContradictsCommitted { index: Index, commit: Index },
    /// A snapshot of what this member already has, or is not part of.
    SnapshotNotNeeded,
    /// This member may not stand for election now.
    MayNotCampaign(CampaignBlocked),
    /// A completion of something that was not begun, or was completed before.
    NothingPending,
    /// There is no snapshot up to there, so the log may not be trimmed that far.
    NotSnapshotted { newest: Index },
    /// The wish is granted already, or already on its way.
    NothingToDo,
    /// Leader-lease reads forbid it.
    LeaseReads,
    /// A hint that a leader is gone, to a member that could not find out whether that is
    /// so without disturbing it: turn pre-vote and check-quorum on.
    NeedsPreVote,
}

/// What is wrong with a message that no honest member sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Malformed {
    NoSender,
    FromSelf,
    NumberTooLarge,
    GapInEntries,
    TermsDecrease,
    TermAboveMessage,
    BadMembership,
    /// A membership of a cluster with another activation rule.
    OtherActivation,
    MatchBeyondLog,
    WrongEntries,
}

/// What bars a member from standing for election.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum CampaignBlocked {
    AlreadyLeader,
    NotVoter,
    /// The membership knows another disk, or another member, by this id.
    IdentityMismatch,
    /// The entry that added this member has not arrived.
    NotJoinedYet,
    /// A committed membership is not applied yet: counting votes by an old one
    /// could elect a second leader.
    MembershipNotApplied,
    SnapshotNotInstalled,
    /// A leader may be answering reads on the strength of this member's word.
    LeaderHoldsLease,
    TermsExhausted,
}

impl Dropped {
    /// A stable name to count by.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::WrongRecipient { .. } => "wrong_recipient",
            Self::UnknownSender { .. } => "unknown_sender",
            Self::OtherIncarnation { .. } => "other_incarnation",
            Self::OtherJoinIndex { .. } => "other_join_index",
            Self::Malformed(_) => "malformed",
            Self::OldTerm { .. } => "old_term",
            Self::LeaderAlive { .. } => "leader_alive",
            Self::Repeated { .. } => "repeated",
            Self::Unsolicited => "unsolicited",
            Self::NotForRole => "not_for_role",
            Self::SecondLeader { .. } => "second_leader",
            Self::CommitBeyondLog { .. } => "commit_beyond_log",
            Self::ContradictsCommitted { .. } => "contradicts_committed",
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
            Self::TooManyReads { limit } => write!(f, "{limit} reads wait already"),
            Self::Change(why) => write!(f, "{why}"),
            Self::TargetNotVoter { to } => write!(f, "{to} is not a voter"),
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
                write!(f, "{from} speaks with another disk, {incarnation}: add it anew")
            }
            Self::OtherJoinIndex { from, joined_at } => {
                write!(f, "{from} is another one, added at {joined_at}: add it anew")
            }
            Self::Malformed(what) => write!(f, "malformed: {what}"),
            Self::OldTerm { term, current } => write!(f, "of old term {term}, now {current}"),
            Self::LeaderAlive { leader: Some(id) } => write!(f, "leader {id} was just heard"),
            Self::LeaderAlive { leader: None } => write!(f, "a leader may hold its lease"),
            Self::Repeated { from, request } => {
                write!(f, "request {} of {from} may have been answered before", request.0)
            }
            Self::Unsolicited => write!(f, "answers nothing that is open"),
            Self::NotForRole => write!(f, "means nothing to this role"),
            Self::SecondLeader { from, leader } => {
                write!(f, "{from} claims a term that {leader} leads")
            }
            Self::CommitBeyondLog { commit, last } => {
                write!(f, "commit {commit} is beyond the log's last {last}")
            }
            Self::ContradictsCommitted { index, commit } => {
                write!(f, "contradicts entry {index}, committed up to {commit}")
            }
            Self::SnapshotNotNeeded => write!(f, "snapshot not needed"),
            Self::MayNotCampaign(bar) => write!(f, "may not campaign: {bar}"),
            Self::NothingPending => write!(f, "completes nothing that is pending"),
            Self::NotSnapshotted { newest } => write!(f, "newest snapshot is at {newest}"),
            Self::NothingToDo => write!(f, "nothing to do"),
            Self::LeaseReads => write!(f, "leader-lease reads forbid it"),
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
            Self::BadMembership => "impossible membership",
            Self::OtherActivation => "membership with another activation rule",
            Self::MatchBeyondLog => "claims to match beyond the leader's log",
            Self::WrongEntries => "entries are not those of this log",
        })
    }
}

impl fmt::Display for CampaignBlocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AlreadyLeader => "leads already",
            Self::NotVoter => "not a voter",
            Self::IdentityMismatch => "the member of this id is another one",
            Self::NotJoinedYet => "the entry that added it has not arrived",
            Self::MembershipNotApplied => "a committed membership is not applied yet",
            Self::SnapshotNotInstalled => "a snapshot is not installed yet",
            Self::LeaderHoldsLease => "a leader may hold its lease",
            Self::TermsExhausted => "no term is left",
        })
    }
}

impl std::error::Error for Refusal {}
impl std::error::Error for Dropped {}

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
