//! Test suites for implementations of this crate's traits: call them in your tests. To test
//! your state machine, `quorate-sim` runs it in simulated clusters with faults. [`ports`]
//! finds ports for servers on this machine.

pub(crate) mod fake;
pub mod ports;
pub(crate) mod random_values;
pub mod storage;
pub mod transport;
