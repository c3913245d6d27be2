//! When a step may happen. Time is cut at the returns: phase `p` ends with the return
//! of one step, which must have happened by then. A step is open from its call to its
//! return, and happens in one of the phases in which it is open.
//!
//! A step of unknown outcome has no return. It is closed once nobody can tell any more
//! whether it happened, which keeps the phases small however many there are.

use std::collections::HashMap;

use super::objects::{Expects, Number, Place, Step};

#[derive(Debug, Default)]
pub(super) struct Timeline {
    phases: Vec<Phase>,
    open: Vec<u32>,
    freed: Vec<u32>,
    /// The bit that says of an open step that it has happened.
    bits: Vec<u32>,
    bit_count: u32,
}

/// One phase; lists of all phases stand in one row and this says where its own end.
#[derive(Clone, Copy, Debug)]
struct Phase {
    returns: u32,
    open_end: usize,
    freed_end: usize,
}

impl Timeline {
    /// Steps are given in the order of their calls.
    pub(super) fn new(steps: &[Step]) -> Self {
        let closings = closings(steps);
        let mut returns: Vec<u32> =
            (0..steps.len() as u32).filter(|at| !steps[*at as usize].is_unknown()).collect();
        returns.sort_by_key(|at| steps[*at as usize].returned);
        let mut timeline = Self { bits: vec![0; steps.len()], ..Self::default() };
        let mut sweep = Sweep { steps, closings, next: 0, open: Vec::new(), free: Vec::new() };
        for step in returns {
            sweep.lay_out_phase(&mut timeline, step);
        }
        timeline
    }

    pub(super) fn len(&self) -> usize {
        self.phases.len()
    }

    /// The step whose return ends the phase.
    pub(super) fn returns(&self, phase: usize) -> u32 {
        self.phases[phase].returns
    }

    /// Who can happen in the phase, the most urgent first.
    pub(super) fn open(&self, phase: usize) -> &[u32] {
        let start = phase.checked_sub(1).map_or(0, |before| self.phases[before].open_end);
        &self.open[start..self.phases[phase].open_end]
    }

    /// Bits that mean nothing before this phase begins: of steps closed since.
    pub(super) fn freed_before(&self, phase: usize) -> &[u32] {
        let start = phase.checked_sub(1).map_or(0, |before| self.phases[before].freed_end);
        &self.freed[start..self.phases[phase].freed_end]
    }

    pub(super) fn bit(&self, step: u32) -> u32 {
        self.bits[step as usize]
    }

    pub(super) fn bit_count(&self) -> u32 {
        self.bit_count
    }
}

/// The walk through time that lays out the phases.
struct Sweep<'a> {
    steps: &'a [Step],
    /// For each step the time after which it need not be looked at.
    closings: Vec<u64>,
    /// The first step not yet called.
    next: usize,
    /// Steps by time of return.
    open: Vec<(u64, u32)>,
    free: Vec<u32>,
}

impl Sweep<'_> {
    fn lay_out_phase(&mut self, timeline: &mut Timeline, returns: u32) {
        let end = self.steps[returns as usize].returned;
        self.close_before(timeline, end);
        while self.next < self.steps.len() && self.steps[self.next].called <= end {
            if self.closings[self.next] >= end {
                self.open_next(timeline);
            }
            self.next += 1;
        }
        timeline.open.extend(self.open.iter().map(|(_, step)| *step));
        timeline.phases.push(Phase {
            returns,
            open_end: timeline.open.len(),
            freed_end: timeline.freed.len(),
        });
    }

    fn open_next(&mut self, timeline: &mut Timeline) {
        let entry = (self.steps[self.next].returned, self.next as u32);
        let at = self.open.partition_point(|other| *other < entry);
        self.open.insert(at, entry);
        timeline.bits[self.next] = self.free.pop().unwrap_or_else(|| {
            timeline.bit_count += 1;
            timeline.bit_count - 1
        });
    }

    /// Closes the step of the phase before, and the unknown ones whose time is over.
    fn close_before(&mut self, timeline: &mut Timeline, end: u64) {
        let (closings, free) = (&self.closings, &mut self.free);
        let returned = timeline.phases.last().map(|phase| phase.returns);
        self.open.retain(|(_, step)| {
            let stays = Some(*step) != returned && closings[*step as usize] >= end;
            if !stays {
                timeline.freed.push(timeline.bits[*step as usize]);
                free.push(timeline.bits[*step as usize]);
            }
            stays
        });
    }
}

/// Up to when it can matter whether a step has happened. A known one: until it
/// returns. An unknown one: until the last answer that could tell its value from
/// another one. After that, an order that contains it explains no more than the same
/// order without it.
fn closings(steps: &[Step]) -> Vec<u64> {
    if !steps.iter().any(Step::is_unknown) {
        return steps.iter().map(|step| step.returned).collect();
    }
    let mut witnesses = Witnesses::default();
    steps.iter().for_each(|step| witnesses.add(step));
    let closing = |step: &Step| match step.writes {
        Some((place, value)) if step.is_unknown() => witnesses.last(place, value),
        _ => step.returned,
    };
    steps.iter().map(closing).collect()
}

/// Who looks at which value, and until when. A compare-and-set of unknown outcome
/// looks for ever.
#[derive(Default)]
struct Witnesses {
    of_value: HashMap<(Place, Number), u64>,
    /// Whoever saw that a key did *not* hold some value.
    of_any: HashMap<Place, u64>,
}

impl Witnesses {
    fn add(&mut self, step: &Step) {
        let later = |last: &mut u64| *last = step.returned.max(*last);
        if let Expects::Differs(place, _) = step.expects {
            later(self.of_any.entry(place).or_default());
        }
        for value in step.wanted() {
            later(self.of_value.entry(*value).or_default());
        }
    }

    fn last(&self, place: Place, value: Number) -> u64 {
        let of_value = self.of_value.get(&(place, value)).copied().unwrap_or(0);
        of_value.max(self.of_any.get(&place).copied().unwrap_or(0))
    }
}
