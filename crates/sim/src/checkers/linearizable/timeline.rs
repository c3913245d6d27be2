//! When what may happen. Time is cut at the returns: a phase ends with the return of
//! one step, which must have happened by then. A known step is open from its call to
//! its return and happens in one of the phases between.
//!
//! What can happen is a move: a known step, or one of a class of unknown ones. Moves
//! are numbered, the known steps first.

use std::collections::{BTreeSet, HashMap};

use super::objects::{Expects, Place, Rule, Step};
use super::unknown::{Class, Classes};

#[derive(Debug)]
pub(super) struct Timeline<'a> {
    steps: &'a [Step],
    classes: Classes,
    phases: Vec<Phase>,
    /// Lists of all phases stand in one row; each phase says where its own ends.
    open: Vec<u32>,
    turns: Vec<Turn>,
    /// For each move the bit (of a step) or the counter (of a class) that tells whether
    /// it is still to come. Those of moves that are closed are used again.
    slots: Vec<u32>,
    pub(super) bit_count: u32,
    pub(super) counter_count: u32,
}

#[derive(Clone, Copy, Debug)]
struct Phase {
    returns: u32,
    open_end: usize,
    turns_end: usize,
}

/// What changes between two phases, besides what happens.
#[derive(Clone, Copy, Debug)]
pub(super) enum Turn {
    /// A known step is over, and its bit is free.
    Clear { bit: u32 },
    /// One more of a class can happen from now on.
    Add { counter: u32 },
    /// A class is over; its successor takes what is left.
    Close { counter: u32, successor: Option<u32> },
}

impl<'a> Timeline<'a> {
    /// Steps are given in the order of their calls.
    pub(super) fn new(steps: &'a [Step]) -> Self {
        let classes = Classes::new(steps);
        let slots = vec![NO_SLOT; steps.len() + classes.all.len()];
        let mut sweep = Sweep {
            timeline: Self {
                steps,
                classes,
                phases: Vec::new(),
                open: Vec::new(),
                turns: Vec::new(),
                slots,
                bit_count: 0,
                counter_count: 0,
            },
            next: 0,
            open_steps: Vec::new(),
            open_classes: BTreeSet::new(),
            open_at: HashMap::new(),
            free_bits: Vec::new(),
            free_counters: Vec::new(),
        };
        let mut returns: Vec<u32> =
            (0..steps.len() as u32).filter(|at| !steps[*at as usize].is_unknown()).collect();
        returns.sort_by_key(|at| steps[*at as usize].returned);
        returns.into_iter().for_each(|step| sweep.lay_out_phase(step));
        sweep.timeline
    }

    pub(super) fn len(&self) -> usize {
        self.phases.len()
    }

    /// The step whose return ends the phase.
    pub(super) fn returns(&self, phase: usize) -> u32 {
        self.phases[phase].returns
    }

    /// What may happen in the phase: the steps, the most urgent first, then the classes
    /// that a client could notice.
    pub(super) fn open(&self, phase: usize) -> &[u32] {
        let start = phase.checked_sub(1).map_or(0, |before| self.phases[before].open_end);
        &self.open[start..self.phases[phase].open_end]
    }

    /// What changes when the phase begins.
    pub(super) fn turns(&self, phase: usize) -> &[Turn] {
        let start = phase.checked_sub(1).map_or(0, |before| self.phases[before].turns_end);
        &self.turns[start..self.phases[phase].turns_end]
    }

    pub(super) fn rule(&self, number: u32) -> &Rule {
        match self.class(number) {
            Some(class) => &class.rule,
            None => &self.steps[number as usize].rule,
        }
    }

    /// None for a known step.
    pub(super) fn class(&self, number: u32) -> Option<&Class> {
        let at = (number as usize).checked_sub(self.steps.len())?;
        self.classes.all.get(at)
    }

    pub(super) fn slot(&self, number: u32) -> u32 {
        self.slots[number as usize]
    }
}

const NO_SLOT: u32 = u32::MAX;

/// The walk through time that lays out the phases.
struct Sweep<'a> {
    timeline: Timeline<'a>,
    /// The first step not yet called.
    next: usize,
    /// Known steps, by time of return.
    open_steps: Vec<(u64, u32)>,
    /// Classes, by time of closing.
    open_classes: BTreeSet<(u64, u32)>,
    open_at: HashMap<Place, BTreeSet<u32>>,
    free_bits: Vec<u32>,
    free_counters: Vec<u32>,
}

impl Sweep<'_> {
    fn lay_out_phase(&mut self, returns: u32) {
        let steps = self.timeline.steps;
        let end = steps[returns as usize].returned;
        if let Some(before) = self.timeline.phases.last() {
            self.close_step(before.returns);
        }
        self.close_classes_before(end);
        while self.next < steps.len() && steps[self.next].called <= end {
            match self.timeline.classes.of_step(self.next as u32) {
                Some(class) => self.call_one_of(class, end),
                None => self.open_step(self.next as u32),
            }
            self.next += 1;
        }
        let steps_near = self.steps_near(returns);
        let noticed = self.classes_noticed_by(&steps_near);
        let timeline = &mut self.timeline;
        timeline.open.extend(steps_near);
        timeline.open.extend(noticed.iter().map(|class| class + steps.len() as u32));
        timeline.phases.push(Phase {
            returns,
            open_end: timeline.open.len(),
            turns_end: timeline.turns.len(),
        });
    }

    fn open_step(&mut self, step: u32) {
        let entry = (self.timeline.steps[step as usize].returned, step);
        let at = self.open_steps.partition_point(|other| *other < entry);
        self.open_steps.insert(at, entry);
        let count = &mut self.timeline.bit_count;
        self.timeline.slots[step as usize] = take_slot(&mut self.free_bits, count);
    }

    fn close_step(&mut self, step: u32) {
        self.open_steps.retain(|(_, other)| *other != step);
        let bit = self.timeline.slot(step);
        self.timeline.turns.push(Turn::Clear { bit });
        self.free_bits.push(bit);
    }

    fn call_one_of(&mut self, class: u32, end: u64) {
        let Class { closing, successor, .. } = self.timeline.classes.all[class as usize];
        if closing >= end {
            let counter = self.counter(class);
            self.timeline.turns.push(Turn::Add { counter });
        } else if let Some(successor) = successor {
            self.call_one_of(successor, end);
        }
    }

    /// The counter of a class, which is open from now on if it was not.
    fn counter(&mut self, class: u32) -> u32 {
        let Class { closing, place, .. } = self.timeline.classes.all[class as usize];
        let at = self.timeline.steps.len() + class as usize;
        if self.timeline.slots[at] == NO_SLOT {
            let count = &mut self.timeline.counter_count;
            self.timeline.slots[at] = take_slot(&mut self.free_counters, count);
            self.open_classes.insert((closing, class));
            self.open_at.entry(place).or_default().insert(class);
        }
        self.timeline.slots[at]
    }

    fn close_classes_before(&mut self, end: u64) {
        while let Some(&(closing, class)) = self.open_classes.first() {
            if closing >= end {
                break;
            }
            self.open_classes.pop_first();
            let Class { place, successor, .. } = self.timeline.classes.all[class as usize];
            self.open_at.entry(place).or_default().remove(&class);
            let still_open =
                |successor: &u32| self.timeline.classes.all[*successor as usize].closing >= end;
            let successor = successor.filter(still_open).map(|successor| self.counter(successor));
            let counter = self.counter(class);
            self.timeline.turns.push(Turn::Close { counter, successor });
            self.free_counters.push(counter);
        }
    }

    /// Open steps that could make a difference to this one: those at its places, and at
    /// places that an open step reads together with these. All the others can as well
    /// wait until it has happened.
    fn steps_near(&self, returns: u32) -> Vec<u32> {
        let rule = |step: u32| &self.timeline.steps[step as usize].rule;
        let mut near: Vec<Place> = rule(returns).places().collect();
        let open = self.open_steps.iter().map(|(_, step)| *step);
        let is_wide = |step: &u32| matches!(rule(*step).expects, Expects::AllEqual(_));
        let mut wide: Vec<u32> = open.clone().filter(is_wide).collect();
        let is_near =
            |near: &[Place], step: u32| rule(step).places().any(|place| near.contains(&place));
        while let Some(at) = wide.iter().position(|step| is_near(&near, *step)) {
            near.extend(rule(wide.swap_remove(at)).places());
        }
        open.filter(|step| is_near(&near, *step)).collect()
    }

    /// Open classes whose effect one of these steps looks for, itself or through others.
    fn classes_noticed_by(&self, steps: &[u32]) -> BTreeSet<u32> {
        let mut noticed = BTreeSet::new();
        if self.open_classes.is_empty() {
            return noticed;
        }
        let mut queue = Vec::new();
        for step in steps {
            let rule = &self.timeline.steps[*step as usize].rule;
            rule.wanted().iter().for_each(|write| self.add_writers(*write, &mut queue));
            if let Expects::Differs((place, _)) = rule.expects {
                queue.extend(self.open_at.get(&place).into_iter().flatten());
            }
        }
        while let Some(class) = queue.pop() {
            if noticed.insert(class) {
                let rule = &self.timeline.classes.all[class as usize].rule;
                rule.wanted().iter().for_each(|write| self.add_writers(*write, &mut queue));
            }
        }
        noticed
    }

    fn add_writers(&self, write: (Place, u32), queue: &mut Vec<u32>) {
        let writers = self.timeline.classes.writing(write).iter();
        queue.extend(writers.filter(|class| {
            let closing = self.timeline.classes.all[**class as usize].closing;
            self.open_classes.contains(&(closing, **class))
        }));
    }
}

fn take_slot(free: &mut Vec<u32>, count: &mut u32) -> u32 {
    free.pop().unwrap_or_else(|| {
        *count += 1;
        *count - 1
    })
}
