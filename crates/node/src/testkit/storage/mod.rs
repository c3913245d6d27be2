//! The suite that every [`Storage`] has to pass.
//!
//! Each case gets a subject of its own, uses it as a running member does, ends and opens it
//! again, and compares what is found with a simple model.
//!
//! ```
//! use quorate::MemoryStorage;
//! use quorate::testkit::storage::{StorageUnderTest, check};
//!
//! let passed = check(|| {
//!     let subject = MemoryStorage::new();
//!     let power = subject.clone();
//!     StorageUnderTest::new(move || subject.clone()).with_crash(move || power.crash())
//! })?;
//! assert!(passed.skipped.is_empty());
//! # Ok::<(), quorate::testkit::storage::StorageSuiteFailure>(())
//! ```

mod cases;
mod model;
mod random;
mod snapshot_cases;
mod trial;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::Storage;
use trial::Violation;

/// Where a storage keeps its data, and how to get at it.
pub struct StorageUnderTest {
    handle: Box<dyn FnMut() -> Box<dyn Storage>>,
    crash: Option<Box<dyn FnMut()>>,
}

impl StorageUnderTest {
    /// Each call of `handle` gives a storage that is not open yet, always on the same
    /// data. The one before is dropped by then.
    pub fn new<S: Storage>(mut handle: impl FnMut() -> S + 'static) -> Self {
        Self { handle: Box::new(move || Box::new(handle())), crash: None }
    }

    /// `crash` is to lose whatever a power cut may lose. It is called when no handle is
    /// left. Without it, what syncs are good for cannot be shown, and some cases are
    /// skipped.
    pub fn with_crash(mut self, crash: impl FnMut() + 'static) -> Self {
        self.crash = Some(Box::new(crash));
        self
    }
}

impl fmt::Debug for StorageUnderTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageUnderTest").field("can_crash", &self.crash.is_some()).finish()
    }
}

/// Runs all cases. `fresh` gives a subject where nothing was ever written.
///
/// A few things follow from what [`Storage`] says, and are easily overlooked:
/// - What [`Storage::open`] tells is durable by then: nobody saves it again.
/// - What was written is durable after [`Storage::close`], synced or not.
/// - A snapshot that was adopted is durable. It is the newest one after the next open if
///   the log holds its entry, and nothing if it does not: then no save installed it.
/// - [`Storage::trim`] drops what a snapshot covers, and that may rest on entries that were
///   not synced. They have to be durable before anything goes.
pub fn check(
    mut fresh: impl FnMut() -> StorageUnderTest,
) -> Result<StorageSuitePassed, StorageSuiteFailure> {
    let mut passed = StorageSuitePassed::default();
    let mut failed = Vec::new();
    for case in cases::all() {
        let subject = fresh();
        if case.crashes && subject.crash.is_none() {
            passed.skipped.push(case.name);
            continue;
        }
        match run(&case, subject) {
            Ok(()) => passed.cases.push(case.name),
            Err(Violation(why)) => failed.push(FailedCase { case: case.name, why }),
        }
    }
    if failed.is_empty() { Ok(passed) } else { Err(StorageSuiteFailure { cases: failed }) }
}

/// One thing that a storage has to do.
struct StorageCase {
    name: &'static str,
    /// Only with a subject that can crash.
    crashes: bool,
    run: fn(StorageUnderTest) -> Result<(), Violation>,
}

fn run(case: &StorageCase, subject: StorageUnderTest) -> Result<(), Violation> {
    catch_unwind(AssertUnwindSafe(|| (case.run)(subject))).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        Err(Violation(format!("the storage panicked: {}", text.unwrap_or("without a text"))))
    })
}

/// The names of the cases, as a storage that keeps every promise is told.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct StorageSuitePassed {
    /// Those that were run.
    pub cases: Vec<&'static str>,
    /// Those that need a subject that can crash.
    pub skipped: Vec<&'static str>,
}

/// What a storage does not do as it should.
#[derive(Clone, PartialEq, Eq)]
pub struct StorageSuiteFailure {
    /// At least one.
    pub cases: Vec<FailedCase>,
}

/// A case that a storage does not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedCase {
    /// Its name.
    pub case: &'static str,
    /// What was done, what was found, and what was expected.
    pub why: String,
}

impl fmt::Display for StorageSuiteFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cases failed", self.cases.len())?;
        self.cases.iter().try_for_each(|failed| write!(f, "\n{}: {}", failed.case, failed.why))
    }
}

/// As it is displayed, so that unwrapping it in a test is enough.
impl fmt::Debug for StorageSuiteFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for StorageSuiteFailure {}
