//! What must hold of random clusters whose members are honest. Simulations of whole members
//! check more (`explore`); these draw settings of the core that the driver never uses.

use std::hash::{DefaultHasher, Hash, Hasher};

use quorate_core::{Index, MemberId, Raft};
use quorate_sim::random::Random;

use crate::for_seeds;
use crate::random::{Counts, RandomCluster};
use crate::settings::Settings;

#[test]
fn faults_break_no_invariant() {
    for_seeds(250, |random| {
        let mut cluster = RandomCluster::new(Settings::Any, random);
        cluster.run(2_000, random);
        cluster.run_without_faults(12);
    });
}

/// A goal, set once, is reached through crashes, losses and changes of leader, by both
/// activations.
#[test]
fn a_goal_is_reached_through_any_faults() {
    for_seeds(250, |random| {
        let mut cluster = RandomCluster::new(Settings::Recoverable, random);
        cluster.no_changes = true;
        cluster.run_without_faults(40);
        let voters = random.between(1, 127);
        let goal = cluster.set_goal(voters, random.below(128) & !voters);
        cluster.run(1_200, random);
        cluster.run_without_faults(200);
        if let Some((voters, learners)) = goal {
            assert!(cluster.works(), "{cluster}");
            let membership = cluster.leader_membership();
            assert_eq!(membership.incoming(), &voters, "{cluster}");
            assert_eq!(membership.learners(), &learners, "{cluster}");
            assert!(cluster.settled_everywhere(), "{cluster}");
        }
    });
}

/// Of two members that are to join, one never starts: the other gets its vote through any
/// faults, and the cluster does not shrink meanwhile.
#[test]
fn a_member_that_never_starts_does_not_keep_others_out() {
    for_seeds(250, |random| {
        let mut cluster = RandomCluster::new(Settings::Recoverable, random);
        cluster.no_changes = true;
        let count = cluster.cluster.ids().len() as u64;
        let (joins, absent) = (MemberId(count - 1), MemberId(count));
        cluster.lose(absent);
        cluster.run_without_faults(40);
        let joining = 0b11 << (count - 2);
        let goal = cluster.set_goal(random.between(1, 31) & (joining - 1) | joining, 0);
        cluster.run(800, random);
        cluster.run_without_faults(300);
        if goal.is_some() {
            let membership = cluster.leader_membership();
            assert!(membership.is_voter(joins), "{cluster}");
            assert!(membership.is_learner(absent), "{cluster}");
            assert!(!membership.is_joint(), "{cluster}");
            assert!(membership.incoming().len() as u64 >= count - 2, "{cluster}");
        }
    });
}

#[test]
fn after_the_faults_the_cluster_works_again() {
    for_seeds(250, |random| {
        let mut cluster = RandomCluster::new(Settings::Any, random);
        cluster.no_changes = true;
        cluster.run(1_000, random);
        cluster.run_without_faults(60);
        assert!(cluster.works(), "{cluster}");
        // Without requests it writes nothing.
        let lasts = |cluster: &RandomCluster| -> Vec<Index> {
            cluster.cluster.rafts().map(|raft| raft.log_status().last.index).collect()
        };
        let before = lasts(&cluster);
        cluster.run_without_faults(40);
        assert_eq!(before, lasts(&cluster), "{cluster}");
    });
}

/// The same inputs lead to the same member: equal, with an equal hash.
#[test]
fn a_replay_is_equal_and_hashes_equal() {
    let play = || {
        let mut random = Random::new(3);
        let mut cluster = RandomCluster::new(Settings::Any, &mut random);
        cluster.run(2_000, &mut random);
        cluster.run_without_faults(5);
        cluster.cluster.rafts().cloned().collect::<Vec<Raft>>()
    };
    let hash = |raft: &Raft| {
        let mut hasher = DefaultHasher::new();
        raft.hash(&mut hasher);
        hasher.finish()
    };
    let (first, second) = (play(), play());
    assert_eq!(first, second);
    assert!(first.iter().map(hash).eq(second.iter().map(hash)));
    assert_ne!(first[0], first[1]);
}

/// Random runs that never elect or commit would show nothing.
#[test]
fn random_runs_reach_what_they_are_meant_to() {
    let mut all: Vec<Counts> = Vec::new();
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let mut cluster = RandomCluster::new(Settings::Any, &mut random);
        cluster.run(3_000, &mut random);
        all.push(cluster.counts);
    }
    let total = |count: fn(&Counts) -> usize| -> usize { all.iter().map(count).sum() };
    assert!(total(|counts| counts.elections) > 300);
    assert!(total(|counts| counts.applied) > 3_000);
    assert!(total(|counts| counts.memberships) > 100);
    assert!(total(|counts| counts.joints) > 30);
    assert!(total(|counts| counts.installs) > 20);
    assert!(total(|counts| counts.loads) > 100);
    assert!(total(|counts| counts.trims) > 50);
    assert!(total(|counts| counts.served) > 50);
    assert!(total(|counts| counts.transfers) > 20);
    assert!(total(|counts| counts.accepted) > 50);
    assert!(total(|counts| counts.settled) > 200);
    assert!(total(|counts| counts.goals) > 20);
    assert!(total(|counts| counts.replaced) > 20);
}
