//! Who wants to hear of which keys, and how far each has heard.
//!
//! No queue per watcher: each knows the first revision that it has not been told. The
//! newest events are kept for all together; whoever is further behind reads the rows
//! of the table. So a slow watcher costs time when it asks and no memory while it does
//! not. The hub wakes, it never waits: the server's tasks poll.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use crate::command::KeyRange;
use crate::interest::Interest;
use crate::machine::Kv;
use crate::reply::KeyValue;
use crate::revision::{Kind, Revision, RowKey, Write, read_row};
use crate::table::{Table, TableError};

/// One write of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    pub kind: WatchEventKind,
    /// Of a deletion only the key and its `mod_revision`.
    pub kv: KeyValue,
    /// The key before this revision, for watchers that ask for it and as long as it is
    /// not compacted.
    pub previous: Option<KeyValue>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchEventKind {
    Put,
    Delete,
}

/// What to watch.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct WatchRequest {
    pub keys: KeyRange,
    /// The first revision of interest; 0 for whatever comes next.
    pub start_revision: i64,
    pub no_put: bool,
    pub no_delete: bool,
    pub prev_kv: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatcherId(pub u64);

/// Called when there is news for a watcher that had heard everything. It may be called
/// while locks are held: it should only wake somebody.
pub type WakeFn = Arc<dyn Fn(WatcherId) + Send + Sync>;

/// How much one poll may answer and read. Revisions are never split, so one large one
/// may go beyond it.
#[derive(Clone, Copy, Debug)]
pub struct PollLimits {
    pub events_max: usize,
    pub bytes_max: usize,
    /// Rows of history that are looked at.
    pub rows_max: usize,
}

impl Default for PollLimits {
    fn default() -> Self {
        Self { events_max: 1_000, bytes_max: 1 << 20, rows_max: 10_000 }
    }
}

/// What a poll found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchPoll {
    /// The watcher has heard everything. It will be woken.
    Idle,
    /// What comes next. `revision` is told completely; poll again.
    Events { revision: i64, events: Vec<WatchEvent> },
    /// Nothing in as much history as one poll reads. Poll again.
    Again,
    /// What comes next is compacted away. The watcher is gone.
    Compacted { compact_revision: i64 },
    /// No such watcher.
    Gone,
}

struct Watcher {
    request: WatchRequest,
    /// The first revision that it was not told.
    next: i64,
    /// Whether there may be something for it from `next` on.
    behind: bool,
    wake: WakeFn,
}

pub struct WatchHub {
    watchers: BTreeMap<WatcherId, Watcher>,
    interest: Interest,
    last_id: u64,
    /// All events from `recent_from` to `published`, in order.
    recent: VecDeque<WatchEvent>,
    recent_from: i64,
    recent_bytes: usize,
    published: i64,
}

const RECENT_BYTES_MAX: usize = 16 << 20;
/// What an event counts beside its key and value.
const EVENT_OVERHEAD_BYTES: usize = 128;

impl WatchHub {
    /// A hub for a store at this revision.
    pub fn new(revision: i64) -> Self {
        Self {
            watchers: BTreeMap::new(),
            interest: Interest::default(),
            last_id: 0,
            recent: VecDeque::new(),
            recent_from: revision + 1,
            recent_bytes: 0,
            published: revision,
        }
    }

    /// Begins to watch. `revision` is the store's; poll at once, as there may be news.
    pub fn create(&mut self, request: WatchRequest, revision: i64, wake: WakeFn) -> WatcherId {
        self.last_id += 1;
        let id = WatcherId(self.last_id);
        let start = request.start_revision;
        let behind = start > 0 && start <= revision;
        let next = if behind { start } else { start.max(revision + 1) };
        self.interest.add(&request.keys, id);
        self.watchers.insert(id, Watcher { request, next, behind, wake });
        id
    }

    /// Ends a watch; `false` if there is none.
    pub fn cancel(&mut self, id: WatcherId) -> bool {
        let Some(watcher) = self.watchers.remove(&id) else { return false };
        self.interest.remove(&watcher.request.keys, id);
        true
    }

    pub fn len(&self) -> usize {
        self.watchers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.watchers.is_empty()
    }

    /// Takes in what a command wrote, right after it ran. All events of one call are of
    /// one revision.
    pub fn publish(&mut self, events: Vec<WatchEvent>) {
        let Some(revision) = events.first().map(|event| event.kv.mod_revision) else { return };
        self.published = revision;
        // With nobody to tell there is nothing to keep: who comes later reads the table.
        if self.watchers.is_empty() {
            self.forget_recent();
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
        for id in self.interest.may_watch(&event.kv.key) {
            let Some(watcher) = self.watchers.get_mut(&id) else { continue };
            // Who is behind will come across it.
            if !watcher.behind && revision >= watcher.next && watcher.request.wants(event) {
                watcher.behind = true;
                watcher.next = revision;
                (watcher.wake)(id);
            }
        }
    }

    /// Only whole revisions are kept.
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

    fn forget_recent(&mut self) {
        self.recent.clear();
        self.recent_bytes = 0;
        self.recent_from = self.published + 1;
    }

    /// The state was replaced as a whole, and is at this revision now: everybody looks
    /// up in the table what happened meanwhile.
    pub fn restart(&mut self, revision: i64) {
        for (id, watcher) in &mut self.watchers {
            if !watcher.behind {
                // It has heard everything up to here, even if nothing of it was for it.
                watcher.next = watcher.next.max(self.published + 1);
                watcher.behind = watcher.next <= revision;
            }
            if watcher.behind {
                (watcher.wake)(*id);
            }
        }
        self.published = revision;
        self.forget_recent();
    }

    /// Up to which revision a watcher has heard everything: what to tell those who want
    /// to know that nothing happened. `None` while it is behind.
    pub fn progress(&self, id: WatcherId) -> Option<i64> {
        self.watchers.get(&id).filter(|watcher| !watcher.behind).map(|_| self.published)
    }

    /// What comes next for a watcher.
    pub fn poll<T: Table>(
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
        let mut found = Found::new(&watcher.request, limits);
        // A command may have run that is not published yet; the table has it.
        let newest = if watcher.next >= self.recent_from && self.published >= kv.revision() {
            let from = self.recent.partition_point(|e| e.kv.mod_revision < watcher.next);
            let _ = self.recent.range(from..).try_for_each(|event| found.look_at(event.clone()));
            self.published
        } else {
            kv.read_history(watcher.next, &mut |event| found.look_at(event))?;
            kv.revision()
        };
        let told = found.full_after.unwrap_or(newest);
        let mut events = found.events;
        if watcher.request.prev_kv {
            for event in &mut events {
                let before = event.kv.mod_revision - 1;
                if before >= compact_revision {
                    event.previous = kv.key_at(&event.kv.key, before)?;
                }
            }
        }
        if let Some(watcher) = self.watchers.get_mut(&id) {
            watcher.next = told + 1;
            watcher.behind = told < newest;
            if events.is_empty() {
                return Ok(if watcher.behind { WatchPoll::Again } else { WatchPoll::Idle });
            }
        }
        Ok(WatchPoll::Events { revision: told, events })
    }
}

/// Events that a poll collects, until it has enough.
struct Found<'a> {
    request: &'a WatchRequest,
    limits: PollLimits,
    events: Vec<WatchEvent>,
    bytes: usize,
    rows: usize,
    last_seen: i64,
    /// Set when there is more after this revision.
    full_after: Option<i64>,
}

impl<'a> Found<'a> {
    fn new(request: &'a WatchRequest, limits: PollLimits) -> Self {
        Self {
            request,
            limits,
            events: Vec::new(),
            bytes: 0,
            rows: 0,
            last_seen: 0,
            full_after: None,
        }
    }

    fn look_at(&mut self, event: WatchEvent) -> ControlFlow<()> {
        let revision = event.kv.mod_revision;
        let enough = self.events.len() >= self.limits.events_max
            || self.bytes >= self.limits.bytes_max
            || self.rows >= self.limits.rows_max;
        if enough && revision > self.last_seen && self.rows > 0 {
            self.full_after = Some(self.last_seen);
            return ControlFlow::Break(());
        }
        self.last_seen = revision;
        self.rows += 1;
        if self.request.wants(&event) {
            self.bytes += event_bytes(&event);
            self.events.push(event);
        }
        ControlFlow::Continue(())
    }
}

impl WatchRequest {
    fn wants(&self, event: &WatchEvent) -> bool {
        let filtered = match event.kind {
            WatchEventKind::Put => self.no_put,
            WatchEventKind::Delete => self.no_delete,
        };
        !filtered && self.keys.contains(&event.kv.key)
    }
}

impl<T: Table> Kv<T> {
    /// Shows all writes from a revision on, until it is told to stop.
    pub(crate) fn read_history(
        &self,
        from: i64,
        show: &mut dyn FnMut(WatchEvent) -> ControlFlow<()>,
    ) -> Result<(), TableError> {
        let mut bad = None;
        let start = RowKey::revision(Revision { main: from, sub: 0 });
        self.table.scan(start, RowKey::END, &mut |key, row| match event_of(key, row) {
            Some(event) => show(event),
            None => {
                bad = Some(key);
                ControlFlow::Break(())
            }
        })?;
        bad.map_or(Ok(()), |key| Err(TableError::BadRow(key)))
    }
}

fn event_of(key: RowKey, row: Bytes) -> Option<WatchEvent> {
    let Kind::Revision(at) = key.kind() else { return None };
    Some(match read_row(at, row)? {
        Write::Put(kv) => WatchEvent { kind: WatchEventKind::Put, kv, previous: None },
        Write::Tombstone { key } => {
            let kv = KeyValue { key, mod_revision: at.main, ..KeyValue::default() };
            WatchEvent { kind: WatchEventKind::Delete, kv, previous: None }
        }
    })
}

fn event_bytes(event: &WatchEvent) -> usize {
    let kv_bytes = |kv: &KeyValue| kv.key.len() + kv.value.len();
    EVENT_OVERHEAD_BYTES + kv_bytes(&event.kv) + event.previous.as_ref().map_or(0, kv_bytes)
}

/// Cuts events into pieces of at most `bytes_max`, or of one event where that alone is
/// more. For watchers that ask for fragments; all but the last are marked as such.
pub fn split_events(events: &[WatchEvent], bytes_max: usize) -> Vec<&[WatchEvent]> {
    let mut pieces = Vec::new();
    let mut rest = events;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fitting = rest.iter().take_while(|event| {
            bytes += event_bytes(event);
            bytes <= bytes_max
        });
        let (piece, later) = rest.split_at(fitting.count().max(1));
        pieces.push(piece);
        rest = later;
    }
    pieces
}
