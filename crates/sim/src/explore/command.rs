//! `quorate-sim explore`: many seeds, or one, or a replay file.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::replay::RunReplay;
use super::report::RunReport;
use super::{MachineTrial, RunOutcome, Trace, run, shrink};

const USAGE: &str = "\
usage:
  quorate-sim explore [--seconds N | --seeds N | --forever] [--from SEED] [--threads N]
                                    many random simulations, for 60 seconds by default;
                                    --hints adds priorities and reports of lost
                                    connections, true and false
  quorate-sim explore --seed N [--trace]    run one seed
  quorate-sim explore --file F [--trace]    run a replay file
A failing run is shortened and written to a replay file, unless --no-shrink is given.";

/// The options of the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ExploreOptions {
    seconds: Option<u64>,
    seeds: Option<u64>,
    forever: bool,
    from: u64,
    threads: Option<u64>,
    seed: Option<u64>,
    file: Option<String>,
    trace: bool,
    no_shrink: bool,
    hints: bool,
}

impl ExploreOptions {
    fn replay(&self, seed: u64) -> RunReplay {
        if self.hints { RunReplay::of_seed_with_hints(seed) } else { RunReplay::of_seed(seed) }
    }
}

fn parse(args: &[String]) -> Option<ExploreOptions> {
    let mut options = ExploreOptions::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|value| value.parse().ok());
        match arg.as_str() {
            "--seconds" => options.seconds = Some(number()?),
            "--seeds" => options.seeds = Some(number()?),
            "--forever" => options.forever = true,
            "--from" => options.from = number()?,
            "--threads" => options.threads = Some(number()?),
            "--seed" => options.seed = Some(number()?),
            "--file" => options.file = Some(args.next()?.clone()),
            "--trace" => options.trace = true,
            "--no-shrink" => options.no_shrink = true,
            "--hints" => options.hints = true,
            _ => return None,
        }
    }
    Some(options)
}

pub fn main(args: &[String]) -> ExitCode {
    let Some(options) = parse(args) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let replay = match (&options.file, options.seed) {
        (Some(file), _) => match read(Path::new(file)) {
            Ok(replay) => replay,
            Err(why) => {
                eprintln!("{file}: {why}");
                return ExitCode::from(2);
            }
        },
        (None, Some(seed)) => options.replay(seed),
        (None, None) => return many(&options),
    };
    one(&replay, &options)
}

fn read(file: &Path) -> Result<RunReplay, String> {
    let text = std::fs::read_to_string(file).map_err(|why| why.to_string())?;
    RunReplay::parse(&text)
}

fn one(replay: &RunReplay, options: &ExploreOptions) -> ExitCode {
    let trace =
        options.trace.then(|| Box::new(|now: u64, what: &str| say!("{now:>8} {what}")) as Trace);
    let outcome = MachineTrial::of_setting().run_traced(&replay.setting, &replay.actions, trace);
    say!("{}", outcome.report);
    match &outcome.violation {
        None => {
            say!("violations       0");
            ExitCode::SUCCESS
        }
        Some(violation) => {
            say!("violations       1: {violation}");
            if !options.no_shrink && options.file.is_none() {
                shorten(replay, &outcome);
            }
            ExitCode::FAILURE
        }
    }
}

/// Writes a short replay of a failure and says how to play it.
fn shorten(replay: &RunReplay, outcome: &RunOutcome) {
    let Some(violation) = &outcome.violation else { return };
    let seed = replay.setting.seed;
    let short = shrink(replay, violation.rule, SHRINK_TRIES);
    let file = format!("explore-{seed}.replay");
    let text = format!("# {violation}\n{short}");
    match std::fs::write(&file, text) {
        Ok(()) => {
            let (from, to) = (replay.actions.len(), short.actions.len());
            say!("shortened from {from} actions to {to}; replay with:");
            say!("  cargo run --release -p quorate-sim -- explore --file {file} --trace");
        }
        Err(why) => say!("cannot write {file}: {why}"),
    }
}

const SHRINK_TRIES: usize = 3_000;

/// What the threads share.
struct ExploreThreads {
    next: AtomicU64,
    stop: AtomicBool,
    report: Mutex<RunReport>,
    failures: Mutex<Vec<(u64, String)>>,
}

fn many(options: &ExploreOptions) -> ExitCode {
    let began = Instant::now();
    let seconds = options.seconds.or((options.seeds.is_none() && !options.forever).then_some(60));
    let end = options.seeds.map_or(u64::MAX, |count| options.from.saturating_add(count));
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let shared = ExploreThreads {
        next: AtomicU64::new(options.from),
        stop: AtomicBool::new(false),
        report: Mutex::default(),
        failures: Mutex::default(),
    };
    // A violation is reported as one; the threads' own words about it are noise.
    std::panic::set_hook(Box::new(|_| {}));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..options.threads.unwrap_or(cores).max(1))
            .map(|_| scope.spawn(|| work(&shared, end, options)))
            .collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(100));
            if seconds.is_some_and(|seconds| began.elapsed().as_secs() >= seconds) {
                shared.stop.store(true, Ordering::Relaxed);
            }
            progress(&shared, began, options.forever);
        }
    });
    let _ = std::panic::take_hook();
    finish(options, &shared, began)
}

fn work(shared: &ExploreThreads, end: u64, options: &ExploreOptions) {
    while !shared.stop.load(Ordering::Relaxed) {
        let seed = shared.next.fetch_add(1, Ordering::Relaxed);
        if seed >= end {
            return;
        }
        let replay = options.replay(seed);
        let outcome = run(&replay.setting, &replay.actions);
        shared.report.lock().unwrap_or_else(PoisonError::into_inner).add(&outcome.report);
        if let Some(violation) = outcome.violation {
            let mut failures = shared.failures.lock().unwrap_or_else(PoisonError::into_inner);
            failures.push((seed, violation.to_string()));
            if failures.len() >= FAILURES_MAX {
                shared.stop.store(true, Ordering::Relaxed);
            }
        }
    }
}

/// Enough to see what is wrong.
const FAILURES_MAX: usize = 20;

fn progress(shared: &ExploreThreads, began: Instant, always: bool) {
    if !always && !std::io::stderr().is_terminal() {
        return;
    }
    let report = shared.report.lock().unwrap_or_else(PoisonError::into_inner);
    let failures = shared.failures.lock().unwrap_or_else(PoisonError::into_inner).len();
    let seconds = began.elapsed().as_secs_f64();
    let rate = report.events as f64 / seconds.max(0.001);
    eprint!(
        "\r{} schedules, {} events, {rate:.0} events/s, {failures} violations ",
        report.schedules, report.events
    );
    let _ = std::io::stderr().flush();
}

fn finish(options: &ExploreOptions, shared: &ExploreThreads, began: Instant) -> ExitCode {
    let report = shared.report.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut failures = shared.failures.lock().unwrap_or_else(PoisonError::into_inner).clone();
    failures.sort();
    let seconds = began.elapsed().as_secs_f64();
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K"); // The line of progress.
    }
    say!("{report}");
    say!("events/s         {:.0} in {seconds:.0} s", report.events as f64 / seconds.max(0.001));
    say!("violations       {}", failures.len());
    let Some((seed, _)) = failures.first() else {
        say!("\n{}", verdict(report.schedules, failures.len()));
        return ExitCode::SUCCESS;
    };
    for (seed, violation) in &failures {
        say!("  seed {seed}: {violation}");
    }
    say!("replay with:");
    let hints = if options.hints { " --hints" } else { "" };
    say!("  cargo run --release -p quorate-sim -- explore --seed {seed}{hints} --trace");
    if !options.no_shrink {
        let replay = options.replay(*seed);
        let outcome = run(&replay.setting, &replay.actions);
        shorten(&replay, &outcome);
    }
    say!("\n{}", verdict(report.schedules, failures.len()));
    ExitCode::FAILURE
}

/// What the numbers mean, in one sentence.
fn verdict(schedules: u64, failures: usize) -> String {
    match (schedules, failures) {
        (0, _) => "Verdict: no simulation ended in this time; give it more seconds.".to_owned(),
        (_, 0) => format!(
            "Verdict: passed. In {schedules} simulated clusters with faults no rule was broken, \
             and each one recovered when the faults ended."
        ),
        _ => format!(
            "Verdict: FAILED. {failures} of {schedules} simulated clusters broke a rule; replay \
             one with the command above."
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_is_one_sentence() {
        assert!(verdict(7, 0).starts_with("Verdict: passed. In 7 simulated clusters"));
        assert!(verdict(7, 2).starts_with("Verdict: FAILED. 2 of 7 simulated clusters"));
        assert!(verdict(0, 0).contains("no simulation ended"));
    }

    #[test]
    fn arguments_are_understood_or_refused() {
        let words = |line: &str| line.split_whitespace().map(str::to_string).collect::<Vec<_>>();
        let options = parse(&words("--seed 7 --trace")).unwrap();
        assert_eq!((options.seed, options.trace), (Some(7), true));
        assert_eq!(parse(&words("--seconds")), None);
        assert_eq!(parse(&words("--seconds many")), None);
        assert_eq!(parse(&words("--sceonds 5")), None);
    }
}
