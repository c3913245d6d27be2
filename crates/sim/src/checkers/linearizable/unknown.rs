//! Steps of unknown outcome, as far as a client can notice them.
//!
//! Such a step may happen at any time after its call, so it never stops being a
//! choice. Two things keep the choices few. Steps that do the same form one class, of
//! which only the number left matters. And a class lasts only as long as a client can
//! look for what it writes; after that its blind writes are good for one thing,
//! to overwrite a value that a client saw gone, and for that they are all alike: they
//! join the spoilers of their place.

use std::collections::HashMap;

use super::objects::{Expects, Number, Place, Rule, SPOILED, Step};

#[derive(Debug)]
pub(super) struct Class {
    pub(super) rule: Rule,
    pub(super) place: Place,
    /// The last time at which it is noticed whether one of these has happened.
    pub(super) closing: u64,
    /// The class that takes over what is left then.
    pub(super) successor: Option<u32>,
}

#[derive(Debug, Default)]
pub(super) struct Classes {
    pub(super) all: Vec<Class>,
    /// For each unknown step its class.
    of_step: HashMap<u32, u32>,
    by_write: HashMap<(Place, Number), Vec<u32>>,
}

impl Classes {
    pub(super) fn new(steps: &[Step]) -> Self {
        let mut classes = Self::default();
        if steps.iter().any(Step::is_unknown) {
            classes.sort_in(steps);
            let looks = Looks::of(steps);
            classes.close(&looks);
            classes.add_spoilers(&looks);
        }
        classes
    }

    pub(super) fn of_step(&self, step: u32) -> Option<u32> {
        self.of_step.get(&step).copied()
    }

    pub(super) fn writing(&self, write: (Place, Number)) -> &[u32] {
        self.by_write.get(&write).map_or(&[], Vec::as_slice)
    }

    fn sort_in(&mut self, steps: &[Step]) {
        let mut numbers: HashMap<&Rule, u32> = HashMap::new();
        for (step, at) in steps.iter().zip(0..) {
            let Some(write) = step.rule.writes.filter(|_| step.is_unknown()) else { continue };
            let number = *numbers.entry(&step.rule).or_insert_with(|| {
                let number = self.all.len() as u32;
                self.by_write.entry(write).or_default().push(number);
                self.all.push(Class {
                    rule: step.rule.clone(),
                    place: write.0,
                    closing: 0,
                    successor: None,
                });
                number
            });
            self.of_step.insert(at, number);
        }
    }

    /// A class closes with the last look at what it writes. A compare-and-set whose
    /// own outcome is unknown looks at what it expects as long as it is open itself.
    fn close(&mut self, looks: &Looks) {
        for class in &mut self.all {
            class.closing = looks.last_at(&class.rule);
        }
        let mut queue: Vec<u32> = (0..self.all.len() as u32).collect();
        while let Some(number) = queue.pop() {
            let Class { rule, closing, .. } = &self.all[number as usize];
            let closing = *closing;
            for wanted in rule.wanted().to_vec() {
                for &writer in self.by_write.get(&wanted).into_iter().flatten() {
                    let writer_class = &mut self.all[writer as usize];
                    if writer_class.closing < closing {
                        writer_class.closing = closing;
                        queue.push(writer);
                    }
                }
            }
        }
    }

    /// A place where a client saw that a value was gone gets a class of spoilers, the
    /// successor of every blind write there.
    fn add_spoilers(&mut self, looks: &Looks) {
        let mut spoilers: HashMap<Place, u32> = HashMap::new();
        for number in 0..self.all.len() {
            let place = self.all[number].place;
            let (true, Some(&closing)) =
                (self.all[number].rule.expects == Expects::Anything, looks.gone_at.get(&place))
            else {
                continue;
            };
            let next = self.all.len() as u32;
            let successor = *spoilers.entry(place).or_insert(next);
            if successor == next {
                let rule = Rule { expects: Expects::Anything, writes: Some((place, SPOILED)) };
                self.all.push(Class { rule, place, closing, successor: None });
            }
            self.all[number].successor = Some(successor);
        }
    }
}

/// The last return of a known step that looks at something.
#[derive(Default)]
struct Looks {
    /// Sees that a value is there.
    here: HashMap<(Place, Number), u64>,
    /// Sees that a value is gone.
    gone: HashMap<(Place, Number), u64>,
    /// Sees that some value is gone.
    gone_at: HashMap<Place, u64>,
}

impl Looks {
    fn of(steps: &[Step]) -> Self {
        let mut looks = Self::default();
        for step in steps.iter().filter(|step| !step.is_unknown()) {
            let later = |last: &mut u64| *last = step.returned.max(*last);
            for wanted in step.rule.wanted() {
                later(looks.here.entry(*wanted).or_default());
            }
            if let Expects::Differs((place, value)) = step.rule.expects {
                later(looks.gone.entry((place, value)).or_default());
                later(looks.gone_at.entry(place).or_default());
            }
        }
        looks
    }

    /// The last look that can tell what a step by this rule wrote from a spoiler (of a
    /// blind write), or that it happened at all (of a compare-and-set, which can only
    /// make that one value go that it expects).
    fn last_at(&self, rule: &Rule) -> u64 {
        let Some(write) = rule.writes else { return 0 };
        let last = |looks: &HashMap<_, u64>, at| looks.get(&at).copied().unwrap_or(0);
        let gone = match rule.expects {
            Expects::Equal(expected) => last(&self.gone, expected),
            _ => last(&self.gone, write),
        };
        last(&self.here, write).max(gone)
    }
}
