//! The short way: replay an object in the order of its log indexes.
//!
//! Why a yes can be trusted whatever the indexes say: an order is an explanation when
//! it holds every known operation, keeps the order of time, and each answer fits the
//! state that the steps before it left. All three are checked here, so a wrong index
//! can only spoil the attempt. Why a no means nothing: another order may still do.
//! That is then for the search to say.

use std::collections::HashMap;

use super::objects::{ABSENT, Number, Object, Place, Step};

/// Whether the log indexes are an explanation of every answer.
pub(super) fn explains(object: &Object) -> bool {
    let Some(order) = order(&object.steps) else { return false };
    let mut replay = Replay::new(object);
    order.into_iter().all(|step| replay.takes(step))
}

/// All steps with an index, in its order; a read at the same index as a write saw it.
/// None when the index of a known step is missing.
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
    state: Vec<Number>,
    /// The latest call among the steps taken.
    called_max: u64,
    /// Unknown steps without an index, by what they write, not yet taken.
    spare: HashMap<(Place, Number), Vec<&'a Step>>,
}

impl<'a> Replay<'a> {
    fn new(object: &'a Object) -> Self {
        let mut spare: HashMap<_, Vec<&Step>> = HashMap::new();
        // Backwards, so that the one called first is the first to be taken.
        for step in object.steps.iter().rev() {
            if let (true, None, Some(write)) = (step.is_unknown(), step.applied, step.rule.writes) {
                spare.entry(write).or_default().push(step);
            }
        }
        Self { state: vec![ABSENT; object.keys.len()], called_max: 0, spare }
    }

    fn takes(&mut self, step: &Step) -> bool {
        if !step.rule.fits(&self.state) {
            if step.is_unknown() {
                // A compare-and-set that did not swap.
                return true;
            }
            self.take_what_helps(step);
        }
        self.append(step)
    }

    /// A client saw what a step of unknown outcome wrote: so it did happen, before.
    fn take_what_helps(&mut self, step: &Step) {
        for write in step.rule.wanted() {
            if self.state[write.0 as usize] == write.1 {
                continue;
            }
            let state = &self.state;
            let spare = self.spare.get_mut(write);
            let fitting = spare.and_then(|spare| spare.pop_if(|step| step.rule.fits(state)));
            if let Some(unknown) = fitting {
                self.append(unknown);
            }
        }
    }

    /// Puts a step behind those taken, if it fits there and none of them was called
    /// after it had returned.
    fn append(&mut self, step: &Step) -> bool {
        if !step.rule.fits(&self.state) || step.returned < self.called_max {
            return false;
        }
        self.called_max = self.called_max.max(step.called);
        if let Some((place, value)) = step.rule.writes {
            self.state[place as usize] = value;
        }
        true
    }
}
