//! Side-by-side benchmarks: Quorate's core and, with `--features peers`, others
//! that do the same work in the same run. What is measured and what came out
//! stands in `docs/benchmarks.md`.
//!
//! # Reading order
//! `cluster` (the work), `ours` and `raft_rs` (who does it), `measure` (time and
//! allocations), `instructions`, `idle` (members with nothing to do); `node` (whole members).

mod args;
mod cluster;
mod counting;
mod idle;
mod instructions;
mod measure;
mod node;
mod ours;
#[cfg(feature = "peers")]
mod raft_rs;
mod raw;
mod side;
mod table;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use args::{Command, Core};
use instructions::CountError;
use measure::Spread;
use table::Table;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

fn main() -> ExitCode {
    match args::parse(std::env::args().skip(1)) {
        Err(why) => {
            eprintln!("quorate-bench: {why}\n\n{}", args::USAGE);
            ExitCode::from(2)
        }
        Ok(Command::Cell { side, shape, operations }) => {
            side.cluster().run(shape, operations);
            ExitCode::SUCCESS
        }
        Ok(Command::Node(args)) => match node::table(&args) {
            Ok(table) => {
                say(&table);
                say(&node::LEGEND);
                ExitCode::SUCCESS
            }
            Err(why) => {
                eprintln!("quorate-bench: {why}");
                ExitCode::FAILURE
            }
        },
        Ok(Command::Core(core)) if core.instructions => match count(&core) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                eprintln!("quorate-bench: {why}");
                ExitCode::FAILURE
            }
        },
        Ok(Command::Core(core)) => {
            time(&core);
            ExitCode::SUCCESS
        }
    }
}

/// The tables of time, allocations and memory.
fn time(core: &Core) {
    let sides = core.sides();
    let heads = ["cell", "side", "ns/op", "allocs/op", "bytes/op", "ratio", "ratio 10-90%"];
    let mut table = Table::new(&heads);
    for shape in core.shapes() {
        let measured = measure::cell(&sides, shape, Duration::from_secs(core.seconds));
        let nanos: Vec<_> = measured.iter().map(|side| side.nanos.clone()).collect();
        let ratio = Spread::of_ratios(&nanos);
        for (at, one) in measured.iter().enumerate() {
            let ratio = ratio.as_ref().filter(|_| at > 0);
            table.row(&[
                format!("{} B, batch {}", shape.size, shape.batch),
                one.side.to_string(),
                format!("{:.0}", Spread::of(&one.nanos).median),
                format!("{:.2}", one.allocations),
                format!("{:.0}", one.bytes),
                ratio.map(Spread::times).unwrap_or_default(),
                ratio.map(Spread::range).unwrap_or_default(),
            ]);
        }
    }
    say(&table);
    say(&idle::table(&sides));
    say(&LEGEND);
    say_who_is_missing(core);
}

/// The table of instructions.
fn count(core: &Core) -> Result<(), CountError> {
    instructions::check()?;
    let mut table = Table::new(&["cell", "side", "instructions/op", "ratio"]);
    for shape in core.shapes() {
        let mut ours = None;
        for side in core.sides() {
            let count = instructions::per_operation(side, shape)?;
            let ratio = ours.map(|ours: f64| format!("{:.1}x", count / ours)).unwrap_or_default();
            ours = ours.or(Some(count));
            let cell = format!("{} B, batch {}", shape.size, shape.batch);
            table.row(&[cell, side.to_string(), format!("{count:.0}"), ratio]);
        }
    }
    say(&table);
    say(&INSTRUCTIONS_LEGEND);
    say_who_is_missing(core);
    Ok(())
}

fn say_who_is_missing(core: &Core) {
    if core.only.is_none() && !side::Side::RaftRs.is_built() {
        say(&"raft-rs was left out: build with --features peers to measure against it.");
    }
}

/// Prints to whoever still listens: a closed pipe is not an error.
fn say(text: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

const LEGEND: &str = "\
cell       payload size and proposals made before the cluster runs until it is quiet
op         one proposal, committed and applied on all three members
ns/op      median over slices of about 10 ms, sides in turn
allocs/op  calls to the allocator, with the one that makes the payload
bytes/op   bytes asked for in those calls
ratio      the peer's time (or bytes) over ours, median over neighbouring slices
memory     heap bytes of one member of three, without its storage";

const INSTRUCTIONS_LEGEND: &str = "\
cell             payload size and proposals made before the cluster runs until it is quiet
op               one proposal, committed and applied on all three members
instructions/op  all that the process executes, harness and allocator included, a long
                 run less a short one
ratio            the peer's instructions over ours";
