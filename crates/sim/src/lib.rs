//! Many members in one thread: simulation, stories, model checking and recorded traces.
//!
//! [`scenario`] plays stories written as text files and prints what happens,
//! [`conformance`] plays the recorded traces of etcd-io/raft, [`explore`] runs whole members
//! in random simulations (any machine: [`explore::try_machine`]), [`model`] checks all states
//! within bounds. [`cluster`] is the in-memory cluster of bare cores that they share,
//! [`checkers`] has the rules that must hold, each written once. [`mutants`] shows that the
//! checkers notice wrong rules.

/// Prints a line. A reader may close the pipe early: that is no reason to panic.
macro_rules! say {
    ($($part:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($part)*);
    }};
}

pub mod checkers;
pub mod cluster;
pub mod conformance;
pub mod explore;
pub mod faulty_disk;
pub mod model;
pub mod mutants;
pub mod random;
pub mod scenario;
pub mod short_ids;
pub mod storage_check;
