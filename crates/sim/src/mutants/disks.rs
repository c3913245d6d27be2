//! Hunts on disks: every crash of short workloads, long random workloads, and damage in every
//! place.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::hunt::{Effort, Hunter, Kill};
use super::mutant::{Means, Mutant};
use crate::storage_check::{StorageViolation, damage, explore, walk};

pub struct Disks;

impl Hunter for Disks {
    fn means(&self) -> Means {
        Means::Disks
    }

    fn hunt(&self, _: &Mutant, effort: Effort) -> Option<Kill> {
        let (length, walks) = match effort {
            Effort::Short => (2, 50),
            Effort::Full => (3, 1_000),
        };
        let crashes = (1..=length).find_map(|length| {
            let mut sizes = SEGMENT_BYTES.into_iter();
            sizes.find_map(|bytes| look("crash images", || explore(length, bytes).map(drop)))
        });
        crashes
            .or_else(|| look("damage", || damage::explore().map(drop)))
            .or_else(|| (0..walks).find_map(|seed| look("walk", || walk(seed, STEPS).map(drop))))
    }
}

/// One large save fills a segment of the first size; the second takes several before a sync.
const SEGMENT_BYTES: [u64; 2] = [2_560, 4_096];
const STEPS: u32 = 200;

fn look(place: &str, check: impl FnOnce() -> Result<(), StorageViolation>) -> Option<Kill> {
    let (checker, detail, events) = match catch_unwind(AssertUnwindSafe(check)) {
        Ok(Ok(())) => return None,
        Ok(Err(violation)) => {
            (rule(place, &violation), violation.to_string(), violation.actions.len())
        }
        Err(_) => ("assert", "the store panics".to_owned(), 0),
    };
    Some(Kill {
        means: Means::Disks,
        checker: checker.to_owned(),
        is_proof: true,
        place: place.to_owned(),
        detail,
        events: events as u64,
    })
}

/// The rule that is broken: damage that is not noticed (D4), a disk that does not open (D5), or
/// one that does not hold what was promised (D1, D2).
fn rule(place: &str, violation: &StorageViolation) -> &'static str {
    match place {
        "damage" => "D4",
        _ if violation.message.starts_with("cannot open") => "D5",
        _ => "D1",
    }
}
