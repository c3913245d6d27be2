//! Checks the durability guarantees of the store: after any crash it opens and holds a
//! prefix of the writes that includes all synced ones, and nothing else; and corruption
//! is detected.
//!
//! [`explore`] tries every crash of every short workload, [`walk`] runs long random
//! workloads, [`damage`] corrupts the files one change at a time.

pub mod damage;
mod explore;
mod member;
mod model;
mod walk;

use std::fmt;

pub use explore::{CrashReport, explore};
pub use model::StoreAction;
pub use walk::{WalkReport, walk};

/// A guarantee that the store broke: the actions before, and a description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageViolation {
    pub actions: Vec<StoreAction>,
    pub message: String,
}

impl fmt::Display for StorageViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {:?}: {}", self.actions, self.message)
    }
}

impl std::error::Error for StorageViolation {}
