//! The names of files in a data directory.

use std::fmt;

use quorate_core::EntryId;

/// A file of the store, by what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileName {
    /// Held by the process that uses the directory.
    Lock,
    /// How far the log is known to be durable.
    SyncMark,
    /// A part of the log.
    Segment(u64),
    /// A part of the log that is being made.
    NewSegment,
    /// A part of the log that was trimmed away, kept to be written over.
    SpareSegment,
    /// The state as of this entry.
    Snapshot(EntryId),
    /// A snapshot that is being written.
    NewSnapshot(u64),
    /// The directory itself.
    Directory,
}

impl FileName {
    /// What this name stands for, if it is one of ours.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let parsed = match name {
            "lock" => Self::Lock,
            "synced" => Self::SyncMark,
            "wal-new" => Self::NewSegment,
            "wal-spare" => Self::SpareSegment,
            _ => Self::parse_numbered(name)?,
        };
        // Numbers have one spelling: nothing else is taken for ours.
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

    /// Left over when the process ended while making it.
    pub(crate) fn is_unfinished(self) -> bool {
        matches!(self, Self::NewSegment | Self::NewSnapshot(_) | Self::SpareSegment)
    }
}

/// Names sort as what they stand for.
impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock => f.write_str("lock"),
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
    fn every_name_is_read_back_and_no_other_is() {
        let ours = [
            FileName::Lock,
            FileName::SyncMark,
            FileName::Segment(7),
            FileName::Segment(u64::MAX),
            FileName::NewSegment,
            FileName::SpareSegment,
            FileName::Snapshot(EntryId::new(3, 9)),
            FileName::NewSnapshot(4),
        ];
        for name in ours {
            assert_eq!(FileName::parse(&name.to_string()), Some(name));
        }
        for other in ["", ".", "wal-7", "wal-", "snapshot-1-2", "snapshot-new-01", "lost+found"] {
            assert_eq!(FileName::parse(other), None, "{other}");
        }
    }
}
