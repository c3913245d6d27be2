//! The names of files in a data directory.

use std::fmt;

use quorate_core::EntryId;

/// A file of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FileName {
    /// Locked by the process that uses the directory.
    Lock,
    /// Where the directory is, to notice that it was copied.
    Place,
    /// The position up to which the log is known to be durable.
    SyncMark,
    /// A segment of the log, by number.
    Segment(u64),
    /// A segment that is being created.
    NewSegment,
    /// A segment that was trimmed, kept for reuse.
    SpareSegment,
    /// A snapshot of the state after this entry.
    Snapshot(EntryId),
    /// A snapshot that is being written, by number.
    NewSnapshot(u64),
    /// The directory itself.
    Directory,
}

impl FileName {
    /// The file with this name, if it belongs to the store.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let parsed = match name {
            "lock" => Self::Lock,
            "place" => Self::Place,
            "synced" => Self::SyncMark,
            "wal-new" => Self::NewSegment,
            "wal-spare" => Self::SpareSegment,
            _ => Self::parse_numbered(name)?,
        };
        // Numbers have one spelling; any other name is not ours.
        (parsed.to_string() == name).then_some(parsed)
    }

    fn parse_numbered(name: &str) -> Option<Self> {
        if let Some(number) = name.strip_prefix("snapshot-new-") {
            return Some(Self::NewSnapshot(number.parse().ok()?));
        }
        if let Some(id) = name.strip_prefix("snapshot-") {
            let (index, term) = id.split_once('-')?;
            return Some(Self::Snapshot(EntryId::new(term.parse().ok()?, index.parse().ok()?)));
        }
        Some(Self::Segment(name.strip_prefix("wal-")?.parse().ok()?))
    }

    /// Whether a file with this name at startup is left over from an earlier process.
    pub(crate) fn is_unfinished(self) -> bool {
        matches!(self, Self::NewSegment | Self::NewSnapshot(_) | Self::SpareSegment)
    }
}

/// Names sort in the order of segments and snapshots.
impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock => f.write_str("lock"),
            Self::Place => f.write_str("place"),
            Self::SyncMark => f.write_str("synced"),
            Self::Segment(number) => write!(f, "wal-{number:020}"),
            Self::NewSegment => f.write_str("wal-new"),
            Self::SpareSegment => f.write_str("wal-spare"),
            Self::Snapshot(id) => write!(f, "snapshot-{:020}-{:020}", id.index, id.term),
            Self::NewSnapshot(number) => write!(f, "snapshot-new-{number}"),
            Self::Directory => f.write_str("."),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_other_names_are_refused() {
        let names = [
            FileName::Lock,
            FileName::Place,
            FileName::SyncMark,
            FileName::Segment(7),
            FileName::Segment(u64::MAX),
            FileName::NewSegment,
            FileName::SpareSegment,
            FileName::Snapshot(EntryId::new(3, 9)),
            FileName::NewSnapshot(4),
        ];
        for name in names {
            assert_eq!(FileName::parse(&name.to_string()), Some(name));
        }
        for other in ["", ".", "wal-7", "wal-", "snapshot-1-2", "snapshot-new-01", "lost+found"] {
            assert_eq!(FileName::parse(other), None, "{other}");
        }
    }
}
