//! Conversions from the engine's types to the messages of `quorate.v1`.

use quorate::membership::{
    EndedGoal, GoalEnd, GoalStep, MembershipEvent, Operation, PlanContext, PlannedStep,
};
use quorate::{Activation, EntryId, MemberId, MemberSet, Membership, RoleKind};
use quorate_core::membership::quorum_size;
use quorate_core::status::{Flow, LogStatus, PeerStatus};
use quorate_proto::quorate::v1;
use quorate_proto::quorate::v1::{membership_event, operation, peer, step, tolerance};

use crate::member_details::MemberDetails;

pub(crate) fn entry(id: EntryId) -> v1::EntryId {
    v1::EntryId { term: id.term, index: id.index }
}

pub(super) fn ids(set: &MemberSet) -> Vec<u64> {
    set.iter().map(|id| id.0).collect()
}

fn sets(sets: &[MemberSet]) -> Vec<v1::MemberIds> {
    sets.iter().map(|set| v1::MemberIds { ids: ids(set) }).collect()
}

fn to_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn quorum_of(voters: &MemberSet) -> u32 {
    to_u32(quorum_size(voters.len()))
}

pub(crate) fn record(membership: &Membership) -> v1::MembershipRecord {
    let majority =
        |voters: &MemberSet| v1::Majority { voters: ids(voters), quorum: quorum_of(voters) };
    let activation = match membership.activation() {
        Activation::OnApply => v1::Activation::OnApply,
        Activation::OnAppend => v1::Activation::OnAppend,
    };
    let mut members = membership.members();
    if let Some(goal) = membership.goal() {
        let goal_members = goal.voters.iter().chain(goal.learners.iter());
        members = members.iter().chain(goal_members).collect();
    }
    v1::MembershipRecord {
        id: Some(entry(membership.since())),
        majorities: membership.majorities().iter().map(majority).collect(),
        learners: ids(membership.learners()),
        learners_next: ids(membership.learners_next()),
        auto_leave: membership.auto_leave(),
        activation: activation.into(),
        members: members.iter().map(|id| member(membership, id)).collect(),
        goal: membership.goal().map(|goal| v1::Goal {
            id: Some(entry(goal.id)),
            voters: ids(&goal.voters),
            learners: ids(&goal.learners),
            from_voters: ids(&goal.from_voters),
            from_learners: ids(&goal.from_learners),
            cancels: goal.cancels,
        }),
        ended_goals: membership.ended_goals().iter().map(ended).collect(),
        removed: membership.removed().iter().map(|id| id.0).collect(),
    }
}

pub(super) fn member(membership: &Membership, id: MemberId) -> v1::Member {
    let MemberDetails { name, peer_urls, client_urls, .. } = MemberDetails::of(membership, id);
    let zone = membership.info(id).map(|info| String::from_utf8_lossy(&info.zone).into_owned());
    v1::Member {
        id: id.0,
        name,
        peer_urls,
        client_urls,
        zone: zone.unwrap_or_default(),
        voting_role: voting_role(membership, id).into(),
        incarnation: membership.incarnation(id),
        joined_at: membership.joined_at(id),
    }
}

fn voting_role(membership: &Membership, id: MemberId) -> v1::VotingRole {
    let in_all = membership.majorities().iter().all(|voters| voters.contains(id));
    if membership.is_learner(id) {
        v1::VotingRole::Learner
    } else if !membership.contains(id) {
        v1::VotingRole::Expected
    } else if in_all {
        v1::VotingRole::Voter
    } else if membership.incoming().contains(id) {
        v1::VotingRole::IncomingVoter
    } else {
        v1::VotingRole::OutgoingVoter
    }
}

pub(super) fn ended(goal: &EndedGoal) -> v1::EndedGoal {
    let end = match goal.end {
        GoalEnd::Reached => v1::GoalEnd::Reached,
        GoalEnd::Cancelled => v1::GoalEnd::Cancelled,
        GoalEnd::Replaced => v1::GoalEnd::Replaced,
    };
    v1::EndedGoal { id: Some(entry(goal.id)), end: end.into(), at: Some(entry(goal.at)) }
}

pub(super) fn step(from: &GoalStep) -> v1::Step {
    let members = |set: &MemberSet| v1::MemberIds { ids: ids(set) };
    let kind = match from {
        GoalStep::AddLearners(set) => Some(step::Kind::AddLearners(members(set))),
        GoalStep::CatchUp(set) => Some(step::Kind::CatchUp(members(set))),
        GoalStep::HandOver(set) => Some(step::Kind::HandOver(members(set))),
        GoalStep::MoveVotes(operations) => {
            let operations = operations.iter().map(|one| operation(*one)).collect();
            Some(step::Kind::MoveVotes(step::MoveVotes { operations }))
        }
        GoalStep::Leave => Some(step::Kind::Leave(step::Leave {})),
        GoalStep::Settle => Some(step::Kind::Settle(step::Settle {})),
        GoalStep::RemoveLearners(set) => Some(step::Kind::RemoveLearners(members(set))),
    };
    v1::Step { text: from.to_string(), kind }
}

fn operation(from: Operation) -> v1::Operation {
    let kind = match from {
        Operation::Voter(_) => operation::Kind::Voter,
        Operation::Learner(_) => operation::Kind::Learner,
        Operation::Remove(_) => operation::Kind::Remove,
        Operation::Update(_) => operation::Kind::Update,
    };
    v1::Operation { kind: kind.into(), member_id: from.member().0 }
}

pub(super) fn planned(from: &PlannedStep) -> v1::PlannedStep {
    v1::PlannedStep {
        step: Some(step(&from.step)),
        membership: Some(record(&from.membership)),
        stops_commits: sets(&from.stops_commits),
        stops_elections: sets(&from.stops_elections),
    }
}

/// How many more failures the cluster tolerates while these members are live and caught up.
pub(super) fn tolerance(membership: &Membership, live: &MemberSet) -> v1::Tolerance {
    let count = |voters: &MemberSet| tolerance::Count {
        voters: to_u32(voters.len()),
        quorum: quorum_of(voters),
        live: to_u32(voters.iter().filter(|id| live.contains(*id)).count()),
    };
    let counts: Vec<tolerance::Count> = membership.majorities().iter().map(count).collect();
    let has_quorum = !counts.is_empty() && counts.iter().all(|one| one.live >= one.quorum);
    let spare = counts.iter().map(|one| one.live.saturating_sub(one.quorum)).min();
    let zone = membership.blocking_zone().map(|zone| String::from_utf8_lossy(zone).into_owned());
    v1::Tolerance {
        failures: spare.filter(|_| has_quorum).unwrap_or_default(),
        has_quorum,
        stops_commits: sets(&fatal_losses(membership, live)),
        counts,
        blocking_zone: zone.unwrap_or_default(),
    }
}

/// The single live voters whose loss leaves no quorum, and the pairs of other live voters whose
/// loss does.
fn fatal_losses(membership: &Membership, live: &MemberSet) -> Vec<MemberSet> {
    let stops =
        |lost: &[MemberId]| !membership.quorum(|id| live.contains(id) && !lost.contains(&id));
    let voters = membership.voters();
    let (fatal, tolerated): (Vec<MemberId>, Vec<MemberId>) =
        voters.iter().filter(|id| live.contains(*id)).partition(|id| stops(&[*id]));
    let mut losses: Vec<MemberSet> = fatal.iter().map(|id| [*id].into_iter().collect()).collect();
    for (number, first) in tolerated.iter().enumerate() {
        let others = tolerated.get(number + 1..).unwrap_or_default().iter();
        let pairs = others.filter(|second| stops(&[*first, **second]));
        losses.extend(pairs.map(|second| [*first, *second].into_iter().collect::<MemberSet>()));
    }
    losses
}

pub(super) fn view(from: &PlanContext) -> v1::LeaderView {
    v1::LeaderView {
        leader_id: from.leader.0,
        caught_up: ids(&from.caught_up),
        catching_up: ids(&from.catching_up),
        settled: from.settled,
    }
}

pub(super) fn peer(from: &PeerStatus) -> v1::Peer {
    let (flow, snapshot_index) = match from.flow {
        Flow::Probe => (peer::Flow::Probe, 0),
        Flow::Replicate => (peer::Flow::Replicate, 0),
        Flow::Snapshot(index) => (peer::Flow::Snapshot, index),
    };
    v1::Peer {
        id: from.id.0,
        learner: from.learner,
        flow: flow.into(),
        snapshot_index,
        matched: from.matched,
        next: from.next,
        paused: from.paused,
        active: from.active,
        inflight: to_u32(from.inflight),
        inflight_full: from.inflight_full,
    }
}

pub(crate) fn role(from: RoleKind) -> v1::Role {
    match from {
        RoleKind::Follower => v1::Role::Follower,
        RoleKind::PreCandidate => v1::Role::PreCandidate,
        RoleKind::Candidate => v1::Role::Candidate,
        RoleKind::Leader => v1::Role::Leader,
    }
}

pub(crate) fn log(from: &LogStatus) -> v1::LogStatus {
    v1::LogStatus {
        base: Some(entry(from.base)),
        last: Some(entry(from.last)),
        saved: from.saved,
        commit: from.commit,
        applied: from.applied,
        snapshot: Some(entry(from.snapshot)),
        installing: from.installing,
        tail_first: from.tail_first,
        applying: from.applying,
    }
}

/// `None` for an event that this version of the protocol cannot express.
pub(super) fn event(from: &MembershipEvent) -> Option<v1::MembershipEvent> {
    use membership_event::{Current, Event};
    let event = match from {
        MembershipEvent::Current { membership, settled, .. } => {
            Event::Current(Current { membership: Some(record(membership)), settled: *settled })
        }
        MembershipEvent::Committed { membership, .. } => Event::Committed(record(membership)),
        MembershipEvent::InEffect { membership, .. } => Event::Active(record(membership)),
        MembershipEvent::Settled { membership, .. } => Event::Settled(record(membership)),
        MembershipEvent::GoalStep(due) => Event::Step(step(due)),
        MembershipEvent::GoalEnded(goal) => Event::GoalEnded(ended(goal)),
        _ => return None,
    };
    Some(v1::MembershipEvent { event: Some(event) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ids: &[u64]) -> MemberSet {
        ids.iter().map(|id| MemberId(*id)).collect()
    }

    #[test]
    fn tolerated_failures_are_the_live_voters_beyond_the_quorum() {
        let five = Membership::new((1..=5).map(MemberId), []);
        for (live, failures, has_quorum) in
            [(&[1, 2, 3, 4, 5][..], 2, true), (&[1, 2, 3], 0, true), (&[1, 2], 0, false)]
        {
            let tolerance = tolerance(&five, &set(live));
            assert_eq!((tolerance.failures, tolerance.has_quorum), (failures, has_quorum));
        }
        let four = tolerance(&five, &set(&[1, 2, 3, 4]));
        assert_eq!((four.failures, four.stops_commits.len()), (1, 6), "every pair of the four");
        let majorities = vec![set(&[1, 2, 3]), set(&[3, 4, 5])];
        let joint = Membership::from_parts(majorities, set(&[]), set(&[])).with_auto_leave();
        let tolerance = tolerance(&joint, &set(&[1, 2, 3, 4]));
        assert_eq!(tolerance.failures, 0, "the second majority has no spare voter");
        assert_eq!(tolerance.counts.iter().map(|c| c.live).collect::<Vec<_>>(), [3, 2]);
    }
}
