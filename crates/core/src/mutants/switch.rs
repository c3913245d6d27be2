//! Which mutant is on, per thread.

use std::cell::Cell;

use super::Mutant;

thread_local! {
    static ON: Cell<Option<Mutant>> = const { Cell::new(None) };
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

/// More questions than any run needs: a mutant that makes a member go round in
/// circles within one step is stopped, and that is how it is noticed.
const ASKED_MAX: u64 = 300_000;

/// Whether this mutant is on.
///
/// # Panics
/// When a mutant that is on has been asked about without end.
pub fn is_on(mutant: Mutant) -> bool {
    let on = ON.get();
    if on.is_some() {
        let asked = ASKED.get() + 1;
        ASKED.set(asked);
        assert!(asked < ASKED_MAX, "a member goes round in circles");
    }
    on == Some(mutant)
}

/// Switches to this mutant, or to none, on this thread.
pub fn switch(to: Option<Mutant>) {
    ON.set(to);
    ASKED.set(0);
}
