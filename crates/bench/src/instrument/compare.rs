//! `quorate-bench server`: the systems under the same load, in turn.

use std::time::Duration;

use super::load::BenchLoad;
use super::processes::ServerCluster;
use super::report::{Report, ReportColumn};
use super::usage::{SyscallCounter, Usage};
use super::{InstrumentError, Session};

const MEMBERS: usize = 3;

/// A load, by its name in the table.
struct Case {
    name: &'static str,
    operation: &'static str,
    clients: u32,
    more: &'static [&'static str],
}

const fn case(
    name: &'static str,
    operation: &'static str,
    clients: u32,
    more: &'static [&'static str],
) -> Case {
    Case { name, operation, clients, more }
}

const CASES: [Case; 9] = [
    case("put-1", "put", 1, &[]),
    case("put-64", "put", 64, &[]),
    case("put-256", "put", 256, &[]),
    case("get-256", "get", 256, &["--filled"]),
    case("get-local-256", "get", 256, &["--filled", "--serializable"]),
    case("txn-64", "txn", 64, &[]),
    case("txn-256", "txn", 256, &[]),
    case("mixed-64", "mixed", 64, &["--filled"]),
    case("watch-64", "watch", 64, &["--watchers", "16"]),
];

const COLUMNS: &[ReportColumn] = &[
    ReportColumn::new("ops/s", "perSecond", 0),
    ReportColumn::new("p50 ms", "p50Millis", 2),
    ReportColumn::new("p99 ms", "p99Millis", 2),
    ReportColumn::new("p99.9 ms", "p999Millis", 2),
    ReportColumn::new("CPU s/100k", "cpuSecondsPer100k", 2).charted(),
    ReportColumn::new("RSS MB", "memoryMegabytes", 0),
    ReportColumn::new("switches/op", "switchesPerOperation", 2),
    ReportColumn::new("syscalls/op", "syscallsPerOperation", 2),
    ReportColumn::new("disk B/op", "diskBytesPerOperation", 0),
];

pub(super) const LEGEND: &str = "\
case         the operation and the number of clients, each with one request at a time;
             mixed is one put to three linearizable gets
CPU s/100k   CPU seconds of all members for 100,000 operations
RSS          memory of the largest member after the load
switches/op  context switches of all members; syscalls/op needs perf
disk B/op    bytes that the disk of the members wrote, for all of them
Each row is the median of the runs; the systems take turns within a run. Compare the rows of one
run with each other: figures of different machines or hours cannot be compared.";

/// Measures every case with every system.
pub(super) fn run(session: &Session<'_>, report: &mut Report) -> Result<(), InstrumentError> {
    report.set_columns(COLUMNS);
    let args = session.args;
    let names: Vec<&str> = CASES.iter().map(|case| case.name).collect();
    let wanted = args.cases_of(&names)?;
    let systems = args.systems();
    let mut clusters = Vec::new();
    for system in &systems {
        session.progress(format!("starting {MEMBERS} members of {}", system.name));
        let cluster = ServerCluster::start(system, &session.folder, MEMBERS)?;
        fill(session, &cluster)?;
        clusters.push(cluster);
    }
    for case in CASES.iter().filter(|case| wanted.contains(&case.name)) {
        let mut runs = vec![Vec::new(); systems.len()];
        for number in 0..args.runs {
            for (at, system) in systems.iter().enumerate() {
                session.check_time()?;
                let (name, of) = (case.name, args.runs);
                session.progress(format!("{name}, {}, run {} of {of}", system.name, number + 1));
                let run = measure(session, &clusters[at], case)?;
                session.progress(format!("    {}", report.line(&run)));
                runs[at].push(run);
            }
        }
        for (system, runs) in systems.iter().zip(&runs) {
            report.row(case.name, &system.name, runs);
        }
    }
    Ok(())
}

/// Writes every key once.
fn fill(session: &Session<'_>, cluster: &ServerCluster) -> Result<(), InstrumentError> {
    let load = load(session, &case("fill", "get", 64, &[]));
    BenchLoad { seconds: 1, ..load }.run(session, &cluster.endpoints_without(None)).map(drop)
}

fn load<'a>(session: &Session<'_>, case: &Case) -> BenchLoad<'a> {
    BenchLoad {
        operation: case.operation,
        clients: case.clients,
        seconds: session.args.seconds,
        keys: session.args.keys,
        value_bytes: session.args.value_bytes,
        more: case.more,
    }
}

fn measure(
    session: &Session<'_>,
    cluster: &ServerCluster,
    case: &Case,
) -> Result<Vec<Option<f64>>, InstrumentError> {
    let pids = cluster.pids();
    let syscalls = SyscallCounter::start(&pids, Duration::from_secs(session.args.seconds));
    let before = Usage::of(&pids, cluster.folder());
    let result = load(session, case).run(session, &cluster.endpoints_without(None))?;
    let used = Usage::of(&pids, cluster.folder()).since(before);
    let syscalls = syscalls.finish();
    let each = |total: f64| (result.done > 0.0).then(|| total / result.done);
    Ok(vec![
        Some(result.per_second),
        Some(result.p50_ms),
        Some(result.p99_ms),
        Some(result.p999_ms),
        each(used.cpu_seconds * 100_000.0),
        Some(used.memory_bytes as f64 / 1e6),
        each(used.switches as f64),
        syscalls.and_then(|count| each(count as f64)),
        each(used.disk_bytes as f64),
    ])
}
