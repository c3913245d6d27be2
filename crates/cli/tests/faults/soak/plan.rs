//! Which faults a round has. The rounds of one seed go through all pairs of kinds in random order,
//! then through all of them again in another order.

use quorate_sim::random::Random;

macro_rules! kinds {
    ($($kind:ident $name:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Kind { $($kind),* }

        impl Kind {
            pub(crate) const ALL: &[Self] = &[$(Self::$kind),*];

            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$kind => $name),* }
            }
        }
    };
}

kinds! {
    Kill "kill",
    Terminate "terminate",
    Suspend "suspend",
    HungDisk "hung-disk",
    SlowDisk "slow-disk",
    FailingDisk "failing-disk",
    FullDisk "full-disk",
    LostDisk "lost-disk",
    Isolate "isolate",
    OneWay "one-way",
    LossyLink "lossy-link",
    ClockJump "clock-jump",
    Replace "replace",
    AddRemove "add-remove",
    Transfer "transfer",
    LargeReads "large-reads",
    LargeWrites "large-writes",
}

impl Kind {
    /// A membership change: it must finish while the other fault lasts.
    pub(crate) fn is_change(self) -> bool {
        matches!(self, Self::Replace | Self::AddRemove)
    }
}

/// The faults of one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundPlan {
    /// Two faults at the same time, of different members. Changes are second.
    Pair { first: Kind, second: Kind, first_hits_leader: bool },
    /// A member returns with an older state of its disk. Not combined with another fault: what
    /// it forgot may be the only copy besides that of a member that fails too.
    RestoredDisk,
}

impl RoundPlan {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Pair { first, second, .. } => {
                let (low, high) = (first.min(second), first.max(second));
                format!("{} + {}", low.name(), high.name())
            }
            Self::RestoredDisk => "restored-disk".to_string(),
        }
    }
}

/// The number of different plans, without who is hit.
pub(crate) fn cycle_length() -> u64 {
    let kinds = Kind::ALL.len() as u64;
    kinds * (kinds + 1) / 2 + 1
}

pub(crate) fn plan(seed: u64, round: u64) -> RoundPlan {
    let (cycle, position) = (round / cycle_length(), round % cycle_length());
    let mut random = Random::stream(seed, cycle);
    let mut plans = vec![RoundPlan::RestoredDisk];
    for (number, low) in Kind::ALL.iter().enumerate() {
        for high in &Kind::ALL[number..] {
            let first_hits_leader = random.per_mille(500);
            let (first, second) = if low.is_change() { (*high, *low) } else { (*low, *high) };
            plans.push(RoundPlan::Pair { first, second, first_hits_leader });
        }
    }
    for last in (1..plans.len()).rev() {
        plans.swap(last, random.below(last as u64 + 1) as usize);
    }
    plans[position as usize]
}

#[test]
fn every_pair_of_kinds_is_in_each_cycle_once() {
    for cycle in 0..2 {
        let rounds = cycle * cycle_length()..(cycle + 1) * cycle_length();
        let names: std::collections::BTreeSet<_> = rounds.map(|r| plan(7, r).name()).collect();
        assert_eq!(names.len() as u64, cycle_length());
    }
}
