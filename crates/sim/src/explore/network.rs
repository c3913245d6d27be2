//! Links between members: how long a message takes, whether it arrives, how often.

use std::collections::BTreeSet;

use super::setting::RunSettings;
use crate::random::Random;

/// Members are counted by their place in the world.
type MemberIndex = usize;

/// More members than any run has.
const PLACES: usize = 64;

pub(crate) struct SimNetwork {
    delay: u64,
    loss: u64,
    duplication: u64,
    reordering: bool,
    links: Vec<LinkState>,
    /// From here, to there: nothing arrives.
    cuts: BTreeSet<(MemberIndex, MemberIndex)>,
}

struct LinkState {
    random: Random,
    /// When the last message arrives; later ones do not overtake it.
    last: u64,
}

/// When a message arrives: not at all, once, or twice.
pub(crate) type Arrivals = [Option<u64>; 2];

impl SimNetwork {
    pub(crate) fn new(setting: &RunSettings) -> Self {
        let link = |number: usize| LinkState {
            random: Random::stream(setting.seed, 1_000 + number as u64),
            last: 0,
        };
        Self {
            delay: setting.delay,
            loss: setting.loss,
            duplication: setting.duplication,
            reordering: setting.reordering == 1,
            links: (0..PLACES * PLACES).map(link).collect(),
            cuts: BTreeSet::new(),
        }
    }

    pub(crate) fn send(&mut self, from: MemberIndex, to: MemberIndex, now: u64) -> Arrivals {
        let Some(link) = self.links.get_mut(from * PLACES + to) else { return [None; 2] };
        if link.random.per_mille(self.loss) {
            return [None; 2];
        }
        let twice = link.random.per_mille(self.duplication);
        let mut arrive = || {
            let mut at = now + 1 + link.random.below(self.delay);
            if !self.reordering {
                at = at.max(link.last);
                link.last = at;
            }
            at
        };
        [Some(arrive()), twice.then(arrive)]
    }

    /// Asked when a message arrives: a cut loses what is on its way.
    pub(crate) fn is_cut(&self, from: MemberIndex, to: MemberIndex) -> bool {
        !self.cuts.is_empty() && self.cuts.contains(&(from, to))
    }

    pub(crate) fn cut(&mut self, from: MemberIndex, to: MemberIndex) {
        self.cuts.insert((from, to));
    }

    /// Cuts both ways between every pair of which this is true.
    pub(crate) fn cut_where(
        &mut self,
        members: usize,
        apart: impl Fn(MemberIndex, MemberIndex) -> bool,
    ) {
        for from in 0..members {
            for to in 0..members {
                if from != to && apart(from, to) {
                    self.cut(from, to);
                }
            }
        }
    }

    pub(crate) fn reconnect(&mut self) {
        self.cuts.clear();
    }

    /// From now on everything arrives, once and in order.
    pub(crate) fn heal(&mut self) {
        self.reconnect();
        self.loss = 0;
        self.duplication = 0;
        self.reordering = false;
        self.delay = self.delay.min(300);
    }
}
