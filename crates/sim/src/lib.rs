//! Many members in one thread: the ways we watch the core work.
//!
//! [`scenario`] plays stories written as text files and prints what happens,
//! [`conformance`] plays the recorded traces of etcd-io/raft. With the feature
//! `mutants`, `mutants` shows that wrong rules are noticed.

/// Prints a line. Who has seen enough may close the pipe: that is no reason to panic.
macro_rules! say {
    ($($part:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($part)*);
    }};
}

pub mod conformance;
#[cfg(feature = "mutants")]
pub mod mutants;
pub mod scenario;
