//! A depth-first search for an order that explains every reply.
//!
//! In each phase it applies open steps until the step that returns is applied. These rules
//! reduce the search without losing an existing order:
//! - no configuration is visited twice, nor again with fewer unknown steps left;
//! - a step that fits and writes nothing is applied at once: it affects no other step;
//! - of two steps with the same effect, the one that returns first is applied first;
//! - a step of unknown outcome is applied only right before a step that reads its value:
//!   a later time is equivalent, and a value that is overwritten unread has no effect;
//! - only steps related to the returning step are choices (see `timeline`).

use std::collections::HashMap;

use super::objects::{ABSENT, KeyPosition, Object, StateCondition, ValueNumber};
use super::timeline::{PhaseChange, Timeline};

/// The result of a search.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SearchOutcome {
    Found,
    /// There is no order.
    Stuck(SearchStuck),
    OutOfSteps,
}

/// The latest phase that any attempt reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SearchStuck {
    /// The first step whose reply cannot be explained together with the earlier ones.
    pub(super) step: usize,
    /// A few of the states in which the search reached it.
    pub(super) states: Vec<Vec<ValueNumber>>,
}

/// Searches for an order. Returns also the number of steps taken.
pub(super) fn search(object: &Object, steps_max: u64) -> (SearchOutcome, u64) {
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
    /// The saved configurations and the choices of all frames, each in one vector.
    saved: Vec<u32>,
    choices: Vec<u32>,
    visited: Visited,
    furthest: Furthest,
    steps_taken: u64,
    /// A step of an object with many keys costs more, so that the step limit also limits
    /// memory.
    step_cost: u64,
}

#[derive(Clone, Copy)]
struct SearchFrame {
    saved_start: usize,
    choices_start: usize,
}

/// The latest phase reached so far, and states at that phase.
#[derive(Default)]
struct Furthest {
    phase: usize,
    states: Vec<u32>,
}

impl<'a> Search<'a> {
    fn new(timeline: &'a Timeline<'a>, positions: usize) -> Self {
        let now = Configuration::first(positions, timeline);
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

    fn run(&mut self, steps_max: u64) -> SearchOutcome {
        self.enter(0);
        while !self.advance() {
            if self.steps_taken >= steps_max {
                return SearchOutcome::OutOfSteps;
            }
            self.steps_taken += self.step_cost;
            self.furthest.note(&self.now);
            if self.is_new() {
                self.branch();
            }
            let Some(step) = self.next_choice() else {
                return SearchOutcome::Stuck(self.stuck());
            };
            self.apply(step);
        }
        SearchOutcome::Found
    }

    /// Continues until a choice is needed. True if every reply is explained.
    fn advance(&mut self) -> bool {
        while self.now.phase() < self.timeline.len() {
            self.apply_fitting_reads();
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
        for change in self.timeline.changes(phase) {
            match *change {
                PhaseChange::Clear { bit } => self.now.clear(bit),
                PhaseChange::Add { counter } => *self.now.counter(counter) += 1,
                PhaseChange::Close { counter, successor } => {
                    let left = std::mem::take(self.now.counter(counter));
                    if let Some(successor) = successor {
                        *self.now.counter(successor) += left;
                    }
                }
            }
        }
    }

    fn apply_fitting_reads(&mut self) {
        let timeline = self.timeline;
        for &number in timeline.open(self.now.phase()) {
            let rule = timeline.rule(number);
            if rule.writes.is_none() && rule.fits(self.now.state()) && self.is_left(number) {
                self.now.set(timeline.slot(number));
                self.now.set_pending_read(None);
            }
        }
    }

    /// Whether a known step is not yet applied, or a class has steps left.
    fn is_left(&self, number: u32) -> bool {
        let slot = self.timeline.slot(number);
        match self.timeline.class(number) {
            Some(_) => self.now.left(slot) > 0,
            None => !self.now.has(slot),
        }
    }

    /// Without open choices a configuration cannot recur, because every later one follows
    /// from it and no step is undone.
    fn is_new(&mut self) -> bool {
        self.frames.is_empty() || self.visited.add(&self.now)
    }

    /// Records the current choices, the most promising last.
    fn branch(&mut self) {
        let choices_start = self.choices.len();
        let phase = self.now.phase();
        let open = self.timeline.open(phase);
        for index in (0..open.len()).rev() {
            if self.may_apply(open[index]) && !self.has_equivalent(open[index], &open[..index]) {
                self.choices.push(open[index]);
            }
        }
        if self.choices.len() == choices_start {
            return;
        }
        let timeline = self.timeline;
        let waiting = timeline.rule(timeline.returns(phase));
        if !waiting.fits(self.now.state()) {
            let writes_required = |number: &u32| {
                timeline
                    .rule(*number)
                    .writes
                    .is_some_and(|write| waiting.required_values().contains(&write))
            };
            self.choices[choices_start..].sort_by_key(writes_required);
        }
        self.frames.push(SearchFrame { saved_start: self.saved.len(), choices_start });
        self.saved.extend_from_slice(&self.now.words);
    }

    fn may_apply(&self, number: u32) -> bool {
        let rule = self.timeline.rule(number);
        let Some((position, value)) = rule.writes else { return false };
        if !self.is_left(number) || !rule.fits(self.now.state()) {
            return false;
        }
        // An optional step without effect is skipped.
        let is_optional = self.timeline.class(number).is_some();
        if is_optional && self.now.state()[position as usize] == value {
            return false;
        }
        match self.now.pending_read() {
            Some(pending) => {
                matches!(rule.condition, StateCondition::Equal((position, _)) if position == pending)
            }
            None => true,
        }
    }

    fn has_equivalent(&self, number: u32, earlier: &[u32]) -> bool {
        let rule = self.timeline.rule(number);
        earlier.iter().any(|other| self.timeline.rule(*other) == rule && self.is_left(*other))
    }

    /// Returns to the last configuration with a choice left. The last choice removes the
    /// frame, so a run without alternatives needs no memory.
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

    fn apply(&mut self, number: u32) {
        let slot = self.timeline.slot(number);
        let is_optional = self.timeline.class(number).is_some();
        if is_optional {
            *self.now.counter(slot) -= 1;
        } else {
            self.now.set(slot);
        }
        if let Some((position, value)) = self.timeline.rule(number).writes {
            self.now.write(position, value);
            let must_be_read = is_optional && !self.needed_by_multi_read((position, value));
            self.now.set_pending_read(must_be_read.then_some(position));
        }
    }

    /// Whether an open step reads several keys and needs this value. It may have to wait for
    /// the other keys, so the value need not be read next.
    fn needed_by_multi_read(&self, write: (KeyPosition, ValueNumber)) -> bool {
        self.timeline.open(self.now.phase()).iter().any(|number| {
            let condition = &self.timeline.rule(*number).condition;
            matches!(condition, StateCondition::AllEqual(all) if all.contains(&write))
                && self.is_left(*number)
        })
    }

    fn stuck(&self) -> SearchStuck {
        let Furthest { phase, states } = &self.furthest;
        SearchStuck {
            step: self.timeline.returns(*phase) as usize,
            states: states.chunks(self.now.positions).map(<[u32]>::to_vec).collect(),
        }
    }
}

/// Visited configurations: all fields except the counters, mapped to the counters seen.
/// More optional steps are never worse, so a configuration with at most as many of them as
/// a visited one leads to no new result.
#[derive(Default)]
struct Visited {
    counters: HashMap<Box<[u32]>, Vec<u32>>,
}

impl Visited {
    /// False if a visited configuration covers this one.
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
        if now.phase() < self.phase || now.pending_read().is_some() {
            return;
        }
        if now.phase() > self.phase {
            self.phase = now.phase();
            self.states.clear();
        }
        let is_full = self.states.len() >= STATES_MAX * now.positions;
        if !is_full && !self.states.chunks(now.positions).any(|state| state == now.state()) {
            self.states.extend_from_slice(now.state());
        }
    }
}

/// A configuration of this size costs two steps instead of one.
const WORDS_PER_STEP: usize = 32;

/// The number of states shown in a violation.
const STATES_MAX: usize = 4;

/// The position of the search, in one vector so that it is copied and hashed as a whole:
/// the phase, the pending read, the state, the bits of known steps, the counters of
/// classes.
struct Configuration {
    words: Vec<u32>,
    positions: usize,
    counters_start: usize,
}

const PHASE: usize = 0;
const PENDING_READ: usize = 1;
const STATE: usize = 2;

impl Configuration {
    fn first(positions: usize, timeline: &Timeline<'_>) -> Self {
        let bit_words = timeline.bit_count.div_ceil(u32::BITS) as usize;
        let counters_start = STATE + positions + bit_words;
        let words = vec![ABSENT; counters_start + timeline.counter_count as usize];
        Self { words, positions, counters_start }
    }

    fn phase(&self) -> usize {
        self.words[PHASE] as usize
    }

    /// The key that an unknown step has just written, until a client reads it.
    fn pending_read(&self) -> Option<KeyPosition> {
        self.words[PENDING_READ].checked_sub(1)
    }

    fn set_pending_read(&mut self, position: Option<KeyPosition>) {
        self.words[PENDING_READ] = position.map_or(0, |position| position + 1);
    }

    fn state(&self) -> &[ValueNumber] {
        &self.words[STATE..STATE + self.positions]
    }

    fn write(&mut self, position: KeyPosition, value: ValueNumber) {
        self.words[STATE + position as usize] = value;
    }

    fn left(&self, counter: u32) -> u32 {
        self.words[self.counters_start + counter as usize]
    }

    fn counter(&mut self, counter: u32) -> &mut u32 {
        &mut self.words[self.counters_start + counter as usize]
    }

    fn has(&self, bit: u32) -> bool {
        self.words[STATE + self.positions + (bit / u32::BITS) as usize] & mask(bit) != 0
    }

    fn set(&mut self, bit: u32) {
        self.words[STATE + self.positions + (bit / u32::BITS) as usize] |= mask(bit);
    }

    fn clear(&mut self, bit: u32) {
        self.words[STATE + self.positions + (bit / u32::BITS) as usize] &= !mask(bit);
    }
}

fn mask(bit: u32) -> u32 {
    1 << (bit % u32::BITS)
}
