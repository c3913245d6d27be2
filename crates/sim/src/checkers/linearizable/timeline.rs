//! When each step may take effect. Returns divide time into phases: a phase ends with the
//! return of one step, which must have taken effect by then. A known step is open from its
//! call to its return and takes effect in one of the phases between.
//!
//! A move is a known step, or one step of a class of unknown ones. Moves are numbered, the
//! known steps first.

use std::collections::{BTreeSet, HashMap};

use super::objects::{KeyPosition, Rule, StateCondition, Step};
use super::unknown::{UnknownClass, UnknownClasses};

#[derive(Debug)]
pub(super) struct Timeline<'a> {
    steps: &'a [Step],
    classes: UnknownClasses,
    phases: Vec<Phase>,
    /// The lists of all phases in one vector; each phase stores the end of its own part.
    open: Vec<u32>,
    changes: Vec<PhaseChange>,
    /// For each move the bit (of a step) or the counter (of a class) that shows whether it
    /// is left. Those of closed moves are reused.
    slots: Vec<u32>,
    pub(super) bit_count: u32,
    pub(super) counter_count: u32,
}

#[derive(Clone, Copy, Debug)]
struct Phase {
    returns: u32,
    open_end: usize,
    changes_end: usize,
}

/// A change of the configuration at the start of a phase.
#[derive(Clone, Copy, Debug)]
pub(super) enum PhaseChange {
    /// A known step has returned; its bit is free.
    Clear { bit: u32 },
    /// One more step of a class is available.
    Add { counter: u32 },
    /// A class closes; its successor takes over the remaining steps.
    Close { counter: u32, successor: Option<u32> },
}

impl<'a> Timeline<'a> {
    /// Steps are given in the order of their calls.
    pub(super) fn new(steps: &'a [Step]) -> Self {
        let classes = UnknownClasses::new(steps);
        let slots = vec![NO_SLOT; steps.len() + classes.all.len()];
        let mut builder = TimelineBuilder {
            timeline: Self {
                steps,
                classes,
                phases: Vec::new(),
                open: Vec::new(),
                changes: Vec::new(),
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
            (0..steps.len() as u32).filter(|step| !steps[*step as usize].is_unknown()).collect();
        returns.sort_by_key(|step| steps[*step as usize].returned);
        returns.into_iter().for_each(|step| builder.add_phase(step));
        builder.timeline
    }

    pub(super) fn len(&self) -> usize {
        self.phases.len()
    }

    /// The step whose return ends the phase.
    pub(super) fn returns(&self, phase: usize) -> u32 {
        self.phases[phase].returns
    }

    /// The moves of the phase: the steps by return time, then the classes that a client
    /// could observe.
    pub(super) fn open(&self, phase: usize) -> &[u32] {
        let start = phase.checked_sub(1).map_or(0, |before| self.phases[before].open_end);
        &self.open[start..self.phases[phase].open_end]
    }

    /// The changes at the start of the phase.
    pub(super) fn changes(&self, phase: usize) -> &[PhaseChange] {
        let start = phase.checked_sub(1).map_or(0, |before| self.phases[before].changes_end);
        &self.changes[start..self.phases[phase].changes_end]
    }

    pub(super) fn rule(&self, number: u32) -> &Rule {
        match self.class(number) {
            Some(class) => &class.rule,
            None => &self.steps[number as usize].rule,
        }
    }

    /// None for a known step.
    pub(super) fn class(&self, number: u32) -> Option<&UnknownClass> {
        let index = (number as usize).checked_sub(self.steps.len())?;
        self.classes.all.get(index)
    }

    pub(super) fn slot(&self, number: u32) -> u32 {
        self.slots[number as usize]
    }
}

const NO_SLOT: u32 = u32::MAX;

/// Builds the phases in order of time.
struct TimelineBuilder<'a> {
    timeline: Timeline<'a>,
    /// The first step not yet called.
    next: usize,
    /// Known steps, by time of return.
    open_steps: Vec<(u64, u32)>,
    /// Classes of operations with unknown outcome, by time of closing.
    open_classes: BTreeSet<(u64, u32)>,
    open_at: HashMap<KeyPosition, BTreeSet<u32>>,
    free_bits: Vec<u32>,
    free_counters: Vec<u32>,
}

impl TimelineBuilder<'_> {
    fn add_phase(&mut self, returns: u32) {
        let steps = self.timeline.steps;
        let end = steps[returns as usize].returned;
        if let Some(before) = self.timeline.phases.last() {
            self.close_step(before.returns);
        }
        self.close_classes_before(end);
        while self.next < steps.len() && steps[self.next].called <= end {
            match self.timeline.classes.of_step(self.next as u32) {
                Some(class) => self.add_one(class, end),
                None => self.open_step(self.next as u32),
            }
            self.next += 1;
        }
        let related_steps = self.related_steps(returns);
        let observed = self.classes_observed_by(&related_steps);
        let timeline = &mut self.timeline;
        timeline.open.extend(related_steps);
        timeline.open.extend(observed.iter().map(|class| class + steps.len() as u32));
        timeline.phases.push(Phase {
            returns,
            open_end: timeline.open.len(),
            changes_end: timeline.changes.len(),
        });
    }

    fn open_step(&mut self, step: u32) {
        let entry = (self.timeline.steps[step as usize].returned, step);
        let index = self.open_steps.partition_point(|other| *other < entry);
        self.open_steps.insert(index, entry);
        let count = &mut self.timeline.bit_count;
        self.timeline.slots[step as usize] = take_slot(&mut self.free_bits, count);
    }

    fn close_step(&mut self, step: u32) {
        self.open_steps.retain(|(_, other)| *other != step);
        let bit = self.timeline.slot(step);
        self.timeline.changes.push(PhaseChange::Clear { bit });
        self.free_bits.push(bit);
    }

    fn add_one(&mut self, class: u32, end: u64) {
        let UnknownClass { closing, successor, .. } = self.timeline.classes.all[class as usize];
        if closing >= end {
            let counter = self.counter(class);
            self.timeline.changes.push(PhaseChange::Add { counter });
        } else if let Some(successor) = successor {
            self.add_one(successor, end);
        }
    }

    /// The counter of a class. Opens the class if it is not open.
    fn counter(&mut self, class: u32) -> u32 {
        let UnknownClass { closing, position, .. } = self.timeline.classes.all[class as usize];
        let number = self.timeline.steps.len() + class as usize;
        if self.timeline.slots[number] == NO_SLOT {
            let count = &mut self.timeline.counter_count;
            self.timeline.slots[number] = take_slot(&mut self.free_counters, count);
            self.open_classes.insert((closing, class));
            self.open_at.entry(position).or_default().insert(class);
        }
        self.timeline.slots[number]
    }

    fn close_classes_before(&mut self, end: u64) {
        while let Some(&(closing, class)) = self.open_classes.first() {
            if closing >= end {
                break;
            }
            self.open_classes.pop_first();
            let UnknownClass { position, successor, .. } =
                self.timeline.classes.all[class as usize];
            self.open_at.entry(position).or_default().remove(&class);
            let still_open =
                |successor: &u32| self.timeline.classes.all[*successor as usize].closing >= end;
            let successor = successor.filter(still_open).map(|successor| self.counter(successor));
            let counter = self.counter(class);
            self.timeline.changes.push(PhaseChange::Close { counter, successor });
            self.free_counters.push(counter);
        }
    }

    /// Open steps that could affect this one: those with the same keys, and with keys that an
    /// open step reads together with these. All others can wait until it has taken effect.
    fn related_steps(&self, returns: u32) -> Vec<u32> {
        let rule = |step: u32| &self.timeline.steps[step as usize].rule;
        let mut related: Vec<KeyPosition> = rule(returns).positions().collect();
        let open = self.open_steps.iter().map(|(_, step)| *step);
        let is_multi_read =
            |step: &u32| matches!(rule(*step).condition, StateCondition::AllEqual(_));
        let mut multi_reads: Vec<u32> = open.clone().filter(is_multi_read).collect();
        let is_related = |related: &[KeyPosition], step: u32| {
            rule(step).positions().any(|position| related.contains(&position))
        };
        while let Some(index) = multi_reads.iter().position(|step| is_related(&related, *step)) {
            related.extend(rule(multi_reads.swap_remove(index)).positions());
        }
        open.filter(|step| is_related(&related, *step)).collect()
    }

    /// Open classes whose effect one of these steps observes, directly or through other
    /// classes.
    fn classes_observed_by(&self, steps: &[u32]) -> BTreeSet<u32> {
        let mut observed = BTreeSet::new();
        if self.open_classes.is_empty() {
            return observed;
        }
        let mut queue = Vec::new();
        for step in steps {
            let rule = &self.timeline.steps[*step as usize].rule;
            rule.required_values().iter().for_each(|write| self.add_writers(*write, &mut queue));
            if let StateCondition::Differs((position, _)) = rule.condition {
                queue.extend(self.open_at.get(&position).into_iter().flatten());
            }
        }
        while let Some(class) = queue.pop() {
            if observed.insert(class) {
                let rule = &self.timeline.classes.all[class as usize].rule;
                rule.required_values()
                    .iter()
                    .for_each(|write| self.add_writers(*write, &mut queue));
            }
        }
        observed
    }

    fn add_writers(&self, write: (KeyPosition, u32), queue: &mut Vec<u32>) {
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
