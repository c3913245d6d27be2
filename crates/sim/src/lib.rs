//! Many members in one thread: the ways we watch the core work.
//!
//! [`scenario`] plays stories written as text files and prints what happens,
//! [`conformance`] plays the recorded traces of etcd-io/raft. [`faulty_disk`] is a disk
//! that forgets, tears and lies.

/// Prints a line. Who has seen enough may close the pipe: that is no reason to panic.
macro_rules! say {
    ($($part:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($part)*);
    }};
}

pub mod conformance;
pub mod faulty_disk;
pub mod random;
pub mod scenario;
pub mod storage_check;
