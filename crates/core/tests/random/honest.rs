//! Random faults, honest members: nothing that is committed is ever lost, no term
//! has two leaders, and once the faults end the cluster works again.

use std::hash::{DefaultHasher, Hash, Hasher};

use proptest::prelude::*;
use quorate_core::{MemberId, Raft};

use crate::cases;
use crate::world::{self, Seen, Tape, World};

proptest! {
    #![proptest_config(cases(250))]

    #[test]
    fn no_fault_breaks_safety(numbers in prop::collection::vec(any::<u32>(), 20..4000)) {
        let mut tape = Tape::new(&numbers);
        let mut world = World::new(&mut tape);
        world.play(&mut tape);
        world.calm(12);
    }

    /// Whatever changes were under way, with both activations: when everybody is up
    /// again, somebody leads, and what it takes reaches every voter.
    #[test]
    fn no_change_leaves_the_cluster_without_a_leader(
        numbers in prop::collection::vec(any::<u32>(), 20..2000),
    ) {
        let mut numbers = numbers;
        world::keep_alive(&mut numbers);
        let mut tape = Tape::new(&numbers);
        let mut world = World::new(&mut tape);
        world.play(&mut tape);
        world.calm(80);
        // Majorities of two, without pre-vote, may need many elections.
        if !world.works() {
            world.calm(800);
            prop_assert!(world.works(), "{}", world.describe());
        }
    }

    /// At any moment of any change, with no more than a minority of every membership in
    /// sight gone for good: somebody is elected. And a cluster left alone writes nothing.
    #[test]
    fn a_majority_of_old_and_new_elects(
        numbers in prop::collection::vec(any::<u32>(), 20..1500),
        mask in any::<u32>(),
    ) {
        let mut numbers = numbers;
        world::keep_alive(&mut numbers);
        let mut tape = Tape::new(&numbers);
        let mut world = World::new(&mut tape);
        world.play(&mut tape);
        world.lose_minority(mask);
        world.calm(200);
        if !world.elects() {
            world.calm(1000);
        }
        if !world.walked_into_a_dead_end() {
            prop_assert!(world.elects(), "down {:?}\n{}", world.down, world.describe());
            let before = world.ends();
            world.calm(60);
            prop_assert_eq!(before, world.ends(), "{}", world.describe());
        }
    }

    /// A goal, set once, is reached through crashes, losses and changes of leader, by
    /// both activations, and nothing that was committed on the way is lost.
    #[test]
    fn a_goal_is_reached_through_any_faults(
        numbers in prop::collection::vec(any::<u32>(), 20..2500),
        voters in 1u32..128,
        learners in 0u32..128,
    ) {
        let mut numbers = numbers;
        world::keep_alive(&mut numbers);
        let mut tape = Tape::new(&numbers);
        let mut world = World::new(&mut tape);
        world.no_changes = true;
        world.calm(40);
        let goal = world.set_goal(voters, learners & !voters);
        world.play(&mut tape);
        world.calm(200);
        if let Some((voters, learners)) = goal {
            prop_assert!(world.works(), "{}", world.describe());
            let membership = world.leader_membership().unwrap();
            prop_assert_eq!(membership.incoming(), &voters, "{}", world.describe());
            prop_assert_eq!(membership.learners(), &learners, "{}", world.describe());
        }
    }

    /// Of two that are to join one never starts: the other gets its vote, whatever happens
    /// on the way, and the cluster does not shrink meanwhile.
    #[test]
    fn who_never_starts_keeps_nobody_out(
        numbers in prop::collection::vec(any::<u32>(), 20..1500),
        staying in 1u32..32,
    ) {
        let mut numbers = numbers;
        world::keep_alive(&mut numbers);
        let mut tape = Tape::new(&numbers);
        let mut world = World::new(&mut tape);
        world.no_changes = true;
        let count = world.members.len() as u64;
        let (comes, never) = (MemberId(count - 1), MemberId(count));
        world.lose(never);
        world.calm(40);
        let joining = 0b11 << (count - 2);
        let goal = world.set_goal(staying & (joining - 1) | joining, 0);
        world.play(&mut tape);
        world.calm(300);
        if goal.is_some() {
            let membership = world.leader_membership().unwrap();
            prop_assert!(membership.is_voter(comes), "{}", world.describe());
            prop_assert!(membership.is_learner(never), "{}", world.describe());
            prop_assert!(!membership.is_joint(), "{}", world.describe());
            prop_assert!(membership.incoming().len() as u64 >= count - 2, "{}", world.describe());
        }
    }

    #[test]
    fn after_the_faults_the_cluster_works_again(
        numbers in prop::collection::vec(any::<u32>(), 20..2000),
    ) {
        let mut tape = Tape::new(&numbers);
        let mut world = World::new(&mut tape);
        world.no_changes = true;
        world.play(&mut tape);
        world.calm(60);
        prop_assert!(world.works(), "{}", world.describe());
    }
}

/// The same inputs lead to the same member: equal, with an equal hash, whatever
/// happened to the memory it lives in.
#[test]
fn a_replay_is_equal_and_hashes_equal() {
    let numbers: Vec<u32> = (0..2000u32).map(|at| at.wrapping_mul(2_654_435_761) >> 3).collect();
    let play = || {
        let mut tape = Tape::new(&numbers);
        let mut world = World::new(&mut tape);
        world.play(&mut tape);
        world.calm(5);
        world.members.into_values().filter_map(|member| member.raft).collect::<Vec<Raft>>()
    };
    let hash = |raft: &Raft| {
        let mut hasher = DefaultHasher::new();
        raft.hash(&mut hasher);
        hasher.finish()
    };
    let (first, second) = (play(), play());
    assert_eq!(first, second);
    assert_eq!(
        first.iter().map(hash).collect::<Vec<_>>(),
        second.iter().map(hash).collect::<Vec<_>>()
    );
    assert_ne!(first[0], first[1]);
}

/// A random story that never elects or commits would prove nothing.
#[test]
fn the_tapes_reach_what_they_are_meant_to() {
    let mut state = 1u64;
    let mut number = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u32
    };
    let mut all = Vec::new();
    for _ in 0..150 {
        let numbers: Vec<u32> = (0..3000).map(|_| number()).collect();
        let mut tape = Tape::new(&numbers);
        let mut world = World::new(&mut tape);
        world.play(&mut tape);
        all.push(world.seen);
    }
    let total = |what: fn(&Seen) -> usize| -> usize { all.iter().map(what).sum() };
    assert!(total(|seen| seen.elections) > 300);
    assert!(total(|seen| seen.applied) > 3_000);
    assert!(total(|seen| seen.memberships) > 100);
    assert!(total(|seen| seen.joints) > 30);
    assert!(total(|seen| seen.installs) > 20);
    assert!(total(|seen| seen.loads) > 100);
    assert!(total(|seen| seen.trims) > 50);
    assert!(total(|seen| seen.served) > 50);
    assert!(total(|seen| seen.transfers) > 20);
    assert!(total(|seen| seen.accepted) > 50);
    assert!(total(|seen| seen.settled) > 200);
    assert!(total(|seen| seen.goals) > 20);
    assert!(total(|seen| seen.replaced) > 20);
}
