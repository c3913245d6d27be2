//! Whether the store keeps its promise: whatever a crash leaves can be opened, holds a
//! prefix of what was written with all that was synced, and never anything else; and
//! whatever is damaged is noticed.
//!
//! [`explore`] goes through every crash of every short workload, [`walk`] plays long
//! ones by chance, [`damage`] breaks what is on disk, piece by piece.

pub mod damage;
mod explore;
mod member;
mod model;
mod walk;

use std::fmt;

pub use explore::{CrashReport, explore};
pub use model::Work;
pub use walk::{WalkReport, walk};

/// A promise was broken: what was done, and how it shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageViolation {
    pub works: Vec<Work>,
    pub what: String,
}

impl fmt::Display for StorageViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {:?}: {}", self.works, self.what)
    }
}

impl std::error::Error for StorageViolation {}
