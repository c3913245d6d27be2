//! Hunts one mutant after the other, on every core of the machine.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::mutant::{Means, Mutant};
use super::switch::switch;

/// A means of looking for faults.
pub trait Hunter: Sync {
    fn means(&self) -> Means;

    /// Runs with the mutant switched on until a checker notices it, or the effort is spent.
    fn hunt(&self, mutant: &Mutant, effort: Effort) -> Option<Kill>;
}

/// How long to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Effort {
    Short,
    #[default]
    Full,
}

/// How a mutant was noticed.
#[derive(Clone, Debug)]
pub struct Kill {
    pub means: Means,
    /// The id of an invariant, `claim`, `assert`, `endless`; or `course` and `transcript`, where
    /// only the course of events differed.
    pub checker: String,
    /// Something that must hold did not. Otherwise only the course of events differed.
    pub is_proof: bool,
    /// A story, a scope of the model or a seed.
    pub place: String,
    /// What the checker said.
    pub detail: String,
    /// Inputs until then, in that run.
    pub events: u64,
}

/// The result of hunting one mutant.
#[derive(Clone, Debug)]
pub struct HuntResult {
    pub kill: Option<Kill>,
    pub took: Duration,
}

impl HuntResult {
    /// The kill, if something that must hold did not.
    pub fn proof(&self) -> Option<&Kill> {
        self.kill.as_ref().filter(|kill| kill.is_proof)
    }

    /// Whether the mutant was noticed exactly if it does harm.
    pub fn is_expected(&self, mutant: &Mutant) -> bool {
        self.proof().is_some() != mutant.is_equivalent()
    }
}

/// Whether this means may notice the mutant. Stories and the model run the core alone, crash
/// images the storage alone, random runs everything. A mutant that random runs or disks must
/// notice is not looked for elsewhere.
pub fn may_notice(means: Means, mutant: &Mutant) -> bool {
    match mutant.means() {
        Means::Stories | Means::Model => means != Means::Disks,
        Means::Explore => means == Means::Explore,
        Means::Disks => matches!(means, Means::Disks | Means::Explore),
    }
}

/// Hunts these mutants, several at a time. The results are in the same order.
pub fn hunt_all<'a>(
    hunters: &[Box<dyn Hunter>],
    mutants: &[&'a Mutant],
    effort: Effort,
) -> Vec<(&'a Mutant, HuntResult)> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let position = next.fetch_add(1, Ordering::Relaxed);
                    let Some(mutant) = mutants.get(position) else { break };
                    let result = hunt(hunters, mutant, effort);
                    let mut results = results.lock().unwrap_or_else(|broken| broken.into_inner());
                    results.push((position, *mutant, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(|broken| broken.into_inner());
    results.sort_by_key(|(position, ..)| *position);
    results.into_iter().map(|(_, mutant, result)| (mutant, result)).collect()
}

fn hunt(hunters: &[Box<dyn Hunter>], mutant: &Mutant, effort: Effort) -> HuntResult {
    let begun = Instant::now();
    let mut best: Option<Kill> = None;
    for hunter in hunters.iter().filter(|hunter| may_notice(hunter.means(), mutant)) {
        switch(Some(mutant.number));
        let kill = hunter.hunt(mutant, effort);
        switch(None);
        if kill.as_ref().is_some_and(|kill| kill.is_proof) {
            best = kill;
            break;
        }
        best = best.or(kill);
    }
    HuntResult { kill: best, took: begun.elapsed() }
}

/// The core panics a lot under mutants. Each panic is caught and shown in the table.
pub(super) fn silence_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}
