//! From a run that fails to a short one that fails in the same way.

use super::RunOutcome;
use super::replay::RunReplay;

/// Leaves out whatever is not needed for the same rule to be broken, in at most so
/// many tries.
pub(super) fn shrink_with(
    run: &dyn Fn(&RunReplay) -> RunOutcome,
    replay: &RunReplay,
    rule: &'static str,
    tries_max: usize,
) -> RunReplay {
    let mut shrinking = Shrinking { run, best: replay.clone(), rule, tries_left: tries_max };
    shrinking.end_early();
    while shrinking.drop_actions() | shrinking.simplify_settings() {
        if shrinking.tries_left == 0 {
            break;
        }
    }
    shrinking.best
}

struct Shrinking<'a> {
    run: &'a dyn Fn(&RunReplay) -> RunOutcome,
    best: RunReplay,
    rule: &'static str,
    tries_left: usize,
}

impl Shrinking<'_> {
    fn fails(&mut self, candidate: &RunReplay) -> bool {
        if self.tries_left == 0 {
            return false;
        }
        self.tries_left -= 1;
        let outcome = (self.run)(candidate);
        outcome.violation.is_some_and(|violation| violation.rule == self.rule)
    }

    fn take_if_it_fails(&mut self, candidate: RunReplay) -> bool {
        let fails = candidate != self.best && self.fails(&candidate);
        if fails {
            self.best = candidate;
        }
        fails
    }

    /// What happens after the end of the faults does not matter, and they may end
    /// earlier.
    fn end_early(&mut self) {
        let mut ticks = self.best.setting.ticks;
        while ticks > 4 {
            ticks = ticks * 3 / 4;
            let mut candidate = self.best.clone();
            candidate.setting.ticks = ticks;
            let end = ticks * super::setting::TICK;
            candidate.actions.retain(|action| action.at < end);
            if !self.take_if_it_fails(candidate) {
                break;
            }
        }
    }

    /// Parts of the list, large ones first, then single actions.
    fn drop_actions(&mut self) -> bool {
        let before = self.best.actions.len();
        let mut size = before.max(1).div_ceil(2);
        loop {
            let mut from = 0;
            while from < self.best.actions.len() {
                let mut candidate = self.best.clone();
                let to = (from + size).min(candidate.actions.len());
                candidate.actions.drain(from..to);
                if !self.take_if_it_fails(candidate) {
                    from += size;
                }
            }
            if size == 1 {
                break;
            }
            size = size.div_ceil(2);
        }
        self.best.actions.len() < before
    }

    /// A quieter world: fewer clients and members, no losses, no drift.
    fn simplify_settings(&mut self) -> bool {
        let mut calmer = false;
        for (name, least) in [
            ("loss", 0),
            ("duplication", 0),
            ("reordering", 0),
            ("drift", 0),
            ("absent", 0),
            ("priorities", 0),
            ("hints", 0),
            ("learners", 0),
            ("clients", 1),
            ("keys", 1),
            ("voters", 1),
            ("delay", 50),
            ("disk_delay", 20),
            ("apply_delay", 10),
            ("value_bytes", 8),
        ] {
            while let Some(candidate) = self.with_less(name, least) {
                if !self.take_if_it_fails(candidate) {
                    break;
                }
                calmer = true;
            }
        }
        calmer
    }

    /// At once all the way, or half of it.
    fn with_less(&mut self, name: &str, least: u64) -> Option<RunReplay> {
        let mut candidate = self.best.clone();
        let value = candidate.setting.value_mut(name)?;
        if *value <= least {
            return None;
        }
        *value = least;
        if self.tries_left > 0 && self.fails(&candidate) {
            return Some(candidate);
        }
        let mut candidate = self.best.clone();
        let value = candidate.setting.value_mut(name)?;
        let less = (*value + least) / 2;
        if less == *value {
            return None;
        }
        *value = less;
        Some(candidate)
    }
}
