use super::tests::short;
use super::*;
use crate::config::{Config, EtcdCompat};
use crate::membership::RemovedVoters;
use crate::{Boot, Input, Raft, Refusal};

fn set(mask: u32) -> MemberSet {
    (0..5).filter(|bit| mask & (1 << bit) != 0).map(|bit| MemberId(bit + 1)).collect()
}

/// What a leader sees when everything is settled and no member is catching up.
fn view(leader: MemberId, caught_up: MemberSet) -> PlanContext {
    PlanContext { leader, caught_up, catching_up: MemberSet::new(), settled: true }
}

/// Takes the steps of a leader that sees all members caught up and every step settled, and
/// checks each of them.
fn walk(mut now: Membership, leader: MemberId) -> (Membership, usize) {
    let mut view = view(leader, now.members());
    let mut taken = 0;
    while let Some(step) = next_step(&now, &view) {
        let next = now.take_step(&step).unwrap_or_else(|why| panic!("{now}: {step}: {why}"));
        assert_eq!(next.check(), Ok(()), "{now}: {step}");
        assert!(now.can_change_to(&next), "{now}: {step}");
        assert_eq!(now.voter_removed_by(&next), None, "{now}: {step}");
        match &step {
            GoalStep::HandOver(successors) => view.leader = successors.iter().next().unwrap(),
            GoalStep::Settle => view.settled = true,
            _ => {}
        }
        view.caught_up = next.members();
        now = next;
        taken += 1;
        assert!(taken < 12, "too many steps: {now}");
    }
    (now, taken)
}

#[test]
fn every_goal_is_reached_by_safe_steps() {
    // All voters of four members, all goals with voters and learners of five.
    for voters in 1u32..16 {
        for wanted in 1u32..32 {
            for learners in (0u32..32).filter(|learners| learners & wanted == 0) {
                let start = Membership::new(set(voters).iter(), []);
                let Ok(now) = start.set_goal(&set(wanted), &set(learners)) else {
                    assert_eq!((voters, 0), (wanted, learners));
                    continue;
                };
                let leader = set(voters).iter().next().unwrap();
                let (end, _) = walk(now, leader);
                assert_eq!(end, Membership::new(set(wanted).iter(), set(learners).iter()));
            }
        }
    }
}

#[test]
fn a_goal_cancelled_at_any_step_ends_where_it_began() {
    for voters in 1u32..16 {
        for wanted in (1u32..32).filter(|wanted| *wanted != voters) {
            let start = Membership::new(set(voters).iter(), []);
            let leader = set(voters).iter().next().unwrap();
            let mut now = start.set_goal(&set(wanted), &MemberSet::new()).unwrap();
            let mut view = view(leader, now.members());
            while let Some(step) = next_step(&now, &view) {
                let (end, _) = walk(now.cancel_goal().unwrap(), view.leader);
                assert_eq!(end, start, "cancelled at {now}");
                if let GoalStep::HandOver(successors) = &step {
                    view.leader = successors.iter().next().unwrap();
                }
                now = now.take_step(&step).unwrap();
                view.caught_up = now.members();
            }
        }
    }
}

/// Takes steps while these never catch up, until the leader can only wait.
fn walk_without(dead: &MemberSet, mut now: Membership, leader: MemberId) -> Membership {
    let alive = |now: &Membership| now.members().iter().filter(|id| !dead.contains(*id)).collect();
    let mut view = view(leader, alive(&now));
    for _ in 0..12 {
        let Some(step) = next_step(&now, &view).filter(|step| !step.is_wait()) else { return now };
        let next = now.take_step(&step).unwrap_or_else(|why| panic!("{now}: {step}: {why}"));
        assert!(now.can_change_to(&next), "{now}: {step}");
        assert_eq!(now.voter_removed_by(&next), None, "{now}: {step}");
        if let GoalStep::HandOver(successors) = &step {
            view.leader = successors.iter().next().unwrap();
        }
        // Cancelled at any step, it returns to where it began once all members are caught up.
        let goal = now.goal().unwrap();
        let start = Membership::new(goal.from_voters.iter(), goal.from_learners.iter());
        assert_eq!(walk(now.cancel_goal().unwrap(), view.leader).0, start, "{now}");
        now = next;
        view.caught_up = alive(&now);
    }
    panic!("too many steps: {now}");
}

#[test]
fn member_that_never_starts_does_not_block_other_voters() {
    for voters in 1u32..16 {
        for wanted in 1u32..32 {
            // The joining members; of the others, the lowest leads and the rest may be dead.
            let leader = set(voters).iter().next().unwrap();
            for dead in (0u32..32).map(set).filter(|dead| !dead.contains(leader)) {
                let start = Membership::new(set(voters).iter(), []);
                let Ok(now) = start.set_goal(&set(wanted), &MemberSet::new()) else { continue };
                let goal = now.goal().unwrap().clone();
                let end = walk_without(&dead, now, leader);
                let come = |id: &MemberId| start.contains(*id) || !dead.contains(*id);
                let awaited = goal.voters.iter().any(|id| !come(&id));
                if !awaited {
                    assert_eq!(end, Membership::new(goal.voters.iter(), []), "{dead:?}");
                    continue;
                }
                assert!(goal.voters.iter().filter(come).all(|id| end.is_voter(id)), "{end}");
                assert!(end.incoming().len() >= start.incoming().len(), "{end}");
                // The member starts after all; or the goal is cancelled.
                let leads = end.incoming().iter().find(|id| !dead.contains(*id)).unwrap();
                let back = end.cancel_goal().unwrap();
                assert_eq!(walk(back, leads).0, start, "{end}");
                assert_eq!(walk(end, leads).0, Membership::new(goal.voters.iter(), []));
            }
        }
    }
}

#[test]
fn plan_lists_all_steps_and_blocking_losses() {
    let start = Membership::new([1, 2, 3].map(MemberId), []);
    let view = view(MemberId(1), start.voters());
    let plan = plan(&start, &view, &MemberSet::from([2, 3, 4]), &MemberSet::new()).unwrap();
    let steps: Vec<String> = plan.steps.iter().map(|planned| short(&planned.step)).collect();
    let want = [
        "add learners (4)",
        "wait until (4) have caught up",
        "hand over to one of (2 3)",
        "move votes v4 l1",
        "leave the joint",
        "wait until settled",
        "remove learners (1)",
        "wait until settled",
    ];
    assert_eq!(steps, want);
    // In the joint, the loss of two voters that are in both majorities, or of one of them and
    // one that is in one majority, stops commits.
    let joint = &plan.steps[3];
    assert_eq!(joint.membership.majorities().len(), 2);
    let pairs: Vec<MemberSet> =
        [[1, 2], [1, 3], [2, 3], [2, 4], [3, 4]].map(MemberSet::from).into();
    assert_eq!(joint.stops_commits, pairs);
    let end = plan.steps.last().unwrap();
    assert_eq!(end.membership, Membership::new([2, 3, 4].map(MemberId), []));
}

#[test]
fn voters_given_as_a_set_stay_or_are_removed() {
    let now = Membership::new([1, 2, 3].map(MemberId), [4, 5, 6].map(MemberId));
    let resolve = |change: Change| now.resolve(&change, &EtcdCompat::default());
    let kept = resolve(Change::set_voters([3, 4, 5].map(MemberId), RemovedVoters::BecomeLearners))
        .unwrap();
    assert_eq!(short(&kept.leave().unwrap()), "voters=(3 4 5) learners=(1 2 6)");
    let lost = resolve(Change::set_voters([3, 4, 5].map(MemberId), RemovedVoters::Leave)).unwrap();
    assert_eq!(short(&walk(lost, MemberId(3)).0), "voters=(3 4 5) learners=(6)");
    let more = resolve(Change::add_voters([MemberId(4)])).unwrap();
    assert_eq!(short(&more), "voters=(1 2 3 4) learners=(5 6)");
    let fewer =
        resolve(Change::remove_voters([MemberId(3)], RemovedVoters::BecomeLearners)).unwrap();
    assert_eq!(short(&fewer), "voters=(1 2) learners=(3 4 5 6)");
    let unknown = resolve(Change::set_voters([MemberId(9)], RemovedVoters::BecomeLearners));
    assert_eq!(unknown, Err(ChangeRefusal::UnknownMember { id: MemberId(9) }));
    let learner = resolve(Change::add_learner(MemberId(7))).unwrap();
    assert_eq!(short(&learner), "voters=(1 2 3) learners=(4 5 6 7)");
    // A voter is not made a learner by adding it.
    let voter = resolve(Change::add_learner(MemberId(1)));
    assert_eq!(voter, Err(ChangeRefusal::AlreadyReached));
}

#[test]
fn a_zone_that_holds_half_of_the_voters_blocks() {
    let zone = |name: &'static str| MemberInfo { zone: name.into(), ..MemberInfo::default() };
    let three = Membership::new([1, 2, 3].map(MemberId), [MemberId(4)])
        .with_info(MemberId(1), zone("a"))
        .with_info(MemberId(2), zone("b"))
        .with_info(MemberId(3), zone("c"));
    assert_eq!(three.blocking_zone(), None);
    let four = three.resolve(&Change::add_voters([MemberId(4)]), &EtcdCompat::default()).unwrap();
    // Nothing is said while one voter's zone is not known.
    assert_eq!(four.blocking_zone(), None);
    assert_eq!(four.with_info(MemberId(4), zone("c")).blocking_zone(), Some(&"c".into()));
}

#[test]
fn invalid_goals_are_refused() {
    let now = Membership::new([1, 2, 3].map(MemberId), []);
    let none = MemberSet::new();
    assert_eq!(now.set_goal(&none, &none), Err(ChangeRefusal::NoVotersLeft));
    let zero = MemberSet::from([0, 1]);
    assert_eq!(now.set_goal(&zero, &none), Err(ChangeRefusal::MemberZero));
    let same = MemberSet::from([1, 2, 3]);
    assert_eq!(now.set_goal(&same, &none), Err(ChangeRefusal::AlreadyReached));
    let both = now.set_goal(&same, &MemberSet::from([3]));
    assert!(matches!(both, Err(ChangeRefusal::InvalidMembership(_))));
    assert_eq!(now.cancel_goal(), Err(ChangeRefusal::NothingToCancel));
    let pursued = now.set_goal(&MemberSet::from([1, 2]), &none).unwrap();
    assert_eq!(pursued.set_goal(&same, &none), Err(ChangeRefusal::GoalInProgress));
}

/// The membership after a change that is logged at this index.
fn logged(now: &Membership, change: Change, index: u64) -> Membership {
    let next = now.resolve(&change, &EtcdCompat::default()).unwrap();
    next.logged(now, &change, EntryId::new(1, index), |id| Some(id.0 + 10))
}

#[test]
fn cancel_of_a_replaced_goal_returns_to_the_start_of_the_first() {
    let start = Membership::new([1, 2, 3].map(MemberId), []);
    let first = logged(&start, Change::goal([1, 2, 4].map(MemberId), []), 2);
    let came = logged(&first.with_goal(None), Change::add_learner(MemberId(4)), 3);
    let came = came.with_goal(first.goal().cloned());
    let expecting = |change: Change| change.expecting(EntryId::new(1, 3));
    let second = logged(&came, expecting(Change::goal([1, 2, 5].map(MemberId), [])), 4);
    assert_eq!(second.goal().unwrap().id, EntryId::new(1, 4));
    let (end, _) = walk(second.cancel_goal().unwrap(), MemberId(1));
    assert_eq!((end.incoming(), end.learners()), (start.incoming(), start.learners()));
    // A goal that is already reached ends at once.
    let here = expecting(Change::goal([1, 2, 3].map(MemberId), [MemberId(4)]));
    let stopped = logged(&came, here, 4);
    assert_eq!(stopped.goal(), None);
    let ends: Vec<(u64, GoalEnd)> =
        stopped.ended_goals().iter().map(|ended| (ended.id.index, ended.end)).collect();
    assert_eq!(ends, [(2, GoalEnd::Replaced), (4, GoalEnd::Reached)]);
}

#[test]
fn remembered_goals_and_ids_are_bounded() {
    let mut now = Membership::new([1, 2, 3].map(MemberId), []);
    for index in 2..200 {
        let id = MemberId(2 + index);
        now = logged(&now, Change::new([Operation::Voter(id)]), index);
        assert_eq!((now.joined_at(id), now.incarnation(id)), (index, Some(id.0 + 10)));
        now = logged(&now, Change::new([Operation::Remove(id)]), index);
        assert_eq!((now.joined_at(id), now.incarnation(id)), (0, None));
        let at = EntryId::new(1, index);
        now = now.with_ended_goal(EndedGoal { id: at, end: GoalEnd::Reached, at });
    }
    assert_eq!(now.ended_goals().len(), 8);
    assert_eq!(now.ended_goals().last().unwrap().id, EntryId::new(1, 199));
    assert_eq!((now.removed().len(), now.removed().last()), (64, Some(&MemberId(201))));
}

#[test]
fn unwanted_learner_is_removed_without_waiting() {
    let id = |id| MemberId(id);
    let now = Membership::new([id(1)], []).set_goal(&set(0b111), &MemberSet::new()).unwrap();
    let view = view(id(1), set(0b1));
    let now = now.take_step(&next_step(&now, &view).unwrap()).unwrap();
    assert_eq!(next_step(&now, &view), Some(GoalStep::CatchUp(set(0b110))));
    let now = now.with_new_goal(&set(0b101), &MemberSet::new()).unwrap();
    assert_eq!(
        next_step(&now, &PlanContext { settled: false, ..view.clone() }),
        Some(GoalStep::CatchUp(set(0b100)))
    );
    assert_eq!(next_step(&now, &view), Some(GoalStep::RemoveLearners(set(0b10))));
    let now = now.take_step(&GoalStep::RemoveLearners(set(0b10))).unwrap();
    assert_eq!(next_step(&now, &view), Some(GoalStep::CatchUp(set(0b100))));

    // A member from before the goal stays until it is reached: the goal may be cancelled.
    let now = Membership::new([id(1)], [id(2)]).set_goal(&set(0b101), &MemberSet::new()).unwrap();
    let now = now.take_step(&next_step(&now, &view).unwrap()).unwrap();
    assert_eq!(next_step(&now, &view), Some(GoalStep::CatchUp(set(0b100))));
}

/// A leader plans a goal from what it sees of its peers, and changes nothing.
#[test]
fn a_leader_plans_without_acting() {
    let start = Membership::new(set(0b001).iter(), set(0b010).iter());
    let mut raft = Raft::new(Config::new(MemberId(1)), Boot::first(start)).unwrap();
    let (both, second) = (set(0b011), set(0b010));
    assert!(matches!(raft.plan(&second, &MemberSet::new()), Err(Refusal::NotLeader { .. })));
    raft.step(Input::Campaign).unwrap();
    while let Some(save) = raft.take_output().save {
        raft.step(Input::Saved(save.id)).unwrap();
    }
    let before = raft.clone();
    let plan = raft.plan(&both, &MemberSet::new()).unwrap();
    assert_eq!(raft, before);
    // The learner never answered, so the plan begins by waiting for it.
    assert_eq!(plan.steps[0].step, GoalStep::CatchUp(second.clone()));
    let reached = raft.plan(&set(0b001), &second);
    assert_eq!(reached, Err(Refusal::Change(ChangeRefusal::AlreadyReached)));
}
