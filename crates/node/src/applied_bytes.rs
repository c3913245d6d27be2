//! How many bytes of entries were handed to the machine: when a snapshot is due, and how much
//! of the log is kept before one.
//!
//! Only entries that were handed out since the start are counted. A snapshot covers no others,
//! except those before the snapshot of the start, which are then not kept.

use std::collections::VecDeque;

use quorate_core::Index;

/// The kept part of the log is measured in about this many pieces.
const PIECES: u64 = 16;

#[derive(Clone, Debug)]
pub(crate) struct AppliedBytes {
    /// The bytes of all entries so far.
    total: u64,
    /// The same at the newest capture.
    captured: u64,
    /// The same at the newest snapshot on the disk.
    saved: u64,
    /// The size of the newest snapshot; 0 if it is not known.
    snapshot: u64,
    /// Indexes, and the bytes of all entries up to there; the oldest first.
    marks: VecDeque<(Index, u64)>,
    /// Two marks are at least this far apart.
    piece: u64,
}

impl AppliedBytes {
    /// Nothing was counted up to this index. Up to `keep_bytes` are to be kept.
    pub(crate) fn new(index: Index, keep_bytes: u64) -> Self {
        let piece = (keep_bytes / PIECES).max(1);
        let marks = VecDeque::from([(index, 0)]);
        Self { total: 0, captured: 0, saved: 0, snapshot: 0, marks, piece }
    }

    /// Entries with this many bytes were handed out, up to this index.
    pub(crate) fn add(&mut self, last: Index, bytes: u64) {
        self.total = self.total.saturating_add(bytes);
        let before_last = self.marks.iter().rev().nth(1).map(|(_, total)| *total);
        if before_last.is_some_and(|total| self.total - total < self.piece) {
            self.marks.pop_back();
        }
        self.marks.push_back((last, self.total));
    }

    /// Bytes since the newest capture.
    fn since_capture(&self) -> u64 {
        self.total - self.captured
    }

    /// Whether entries of `bytes_min` were handed out since the newest capture, and as many as
    /// the newest snapshot has. The second condition keeps the cost of snapshots proportional
    /// to what is written: a large state would otherwise be written again for a few entries.
    pub(crate) fn is_capture_due(&self, bytes_min: u64) -> bool {
        self.since_capture() >= bytes_min.max(self.snapshot)
    }

    /// The newest snapshot has this size.
    pub(crate) fn set_snapshot_bytes(&mut self, bytes: u64) {
        self.snapshot = bytes;
    }

    pub(crate) fn on_capture(&mut self) {
        self.captured = self.total;
    }

    /// The newest capture is on the disk, and has this size.
    pub(crate) fn on_saved(&mut self, bytes: u64) {
        self.saved = self.captured;
        self.snapshot = bytes;
    }

    /// Whether a peer would get many entries after the snapshot on the disk: as many bytes as a
    /// quarter of it.
    pub(crate) fn is_snapshot_old(&self) -> bool {
        (self.total - self.saved).saturating_mul(4) >= self.snapshot
    }

    /// A snapshot replaced everything up to this index.
    pub(crate) fn restart(&mut self, index: Index) {
        self.captured = self.total;
        self.saved = self.total;
        self.marks = VecDeque::from([(index, self.total)]);
    }

    /// How many entries up to this index have at most this many bytes together. Forgets the
    /// sizes of older ones.
    pub(crate) fn entries_within(&mut self, index: Index, keep_bytes: u64) -> u64 {
        let end = self.marks.iter().find(|(mark, _)| *mark >= index);
        let end = end.map_or(self.total, |(_, total)| *total);
        let is_within = |(_, total): &(Index, u64)| end.saturating_sub(*total) <= keep_bytes;
        while self.marks.len() > 1 && self.marks.front().is_some_and(|mark| !is_within(mark)) {
            self.marks.pop_front();
        }
        let first = self.marks.front().map_or(index, |(mark, _)| *mark);
        index.saturating_sub(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_entries_have_at_most_the_given_bytes() {
        let mut bytes = AppliedBytes::new(10, 1_600);
        for index in 11..=60 {
            bytes.add(index, 100);
        }
        assert_eq!(bytes.since_capture(), 5_000);
        let kept = bytes.entries_within(60, 1_600);
        assert!((15..=16).contains(&kept), "{kept}");
        // An older index: nothing before it is known to fit any more.
        assert_eq!(bytes.entries_within(60, 0), 0);
    }

    #[test]
    fn small_batches_share_a_mark() {
        let mut bytes = AppliedBytes::new(0, 16_000);
        for index in 1..=10_000 {
            bytes.add(index, 10);
        }
        assert!(bytes.marks.len() <= 202, "{}", bytes.marks.len());
        let kept = bytes.entries_within(10_000, 16_000);
        assert!((1_400..=1_600).contains(&kept), "{kept}");
    }

    #[test]
    fn a_capture_is_due_after_as_many_bytes_as_the_newest_snapshot_has() {
        let mut bytes = AppliedBytes::new(0, 1_000);
        bytes.add(1, 100);
        assert!(bytes.is_capture_due(100) && !bytes.is_capture_due(101));
        bytes.on_capture();
        bytes.set_snapshot_bytes(250);
        for (index, due) in [(2, false), (3, false), (4, true)] {
            bytes.add(index, 100);
            assert_eq!(bytes.is_capture_due(100), due, "{index}");
        }
        // A smaller snapshot: the limit that was given applies again.
        bytes.on_capture();
        bytes.set_snapshot_bytes(20);
        bytes.add(5, 100);
        assert!(bytes.is_capture_due(100));
    }

    #[test]
    fn a_snapshot_is_old_after_a_quarter_of_its_bytes() {
        let mut bytes = AppliedBytes::new(0, 1_000);
        bytes.add(1, 400);
        bytes.on_capture();
        bytes.add(2, 99);
        assert!(bytes.is_snapshot_old(), "it is not on the disk yet");
        bytes.on_saved(400);
        assert!(!bytes.is_snapshot_old());
        bytes.add(3, 1);
        assert!(bytes.is_snapshot_old());
        bytes.restart(3);
        assert!(!bytes.is_snapshot_old());
    }

    #[test]
    fn unknown_entries_are_not_kept() {
        let mut bytes = AppliedBytes::new(500, 1_000);
        bytes.add(510, 10);
        assert_eq!(bytes.entries_within(510, 1_000), 10);
        bytes.on_capture();
        assert_eq!(bytes.since_capture(), 0);
        bytes.restart(900);
        assert_eq!(bytes.entries_within(900, 1_000), 0);
    }
}
