//! Random worlds: the real driver, storage and core on simulated disks, networks and
//! clocks, with faults, and then without.
//!
//! They run a small map or etcd's data model ([`run`]), or any machine ([`try_machine`]).
//!
//! A run follows from its [`RunSettings`] and its list of [`Action`]s; both follow from a
//! seed. The same seed and the same code are the same run, bit for bit.

mod action;
mod acts;
mod admin;
mod clients;
mod command;
mod copies;
mod etcd;
mod forced;
mod gray;
mod heal;
mod hints;
mod kv_workload;
mod lifecycle;
mod machine;
mod member;
mod network;
mod output;
mod patterns;
mod rare;
mod replay;
mod report;
mod requests;
mod rerun;
mod setting;
mod shrink;
mod simulation;
mod tasks;
mod trial;
mod versions;
mod workload;

pub use action::{Action, ActionKind, ActionTarget, FaultKind};
pub use command::main;
pub use etcd::EtcdClients;
pub use replay::RunReplay;
pub use report::RunReport;
pub use setting::{FOCUS_COMMITS, FOCUS_LEASES, RunSettings};
pub use trial::{MachineTrial, TrialFailure, try_machine};
pub use workload::{ClientReply, Exchange, Workload, WorkloadRequest, WorkloadVerdict};

use crate::checkers::Violation;

/// The result of one run.
pub struct RunOutcome {
    pub report: RunReport,
    pub violation: Option<Violation>,
    /// When it ended, in the world's units.
    pub ended: u64,
}

/// Told what happens in a run, and when.
pub type Trace = Box<dyn FnMut(u64, &str)>;

/// Plays one run from beginning to end, with the machine that the setting names.
pub fn run(setting: &RunSettings, actions: &[Action]) -> RunOutcome {
    MachineTrial::of_setting().run(setting, actions)
}

/// Leaves out of such a run whatever is not needed for the same rule to be broken, in at
/// most this many tries.
pub fn shrink(replay: &RunReplay, rule: &'static str, tries_max: usize) -> RunReplay {
    MachineTrial::of_setting().shrink(replay, rule, tries_max)
}
