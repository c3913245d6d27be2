//! The fast path: replay an object in the order of its log indexes.
//!
//! A positive result is correct whatever the indexes are: an order explains the replies if
//! it contains every known operation, respects real time, and each reply fits the state
//! after the previous steps. All three are checked here, so wrong indexes can only make
//! the replay fail. A negative result proves nothing, because another order may exist: the
//! search then decides.

use std::collections::HashMap;

use super::objects::{ABSENT, KeyPosition, Object, Step, ValueNumber};

/// Whether the order of the log indexes explains every reply.
pub(super) fn explains(object: &Object) -> bool {
    let Some(order) = order(&object.steps) else { return false };
    let mut replay = Replay::new(object);
    order.into_iter().all(|step| replay.apply(step))
}

/// All steps with an index, ordered by it; a read at the same index comes after the write.
/// None if a known step has no index.
fn order(steps: &[Step]) -> Option<Vec<&Step>> {
    let mut order = Vec::with_capacity(steps.len());
    for step in steps {
        match step.applied {
            Some(index) => order.push((index, step.is_read, step.called, step)),
            None if step.is_unknown() => {}
            None => return None,
        }
    }
    order.sort_by_key(|(index, is_read, called, _)| (*index, *is_read, *called));
    Some(order.into_iter().map(|(.., step)| step).collect())
}

struct Replay<'a> {
    state: Vec<ValueNumber>,
    /// The latest call time among the applied steps.
    called_max: u64,
    /// Unknown steps without an index that are not yet applied, by the value they write.
    unapplied: HashMap<(KeyPosition, ValueNumber), Vec<&'a Step>>,
}

impl<'a> Replay<'a> {
    fn new(object: &'a Object) -> Self {
        let mut unapplied: HashMap<_, Vec<&Step>> = HashMap::new();
        // In reverse, so that the step called first is popped first.
        for step in object.steps.iter().rev() {
            if let (true, None, Some(write)) = (step.is_unknown(), step.applied, step.rule.writes) {
                unapplied.entry(write).or_default().push(step);
            }
        }
        Self { state: vec![ABSENT; object.keys.len()], called_max: 0, unapplied }
    }

    fn apply(&mut self, step: &Step) -> bool {
        if !step.rule.fits(&self.state) {
            if step.is_unknown() {
                // A compare-and-set that failed.
                return true;
            }
            self.apply_unknown_writers(step);
        }
        self.append(step)
    }

    /// A client saw a value that a step of unknown outcome wrote, so that step took effect
    /// before: applies it.
    fn apply_unknown_writers(&mut self, step: &Step) {
        for write in step.rule.required_values() {
            if self.state[write.0 as usize] == write.1 {
                continue;
            }
            let state = &self.state;
            let unapplied = self.unapplied.get_mut(write);
            let fitting =
                unapplied.and_then(|unapplied| unapplied.pop_if(|step| step.rule.fits(state)));
            if let Some(unknown) = fitting {
                self.append(unknown);
            }
        }
    }

    /// Appends a step to the order if it fits the state and returned after all earlier steps
    /// were called.
    fn append(&mut self, step: &Step) -> bool {
        if !step.rule.fits(&self.state) || step.returned < self.called_max {
            return false;
        }
        self.called_max = self.called_max.max(step.called);
        if let Some((position, value)) = step.rule.writes {
            self.state[position as usize] = value;
        }
        true
    }
}
