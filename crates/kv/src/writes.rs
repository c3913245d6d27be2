//! What one command writes: how many rows, and the events of them if somebody watches.

use bytes::Bytes;

use crate::index::KeyFinder;
use crate::revision::{Revision, RowKey};
use crate::watch::{WatchEvent, event_of};

/// The writes of a command so far. All of them have the same revision.
pub(crate) struct CommandWrites {
    main: i64,
    count: u32,
    put_bytes: u64,
    /// None if no watcher needs them: a later one reads the table.
    events: Option<Vec<WatchEvent>>,
    /// Finds the keys that the command compares, reads and writes.
    pub(crate) finder: KeyFinder,
}

impl CommandWrites {
    /// The writes of a command that writes at this revision.
    pub(crate) fn new(main: i64, collects_events: bool, finder: KeyFinder) -> Self {
        let events = collects_events.then(Vec::new);
        Self { main, count: 0, put_bytes: 0, events, finder }
    }

    /// Where the next row is written.
    pub(crate) fn next(&self) -> Revision {
        Revision { main: self.main, sub: self.count }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The bytes of all keys and values that were put.
    pub(crate) fn put_bytes(&self) -> u64 {
        self.put_bytes
    }

    /// Whether [`Self::add`] needs the row.
    pub(crate) fn collects_events(&self) -> bool {
        self.events.is_some()
    }

    /// A row is written at [`Self::next`]. It holds a put with this many bytes of key and
    /// value, or a tombstone with none. The event shares the memory of the row.
    pub(crate) fn add(&mut self, row: Option<&Bytes>, put_bytes: usize) {
        let at = RowKey::revision(self.next());
        self.count += 1;
        self.put_bytes += put_bytes as u64;
        if let (Some(events), Some(row)) = (&mut self.events, row) {
            events.extend(event_of(at, row.clone()));
        }
    }

    pub(crate) fn into_events(self) -> Vec<WatchEvent> {
        self.events.unwrap_or_default()
    }
}
