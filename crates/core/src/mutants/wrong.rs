//! Wrong versions that take more than a line. Each is reached only with its mutant on.

use crate::membership::Membership;
use crate::{Index, Message, Raft};

/// The majority that a joint goes to, as if it counted alone.
pub(crate) fn incoming_of(membership: &Membership) -> Membership {
    Membership::new(membership.incoming().iter(), [])
}

/// The majority that a joint comes from, as if it counted alone.
pub(crate) fn outgoing_of(membership: &Membership) -> Membership {
    let old = membership.outgoing().first().unwrap_or(membership.incoming());
    Membership::new(old.iter(), [])
}

/// What a leader takes for held by a quorum, if it counts wrongly.
pub(crate) fn quorum_matched(raft: &Raft) -> Option<Index> {
    if !(mutant!(LearnerIsCounted)
        || mutant!(LearnersShareTheQuorum)
        || mutant!(LeaverCountsItself)
        || mutant!(JointCommitsByIncoming))
    {
        return None;
    }
    let leader = raft.role.leader()?;
    let membership = raft.membership();
    let matched = |id| leader.peer(id).map_or(0, |peer| peer.progress.matched);
    if mutant!(LearnerIsCounted) {
        let learners: Vec<Index> = membership.learners().iter().map(matched).collect();
        return Some(with_guests(membership, &learners, matched));
    }
    if mutant!(LearnersShareTheQuorum) {
        return Some(Membership::new(membership.members().iter(), []).quorum(matched));
    }
    if mutant!(LeaverCountsItself) && !membership.is_voter(raft.config.id) {
        return Some(with_guests(membership, &[raft.log.saved()], matched));
    }
    if mutant!(JointCommitsByIncoming) {
        return Some(incoming_of(membership).quorum(matched));
    }
    None
}

/// The quorum of each majority when guests count as if they were voters, without
/// making the majority any larger.
fn with_guests(
    membership: &Membership,
    guests: &[Index],
    matched: impl Fn(crate::MemberId) -> Index,
) -> Index {
    let one = |voters: &crate::MemberSet| {
        let mut values: Vec<Index> = voters.iter().map(&matched).chain(guests.to_vec()).collect();
        values.sort_unstable_by(|a, b| b.cmp(a));
        values[voters.len() / 2]
    };
    membership.majorities().iter().map(one).min().unwrap_or(Index::MAX)
}

/// What is taken for news although its term is over.
pub(crate) fn counts_although_old(message: &Message) -> bool {
    match message {
        Message::VoteReply(_) => mutant!(OldVoteCounts),
        Message::AppendReply(_) => mutant!(OldAcknowledgementCounts),
        Message::HeartbeatReply(_) => mutant!(OldHeartbeatReplyCounts),
        Message::TimeoutNow => mutant!(OldTimeoutNowIsObeyed),
        Message::Append(_) => mutant!(OldAppendIsTaken),
        _ => false,
    }
}

/// What is met with silence because its term is over.
pub(crate) fn is_not_answered(message: &Message) -> bool {
    match message {
        Message::Append(_) | Message::Heartbeat(_) => mutant!(OldLeaderIsNotTold),
        Message::PreVote(_) => mutant!(OldPreVoteIsNotAnswered),
        _ => false,
    }
}
