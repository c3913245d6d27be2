//! Which mutant is on, per thread.

use std::cell::Cell;

use super::Mutant;

thread_local! {
    static ON: Cell<Option<Mutant>> = const { Cell::new(None) };
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Whether this mutant is on.
///
/// # Panics
/// When as many questions were asked as [`limit`] allows.
pub fn is_on(mutant: Mutant) -> bool {
    let on = ON.get();
    if on.is_some() {
        let left = LEFT.get().saturating_sub(1);
        LEFT.set(left);
        assert!(left > 0, "a member goes round in circles");
    }
    on == Some(mutant)
}

/// Switches to this mutant, or to none, on this thread.
pub fn switch(to: Option<Mutant>) {
    ON.set(to);
    LEFT.set(u64::MAX);
}

/// Stops this thread after so many questions about the mutant that is on: one that makes
/// a member go round in circles, within one step even, is noticed that way.
pub fn limit(questions: u64) {
    LEFT.set(questions);
}
