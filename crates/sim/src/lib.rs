//! Many members in one thread: the ways we watch the core work.
//!
//! [`scenario`] plays stories written as text files and prints what happens,
//! [`conformance`] plays the recorded traces of etcd-io/raft, [`explore`] runs whole members
//! in random worlds (any machine: [`explore::try_machine`]), [`model`] goes through
//! everything that can happen within bounds. [`checkers`] says what must hold.
//! [`mutants`] shows that wrong rules are noticed.

/// Prints a line. Who has seen enough may close the pipe: that is no reason to panic.
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
#[doc(hidden)]
pub mod fuzzing;
pub mod model;
pub mod mutants;
pub mod random;
pub mod scenario;
pub mod short_ids;
pub mod storage_check;
