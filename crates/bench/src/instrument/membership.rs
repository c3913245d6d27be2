//! `quorate-bench membership`: writes while members are added, removed and lost.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::load::BenchLoad;
use super::processes::ServerCluster;
use super::report::{Report, ReportColumn};
use super::{InstrumentError, Session, System};

const MEMBERS: usize = 3;

const CASES: [&str; 11] = [
    "nothing",
    "add-learner",
    "promote",
    "remove-follower",
    "remove-leader",
    "move-leader",
    "replace-leader",
    "kill-leader-300ms",
    "kill-leader-5s",
    "stop-leader",
    "catch-up",
];

const COLUMNS: &[ReportColumn] = &[
    ReportColumn::new("longest gap ms", "gapMillis", 0).charted(),
    ReportColumn::new("failed", "failedRequests", 0),
    ReportColumn::new("took s", "seconds", 2),
    ReportColumn::new("ops/s", "perSecond", 0),
];

pub(super) const LEGEND: &str = "\
longest gap  between two successful writes of 16 clients, at members that stay
failed       requests of these clients that failed
took         the operation; for catch-up from the start of the process until it is promoted
kill-leader  kill -9, clients with this timeout; stop-leader: SIGTERM
Each row is the median of the runs, each with a new cluster of three members.";

/// Writes go on for this long before and after the operation.
const BEFORE: Duration = Duration::from_millis(1_500);
/// A load lasts at least this long: an election has to fit.
const LOAD_SECONDS_MIN: u64 = 8;
const CLIENTS: u32 = 16;
/// When every system accepts changes after its start.
const CHANGES_AFTER: Duration = Duration::from_secs(6);

pub(super) fn run(session: &Session<'_>, report: &mut Report) -> Result<(), InstrumentError> {
    report.set_columns(COLUMNS);
    let systems = session.args.systems();
    for case in session.args.cases_of(&CASES)? {
        let mut runs = vec![Vec::new(); systems.len()];
        for number in 0..session.args.runs {
            for (at, system) in systems.iter().enumerate() {
                session.check_time()?;
                session.progress(format!("{case}, {}, run {}", system.name, number + 1));
                let run = measure(session, system, case)?;
                session.progress(format!("    {}", report.line(&run)));
                runs[at].push(run);
            }
        }
        for (system, runs) in systems.iter().zip(&runs) {
            report.row(case, &system.name, runs);
        }
    }
    Ok(())
}

fn measure(
    session: &Session<'_>,
    system: &System,
    case: &str,
) -> Result<Vec<Option<f64>>, InstrumentError> {
    let mut cluster = ServerCluster::start(system, &session.folder, MEMBERS)?;
    if case == "catch-up" {
        let took = catch_up(session, &mut cluster)?;
        return Ok(vec![None, None, Some(took.as_secs_f64()), None]);
    }
    // etcd refuses changes until its members are connected for five seconds.
    sleep(CHANGES_AFTER);
    // A member that is asked must stay: the leader is the last one.
    let (first, last) = (0, MEMBERS - 1);
    if cluster.leader()? != last {
        cluster.move_leader(cluster.leader()?, last)?;
    }
    let removed = if case == "remove-follower" { first } else { last };
    let learner = if case == "promote" { Some(cluster.add_learner()?) } else { None };
    let leaves = matches!(
        case,
        "remove-follower"
            | "remove-leader"
            | "replace-leader"
            | "kill-leader-300ms"
            | "kill-leader-5s"
            | "stop-leader"
    );
    let timeout = if case == "kill-leader-300ms" { "300ms" } else { "5s" };
    let load = BenchLoad {
        operation: "put",
        clients: CLIENTS,
        seconds: session.args.seconds.max(LOAD_SECONDS_MIN),
        keys: 1_000,
        value_bytes: session.args.value_bytes,
        more: &["--command-timeout", timeout],
    };
    let endpoints = match &learner {
        Some(_) => cluster.endpoints_without(Some(MEMBERS)),
        None => cluster.endpoints_without(leaves.then_some(removed)),
    };
    let id = cluster.id(removed)?;
    let running = load.start(session, &endpoints)?;
    sleep(BEFORE);
    let began = Instant::now();
    operate(&mut cluster, case, learner.as_deref(), (removed, &id))?;
    let took = began.elapsed();
    let result = running.finish()?;
    let (gap, failed) = (Some(result.gap_ms), Some(result.failed));
    Ok(vec![gap, failed, Some(took.as_secs_f64()), Some(result.per_second)])
}

/// Does what the case says. `at` is the member that leaves, and its id.
fn operate(
    cluster: &mut ServerCluster,
    case: &str,
    learner: Option<&str>,
    at: (usize, &str),
) -> Result<(), InstrumentError> {
    let (position, id) = at;
    // A member that stays.
    let through = usize::from(position == 0);
    match case {
        "add-learner" => cluster.add_learner().map(drop),
        "promote" => learner.map_or(Ok(()), |learner| cluster.promote(learner)),
        "remove-follower" | "remove-leader" => cluster.remove(through, id),
        "move-leader" => cluster.move_leader(position, through),
        "replace-leader" => {
            let learner = cluster.add_learner()?;
            cluster.promote(&learner)?;
            cluster.remove(through, id)
        }
        "kill-leader-300ms" | "kill-leader-5s" => {
            cluster.members[position].kill();
            Ok(())
        }
        "stop-leader" => {
            cluster.members[position].terminate();
            cluster.members[position].wait()
        }
        _ => Ok(()),
    }
}

/// The time from the start of a new member until it has received everything and votes.
fn catch_up(
    session: &Session<'_>,
    cluster: &mut ServerCluster,
) -> Result<Duration, InstrumentError> {
    let fill = BenchLoad {
        operation: "get",
        clients: 64,
        seconds: 1,
        keys: session.args.data_mib << 10,
        value_bytes: 1 << 10,
        more: &[],
    };
    fill.run(session, &cluster.endpoints_without(None))?;
    let began = Instant::now();
    let learner = cluster.add_learner()?;
    cluster.promote(&learner)?;
    Ok(began.elapsed())
}
