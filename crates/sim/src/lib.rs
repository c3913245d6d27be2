//! Many members in one thread: the ways we watch the core work.
//!
//! [`scenario`] plays stories written as text files and prints what happens,
//! [`conformance`] plays the recorded traces of etcd-io/raft, [`model`] explores
//! everything that can happen within bounds. [`checkers`] says what must hold.

/// Prints a line. Who has seen enough may close the pipe: that is no reason to panic.
macro_rules! say {
    ($($part:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($part)*);
    }};
}

pub mod checkers;
pub mod conformance;
pub mod explore;
pub mod faulty_disk;
pub mod model;
pub mod random;
pub mod scenario;
pub mod storage_check;
