//! The test suite for implementations of [`Storage`].
//!
//! Each case uses a new storage as a running member does, closes and reopens it, and compares
//! what it finds with a simple model.
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

use crate::storage::Storage;
use trial::SuiteViolation;

/// The data of a storage, and how to open it.
pub struct StorageUnderTest {
    handle: Box<dyn FnMut() -> Box<dyn Storage>>,
    crash: Option<Box<dyn FnMut()>>,
}

impl StorageUnderTest {
    /// Each call of `handle` gives a storage that is not open yet, always on the same
    /// data. The previous one is dropped before.
    pub fn new<S: Storage>(mut handle: impl FnMut() -> S + 'static) -> Self {
        Self { handle: Box::new(move || Box::new(handle())), crash: None }
    }

    /// `crash` loses what a power loss may lose. It is called when no handle is left. Without
    /// it, syncs cannot be tested, and some cases are skipped.
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

/// Runs all cases. `fresh` returns a storage that is empty.
///
/// Some rules of [`Storage`] are easily overlooked:
/// - What [`Storage::open`] returns must be durable: the member does not save it again.
/// - What was written is durable after [`Storage::close`], synced or not.
/// - A snapshot that was adopted is durable. It is the newest one after the next open if
///   the log holds its entry, and is ignored if it does not: then no save installed it.
/// - [`Storage::trim`] drops what a snapshot covers. The snapshot may depend on entries that
///   are not synced: they have to be durable before anything is dropped.
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
            Err(SuiteViolation(why)) => failed.push(FailedCase { case: case.name, why }),
        }
    }
    if failed.is_empty() { Ok(passed) } else { Err(StorageSuiteFailure { cases: failed }) }
}

/// One case of the suite.
struct StorageCase {
    name: &'static str,
    /// Needs a storage that can crash.
    crashes: bool,
    run: fn(StorageUnderTest) -> Result<(), SuiteViolation>,
}

fn run(case: &StorageCase, subject: StorageUnderTest) -> Result<(), SuiteViolation> {
    catch_unwind(AssertUnwindSafe(|| (case.run)(subject))).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        Err(SuiteViolation(format!(
            "the storage panicked: {}",
            text.unwrap_or("without a message")
        )))
    })
}

/// The cases that a storage passed.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct StorageSuitePassed {
    /// Those that were run.
    pub cases: Vec<&'static str>,
    /// Those that need a storage that can crash.
    pub skipped: Vec<&'static str>,
}

/// The cases that a storage failed.
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

/// As `Display`, so that a test can unwrap it.
impl fmt::Debug for StorageSuiteFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for StorageSuiteFailure {}
