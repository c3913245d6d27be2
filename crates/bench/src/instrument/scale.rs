//! `quorate-bench scale`: what many keys, watchers, leases and voters cost.

use std::time::{Duration, Instant};

use super::load::{BenchLoad, LoadResult};
use super::processes::{ServerCluster, ServerProcess};
use super::report::{Report, ReportColumn};
use super::usage::Usage;
use super::{InstrumentError, Session, System};

const CASES: [&str; 6] = ["few-keys", "many-keys", "watchers", "leases", "voters", "overwrite"];

const COLUMNS: &[ReportColumn] = &[
    ReportColumn::new("ops/s", "perSecond", 0),
    ReportColumn::new("p99 ms", "p99Millis", 1),
    ReportColumn::new("longest ms", "longestMillis", 0),
    ReportColumn::new("CPU s/100k", "cpuSecondsPer100k", 2).charted(),
    ReportColumn::new("RSS MB", "memoryMegabytes", 0),
    ReportColumn::new("disk MB", "diskMegabytes", 0),
    ReportColumn::new("disk B/op", "diskBytesPerOperation", 0),
    ReportColumn::new("restart s", "restartSeconds", 2),
];

pub(super) const LEGEND: &str = "\
few-keys   puts of 64 clients over 10,000 keys
many-keys  the same over --keys keys that all exist; restart: one member, until it serves
watchers   events to --watchers watchers; an operation is an event
leases     grants of 256 clients until there are --leases leases
voters     puts of 256 clients with --voters members
overwrite  puts over 1,000 keys for ten times --seconds
disk MB    files of the largest member; RSS likewise; disk B/op: written by all members";

pub(super) fn run(session: &Session<'_>, report: &mut Report) -> Result<(), InstrumentError> {
    report.set_columns(COLUMNS);
    let systems = session.args.systems();
    for case in session.args.cases_of(&CASES)? {
        for system in &systems {
            session.check_time()?;
            session.progress(format!("{case}, {}", system.name));
            let row = measure(session, system, case)?;
            session.progress(format!("    {}", report.line(&row)));
            report.row(case, &system.name, &[row]);
        }
    }
    Ok(())
}

fn measure(
    session: &Session<'_>,
    system: &System,
    case: &str,
) -> Result<Vec<Option<f64>>, InstrumentError> {
    let args = session.args;
    let count = if case == "voters" { args.voters } else { 3 };
    let mut cluster = ServerCluster::start(system, &session.folder, count)?;
    let watchers = args.watchers.to_string();
    let keys = if case == "many-keys" { args.keys } else { 10_000 };
    let puts = BenchLoad {
        operation: "put",
        clients: 64,
        seconds: args.seconds,
        keys,
        value_bytes: args.value_bytes,
        more: &[],
    };
    let load = match case {
        "watchers" => BenchLoad { operation: "watch", more: &["--watchers", &watchers], ..puts },
        "voters" => BenchLoad { clients: 256, ..puts },
        "leases" => BenchLoad { operation: "lease", clients: 256, ..puts },
        "overwrite" => BenchLoad { seconds: 10 * args.seconds, keys: 1_000, ..puts },
        _ => puts,
    };
    if matches!(case, "few-keys" | "many-keys") {
        BenchLoad { operation: "get", seconds: 1, ..puts }
            .run(session, &cluster.endpoints_without(None))?;
        session.progress("all keys are written");
    }
    let pids = cluster.pids();
    let before = Usage::of(&pids, cluster.folder());
    let result = if case == "leases" {
        grant_leases(session, &cluster, load)?
    } else {
        load.run(session, &cluster.endpoints_without(None))?
    };
    let used = Usage::of(&pids, cluster.folder()).since(before);
    let disk = cluster.members.iter().map(ServerProcess::disk_bytes).max().unwrap_or(0);
    let restart = if case == "many-keys" { Some(restart(&mut cluster)?) } else { None };
    let each = |total: f64| (result.done > 0.0).then(|| total / result.done);
    Ok(vec![
        Some(result.per_second),
        Some(result.p99_ms),
        Some(result.longest_ms),
        each(used.cpu_seconds * 100_000.0),
        Some(used.memory_bytes as f64 / 1e6),
        Some(disk as f64 / 1e6),
        each(used.disk_bytes as f64),
        restart.map(|time| time.as_secs_f64()),
    ])
}

/// Stops a follower, and returns how long it takes to serve again.
fn restart(cluster: &mut ServerCluster) -> Result<Duration, InstrumentError> {
    let follower = usize::from(cluster.leader()? == 0);
    cluster.members[follower].terminate();
    cluster.members[follower].wait()?;
    let began = Instant::now();
    cluster.restart(follower)?;
    Ok(began.elapsed())
}

/// Grants leases until there are as many as asked for.
fn grant_leases(
    session: &Session<'_>,
    cluster: &ServerCluster,
    load: BenchLoad<'_>,
) -> Result<LoadResult, InstrumentError> {
    let mut all = LoadResult::default();
    let mut took = 0.0;
    while all.done < session.args.leases as f64 {
        session.check_time()?;
        let part = load.run(session, &cluster.endpoints_without(None))?;
        took += part.done / part.per_second.max(f64::MIN_POSITIVE);
        all = LoadResult {
            done: all.done + part.done,
            p99_ms: all.p99_ms.max(part.p99_ms),
            longest_ms: all.longest_ms.max(part.longest_ms),
            ..all
        };
    }
    Ok(LoadResult { per_second: all.done / took, ..all })
}
