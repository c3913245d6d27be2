//! Clusters of bare cores in memory: members whose disks are values, and what is in flight
//! between them.

mod disk;
mod member;

pub use disk::{DiskState, LogView};
pub(crate) use member::CoreMember;
