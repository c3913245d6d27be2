use super::*;
use crate::config::EtcdCompat;

fn ids(ids: &[u64]) -> MemberSet {
    ids.iter().copied().map(MemberId).collect()
}

/// As it is printed, with ids as short as these tests choose them.
pub(super) fn short(value: &impl ToString) -> String {
    value.to_string().replace("000000000000000", "")
}

fn one(voters: &[u64]) -> Membership {
    Membership::from_parts(vec![ids(voters)], ids(&[]), ids(&[]))
}

fn two(incoming: &[u64], outgoing: &[u64]) -> Membership {
    Membership::from_parts(vec![ids(incoming), ids(outgoing)], ids(&[]), ids(&[]))
}

fn commit(membership: &Membership, known: &[(u64, u64)]) -> u64 {
    membership.quorum(|id| {
        known.iter().find(|(member, _)| *member == id.0).map_or(0, |(_, index)| *index)
    })
}

#[test]
fn commit_of_one_majority() {
    assert_eq!(commit(&one(&[1]), &[(1, 5)]), 5);
    assert_eq!(commit(&one(&[1, 2, 3]), &[(1, 5), (2, 4), (3, 3)]), 4);
    assert_eq!(commit(&one(&[1, 2, 3, 4]), &[(1, 1), (2, 2), (3, 3), (4, 4)]), 2);
    assert_eq!(commit(&one(&[1, 2]), &[(1, 7), (2, 9)]), 7);
    assert_eq!(commit(&one(&[1, 2, 3]), &[(1, 10)]), 0);
    assert_eq!(commit(&one(&[1, 2, 3]), &[(1, 10), (2, 20)]), 10);
    assert_eq!(commit(&one(&[1, 2, 3]), &[(1, 5), (2, 5), (3, 1)]), 5);
    assert_eq!(commit(&Membership::default(), &[]), u64::MAX);
}

#[test]
fn commit_of_a_joint_is_the_lower_of_both() {
    let acks = [(1, 9), (2, 9), (3, 4), (4, 4), (5, 1)];
    assert_eq!(commit(&two(&[1, 2, 3], &[3, 4, 5]), &acks), 4);
    assert_eq!(commit(&two(&[3, 4, 5], &[1, 2, 3]), &acks), 4);
}

#[test]
fn elections_of_even_and_odd_sizes() {
    let count = |voters: &[u64], yes: &[u64], no: &[u64]| {
        one(voters).count(|id| {
            if yes.contains(&id.0) {
                Some(true)
            } else if no.contains(&id.0) {
                Some(false)
            } else {
                None
            }
        })
    };
    assert_eq!(count(&[1, 2, 3], &[1], &[]), VoteResult::Pending);
    assert_eq!(count(&[1, 2, 3], &[1, 2], &[]), VoteResult::Won);
    assert_eq!(count(&[1, 2, 3], &[], &[1, 2]), VoteResult::Lost);
    assert_eq!(count(&[1, 2], &[1], &[2]), VoteResult::Lost);
    assert_eq!(count(&[1, 2, 3, 4], &[1, 2], &[3]), VoteResult::Pending);
    assert_eq!(count(&[1, 2, 3, 4], &[1, 2], &[3, 4]), VoteResult::Lost);
    // Votes of outsiders count nowhere.
    assert_eq!(count(&[1, 2, 3], &[1, 7, 8, 9], &[]), VoteResult::Pending);
    assert_eq!(Membership::default().count(|_| None), VoteResult::Won);
}

/// Brute force: the set `live` (a bit mask) holds a quorum of the membership.
fn is_quorum(membership: &Membership, live: u32) -> bool {
    membership.majorities().iter().all(|majority| {
        let votes = majority.iter().filter(|id| live & (1 << id.0) != 0).count();
        votes > majority.len() / 2
    })
}

#[test]
fn quorum_agrees_with_brute_force() {
    // Every pair of majorities over five members, every set of yes-sayers.
    for incoming in 1u32..32 {
        for outgoing in 0u32..32 {
            let set =
                |mask: u32| (0..5).filter(|bit| mask & (1 << bit) != 0).map(MemberId).collect();
            let mut majorities: Vec<MemberSet> = vec![set(incoming)];
            if outgoing > 0 {
                majorities.push(set(outgoing));
            }
            let membership = Membership::from_parts(majorities, MemberSet::new(), MemberSet::new());
            for yes in 0u32..32 {
                let says = |id: MemberId| yes & (1 << id.0) != 0;
                let want = is_quorum(&membership, yes);
                assert_eq!(membership.quorum(says), want);
                assert_eq!(
                    membership.count(|id| says(id).then_some(true)) == VoteResult::Won,
                    want
                );
                // Lost exactly when the others could never make a quorum any more.
                let lost = membership.count(|id| (!says(id)).then_some(false)) == VoteResult::Lost;
                assert_eq!(lost, !want);
            }
        }
    }
}

#[test]
fn majorities_that_differ_by_one_voter_overlap() {
    for voters in 1u32..9 {
        let small = one(&(0..u64::from(voters)).collect::<Vec<_>>());
        let large = one(&(0..=u64::from(voters)).collect::<Vec<_>>());
        for left in 0u32..1 << (voters + 1) {
            let right = !left & ((1 << (voters + 1)) - 1);
            assert!(!(is_quorum(&small, left) && is_quorum(&large, right)));
            assert!(!(is_quorum(&large, left) && is_quorum(&small, right)));
        }
    }
}

#[test]
fn quorums_overlap_across_every_allowed_change() {
    let sets: Vec<MemberSet> = (1u32..32)
        .map(|mask| (0..5).filter(|bit| mask & (1 << bit) != 0).map(MemberId).collect())
        .collect();
    let mut memberships: Vec<Membership> = Vec::new();
    for (at, first) in sets.iter().enumerate() {
        for second in sets.iter().skip(at) {
            let majorities = if first == second {
                vec![first.clone()]
            } else {
                vec![first.clone(), second.clone()]
            };
            memberships.push(Membership::from_parts(
                majorities,
                MemberSet::new(),
                MemberSet::new(),
            ));
        }
    }
    // For each membership the masks that are quorums, as one 32-bit word of masks.
    let quorums: Vec<u32> = memberships
        .iter()
        .map(|membership| {
            (0u32..32)
                .filter(|live| is_quorum(membership, *live))
                .fold(0, |all, live| all | 1 << live)
        })
        .collect();
    // The same word for the complements: sets whose outside is a quorum.
    let outside: Vec<u32> = quorums
        .iter()
        .map(|word| {
            (0u32..32)
                .filter(|live| word & (1 << (31 - live)) != 0)
                .fold(0, |all, live| all | 1 << live)
        })
        .collect();
    let mut allowed = 0;
    for (from, old) in memberships.iter().enumerate() {
        for (to, new) in memberships.iter().enumerate() {
            if old.can_change_to(new) {
                allowed += 1;
                assert_eq!(quorums[from] & outside[to], 0, "{old} -> {new}");
            }
        }
    }
    assert!(allowed > 100_000);
    assert!(!two(&[0, 1, 2], &[0, 1, 3]).can_change_to(&one(&[0, 1, 2, 3, 4])));
    assert!(!one(&[0, 1, 2]).can_change_to(&two(&[0, 1, 3], &[0, 2, 3])));
}

#[test]
fn every_resolved_change_is_valid_and_safe() {
    use Operation::{Learner, Remove, Voter};
    let operations: Vec<Operation> =
        (1..5).map(MemberId).flat_map(|id| [Voter(id), Learner(id), Remove(id)]).collect();
    let mut seen = std::collections::BTreeSet::new();
    let mut todo = vec![Membership::new([MemberId(1)], [])];
    let etcd_compat = EtcdCompat::default();
    while let Some(membership) = todo.pop() {
        if !seen.insert(membership.clone()) {
            continue;
        }
        let mut changes = vec![Change::leave()];
        for first in &operations {
            changes.push(Change::v1(*first));
            for second in &operations {
                for transition in
                    [Transition::Auto, Transition::JointImplicit, Transition::JointExplicit]
                {
                    changes.push(Change::new([*first, *second]).with_transition(transition));
                }
            }
        }
        for change in &changes {
            if let Ok(next) = membership.resolve(change, &etcd_compat) {
                assert_eq!(next.check(), Ok(()));
                assert!(membership.can_change_to(&next), "{membership} {change} {next}");
                todo.push(next);
            }
        }
    }
    assert!(seen.len() > 200, "{}", seen.len());
}

#[test]
fn auto_stays_single_when_one_voter_changes_however_many_learners_do() {
    let change = Change::new([
        Operation::Learner(MemberId(4)),
        Operation::Learner(MemberId(5)),
        Operation::Voter(MemberId(6)),
    ]);
    let next = one(&[1, 2, 3]).resolve(&change, &EtcdCompat::default()).unwrap();
    assert_eq!(short(&next), "voters=(1 2 3 6) learners=(4 5)");
    let next = one(&[1, 2, 3]).resolve(&change, &EtcdCompat::etcd()).unwrap();
    assert_eq!(short(&next), "voters=(1 2 3 6)&&(1 2 3) learners=(4 5) autoleave");
}

#[test]
fn member_zero_is_refused_or_skipped() {
    let change = Change::new([Operation::Voter(MemberId(0)), Operation::Voter(MemberId(2))]);
    let refusal = one(&[1]).resolve(&change, &EtcdCompat::default());
    assert_eq!(refusal, Err(ChangeRefusal::MemberZero));
    let skips = EtcdCompat { ignore_member_zero: true, ..EtcdCompat::default() };
    assert_eq!(one(&[1]).resolve(&change, &skips), Ok(one(&[1, 2])));
}

#[test]
fn invalid_memberships_fail_the_check() {
    let all = |majorities: Vec<MemberSet>, learners: &[u64], next: &[u64], auto: bool| {
        let membership = Membership::from_parts(majorities, ids(learners), ids(next));
        if auto { membership.with_auto_leave().check() } else { membership.check() }
    };
    assert_eq!(all(vec![], &[1], &[], false), Err(MembershipError::NoVoters));
    assert_eq!(all(vec![ids(&[1]), ids(&[])], &[], &[], false), Err(MembershipError::NoVoters));
    assert_eq!(all(vec![ids(&[0])], &[], &[], false), Err(MembershipError::MemberZero));
    let both = Err(MembershipError::VoterAndLearner(MemberId(1)));
    assert_eq!(all(vec![ids(&[1])], &[1], &[], false), both);
    let stays = Err(MembershipError::NotLeaving(MemberId(1)));
    assert_eq!(all(vec![ids(&[1])], &[], &[1], false), stays);
    assert_eq!(all(vec![ids(&[1]), ids(&[1, 2])], &[], &[1], false), stays);
    assert_eq!(all(vec![ids(&[1])], &[], &[], true), Err(MembershipError::NothingToLeave));
    assert_eq!(all(vec![ids(&[1]), ids(&[1, 2])], &[], &[2], true), Ok(()));
}
