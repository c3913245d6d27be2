//! `quorate-sim explore`: many seeds, or one, or a replay file.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::replay::Replay;
use super::report::Report;
use super::{Outcome, Trace, Trial, run, shrink};

const USAGE: &str = "\
usage:
  quorate-sim explore [--seconds N | --seeds N | --forever] [--from SEED] [--threads N]
                                    many runs; default: 60 seconds
                                    with --hints: priorities, and true and
                                    false reports of lost connections
  quorate-sim explore --seed N [--trace]    one run again
  quorate-sim explore --file F [--trace]    a replay file
After a failure the run is shortened and written to a replay file, except with --no-shrink.";

/// The arguments of `explore`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ExploreArguments {
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

impl ExploreArguments {
    fn replay(&self, seed: u64) -> Replay {
        if self.hints { Replay::of_seed_with_hints(seed) } else { Replay::of_seed(seed) }
    }
}

fn parse(args: &[String]) -> Option<ExploreArguments> {
    let mut arguments = ExploreArguments::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|value| value.parse().ok());
        match arg.as_str() {
            "--seconds" => arguments.seconds = Some(number()?),
            "--seeds" => arguments.seeds = Some(number()?),
            "--forever" => arguments.forever = true,
            "--from" => arguments.from = number()?,
            "--threads" => arguments.threads = Some(number()?),
            "--seed" => arguments.seed = Some(number()?),
            "--file" => arguments.file = Some(args.next()?.clone()),
            "--trace" => arguments.trace = true,
            "--no-shrink" => arguments.no_shrink = true,
            "--hints" => arguments.hints = true,
            _ => return None,
        }
    }
    Some(arguments)
}

pub fn main(args: &[String]) -> ExitCode {
    let Some(arguments) = parse(args) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let replay = match (&arguments.file, arguments.seed) {
        (Some(file), _) => match read(Path::new(file)) {
            Ok(replay) => replay,
            Err(why) => {
                eprintln!("{file}: {why}");
                return ExitCode::from(2);
            }
        },
        (None, Some(seed)) => arguments.replay(seed),
        (None, None) => return many(&arguments),
    };
    one(&replay, &arguments)
}

fn read(file: &Path) -> Result<Replay, String> {
    let text = std::fs::read_to_string(file).map_err(|why| why.to_string())?;
    Replay::parse(&text)
}

fn one(replay: &Replay, arguments: &ExploreArguments) -> ExitCode {
    let trace =
        arguments.trace.then(|| Box::new(|now: u64, what: &str| say!("{now:>8} {what}")) as Trace);
    let outcome = Trial::kv().run_traced(&replay.setting, &replay.actions, trace);
    say!("{}", outcome.report);
    match &outcome.violation {
        None => {
            say!("violations       0");
            ExitCode::SUCCESS
        }
        Some(violation) => {
            say!("violations       1: {violation}");
            if !arguments.no_shrink && arguments.file.is_none() {
                shorten(replay, &outcome);
            }
            ExitCode::FAILURE
        }
    }
}

/// Writes a shortened replay of a failure and prints how to play it.
fn shorten(replay: &Replay, outcome: &Outcome) {
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
        Err(error) => say!("cannot write {file}: {error}"),
    }
}

const SHRINK_TRIES: usize = 3_000;

/// The state that all threads share.
struct ExploreThreads {
    next: AtomicU64,
    stop: AtomicBool,
    report: Mutex<Report>,
    failures: Mutex<Vec<(u64, String)>>,
}

fn many(arguments: &ExploreArguments) -> ExitCode {
    let started = Instant::now();
    let seconds =
        arguments.seconds.or((arguments.seeds.is_none() && !arguments.forever).then_some(60));
    let end = arguments.seeds.map_or(u64::MAX, |count| arguments.from.saturating_add(count));
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let shared = ExploreThreads {
        next: AtomicU64::new(arguments.from),
        stop: AtomicBool::new(false),
        report: Mutex::default(),
        failures: Mutex::default(),
    };
    // A violation is reported in the summary; the panic messages of threads are redundant.
    std::panic::set_hook(Box::new(|_| {}));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..arguments.threads.unwrap_or(cores).max(1))
            .map(|_| scope.spawn(|| work(&shared, end, arguments)))
            .collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(100));
            if seconds.is_some_and(|seconds| started.elapsed().as_secs() >= seconds) {
                shared.stop.store(true, Ordering::Relaxed);
            }
            progress(&shared, started, arguments.forever);
        }
    });
    let _ = std::panic::take_hook();
    finish(arguments, &shared, started)
}

fn work(shared: &ExploreThreads, end: u64, arguments: &ExploreArguments) {
    while !shared.stop.load(Ordering::Relaxed) {
        let seed = shared.next.fetch_add(1, Ordering::Relaxed);
        if seed >= end {
            return;
        }
        let replay = arguments.replay(seed);
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

/// After this many failures the search stops.
const FAILURES_MAX: usize = 20;

fn progress(shared: &ExploreThreads, started: Instant, always: bool) {
    if !always && !std::io::stderr().is_terminal() {
        return;
    }
    let report = shared.report.lock().unwrap_or_else(PoisonError::into_inner);
    let failures = shared.failures.lock().unwrap_or_else(PoisonError::into_inner).len();
    let seconds = started.elapsed().as_secs_f64();
    let rate = report.events as f64 / seconds.max(0.001);
    eprint!(
        "\r{} schedules, {} events, {rate:.0} events/s, {failures} violations ",
        report.schedules, report.events
    );
    let _ = std::io::stderr().flush();
}

fn finish(arguments: &ExploreArguments, shared: &ExploreThreads, started: Instant) -> ExitCode {
    let report = shared.report.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut failures = shared.failures.lock().unwrap_or_else(PoisonError::into_inner).clone();
    failures.sort();
    let seconds = started.elapsed().as_secs_f64();
    say!("{report}");
    say!("events/s         {:.0} in {seconds:.0} s", report.events as f64 / seconds.max(0.001));
    say!("violations       {}", failures.len());
    let Some((seed, _)) = failures.first() else { return ExitCode::SUCCESS };
    for (seed, violation) in &failures {
        say!("  seed {seed}: {violation}");
    }
    say!("replay with:");
    let hints = if arguments.hints { " --hints" } else { "" };
    say!("  cargo run --release -p quorate-sim -- explore --seed {seed}{hints} --trace");
    if !arguments.no_shrink {
        let replay = arguments.replay(*seed);
        let outcome = run(&replay.setting, &replay.actions);
        shorten(&replay, &outcome);
    }
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_understood_or_refused() {
        let words = |line: &str| line.split_whitespace().map(str::to_string).collect::<Vec<_>>();
        let arguments = parse(&words("--seed 7 --trace")).unwrap();
        assert_eq!((arguments.seed, arguments.trace), (Some(7), true));
        assert_eq!(parse(&words("--seconds")), None);
        assert_eq!(parse(&words("--seconds many")), None);
        assert_eq!(parse(&words("--sceonds 5")), None);
    }
}
