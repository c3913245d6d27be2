//! The search for an order that explains every answer, depth first.
//!
//! A configuration says which open steps have happened and what state they left. In
//! each phase the search lets open steps happen until the one that returns has. It
//! never visits a configuration twice. What keeps it small, none of it losing an
//! order that exists:
//! - a step that fits and writes nothing happens at once: it can hinder nobody;
//! - of two steps that do the same, the one that returns first goes first;
//! - a step of unknown outcome happens only right before a step that looks at what it
//!   wrote: later is as good as now, and overwritten unseen is as good as never.

use std::collections::HashSet;

use super::objects::{ABSENT, Expects, Number, Object, Place, Step};
use super::timeline::Timeline;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Found,
    /// There is no order.
    Stuck(Stuck),
    OutOfSteps,
}

/// Where every attempt ended, at the latest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stuck {
    /// The first step whose answer cannot be explained along with those before it.
    pub(super) step: usize,
    /// States in which the search met it, a few of them.
    pub(super) states: Vec<Vec<Number>>,
}

/// Looks for an order; says also how many steps that took.
pub(super) fn search(object: &Object, steps_max: u64) -> (Outcome, u64) {
    let timeline = Timeline::new(&object.steps);
    let mut search = Search::new(&object.steps, &timeline, object.keys.len());
    let outcome = search.run(steps_max);
    (outcome, search.steps_taken)
}

struct Search<'a> {
    steps: &'a [Step],
    timeline: &'a Timeline,
    now: Configuration,
    /// Configurations with choices not yet tried.
    frames: Vec<Frame>,
    /// What the frames come back to, and their choices, each in one row.
    saved: Vec<u32>,
    choices: Vec<u32>,
    visited: HashSet<Box<[u32]>>,
    furthest: Furthest,
    steps_taken: u64,
}

#[derive(Clone, Copy)]
struct Frame {
    saved_start: usize,
    choices_start: usize,
}

/// The latest phase that was reached, and states it was reached with.
#[derive(Default)]
struct Furthest {
    phase: usize,
    states: Vec<u32>,
}

impl<'a> Search<'a> {
    fn new(steps: &'a [Step], timeline: &'a Timeline, places: usize) -> Self {
        Self {
            steps,
            timeline,
            now: Configuration::first(places, timeline.bit_count()),
            frames: Vec::new(),
            saved: Vec::new(),
            choices: Vec::new(),
            visited: HashSet::new(),
            furthest: Furthest::default(),
            steps_taken: 0,
        }
    }

    fn run(&mut self, steps_max: u64) -> Outcome {
        while !self.advance() {
            if self.steps_taken == steps_max {
                return Outcome::OutOfSteps;
            }
            self.steps_taken += 1;
            self.furthest.note(&self.now);
            if self.is_new() {
                self.branch();
            }
            let Some(step) = self.next_choice() else {
                return Outcome::Stuck(self.stuck());
            };
            self.happen(step);
        }
        Outcome::Found
    }

    /// Goes on until a choice is due. True when nothing is left to explain.
    fn advance(&mut self) -> bool {
        while self.now.phase() < self.timeline.len() {
            self.read_what_fits();
            let phase = self.now.phase();
            let returns = self.timeline.returns(phase);
            if !self.now.has(self.timeline.bit(returns)) {
                return false;
            }
            self.now.enter(phase + 1);
            if phase + 1 < self.timeline.len() {
                for bit in self.timeline.freed_before(phase + 1) {
                    self.now.unset(*bit);
                }
            }
        }
        true
    }

    fn read_what_fits(&mut self) {
        for &number in self.timeline.open(self.now.phase()) {
            let step = &self.steps[number as usize];
            let bit = self.timeline.bit(number);
            if step.writes.is_none() && !self.now.has(bit) && step.fits(self.now.state()) {
                self.now.set(bit);
                self.now.owe_look(None);
            }
        }
    }

    /// A configuration met while no choice is open is not met again: every later one
    /// follows from it, and steps only ever happen.
    fn is_new(&mut self) -> bool {
        if self.frames.is_empty() {
            return true;
        }
        if self.visited.contains(self.now.words.as_slice()) {
            return false;
        }
        self.visited.insert(self.now.words.as_slice().into())
    }

    /// Notes the choices that there are now, the best guess last.
    fn branch(&mut self) {
        let choices_start = self.choices.len();
        let phase = self.now.phase();
        let open = self.timeline.open(phase);
        for at in (0..open.len()).rev() {
            if self.may_happen(open[at]) && !self.has_twin(open[at], &open[..at]) {
                self.choices.push(open[at]);
            }
        }
        if self.choices.len() == choices_start {
            return;
        }
        let steps = self.steps;
        let waiting = &steps[self.timeline.returns(phase) as usize];
        if !waiting.fits(self.now.state()) {
            let wanted = waiting.wanted();
            let helps = |number: &u32| {
                steps[*number as usize].writes.is_some_and(|write| wanted.contains(&write))
            };
            self.choices[choices_start..].sort_by_key(helps);
        }
        self.frames.push(Frame { saved_start: self.saved.len(), choices_start });
        self.saved.extend_from_slice(&self.now.words);
    }

    fn may_happen(&self, number: u32) -> bool {
        let step = &self.steps[number as usize];
        let Some((place, value)) = step.writes else { return false };
        if self.now.has(self.timeline.bit(number)) || !step.fits(self.now.state()) {
            return false;
        }
        // What changes nothing and may be left out is left out.
        if step.is_unknown() && self.now.state()[place as usize] == value {
            return false;
        }
        match self.now.owed_look() {
            Some(owed) => matches!(step.expects, Expects::Equal((place, _)) if place == owed),
            None => true,
        }
    }

    fn has_twin(&self, number: u32, more_urgent: &[u32]) -> bool {
        let step = &self.steps[number as usize];
        more_urgent.iter().any(|other| {
            let twin = &self.steps[*other as usize];
            twin.writes == step.writes
                && twin.expects == step.expects
                && !self.now.has(self.timeline.bit(*other))
        })
    }

    /// Goes back to the last configuration with a choice left. The last choice of one
    /// takes its frame away, so a run without real choices needs no memory.
    fn next_choice(&mut self) -> Option<u32> {
        let frame = *self.frames.last()?;
        let choice = self.choices.pop();
        self.now.words.copy_from_slice(&self.saved[frame.saved_start..]);
        if self.choices.len() == frame.choices_start {
            self.frames.pop();
            self.saved.truncate(frame.saved_start);
        }
        choice
    }

    fn happen(&mut self, number: u32) {
        let step = &self.steps[number as usize];
        self.now.set(self.timeline.bit(number));
        if let Some((place, value)) = step.writes {
            self.now.write(place, value);
            self.now.owe_look(step.is_unknown().then_some(place));
        }
    }

    fn stuck(&self) -> Stuck {
        let Furthest { phase, states } = &self.furthest;
        Stuck {
            step: self.timeline.returns(*phase) as usize,
            states: states.chunks(self.now.places).map(<[u32]>::to_vec).collect(),
        }
    }
}

impl Furthest {
    fn note(&mut self, now: &Configuration) {
        if now.phase() < self.phase || now.owed_look().is_some() {
            return;
        }
        if now.phase() > self.phase {
            self.phase = now.phase();
            self.states.clear();
        }
        let is_full = self.states.len() >= STATES_MAX * now.places;
        if !is_full && !self.states.chunks(now.places).any(|state| state == now.state()) {
            self.states.extend_from_slice(now.state());
        }
    }
}

/// States of a violation that a reader is shown.
const STATES_MAX: usize = 4;

/// Where the search stands, in one row of words so that it is copied and hashed as
/// one: the phase, the look that is owed, the state, the bits of open steps.
struct Configuration {
    words: Vec<u32>,
    places: usize,
}

const PHASE: usize = 0;
const OWED: usize = 1;
const STATE: usize = 2;

impl Configuration {
    fn first(places: usize, bit_count: u32) -> Self {
        Self { words: vec![ABSENT; STATE + places + bit_count.div_ceil(32) as usize], places }
    }

    fn phase(&self) -> usize {
        self.words[PHASE] as usize
    }

    fn enter(&mut self, phase: usize) {
        self.words[PHASE] = phase as u32;
    }

    /// The place that an unknown step has just written, until somebody looks there.
    fn owed_look(&self) -> Option<Place> {
        self.words[OWED].checked_sub(1)
    }

    fn owe_look(&mut self, place: Option<Place>) {
        self.words[OWED] = place.map_or(0, |place| place + 1);
    }

    fn state(&self) -> &[Number] {
        &self.words[STATE..STATE + self.places]
    }

    fn write(&mut self, place: Place, value: Number) {
        self.words[STATE + place as usize] = value;
    }

    fn has(&self, bit: u32) -> bool {
        self.words[self.word_of(bit)] & mask(bit) != 0
    }

    fn set(&mut self, bit: u32) {
        let word = self.word_of(bit);
        self.words[word] |= mask(bit);
    }

    fn unset(&mut self, bit: u32) {
        let word = self.word_of(bit);
        self.words[word] &= !mask(bit);
    }

    fn word_of(&self, bit: u32) -> usize {
        STATE + self.places + bit as usize / 32
    }
}

fn mask(bit: u32) -> u32 {
    1 << (bit % 32)
}
