//! Library-by-library benchmarks: Quorate's core and, with `--features peers`, other libraries with the
//! same workload in the same run. `docs/benchmarks.md` has the method and the results.
//!
//! # Reading order
//! `cluster` (the workload), `ours` and `raft_rs` (the libraries), `measure` (time and
//! allocations), `instructions`, `idle` (idle members), `node` (complete members), `workload` and
//! `baseline` (instructions compared with a file), `instrument` (clusters of processes).

mod args;
mod baseline;
mod cluster;
mod counting;
mod idle;
mod instructions;
mod instrument;
mod library;
mod measure;
mod member_cluster;
mod memory_disk;
mod node;
mod ours;
#[cfg(feature = "peers")]
mod raft_rs;
mod raw;
mod table;
mod workload;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use args::{BaselineArgs, BenchCommand, CoreArgs};
use instructions::CountError;
use measure::Spread;
use table::BenchTable;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

fn main() -> ExitCode {
    match args::parse(std::env::args().skip(1)) {
        Err(why) => {
            eprintln!("quorate-bench: {why}\n\n{}", usage());
            ExitCode::from(2)
        }
        Ok(BenchCommand::Help) => {
            print(&usage());
            ExitCode::SUCCESS
        }
        Ok(BenchCommand::Cell { library, shape, operations }) => {
            library.cluster().run(shape, operations);
            ExitCode::SUCCESS
        }
        Ok(BenchCommand::CountedWorkload { workload, operations }) => {
            workload.run(operations);
            ExitCode::SUCCESS
        }
        Ok(BenchCommand::Instrument(args)) => instrument::run(&args),
        Ok(BenchCommand::Baseline(args)) => compare_instructions(&args),
        Ok(BenchCommand::Node(args)) => match node::table(&args) {
            Ok(table) => {
                print(&table);
                print(&node::LEGEND);
                ExitCode::SUCCESS
            }
            Err(why) => {
                eprintln!("quorate-bench: {why}");
                ExitCode::FAILURE
            }
        },
        Ok(BenchCommand::Core(core)) if core.instructions => match count(&core) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                eprintln!("quorate-bench: {why}");
                ExitCode::FAILURE
            }
        },
        Ok(BenchCommand::Core(core)) => {
            time(&core);
            ExitCode::SUCCESS
        }
    }
}

fn usage() -> String {
    format!("{}\n\n{}", args::USAGE, instrument::args::USAGE)
}

/// The tables of time, allocations and memory.
fn time(core: &CoreArgs) {
    let libraries = core.libraries();
    let heads = ["cell", "library", "ns/op", "allocs/op", "bytes/op", "ratio", "ratio 10-90%"];
    let mut table = BenchTable::new(&heads);
    for shape in core.shapes() {
        let measured = measure::cell(&libraries, shape, Duration::from_secs(core.seconds));
        let nanos: Vec<_> = measured.iter().map(|library| library.nanos.clone()).collect();
        let ratio = Spread::of_ratios(&nanos);
        for (at, one) in measured.iter().enumerate() {
            let ratio = ratio.as_ref().filter(|_| at > 0);
            table.row(&[
                format!("{} B, batch {}", shape.size, shape.batch),
                one.library.to_string(),
                format!("{:.0}", Spread::of(&one.nanos).median),
                format!("{:.2}", one.allocations),
                format!("{:.0}", one.bytes),
                ratio.map(Spread::times).unwrap_or_default(),
                ratio.map(Spread::range).unwrap_or_default(),
            ]);
        }
    }
    print(&table);
    print(&idle::table(&libraries));
    print(&LEGEND);
    report_missing_libraries(core);
}

/// The table of instructions.
fn count(core: &CoreArgs) -> Result<(), CountError> {
    instructions::check()?;
    let mut table = BenchTable::new(&["cell", "library", "instructions/op", "ratio"]);
    for shape in core.shapes() {
        let mut ours = None;
        for library in core.libraries() {
            let count = instructions::per_operation(library, shape)?;
            let ratio = ours.map(|ours: f64| format!("{:.1}x", count / ours)).unwrap_or_default();
            ours = ours.or(Some(count));
            let cell = format!("{} B, batch {}", shape.size, shape.batch);
            table.row(&[cell, library.to_string(), format!("{count:.0}"), ratio]);
        }
    }
    print(&table);
    print(&INSTRUCTIONS_LEGEND);
    report_missing_libraries(core);
    Ok(())
}

/// Compares with the file. Without valgrind nothing is compared, which is said and no failure.
fn compare_instructions(args: &BaselineArgs) -> ExitCode {
    if let Err(why) = instructions::check() {
        print(&format!("skipped: instructions are not compared: {why}"));
        return ExitCode::SUCCESS;
    }
    if cfg!(debug_assertions) {
        eprintln!("quorate-bench: the counts in the file are those of the release profile");
        return ExitCode::FAILURE;
    }
    let file = args.file.as_deref().unwrap_or_else(|| baseline::default_file());
    let known = std::fs::read_to_string(file).unwrap_or_default();
    let compared = match baseline::compare(args, &known) {
        Ok(compared) => compared,
        Err(why) => {
            eprintln!("quorate-bench: {why}");
            return ExitCode::FAILURE;
        }
    };
    print(&compared.table);
    if args.update {
        return match std::fs::write(file, compared.updated) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                eprintln!("quorate-bench: cannot write {}: {why}", file.display());
                ExitCode::FAILURE
            }
        };
    }
    if compared.worse.is_empty() {
        return ExitCode::SUCCESS;
    }
    let (worse, limit) = (compared.worse.join(", "), args.tolerance);
    eprintln!("quorate-bench: more than {limit} % above {}: {worse}", file.display());
    ExitCode::FAILURE
}

fn report_missing_libraries(core: &CoreArgs) {
    if core.only.is_none() && !library::Library::RaftRs.is_built() {
        print(&"raft-rs was not measured: build with --features peers.");
    }
}

/// Prints a text. A closed pipe is not an error.
fn print(text: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

const LEGEND: &str = "\
cell       payload size and proposals made before the cluster runs until it is quiet
op         one proposal, committed and applied on all three members
ns/op      median over slices of about 10 ms, libraries in turn
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
