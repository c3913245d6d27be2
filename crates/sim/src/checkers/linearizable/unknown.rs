//! Steps of unknown outcome, as far as a client can observe them.
//!
//! Such a step may take effect at any time after its call, so it remains a choice until the
//! end. Two rules limit the choices. Steps with the same effect form one class, of which
//! only the remaining number matters. And a class stays open only while a client can observe
//! the value it writes. After that its unconditional writes can only overwrite a value that a
//! client saw disappear. For that they are all equivalent, so they join the class of
//! overwriters of their key.

use std::collections::HashMap;

use super::objects::{KeyPosition, Rule, StateCondition, Step, UNOBSERVED, ValueNumber};

#[derive(Debug)]
pub(super) struct UnknownClass {
    pub(super) rule: Rule,
    pub(super) position: KeyPosition,
    /// The last time at which a client can observe whether one of these took effect.
    pub(super) closing: u64,
    /// The class that takes over the remaining steps then.
    pub(super) successor: Option<u32>,
}

#[derive(Debug, Default)]
pub(super) struct UnknownClasses {
    pub(super) all: Vec<UnknownClass>,
    /// The class of each unknown step.
    of_step: HashMap<u32, u32>,
    by_write: HashMap<(KeyPosition, ValueNumber), Vec<u32>>,
}

impl UnknownClasses {
    pub(super) fn new(steps: &[Step]) -> Self {
        let mut classes = Self::default();
        if steps.iter().any(Step::is_unknown) {
            classes.classify(steps);
            let observations = LastObservations::of(steps);
            classes.close(&observations);
            classes.add_overwriters(&observations);
        }
        classes
    }

    pub(super) fn of_step(&self, step: u32) -> Option<u32> {
        self.of_step.get(&step).copied()
    }

    pub(super) fn writing(&self, write: (KeyPosition, ValueNumber)) -> &[u32] {
        self.by_write.get(&write).map_or(&[], Vec::as_slice)
    }

    fn classify(&mut self, steps: &[Step]) {
        let mut numbers: HashMap<&Rule, u32> = HashMap::new();
        for (step, index) in steps.iter().zip(0..) {
            let Some(write) = step.rule.writes.filter(|_| step.is_unknown()) else { continue };
            let number = *numbers.entry(&step.rule).or_insert_with(|| {
                let number = self.all.len() as u32;
                self.by_write.entry(write).or_default().push(number);
                self.all.push(UnknownClass {
                    rule: step.rule.clone(),
                    position: write.0,
                    closing: 0,
                    successor: None,
                });
                number
            });
            self.of_step.insert(index, number);
        }
    }

    /// A class closes with the last observation of the value it writes. A compare-and-set of
    /// unknown outcome observes its expected value as long as it is open itself.
    fn close(&mut self, observations: &LastObservations) {
        for class in &mut self.all {
            class.closing = observations.last_for(&class.rule);
        }
        let mut queue: Vec<u32> = (0..self.all.len() as u32).collect();
        while let Some(number) = queue.pop() {
            let UnknownClass { rule, closing, .. } = &self.all[number as usize];
            let closing = *closing;
            for required_values in rule.required_values().to_vec() {
                for &writer in self.by_write.get(&required_values).into_iter().flatten() {
                    let writer_class = &mut self.all[writer as usize];
                    if writer_class.closing < closing {
                        writer_class.closing = closing;
                        queue.push(writer);
                    }
                }
            }
        }
    }

    /// A key where a client saw a value disappear gets a class of overwriters, the successor
    /// of every unconditional write to it.
    fn add_overwriters(&mut self, observations: &LastObservations) {
        let mut overwriters: HashMap<KeyPosition, u32> = HashMap::new();
        for number in 0..self.all.len() {
            let position = self.all[number].position;
            let (true, Some(&closing)) = (
                self.all[number].rule.condition == StateCondition::Anything,
                observations.absent_at.get(&position),
            ) else {
                continue;
            };
            let next = self.all.len() as u32;
            let successor = *overwriters.entry(position).or_insert(next);
            if successor == next {
                let rule = Rule {
                    condition: StateCondition::Anything,
                    writes: Some((position, UNOBSERVED)),
                };
                self.all.push(UnknownClass { rule, position, closing, successor: None });
            }
            self.all[number].successor = Some(successor);
        }
    }
}

/// The last return time of a known step that observes something.
#[derive(Default)]
struct LastObservations {
    /// Observes that a key has a value.
    present: HashMap<(KeyPosition, ValueNumber), u64>,
    /// Observes that a key does not have a value.
    absent: HashMap<(KeyPosition, ValueNumber), u64>,
    /// Observes that a key does not have some value.
    absent_at: HashMap<KeyPosition, u64>,
}

impl LastObservations {
    fn of(steps: &[Step]) -> Self {
        let mut observations = Self::default();
        for step in steps.iter().filter(|step| !step.is_unknown()) {
            let later = |last: &mut u64| *last = step.returned.max(*last);
            for required_values in step.rule.required_values() {
                later(observations.present.entry(*required_values).or_default());
            }
            if let StateCondition::Differs((position, value)) = step.rule.condition {
                later(observations.absent.entry((position, value)).or_default());
                later(observations.absent_at.entry(position).or_default());
            }
        }
        observations
    }

    /// The last observation that can distinguish an unconditional write from an overwriter,
    /// or that shows whether a compare-and-set took effect (it can only remove the value that
    /// it expects).
    fn last_for(&self, rule: &Rule) -> u64 {
        let Some(write) = rule.writes else { return 0 };
        let last = |times: &HashMap<_, u64>, key| times.get(&key).copied().unwrap_or(0);
        let absent = match rule.condition {
            StateCondition::Equal(expected) => last(&self.absent, expected),
            _ => last(&self.absent, write),
        };
        last(&self.present, write).max(absent)
    }
}
