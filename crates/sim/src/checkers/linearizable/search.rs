//! The search for an order that explains every answer, depth first.
//!
//! In each phase it lets open steps happen until the one that returns has. What keeps
//! it small loses no order that exists:
//! - nothing is looked at twice, nor again with fewer unknown steps to come;
//! - a step that fits and writes nothing happens at once: it hinders no other step;
//! - of two moves that do the same, the one that returns first goes first;
//! - a step of unknown outcome happens only right before a step that looks at what it
//!   wrote: later is as good as now, and overwritten unseen is as good as never;
//! - only what is near the step that returns is a choice (see `timeline`).

use std::collections::HashMap;

use super::objects::{ABSENT, Expects, Number, Object, Place};
use super::timeline::{Timeline, Turn};

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Found,
    /// There is no order.
    SearchStuck(SearchStuck),
    OutOfSteps,
}

/// Where every attempt ended, at the latest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SearchStuck {
    /// The first step whose answer cannot be explained along with those before it.
    pub(super) step: usize,
    /// States in which the search met it, a few of them.
    pub(super) states: Vec<Vec<Number>>,
}

/// Looks for an order; says also how many steps that took.
pub(super) fn search(object: &Object, steps_max: u64) -> (Outcome, u64) {
    let timeline = Timeline::new(&object.steps);
    let mut search = Search::new(&timeline, object.keys.len());
    let outcome = search.run(steps_max);
    (outcome, search.steps_taken)
}

struct Search<'a> {
    timeline: &'a Timeline<'a>,
    now: Configuration,
    /// Configurations with choices not yet tried.
    frames: Vec<SearchFrame>,
    /// What the frames come back to, and their choices, each in one row.
    saved: Vec<u32>,
    choices: Vec<u32>,
    visited: Visited,
    furthest: Furthest,
    steps_taken: u64,
    /// Steps of a wide object count for more, so that a number of steps is also a limit
    /// of memory.
    step_cost: u64,
}

#[derive(Clone, Copy)]
struct SearchFrame {
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
    fn new(timeline: &'a Timeline<'a>, places: usize) -> Self {
        let now = Configuration::first(places, timeline);
        Self {
            timeline,
            step_cost: 1 + (now.words.len() / WORDS_PER_STEP) as u64,
            now,
            frames: Vec::new(),
            saved: Vec::new(),
            choices: Vec::new(),
            visited: Visited::default(),
            furthest: Furthest::default(),
            steps_taken: 0,
        }
    }

    fn run(&mut self, steps_max: u64) -> Outcome {
        self.enter(0);
        while !self.advance() {
            if self.steps_taken >= steps_max {
                return Outcome::OutOfSteps;
            }
            self.steps_taken += self.step_cost;
            self.furthest.note(&self.now);
            if self.is_new() {
                self.branch();
            }
            let Some(step) = self.next_choice() else {
                return Outcome::SearchStuck(self.stuck());
            };
            self.happen(step);
        }
        Outcome::Found
    }

    /// Continues until a choice is due. True when nothing is left to explain.
    fn advance(&mut self) -> bool {
        while self.now.phase() < self.timeline.len() {
            self.read_what_fits();
            let phase = self.now.phase();
            if self.is_left(self.timeline.returns(phase)) {
                return false;
            }
            self.enter(phase + 1);
        }
        true
    }

    fn enter(&mut self, phase: usize) {
        self.now.words[PHASE] = phase as u32;
        if phase == self.timeline.len() {
            return;
        }
        for turn in self.timeline.turns(phase) {
            match *turn {
                Turn::Clear { bit } => self.now.clear(bit),
                Turn::Add { counter } => *self.now.counter(counter) += 1,
                Turn::Close { counter, successor } => {
                    let left = std::mem::take(self.now.counter(counter));
                    if let Some(successor) = successor {
                        *self.now.counter(successor) += left;
                    }
                }
            }
        }
    }

    fn read_what_fits(&mut self) {
        let timeline = self.timeline;
        for &number in timeline.open(self.now.phase()) {
            let rule = timeline.rule(number);
            if rule.writes.is_none() && rule.fits(self.now.state()) && self.is_left(number) {
                self.now.set(timeline.slot(number));
                self.now.owe_look(None);
            }
        }
    }

    /// A known step that has not happened, or a class of which there is one left.
    fn is_left(&self, number: u32) -> bool {
        let slot = self.timeline.slot(number);
        match self.timeline.class(number) {
            Some(_) => self.now.left(slot) > 0,
            None => !self.now.has(slot),
        }
    }

    /// A configuration met while no choice is open is not met again: every later one
    /// follows from it, and steps only ever happen.
    fn is_new(&mut self) -> bool {
        self.frames.is_empty() || self.visited.add(&self.now)
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
        let timeline = self.timeline;
        let waiting = timeline.rule(timeline.returns(phase));
        if !waiting.fits(self.now.state()) {
            let brings = |number: &u32| {
                timeline.rule(*number).writes.is_some_and(|it| waiting.wanted().contains(&it))
            };
            self.choices[choices_start..].sort_by_key(brings);
        }
        self.frames.push(SearchFrame { saved_start: self.saved.len(), choices_start });
        self.saved.extend_from_slice(&self.now.words);
    }

    fn may_happen(&self, number: u32) -> bool {
        let rule = self.timeline.rule(number);
        let Some((place, value)) = rule.writes else { return false };
        if !self.is_left(number) || !rule.fits(self.now.state()) {
            return false;
        }
        // What changes nothing and may be left out is left out.
        let is_optional = self.timeline.class(number).is_some();
        if is_optional && self.now.state()[place as usize] == value {
            return false;
        }
        match self.now.owed_look() {
            Some(owed) => matches!(rule.expects, Expects::Equal((place, _)) if place == owed),
            None => true,
        }
    }

    fn has_twin(&self, number: u32, more_urgent: &[u32]) -> bool {
        let rule = self.timeline.rule(number);
        more_urgent.iter().any(|other| self.timeline.rule(*other) == rule && self.is_left(*other))
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
        let slot = self.timeline.slot(number);
        let is_optional = self.timeline.class(number).is_some();
        if is_optional {
            *self.now.counter(slot) -= 1;
        } else {
            self.now.set(slot);
        }
        if let Some((place, value)) = self.timeline.rule(number).writes {
            self.now.write(place, value);
            let owes = is_optional && !self.waits_with_others((place, value));
            self.now.owe_look(owes.then_some(place));
        }
    }

    /// A step that reads several places wants this one as it is now. It may have to wait
    /// for the others, so what was written here need not be looked at next.
    fn waits_with_others(&self, write: (Place, Number)) -> bool {
        self.timeline.open(self.now.phase()).iter().any(|number| {
            let expects = &self.timeline.rule(*number).expects;
            matches!(expects, Expects::AllEqual(all) if all.contains(&write))
                && self.is_left(*number)
        })
    }

    fn stuck(&self) -> SearchStuck {
        let Furthest { phase, states } = &self.furthest;
        SearchStuck {
            step: self.timeline.returns(*phase) as usize,
            states: states.chunks(self.now.places).map(<[u32]>::to_vec).collect(),
        }
    }
}

/// Configurations that were looked at: all but their counters, and for each of these
/// the counters it had. More steps that may happen but need not are never worse, so
/// one with at most as many of them as another leads nowhere that the other does not.
#[derive(Default)]
struct Visited {
    counters: HashMap<Box<[u32]>, Vec<u32>>,
}

impl Visited {
    /// False when there is nothing new to find.
    fn add(&mut self, now: &Configuration) -> bool {
        let (rest, counters) = now.words.split_at(now.counters_start);
        let Some(known) = self.counters.get_mut(rest) else {
            self.counters.insert(rest.into(), counters.to_vec());
            return true;
        };
        let covers = |known: &[u32]| known.iter().zip(counters).all(|(known, new)| known >= new);
        if counters.is_empty() || known.chunks(counters.len()).any(covers) {
            return false;
        }
        known.extend_from_slice(counters);
        true
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

/// So wide a configuration is twice the work of the smallest.
const WORDS_PER_STEP: usize = 32;

/// States of a violation that a reader is shown.
const STATES_MAX: usize = 4;

/// Where the search stands, in one row of words so that it is copied and hashed as
/// one: the phase, the look that is owed, the state, the bits of known steps, the
/// counters of classes.
struct Configuration {
    words: Vec<u32>,
    places: usize,
    counters_start: usize,
}

const PHASE: usize = 0;
const OWED: usize = 1;
const STATE: usize = 2;

impl Configuration {
    fn first(places: usize, timeline: &Timeline<'_>) -> Self {
        let bit_words = timeline.bit_count.div_ceil(u32::BITS) as usize;
        let counters_start = STATE + places + bit_words;
        let words = vec![ABSENT; counters_start + timeline.counter_count as usize];
        Self { words, places, counters_start }
    }

    fn phase(&self) -> usize {
        self.words[PHASE] as usize
    }

    /// The place that an unknown step has just written, until a client looks there.
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

    fn left(&self, counter: u32) -> u32 {
        self.words[self.counters_start + counter as usize]
    }

    fn counter(&mut self, counter: u32) -> &mut u32 {
        &mut self.words[self.counters_start + counter as usize]
    }

    fn has(&self, bit: u32) -> bool {
        self.words[STATE + self.places + (bit / u32::BITS) as usize] & mask(bit) != 0
    }

    fn set(&mut self, bit: u32) {
        self.words[STATE + self.places + (bit / u32::BITS) as usize] |= mask(bit);
    }

    fn clear(&mut self, bit: u32) {
        self.words[STATE + self.places + (bit / u32::BITS) as usize] &= !mask(bit);
    }
}

fn mask(bit: u32) -> u32 {
    1 << (bit % u32::BITS)
}
