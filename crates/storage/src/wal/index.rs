//! The index of the log: the position and the term of each entry.
//!
//! Entries themselves stay on disk. One span covers many records, so the index is small
//! compared with the log.

use std::collections::VecDeque;

use quorate_core::{EntryId, Index, Term};

/// A span grows up to this size. Loading an old entry reads at most this much plus one
/// record.
const SPAN_BYTES: u64 = 64 << 10;

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct LogIndex {
    /// The entry before the first one in the index.
    base: EntryId,
    last: EntryId,
    /// The log is never truncated below this entry: a snapshot replaced the entries before.
    floor: EntryId,
    /// The first entry of every term after `base`.
    terms: Vec<EntryId>,
    /// All entries after `base`, in order.
    spans: VecDeque<LogSpan>,
}

/// Consecutive entries in consecutive records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogSpan {
    pub(crate) first: Index,
    pub(crate) last: Index,
    pub(crate) position: RecordPosition,
    pub(crate) bytes: u64,
}

/// The position of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordPosition {
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    pub(crate) sequence: u64,
}

/// The entries do not continue the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotContiguous;

impl LogIndex {
    /// An empty index of a log that ends at `last`.
    pub(crate) fn new(last: EntryId, floor: EntryId) -> Self {
        Self { base: last, last, floor, ..Self::default() }
    }

    pub(crate) fn base(&self) -> EntryId {
        self.base
    }

    pub(crate) fn last(&self) -> EntryId {
        self.last
    }

    pub(crate) fn floor(&self) -> EntryId {
        self.floor
    }

    pub(crate) fn terms(&self) -> &[EntryId] {
        &self.terms
    }

    /// The term of an entry in the index, or of the one before the first.
    pub(crate) fn term(&self, index: Index) -> Option<Term> {
        if index == self.last.index {
            return Some(self.last.term);
        }
        if index < self.base.index || index > self.last.index {
            return None;
        }
        if index == self.base.index {
            return Some(self.base.term);
        }
        let started = self.terms.partition_point(|start| start.index <= index);
        self.terms.get(started.wrapping_sub(1)).map(|start| start.term)
    }

    pub(crate) fn holds(&self, id: EntryId) -> bool {
        self.term(id.index) == Some(id.term)
    }

    /// Replaces the whole log by a snapshot.
    pub(crate) fn restore(&mut self, id: EntryId) {
        *self = Self::new(id, id);
    }

    /// Appends entries after `prev`. Truncates existing entries after `prev`.
    pub(crate) fn append(
        &mut self,
        prev: EntryId,
        ids: impl Iterator<Item = EntryId>,
        position: RecordPosition,
        bytes: u64,
    ) -> Result<(), NotContiguous> {
        let truncates = prev.index < self.last.index;
        self.truncate_after(prev)?;
        for id in ids {
            if id.index != self.last.index + 1 || id.term < self.last.term {
                return Err(NotContiguous);
            }
            if self.terms.is_empty() || id.term != self.last.term {
                self.terms.push(id);
            }
            self.last = id;
        }
        let extended = self.spans.back_mut().filter(|span| {
            let near =
                span.bytes + bytes <= SPAN_BYTES && span.position.segment == position.segment;
            // Only directly adjacent records: others in between would be read as part of it.
            near && !truncates && span.last == prev.index
        });
        match extended {
            Some(span) => {
                span.last = self.last.index;
                span.bytes = position.offset + bytes - span.position.offset;
            }
            None => {
                let (first, last) = (prev.index + 1, self.last.index);
                self.spans.push_back(LogSpan { first, last, position, bytes });
            }
        }
        Ok(())
    }

    fn truncate_after(&mut self, prev: EntryId) -> Result<(), NotContiguous> {
        if prev.index < self.floor.index || prev.index > self.last.index {
            return Err(NotContiguous);
        }
        if prev.index < self.base.index {
            // Truncated to before the oldest segment: the log now starts here.
            self.base = prev;
            self.spans.clear();
            self.terms.clear();
        } else if !self.holds(prev) {
            return Err(NotContiguous);
        }
        self.terms.truncate(self.terms.partition_point(|start| start.index <= prev.index));
        while self.spans.back().is_some_and(|span| span.first > prev.index) {
            self.spans.pop_back();
        }
        if let Some(span) = self.spans.back_mut() {
            span.last = span.last.min(prev.index);
        }
        self.last = prev;
        Ok(())
    }

    /// The spans from the one that contains this entry on.
    pub(crate) fn spans_from(&self, index: Index) -> impl Iterator<Item = &LogSpan> {
        self.spans.iter().skip(self.spans.partition_point(|span| span.last < index))
    }

    /// The first index of the newest spans that fit into `bytes_max`, but at least of the
    /// newest span.
    pub(crate) fn tail_first(&self, bytes_max: u64) -> Index {
        let mut first = self.last.index.saturating_add(1);
        let mut bytes = 0u64;
        for span in self.spans.iter().rev() {
            bytes = bytes.saturating_add(span.bytes);
            if bytes > bytes_max && first <= self.last.index {
                break;
            }
            first = span.first;
        }
        first
    }

    /// The oldest segment with an entry after this index.
    pub(crate) fn segment_of_next(&self, index: Index) -> Option<u64> {
        self.spans_from(index + 1).next().map(|span| span.position.segment)
    }

    /// Drops the entries of segments before this one.
    pub(crate) fn drop_before(&mut self, segment: u64) {
        while let Some(span) = self.spans.front()
            && span.position.segment < segment
        {
            let Some(term) = self.term(span.last) else {
                unreachable!("a span covers entries of the log");
            };
            self.base = EntryId::new(term, span.last);
            self.spans.pop_front();
        }
        self.drop_terms_before_base();
    }

    fn drop_terms_before_base(&mut self) {
        let next = self.base.index + 1;
        if next > self.last.index {
            self.terms.clear();
            return;
        }
        let started = self.terms.partition_point(|start| start.index <= next);
        self.terms.drain(..started.saturating_sub(1));
        if let Some(start) = self.terms.first_mut() {
            start.index = start.index.max(next);
        }
    }
}
