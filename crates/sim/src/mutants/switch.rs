//! The switches of this build: it has none. In the mutated build the generator replaces this file
//! by one that sets the switches in the core.

/// Whether the rules of this build have mutants.
pub(super) const IS_MUTATED: bool = false;

/// Switches one mutant on, on this thread, or all off.
pub(super) fn switch(_: Option<u16>) {}

/// Panics after this many questions about a mutant that is on, on this thread.
pub(super) fn limit(_: u64) {}
