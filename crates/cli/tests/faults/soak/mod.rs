//! Rounds of pairs of faults on real servers, for as long as wanted: `scripts/soak.sh`.
//!
//! A soak can be stopped (interrupt, or the end of its time) and resumed: the next run continues
//! with the same cluster, its data, and the next pair of faults. Even if it was killed.

mod fault;
mod heavy;
mod lease_checks;
mod members;
mod plan;
mod report;
mod round;
mod watchers;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use self::members::SoakCluster;
use self::plan::{Kind, RoundPlan, plan};
use self::report::{RunReport, SoakState};
use crate::cluster::test_directory;
use crate::support::TestDirectory;

/// Between two requests of a client.
const PAUSE: Duration = Duration::from_millis(5);

/// The addresses of the short soak and of the long one, if it is not told others.
const SHORT_NETWORK: u8 = 2;
const LONG_NETWORK: u64 = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_short_soak_loses_nothing() {
    let directory = test_directory("soak");
    let Some(mut soak) = SoakCluster::start(&directory, SHORT_NETWORK).await else {
        println!("skipped: a_short_soak: needs network namespaces and a C compiler");
        return;
    };
    heavy::write_bulk_keys(&soak.clients()[0]).await;
    let mut ledger = round::Ledger::new();
    let pair = |first, second| RoundPlan::Pair { first, second, first_hits_leader: true };
    let plans = [
        pair(Kind::Kill, Kind::LossyLink),
        pair(Kind::HungDisk, Kind::Replace),
        pair(Kind::LargeReads, Kind::Suspend),
    ];
    for (number, plan) in (0..).zip(plans) {
        let report = round::run(&mut soak, number, plan, &mut ledger).await;
        assert!(report.operations > 0 && report.events > 0);
    }
    // The next run continues with its data.
    drop(soak);
    let mut soak = SoakCluster::start(&directory, SHORT_NETWORK).await.unwrap();
    round::run(&mut soak, 3, pair(Kind::Kill, Kind::Kill), &mut ledger).await;
    drop(soak);
}

/// Settings of a long soak, from the environment.
struct SoakSettings {
    seed: u64,
    time: Duration,
    /// Two soaks at the same time need different networks and directories.
    network: u8,
    /// The cluster's data and the state of the soak.
    directory: PathBuf,
    /// One line of JSON per run.
    runs: PathBuf,
    /// The report of all runs.
    report: PathBuf,
}

impl SoakSettings {
    fn from_environment() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        let path = |name: &str| PathBuf::from(variable(name).unwrap());
        let number =
            |name: &str, default: u64| variable(name).map_or(default, |text| text.parse().unwrap());
        Self {
            seed: number("SOAK_SEED", 1),
            time: Duration::from_secs(60 * number("SOAK_MINUTES", 10)),
            network: number("SOAK_NETWORK", LONG_NETWORK) as u8,
            directory: path("SOAK_DIRECTORY"),
            runs: path("SOAK_RUNS"),
            report: path("SOAK_REPORT"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "runs for as long as it is told: scripts/soak.sh"]
async fn soak() {
    let settings = SoakSettings::from_environment();
    let directory = TestDirectory::keep(&settings.directory);
    let mut state = SoakState::load(&settings.directory, settings.seed, settings.network);
    let mut soak = SoakCluster::start(&directory, state.network).await.unwrap_or_else(|| {
        panic!("a soak needs network namespaces (root) and a C compiler");
    });
    state.save(&settings.directory);
    heavy::write_bulk_keys(&soak.clients()[0]).await;
    let mut run = RunReport::new(&settings.runs, &settings.report, &state);
    let mut stopped = stop_signal();
    let started = Instant::now();
    while started.elapsed() < settings.time && !*stopped.borrow_and_update() {
        let plan = plan(state.seed, state.round);
        println!("round {}: {}", state.round, plan.name());
        run.begin(state.round, &plan.name());
        let round_started = Instant::now();
        let report = round::run(&mut soak, state.round, plan, &mut state.ledger).await;
        println!("  passed in {} s", round_started.elapsed().as_secs());
        run.passed(&plan.name(), &report);
        state.round += 1;
        state.save(&settings.directory);
    }
    drop(run);
    drop(soak);
}

/// Becomes true at an interrupt: the round that runs is finished first.
fn stop_signal() -> tokio::sync::watch::Receiver<bool> {
    let (sender, receiver) = tokio::sync::watch::channel(false);
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        println!("stops after this round");
        let _ = sender.send(true);
    });
    receiver
}
