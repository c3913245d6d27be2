//! The settings under which random clusters run, and the changes they are asked for.

use quorate_core::config::{Activation, EtcdCompat, Liveness};
use quorate_core::membership::{Operation, Transition};
use quorate_core::{Change, Config, MemberId, MemberSet};
use quorate_sim::random::Random;

use crate::pick;

/// Which settings may be drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settings {
    Any,
    /// Those under which a cluster must always recover. Without pre-vote and check-quorum,
    /// removed members may disturb indefinitely.
    Recoverable,
}

/// One configuration for all members of a cluster, but for id and incarnation.
pub(crate) fn draw(settings: Settings, random: &mut Random) -> Config {
    let any = settings == Settings::Any;
    let mut config = Config::new(MemberId(1));
    config.seed = random.next_u64();
    config.election_ticks = 4;
    let mut coin = || random.below(2) == 0;
    config.pre_vote = !any || coin();
    config.check_quorum = !any || coin();
    config.apply_unsaved = coin();
    if coin() {
        config.append_bytes_max = 60;
        config.inflight_messages_max = 2;
    }
    if coin() {
        config.tail_bytes_max = 100;
    }
    if coin() {
        config.apply_bytes_max = 50;
    }
    config.trim_keep_entries = if coin() { 0 } else { 3 };
    config.forward_proposals = coin();
    config.step_down_on_removal = !any || coin();
    if coin() {
        config.activation = Activation::OnAppend;
    } else if any && coin() {
        // etcd never sends a snapshot that is older than the newest membership.
        config.etcd_compat = EtcdCompat::etcd();
        config.etcd_compat.snapshot_must_name_receiver = false;
    }
    config.pre_flight = coin();
    config.etcd_compat.ids_reusable |= coin();
    config.incarnation = if coin() { 0 } else { 10 };
    if any && coin() && coin() && coin() {
        config.liveness = Liveness::NONE;
    }
    config
}

/// A change of any kind.
pub(crate) fn change(random: &mut Random, members: usize) -> Change {
    let any = |random: &mut Random| MemberId(1 + pick(random, members) as u64);
    let some = |random: &mut Random, count| (0..count).map(|_| any(random)).collect::<MemberSet>();
    match random.below(6) {
        0 => {
            let count = 1 + pick(random, 4);
            let voters = some(random, count);
            let learners = some(random, 2);
            let learners = learners.iter().filter(|id| !voters.contains(*id)).collect::<Vec<_>>();
            return Change::goal(voters.iter(), learners);
        }
        1 if random.below(3) == 0 => return Change::cancel(),
        _ => {}
    }
    let operations: Vec<Operation> = (0..pick(random, 4))
        .map(|_| match (any(random), random.below(4)) {
            (id, 0) => Operation::Learner(id),
            (id, 1) => Operation::Remove(id),
            (id, _) => Operation::Voter(id),
        })
        .collect();
    if random.below(4) == 0 {
        let majorities = (0..1 + pick(random, 3)).map(|_| {
            let count = 1 + pick(random, 4);
            some(random, count)
        });
        return Change::majorities(majorities.collect::<Vec<MemberSet>>());
    }
    if let ([operation], 0) = (&operations[..], random.below(2)) {
        return Change::v1(*operation);
    }
    let transitions = [Transition::Auto, Transition::JointImplicit, Transition::JointExplicit];
    Change::new(operations).with_transition(transitions[pick(random, 3)])
}
