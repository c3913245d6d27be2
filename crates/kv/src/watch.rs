//! Watches: which watcher wants which keys, and up to which revision it received events.
//!
//! There is no queue per watcher. Each watcher has the first revision that it did not
//! receive. The newest events are kept once for all watchers; a lagging watcher reads
//! history from the table. So a slow watcher costs time when it polls and no memory in
//! between. The hub only wakes watchers and never blocks: the server's tasks poll it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use crate::command::KeyRange;
use crate::incremental::ReadLimits;
use crate::key_history::VersionRow;
use crate::machine::Kv;
use crate::range::SCAN_BYTES_MAX;
use crate::reply::KeyValue;
use crate::revision::{Revision, RowHead, RowKey, RowKind, RowWrite, read_row, read_row_head};
use crate::table::{Table, TableError};
use crate::watch_index::WatchIndex;

/// One write of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// Put or deletion.
    pub kind: WatchEventKind,
    /// The key after the write. A deletion sets only the key and its `mod_revision`.
    pub kv: KeyValue,
    /// The key before this revision. Only for watchers that request it, and only while that
    /// revision is not compacted.
    pub previous: Option<KeyValue>,
}

/// The kind of a [`WatchEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchEventKind {
    /// The key was written.
    Put,
    /// The key was deleted.
    Delete,
}

/// What to watch.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct WatchRequest {
    /// The keys to watch.
    pub keys: KeyRange,
    /// The first revision to receive; 0 for the next write.
    pub start_revision: i64,
    /// Leave out puts.
    pub no_put: bool,
    /// Leave out deletions.
    pub no_delete: bool,
    /// Add the previous key and value to each event.
    pub prev_kv: bool,
}

/// Identifies a watcher of a [`WatchHub`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatcherId(pub u64);

/// Called when there are events for a watcher that was up to date. The hub may be locked
/// during the call: it must only wake a task.
pub type WakeFn = Arc<dyn Fn(WatcherId) + Send + Sync>;

/// Limits on one poll. Revisions are never split, so one large revision may exceed them.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PollLimits {
    /// Stop after this many events.
    pub events_max: usize,
    /// Stop after this many bytes of events.
    pub bytes_max: usize,
    /// Stop after this many rows of history, whether or not they match. They may be read from a file.
    pub rows_max: usize,
    /// Stop after this many bytes of these rows.
    pub row_bytes_max: usize,
}

impl PollLimits {
    /// Sets [`Self::events_max`].
    #[must_use]
    pub fn events_max(self, events_max: usize) -> Self {
        Self { events_max, ..self }
    }

    /// Sets [`Self::bytes_max`].
    #[must_use]
    pub fn bytes_max(self, bytes_max: usize) -> Self {
        Self { bytes_max, ..self }
    }

    /// Sets [`Self::rows_max`].
    #[must_use]
    pub fn rows_max(self, rows_max: usize) -> Self {
        Self { rows_max, ..self }
    }

    /// Sets [`Self::row_bytes_max`].
    #[must_use]
    pub fn row_bytes_max(self, row_bytes_max: usize) -> Self {
        Self { row_bytes_max, ..self }
    }
}

impl Default for PollLimits {
    fn default() -> Self {
        Self {
            events_max: 1_000,
            bytes_max: 1 << 20,
            rows_max: 2_000,
            row_bytes_max: SCAN_BYTES_MAX,
        }
    }
}

/// Watchers that have not received everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchBacklog {
    /// How many watchers.
    pub watchers: usize,
    /// The revisions that they have not looked at, summed over them.
    pub revisions: u64,
}

/// The result of a poll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchPoll {
    /// The watcher is up to date. It will be woken.
    Idle,
    /// The next events. Poll again.
    Events {
        /// The watcher has received everything up to this revision.
        revision: i64,
        /// The revision that etcd has in the header of such a response: that of the store for a
        /// watcher that catches up, and otherwise that of the last event.
        header_revision: i64,
        /// The events, in order.
        events: Vec<WatchEvent>,
    },
    /// No matching event within the limits of one poll. Poll again.
    Again,
    /// The next revision of the watcher is compacted. The watcher was removed.
    Compacted {
        /// The oldest revision that can still be watched.
        compact_revision: i64,
    },
    /// There is no such watcher.
    Gone,
}

struct Watcher {
    request: WatchRequest,
    /// The first revision that it did not receive.
    next: i64,
    /// Whether there may be events for it at `next` or later.
    behind: bool,
    /// It began with a revision of the past, and has not received all of it.
    catches_up: bool,
    wake: WakeFn,
}

/// All watchers of one store.
pub struct WatchHub {
    watchers: BTreeMap<WatcherId, Watcher>,
    key_index: WatchIndex,
    last_id: u64,
    /// All events from `recent_from` to `published`, in order.
    recent: VecDeque<WatchEvent>,
    recent_from: i64,
    recent_bytes: usize,
    published: i64,
}

const RECENT_BYTES_MAX: usize = 16 << 20;
/// The bytes that an event counts in addition to its key and value.
const EVENT_OVERHEAD_BYTES: usize = 128;
/// The previous pairs of at most this many events are looked up at once.
const MEASURED_AT_ONCE: usize = 1_000;

impl WatchHub {
    /// A hub for a store at this revision.
    pub fn new(revision: i64) -> Self {
        Self {
            watchers: BTreeMap::new(),
            key_index: WatchIndex::default(),
            last_id: 0,
            recent: VecDeque::new(),
            recent_from: revision + 1,
            recent_bytes: 0,
            published: revision,
        }
    }

    /// Creates a watcher. `revision` is the store's current one. Poll right away: there may
    /// already be events.
    pub fn create(&mut self, request: WatchRequest, revision: i64, wake: WakeFn) -> WatcherId {
        self.last_id += 1;
        let id = WatcherId(self.last_id);
        // The first watcher: nothing before needs to be published.
        if self.watchers.is_empty() {
            self.published = self.published.max(revision);
            self.clear_recent();
        }
        let start = request.start_revision;
        let behind = start > 0 && start <= revision;
        let next = if behind { start } else { start.max(revision + 1) };
        self.key_index.add(&request.keys, id);
        self.watchers.insert(id, Watcher { request, next, behind, catches_up: behind, wake });
        id
    }

    /// Removes a watcher. Returns `false` if there is no such watcher.
    pub fn cancel(&mut self, id: WatcherId) -> bool {
        let Some(watcher) = self.watchers.remove(&id) else { return false };
        self.key_index.remove(&watcher.request.keys, id);
        true
    }

    /// The number of watchers.
    pub fn len(&self) -> usize {
        self.watchers.len()
    }

    /// Whether there are no watchers.
    pub fn is_empty(&self) -> bool {
        self.watchers.is_empty()
    }

    /// The watchers that have not received everything up to this revision of the store.
    pub fn backlog(&self, revision: i64) -> WatchBacklog {
        let mut backlog = WatchBacklog::default();
        for watcher in self.watchers.values().filter(|watcher| watcher.behind) {
            backlog.watchers += 1;
            let missing = revision.saturating_sub(watcher.next).saturating_add(1);
            backlog.revisions += u64::try_from(missing).unwrap_or_default();
        }
        backlog
    }

    /// Publishes the events of a command, right after it was applied. All events of one call
    /// must have the same revision.
    pub fn publish(&mut self, events: Vec<WatchEvent>) {
        let Some(revision) = events.first().map(|event| event.kv.mod_revision) else { return };
        self.published = revision;
        // Without watchers no event needs to be kept: a later watcher reads the table.
        if self.watchers.is_empty() {
            self.clear_recent();
            return;
        }
        for event in events {
            self.notify(&event, revision);
            self.recent_bytes += event_bytes(&event);
            self.recent.push_back(event);
        }
        self.drop_oldest();
    }

    fn notify(&mut self, event: &WatchEvent, revision: i64) {
        for id in self.key_index.may_watch(&event.kv.key) {
            let Some(watcher) = self.watchers.get_mut(&id) else { continue };
            // A watcher that is behind finds the event when it polls.
            if !watcher.behind
                && revision >= watcher.next
                && watcher.request.wants(event.kind, &event.kv.key)
            {
                watcher.behind = true;
                watcher.next = revision;
                (watcher.wake)(id);
            }
        }
    }

    /// Drops the oldest events beyond the memory limit, always whole revisions.
    fn drop_oldest(&mut self) {
        while self.recent_bytes > RECENT_BYTES_MAX {
            let Some(event) = self.recent.pop_front() else { return };
            self.recent_bytes -= event_bytes(&event);
            self.recent_from = event.kv.mod_revision + 1;
        }
        while self.recent.front().is_some_and(|event| event.kv.mod_revision < self.recent_from) {
            let Some(event) = self.recent.pop_front() else { return };
            self.recent_bytes -= event_bytes(&event);
        }
    }

    fn clear_recent(&mut self) {
        self.recent.clear();
        self.recent_bytes = 0;
        self.recent_from = self.published + 1;
    }

    /// Continues after the whole state was replaced by one at this revision. All watchers
    /// read from the table what happened in between.
    pub fn restart(&mut self, revision: i64) {
        for (id, watcher) in &mut self.watchers {
            if !watcher.behind {
                // It was up to date here, even if no event matched it.
                watcher.next = watcher.next.max(self.published + 1);
                watcher.behind = watcher.next <= revision;
            }
            if watcher.behind {
                (watcher.wake)(*id);
            }
        }
        self.published = revision;
        self.clear_recent();
    }

    /// The revision up to which a watcher received everything, for progress notifications.
    /// `None` while it is behind.
    pub fn progress(&self, id: WatcherId) -> Option<i64> {
        self.watchers.get(&id).filter(|watcher| !watcher.behind).map(|_| self.published)
    }

    /// The next events of a watcher.
    pub fn poll<T: Table>(
        &mut self,
        kv: &Kv<T>,
        id: WatcherId,
        limits: PollLimits,
    ) -> Result<WatchPoll, TableError> {
        let wants_previous = self.watchers.get(&id).is_some_and(|it| it.request.prev_kv);
        let mut polled = self.poll_events(kv, id, limits)?;
        if let WatchPoll::Events { events, .. } = &mut polled
            && wants_previous
        {
            kv.read_previous(events, ReadLimits::NONE)?;
        }
        Ok(polled)
    }

    /// The same without the previous pairs, which count towards the limits all the same. One
    /// revision may have gigabytes of them, so reserve memory for them ([`Kv::measure_previous`]) and read
    /// them in steps ([`Kv::read_previous`]) while the hub is free for others.
    pub fn poll_events<T: Table>(
        &mut self,
        kv: &Kv<T>,
        id: WatcherId,
        limits: PollLimits,
    ) -> Result<WatchPoll, TableError> {
        let Some(watcher) = self.watchers.get(&id) else { return Ok(WatchPoll::Gone) };
        if !watcher.behind {
            return Ok(WatchPoll::Idle);
        }
        let compact_revision = kv.compact_revision();
        if watcher.next < compact_revision {
            self.cancel(id);
            return Ok(WatchPoll::Compacted { compact_revision });
        }
        let catches_up = watcher.catches_up;
        let previous_bytes = |event: &WatchEvent| match watcher.request.prev_kv {
            true => kv.previous_bytes(event),
            false => 0,
        };
        let mut collector = PollCollector::new(&watcher.request, limits, &previous_bytes);
        // A command may be applied and not published yet; only the table has its events.
        let from_recent = watcher.next >= self.recent_from && self.published >= kv.revision();
        let newest = if from_recent {
            let from = self.recent.partition_point(|e| e.kv.mod_revision < watcher.next);
            let mut recent = self.recent.range(from..);
            let _ = recent.try_for_each(|event| {
                let (kind, at) = (event.kind, event.kv.mod_revision);
                collector.visit(kind, &event.kv.key, at, || Some(event.clone()))
            });
            self.published
        } else {
            kv.read_history(watcher.next, &mut collector)?;
            kv.revision()
        };
        let delivered = collector.full_after.unwrap_or(newest);
        let events = collector.events;
        if let Some(watcher) = self.watchers.get_mut(&id) {
            watcher.next = delivered + 1;
            watcher.behind = delivered < newest;
            watcher.catches_up &= watcher.behind;
            if events.is_empty() {
                return Ok(if watcher.behind { WatchPoll::Again } else { WatchPoll::Idle });
            }
        }
        let last = events.last().map_or(delivered, |event| event.kv.mod_revision);
        let header_revision = if from_recent && !catches_up { last } else { kv.revision() };
        Ok(WatchPoll::Events { revision: delivered, header_revision, events })
    }
}

/// Collects the events of a poll up to its limits.
struct PollCollector<'a> {
    request: &'a WatchRequest,
    limits: PollLimits,
    /// The bytes of the previous pair that will be read for an event.
    previous_bytes: &'a dyn Fn(&WatchEvent) -> usize,
    events: Vec<WatchEvent>,
    bytes: usize,
    rows: usize,
    row_bytes: usize,
    last_seen: i64,
    /// Set when a limit was reached: events after this revision were not collected.
    full_after: Option<i64>,
}

impl<'a> PollCollector<'a> {
    fn new(
        request: &'a WatchRequest,
        limits: PollLimits,
        previous_bytes: &'a dyn Fn(&WatchEvent) -> usize,
    ) -> Self {
        Self {
            request,
            limits,
            previous_bytes,
            events: Vec::new(),
            bytes: 0,
            rows: 0,
            row_bytes: 0,
            last_seen: 0,
            full_after: None,
        }
    }

    /// Visits the next write. `make` is called only if the watcher wants it.
    fn visit(
        &mut self,
        kind: WatchEventKind,
        key: &[u8],
        revision: i64,
        make: impl FnOnce() -> Option<WatchEvent>,
    ) -> ControlFlow<()> {
        let enough = self.events.len() >= self.limits.events_max
            || self.bytes >= self.limits.bytes_max
            || self.rows >= self.limits.rows_max
            || self.row_bytes >= self.limits.row_bytes_max;
        if enough && revision > self.last_seen && self.rows > 0 {
            self.full_after = Some(self.last_seen);
            return ControlFlow::Break(());
        }
        self.last_seen = revision;
        self.rows += 1;
        if self.request.wants(kind, key)
            && let Some(event) = make()
        {
            self.bytes += event_bytes(&event);
            // Beyond the limit, the sizes of a revision with very many events do not matter.
            if self.bytes < self.limits.bytes_max {
                self.bytes += (self.previous_bytes)(&event);
            }
            self.events.push(event);
        }
        ControlFlow::Continue(())
    }
}

impl WatchRequest {
    fn wants(&self, kind: WatchEventKind, key: &[u8]) -> bool {
        let filtered = match kind {
            WatchEventKind::Put => self.no_put,
            WatchEventKind::Delete => self.no_delete,
        };
        !filtered && self.keys.contains(key)
    }
}

impl<T: Table> Kv<T> {
    /// How many of these events take up to `bytes_max` with their previous pairs, but at least one and at most
    /// 1,000, and their bytes. The previous pairs are not read.
    pub fn measure_previous(&self, events: &[WatchEvent], bytes_max: usize) -> (usize, usize) {
        let events = events.get(..MEASURED_AT_ONCE).unwrap_or(events);
        fitting(events, bytes_max, |event| event_bytes(event) + self.previous_bytes(event))
    }

    /// Sets the previous pairs of these events from the first on, up to the limits. Returns of how many
    /// events. A revision that was compacted since the poll has no pairs any more.
    pub fn read_previous(
        &self,
        events: &mut [WatchEvent],
        limits: ReadLimits,
    ) -> Result<usize, TableError> {
        let ReadLimits { keys_max, bytes_max: mut bytes } = limits;
        for (number, event) in events.iter_mut().enumerate() {
            if number >= keys_max || bytes == 0 {
                return Ok(number);
            }
            if let Some(row) = self.missing_previous(event) {
                bytes = bytes.saturating_sub(row.bytes() as usize + self.file_read_bytes(row));
                event.previous = Some(self.read_version(row)?);
            }
        }
        Ok(events.len())
    }

    fn previous_bytes(&self, event: &WatchEvent) -> usize {
        self.missing_previous(event).map_or(0, |row| row.bytes() as usize)
    }

    /// The version of the key before this event, unless it was read or is compacted.
    fn missing_previous(&self, event: &WatchEvent) -> Option<VersionRow> {
        let before = event.kv.mod_revision - 1;
        if event.previous.is_some() || before < self.compact_revision() {
            return None;
        }
        self.state.index.at(&event.kv.key, before).map(|seen| seen.row)
    }

    /// Collects writes from a revision on, until the collector has enough. Rows that its watcher does
    /// not want are not copied.
    fn read_history(&self, from: i64, collector: &mut PollCollector<'_>) -> Result<(), TableError> {
        let mut bad = None;
        let start = RowKey::revision(Revision { main: from, sub: 0 });
        self.table.scan(start, RowKey::END, &mut |row_key, row| {
            let head = match row_key.kind() {
                RowKind::Revision(at) => read_row_head(at, &row).map(|head| (at.main, head)),
                _ => None,
            };
            let make = || event_of(row_key, row.to_bytes());
            collector.row_bytes += row.len();
            match head {
                Some((at, RowHead::Put { key, .. })) => {
                    collector.visit(WatchEventKind::Put, key, at, make)
                }
                Some((at, RowHead::Tombstone { key })) => {
                    collector.visit(WatchEventKind::Delete, key, at, make)
                }
                None => {
                    bad = Some(row_key);
                    ControlFlow::Break(())
                }
            }
        })?;
        bad.map_or(Ok(()), |key| Err(TableError::BadRow(key)))
    }
}

pub(crate) fn event_of(key: RowKey, row: Bytes) -> Option<WatchEvent> {
    let RowKind::Revision(at) = key.kind() else { return None };
    Some(match read_row(at, row)? {
        RowWrite::Put(kv) => WatchEvent { kind: WatchEventKind::Put, kv, previous: None },
        RowWrite::Tombstone { key } => {
            let kv = KeyValue { key, mod_revision: at.main, ..KeyValue::default() };
            WatchEvent { kind: WatchEventKind::Delete, kv, previous: None }
        }
    })
}

fn event_bytes(event: &WatchEvent) -> usize {
    let kv_bytes = |kv: &KeyValue| kv.key.len() + kv.value.len();
    EVENT_OVERHEAD_BYTES + kv_bytes(&event.kv) + event.previous.as_ref().map_or(0, kv_bytes)
}

/// Splits events into parts of at most `bytes_max`, or of one event if that alone is larger.
/// For watchers that request fragmented responses.
pub fn split_events(events: &[WatchEvent], bytes_max: usize) -> Vec<&[WatchEvent]> {
    let mut parts = Vec::new();
    let mut rest = events;
    while !rest.is_empty() {
        let (part, later) = rest.split_at(fitting(rest, bytes_max, event_bytes).0);
        parts.push(part);
        rest = later;
    }
    parts
}

/// How many events have at most `bytes_max`, at least one if there is any, and their bytes.
fn fitting(
    events: &[WatchEvent],
    bytes_max: usize,
    bytes_of: impl Fn(&WatchEvent) -> usize,
) -> (usize, usize) {
    let (mut count, mut bytes) = (0, 0);
    for event in events {
        let more = bytes_of(event);
        if count > 0 && bytes + more > bytes_max {
            break;
        }
        (count, bytes) = (count + 1, bytes + more);
    }
    (count, bytes)
}
