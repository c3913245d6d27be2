//! What a soak keeps: its state for the next run, one line per run, and the report of all runs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::{Value, json};

use super::plan::{Kind, cycle_length};
use super::round::{Ledger, RoundReport};

pub(crate) struct SoakState {
    pub(crate) seed: u64,
    /// The addresses of the members.
    pub(crate) network: u8,
    /// The number of the next round.
    pub(crate) round: u64,
    pub(crate) ledger: Ledger,
}

const STATE: &str = "state.json";

impl SoakState {
    /// The state of the last run, or that of a new soak.
    pub(crate) fn load(directory: &Path, seed: u64, network: u8) -> Self {
        let Ok(text) = fs::read_to_string(directory.join(STATE)) else {
            return Self { seed, network, round: 0, ledger: Ledger::new() };
        };
        let state: Value = serde_json::from_str(&text).unwrap();
        let ledger = state["ledger"].as_object().unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_string();
        Self {
            seed: state["seed"].as_u64().unwrap(),
            network: state["network"].as_u64().map_or(network, |network| network as u8),
            round: state["round"].as_u64().unwrap(),
            ledger: ledger.iter().map(|(key, value)| (key.clone(), text(value))).collect(),
        }
    }

    /// Replaces the file at once: a killed run leaves the old or the new one.
    pub(crate) fn save(&self, directory: &Path) {
        let state = json!({
            "seed": self.seed,
            "network": self.network,
            "round": self.round,
            "ledger": self.ledger,
        });
        let new = directory.join("state.new");
        fs::write(&new, state.to_string()).unwrap();
        fs::rename(&new, directory.join(STATE)).unwrap();
    }
}

/// What one run has done. Dropping it adds it to the runs and writes the report of all of them.
pub(crate) struct RunReport {
    runs: PathBuf,
    report: PathBuf,
    seed: u64,
    first_round: u64,
    rounds: u64,
    started: Instant,
    sums: RoundReport,
    plans: BTreeMap<String, u64>,
    /// The round in progress.
    current: Option<String>,
}

impl RunReport {
    pub(crate) fn new(runs: &Path, report: &Path, state: &SoakState) -> Self {
        Self {
            runs: runs.to_path_buf(),
            report: report.to_path_buf(),
            seed: state.seed,
            first_round: state.round,
            rounds: 0,
            started: Instant::now(),
            sums: RoundReport::default(),
            plans: BTreeMap::new(),
            current: None,
        }
    }

    pub(crate) fn begin(&mut self, round: u64, plan: &str) {
        self.current = Some(format!("round {round}, {plan}"));
    }

    pub(crate) fn passed(&mut self, plan: &str, round: &RoundReport) {
        self.current = None;
        self.rounds += 1;
        *self.plans.entry(plan.to_string()).or_default() += 1;
        let sums = &mut self.sums;
        sums.operations += round.operations;
        sums.unknown += round.unknown;
        sums.undecided += round.undecided;
        sums.events += round.events;
        sums.leases += round.leases;
        sums.longest_gap = sums.longest_gap.max(round.longest_gap);
        sums.memory = sums.memory.max(round.memory);
        sums.disk = sums.disk.max(round.disk);
    }

    fn json(&self) -> Value {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        json!({
            "date": variable("SOAK_DATE"),
            "commit": variable("SOAK_COMMIT"),
            "build": if cfg!(debug_assertions) { "debug" } else { "release" },
            "seed": self.seed,
            "first_round": self.first_round,
            "rounds": self.rounds,
            "seconds": self.started.elapsed().as_secs(),
            "operations": self.sums.operations,
            "unknown": self.sums.unknown,
            "undecided": self.sums.undecided,
            "events": self.sums.events,
            "leases": self.sums.leases,
            "longest_gap_ms": self.sums.longest_gap.as_millis() as u64,
            "memory": self.sums.memory,
            "disk": self.sums.disk,
            "plans": self.plans,
            "failed": self.current,
        })
    }
}

impl Drop for RunReport {
    fn drop(&mut self) {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.runs).unwrap();
        writeln!(file, "{}", self.json()).unwrap();
        let all = fs::read_to_string(&self.runs).unwrap();
        let all: Vec<Value> = all.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        fs::write(&self.report, text(&all)).unwrap();
    }
}

/// The report of all runs.
fn text(runs: &[Value]) -> String {
    let mut plans: BTreeMap<&str, u64> = BTreeMap::new();
    for (plan, count) in runs.iter().filter_map(|run| run["plans"].as_object()).flatten() {
        *plans.entry(plan).or_default() += count.as_u64().unwrap_or(0);
    }
    let mut text = String::from(INTRODUCTION);
    write_totals(&mut text, runs, plans.len());
    write_matrix(&mut text, &plans);
    write_runs(&mut text, runs);
    text
}

fn write_totals(text: &mut String, runs: &[Value], plans: usize) {
    let sum = |name: &str| runs.iter().filter_map(|run| run[name].as_u64()).sum::<u64>();
    let max = |name: &str| runs.iter().filter_map(|run| run[name].as_u64()).max().unwrap_or(0);
    let failures = runs.iter().filter(|run| !run["failed"].is_null()).count();
    let rows = [
        ("runs", runs.len().to_string()),
        ("hours", format!("{:.2}", sum("seconds") as f64 / 3600.0)),
        ("rounds passed", sum("rounds").to_string()),
        ("runs that ended with a failure", failures.to_string()),
        ("different pairs of faults that passed", format!("{plans} of {}", cycle_length())),
        ("operations checked", sum("operations").to_string()),
        ("of these with an unknown result", sum("unknown").to_string()),
        ("rounds whose history was too hard to check", sum("undecided").to_string()),
        ("watch events checked at each watcher", sum("events").to_string()),
        ("leases checked", sum("leases").to_string()),
        ("longest time without any reply", seconds(max("longest_gap_ms"))),
        ("largest memory of a member", format!("{} MiB", max("memory") >> 20)),
        ("largest data directory", format!("{} MiB", max("disk") >> 20)),
    ];
    text.push_str("\n## Totals\n\n| | |\n|---|--:|\n");
    for (name, value) in rows {
        let _ = writeln!(text, "| {name} | {value} |");
    }
}

fn write_matrix(text: &mut String, plans: &BTreeMap<&str, u64>) {
    text.push_str("\n## Rounds passed per pair of faults\n\n|");
    for kind in Kind::ALL {
        let _ = write!(text, " | {}", kind.name());
    }
    let _ = writeln!(text, " |\n|---{}|", "|--:".repeat(Kind::ALL.len()));
    for (row, low) in Kind::ALL.iter().enumerate() {
        let _ = write!(text, "| {}", low.name());
        for (column, high) in Kind::ALL.iter().enumerate() {
            let pair = format!("{} + {}", low.name(), high.name());
            let count = plans.get(pair.as_str()).copied().unwrap_or(0);
            let cell = if column < row { String::new() } else { count.to_string() };
            let _ = write!(text, " | {cell}");
        }
        text.push_str(" |\n");
    }
    let restored = plans.get("restored-disk").copied().unwrap_or(0);
    let _ = writeln!(text, "\nrestored-disk, alone: {restored}");
}

fn write_runs(text: &mut String, runs: &[Value]) {
    text.push_str("\n## Runs\n\n");
    let columns =
        "date | commit | build | seed | rounds | minutes | operations | unknown | longest gap";
    let _ = writeln!(text, "| {columns} | result |\n|---|---|---|--:|--:|--:|--:|--:|--:|---|");
    for run in runs {
        let word = |name: &str| run[name].as_str().unwrap_or("").to_string();
        let number = |name: &str| run[name].as_u64().unwrap_or(0);
        let first = number("first_round");
        let passed = || "passed".to_string();
        let failed = |failed: &str| format!("**failed** in {failed}{}", note(run));
        let cells = [
            word("date"),
            word("commit"),
            word("build"),
            number("seed").to_string(),
            format!("{first}..{}", first + number("rounds")),
            format!("{:.1}", number("seconds") as f64 / 60.0),
            number("operations").to_string(),
            number("unknown").to_string(),
            seconds(number("longest_gap_ms")),
            run["failed"].as_str().map_or_else(passed, failed),
        ];
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
}

fn seconds(milliseconds: u64) -> String {
    format!("{:.1} s", milliseconds as f64 / 1000.0)
}

/// What the failure was, added to the line of the run by hand.
fn note(run: &Value) -> String {
    run["note"].as_str().map(|note| format!(": {note}")).unwrap_or_default()
}

const INTRODUCTION: &str = "\
# Soak: pairs of faults on real servers

Written by `scripts/soak.sh` from `docs/soak.jsonl`, which has one line per run. Do not edit.

Five members run in network namespaces, with two spare ones. In each round, two faults of different
members last at the same time while clients write, read, compare-and-set, delete, watch and keep
leases alive through all members. Under both faults the clients must get replies, and a membership
change must finish. Then the faults are healed, and the round passes only if

- the history of the clients is linearizable, and revisions never went back;
- watchers at all members saw every event once and in order, and every acknowledged change is one;
- a lease that was kept alive has not expired, and the other one has, not before its time;
- all members have the same data and the same hash, and everything of earlier rounds is there;
- no member panicked, and members exited only with the error that their fault explains.

To run it for half an hour (root; the next run continues where it stopped):

```sh
scripts/soak.sh --minutes 30
```
";
