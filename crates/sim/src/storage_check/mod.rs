//! Whether the store keeps its promise: whatever a crash leaves can be opened, holds a
//! prefix of what was written with all that was synced, and never anything else; and
//! whatever is damaged is noticed.
//!
//! [`explore`] goes through every crash of every short workload, [`walk`] plays long
//! ones by chance.

mod explore;
mod member;
mod model;
mod walk;

use std::fmt;

pub use explore::{Report, explore};
pub use model::Work;
pub use walk::{WalkReport, walk};

/// A promise was broken: what was done, and how it shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub works: Vec<Work>,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {:?}: {}", self.works, self.what)
    }
}

impl std::error::Error for Violation {}
