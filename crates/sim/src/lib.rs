//! Many members in one thread: simulation, stories, model checking and recorded traces.
//!
//! [`scenario`] plays stories written as text files and prints what happens,
//! [`conformance`] plays the recorded traces of etcd-io/raft, [`explore`] runs whole members
//! in random simulations (any machine: [`explore::try_machine`]), [`model`] checks all states
//! within bounds. [`cluster`] is the in-memory cluster of bare cores that they share,
//! [`checkers`] has the rules that must hold, each written once. [`mutants`] shows that the
//! checkers notice wrong rules.
//!
//! Without the default feature `whole` there are only stories on bare cores, without the driver,
//! storage and machines: that is what runs in a browser.

#![cfg_attr(
    not(feature = "whole"),
    allow(dead_code, reason = "stories use a part of the checkers and the cluster")
)]

/// Prints a line. A reader may close the pipe early: that is no reason to panic.
macro_rules! say {
    ($($part:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($part)*);
    }};
}

pub mod checkers;
pub mod cluster;
#[cfg(feature = "whole")]
pub mod conformance;
#[cfg(feature = "whole")]
pub mod explore;
#[cfg(feature = "whole")]
pub mod faulty_disk;
#[cfg(feature = "whole")]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "whole")]
pub mod model;
#[cfg(feature = "whole")]
pub mod mutants;
#[cfg(feature = "whole")]
pub mod random;
pub mod scenario;
pub mod short_ids;
#[cfg(feature = "whole")]
pub mod storage_check;
