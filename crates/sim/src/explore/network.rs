//! Links between members: how long a message takes, whether it arrives, how often.

use std::collections::{BTreeMap, BTreeSet};

use super::heal::DELAY_MAX;
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
    /// From here, to there: every message takes so much longer.
    slow: BTreeMap<(MemberIndex, MemberIndex), u64>,
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
            slow: BTreeMap::new(),
        }
    }

    pub(crate) fn send(&mut self, from: MemberIndex, to: MemberIndex, now: u64) -> Arrivals {
        let Some(link) = self.links.get_mut(from * PLACES + to) else { return [None; 2] };
        if link.random.per_mille(self.loss) {
            return [None; 2];
        }
        let twice = link.random.per_mille(self.duplication);
        let more = if self.slow.is_empty() { None } else { self.slow.get(&(from, to)) };
        let more = more.copied().unwrap_or(0);
        let mut arrive = || {
            let mut at = now + 1 + more + link.random.below(self.delay);
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

    /// Every message from here to there takes so much longer.
    pub(crate) fn slow_down(&mut self, from: MemberIndex, to: MemberIndex, more: u64) {
        self.slow.insert((from, to), more);
    }

    /// The links of this member are as fast as the others.
    pub(crate) fn relieve(&mut self, member: MemberIndex) {
        self.slow.retain(|(from, to), _| *from != member && *to != member);
    }

    pub(crate) fn reconnect(&mut self) {
        self.cuts.clear();
    }

    /// From now on everything arrives, once and in order.
    pub(crate) fn heal(&mut self) {
        self.reconnect();
        self.slow.clear();
        self.loss = 0;
        self.duplication = 0;
        self.reordering = false;
        self.delay = self.delay.min(DELAY_MAX);
    }
}
