//! Random worlds: the real driver, storage and core on simulated disks, networks and
//! clocks, with faults, and then without.
//!
//! A run follows from its [`Setting`] and its list of [`Action`]s; both follow from a
//! seed. The same seed and the same code are the same run, bit for bit.

mod action;
mod acts;
mod admin;
mod clients;
mod command;
mod heal;
mod hints;
mod lifecycle;
mod machine;
mod member;
mod network;
mod replay;
mod report;
mod setting;
mod shared_disk;
mod shrink;
mod tasks;
mod watch;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use action::{Action, Kind, What, Who};
pub use command::main;
pub use replay::Replay;
pub use report::Report;
pub use setting::Setting;
pub use shrink::shrink;

use crate::checkers::Violation;
use world::{Checked, Happening, World};

/// What came of one run.
pub struct Outcome {
    pub report: Report,
    pub violation: Option<Violation>,
    /// When it ended, in the world's units.
    pub ended: u64,
}

/// Plays one run from beginning to end. A panic of the code under test is a violation
/// like any other.
pub fn run(setting: &Setting, actions: &[Action]) -> Outcome {
    run_traced(setting, actions, None)
}

type Trace = Box<dyn FnMut(u64, &str)>;

fn run_traced(setting: &Setting, actions: &[Action], trace: Option<Trace>) -> Outcome {
    let mut world = World::new(setting);
    world.trace = trace;
    let played = catch_unwind(AssertUnwindSafe(|| play(&mut world, actions)));
    let violation = match played {
        Ok(checked) => checked.err(),
        Err(panic) => Some(Violation::new("assert", words_of(panic.as_ref()))),
    };
    let mut report = world.report.clone();
    report.schedules = 1;
    report.ticks = world.now / setting::TICK;
    report.requests_done = world.clients.done;
    report.requests_refused = world.clients.refused;
    report.requests_unknown = world.clients.unknown;
    report.elections = world.watch.elections();
    Outcome { report, violation, ended: world.now }
}

fn play(world: &mut World, actions: &[Action]) -> Checked {
    world.begin()?;
    for action in actions {
        world.schedule(action.at, Happening::Act(*action));
    }
    world.run_until(world.setting.ticks * setting::TICK)?;
    world.heal()
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panic").to_string()
}
