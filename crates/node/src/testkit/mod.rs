//! Suites for whoever implements a trait of this crate: call them in your own tests. For a
//! state machine of your own, `quorate-sim` has whole clusters where everything goes wrong.

pub(crate) mod fake;
pub(crate) mod random_values;
pub mod storage;
pub mod transport;
