//! One mutant after the other, on every core of the machine.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use quorate_core::mutants::{Means, Mutant, switch};

use super::equivalent::reason;

/// A means of looking for faults.
pub trait Hunter: Sync {
    fn means(&self) -> Means;

    /// Runs with the mutant switched on until it is noticed, or the effort is spent.
    fn hunt(&self, mutant: Mutant, effort: Effort) -> Option<Kill>;
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
    /// The id of an invariant, `claim`, `assert`, `endless`; or `course` and
    /// `transcript`, where only the course of events was another.
    pub checker: String,
    /// Something that must hold did not; else only the course of events was another.
    pub is_proof: bool,
    /// A file or a seed.
    pub place: String,
    /// What was seen there.
    pub detail: String,
    /// Inputs until then, in that run.
    pub events: u64,
}

/// What became of a mutant.
#[derive(Clone, Debug)]
pub struct Fate {
    pub kill: Option<Kill>,
    pub took: Duration,
}

impl Fate {
    /// Something that must hold did not.
    pub fn is_killed(&self) -> bool {
        self.kill.as_ref().is_some_and(|kill| kill.is_proof)
    }

    /// Noticed if it does harm, and only then.
    pub fn is_as_wanted(&self, mutant: Mutant) -> bool {
        self.is_killed() != reason(mutant).is_some()
    }
}

/// Whether this means may show the mutant. Stories and scopes run the core alone, crash
/// images the storage alone, random worlds everything; and what is expected there alone
/// is not looked for elsewhere.
pub fn may_notice(means: Means, mutant: Mutant) -> bool {
    match mutant.means() {
        Means::Stories | Means::Model => means != Means::Disks,
        Means::Explore => means == Means::Explore,
        Means::Disks => matches!(means, Means::Disks | Means::Explore),
    }
}

/// Hunts these mutants, several at a time. In the order of the list.
pub fn hunt_all(
    hunters: &[Box<dyn Hunter>],
    mutants: &[Mutant],
    effort: Effort,
) -> Vec<(Mutant, Fate)> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, fates) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let fate = hunt(hunters, *mutant, effort);
                    let mut fates = fates.lock().unwrap_or_else(|broken| broken.into_inner());
                    fates.push((*mutant, fate));
                }
            });
        }
    });
    let mut fates = fates.into_inner().unwrap_or_else(|broken| broken.into_inner());
    fates.sort_by_key(|(mutant, _)| mutants.iter().position(|wanted| wanted == mutant));
    fates
}

fn hunt(hunters: &[Box<dyn Hunter>], mutant: Mutant, effort: Effort) -> Fate {
    let begun = Instant::now();
    let mut best: Option<Kill> = None;
    for hunter in hunters.iter().filter(|hunter| may_notice(hunter.means(), mutant)) {
        switch(Some(mutant));
        let kill = hunter.hunt(mutant, effort);
        switch(None);
        if kill.as_ref().is_some_and(|kill| kill.is_proof) {
            best = kill;
            break;
        }
        best = best.or(kill);
    }
    Fate { kill: best, took: begun.elapsed() }
}

/// The core panics a lot under mutants; each is caught and told in the table.
pub(super) fn silence_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}
