//! Clients that watch keys, at one member after the other.
//!
//! W1: between its first revision and the last one that it was told, a watcher gets every event
//! of its keys once, in order, and as the log says; except for revisions that were compacted
//! before it came to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use quorate_kv::{
    KeyRange, PollLimits, WatchEvent, WatchEventKind, WatchPoll, WatchRequest, WatcherId,
};

use super::super::setting::TICK;
use super::super::simulation::{SimEvent, Simulation};
use super::RerunStore;
use crate::checkers::{Checked, Violation};
use crate::random::Random;

pub(super) struct WatchClient {
    request: WatchRequest,
    limits: PollLimits,
    attached: Option<AttachedWatch>,
    /// The first revision that it wants, once it knows it.
    first: Option<i64>,
    /// The first revision that it was not told.
    next: i64,
    received: Vec<WatchEvent>,
    /// Revisions that were compacted: from here, to before there.
    skipped: Vec<(i64, i64)>,
}

struct AttachedWatch {
    place: usize,
    run: u64,
    id: WatcherId,
    /// The store has events for it.
    woken: Arc<AtomicBool>,
}

impl WatchClient {
    pub(super) fn draw(random: &mut Random) -> Self {
        let key = Bytes::from(format!("key{}", random.below(8)));
        let keys = match random.below(3) {
            0 => KeyRange::all(),
            1 => KeyRange { key, range_end: "\0".into() },
            _ => KeyRange::single(key),
        };
        let request = WatchRequest {
            keys,
            start_revision: 0,
            no_put: random.per_mille(100),
            no_delete: random.per_mille(100),
            prev_kv: random.per_mille(400),
        };
        let limits = PollLimits::default()
            .events_max(1 + random.below(4) as usize)
            .rows_max(1 + random.below(12) as usize);
        let first = random.per_mille(500).then_some(2);
        let next = first.unwrap_or(0);
        let (received, skipped) = (Vec::new(), Vec::new());
        Self { request, limits, attached: None, first, next, received, skipped }
    }

    fn wants(&self, event: &WatchEvent) -> bool {
        let revision = event.kv.mod_revision;
        let is_filtered = match event.kind {
            WatchEventKind::Put => self.request.no_put,
            WatchEventKind::Delete => self.request.no_delete,
        };
        let is_skipped = self.skipped.iter().any(|(from, to)| (*from..*to).contains(&revision));
        let is_told = self.first.is_some_and(|first| (first..self.next).contains(&revision));
        is_told && !is_filtered && !is_skipped && self.request.keys.contains(&event.kv.key)
    }
}

impl Simulation {
    pub(super) fn schedule_watcher(&mut self, watcher: usize) {
        let Some(etcd) = self.etcd.as_mut().filter(|_| !self.quiet) else { return };
        let at = self.now + 1 + etcd.random.below(4 * TICK);
        self.schedule(at, SimEvent::Watcher(watcher));
    }

    pub(crate) fn on_watcher(&mut self, watcher: usize) -> Checked {
        self.report.events += 1;
        let Some(etcd) = &mut self.etcd else { return Ok(()) };
        let leaves = etcd.random.per_mille(60);
        if leaves && let Some(place) = self.draw_awake() {
            self.attach(watcher, place);
        }
        self.poll_watcher(watcher)?;
        self.schedule_watcher(watcher);
        Ok(())
    }

    /// The member that the watcher is connected to, if it still runs; otherwise another one.
    fn attached(&mut self, watcher: usize) -> Option<usize> {
        let attached = self.etcd.as_ref()?.watchers[watcher].attached.as_ref();
        let attached = attached.map(|attached| (attached.place, attached.run));
        if let Some((place, run)) = attached
            && self.members[place].run == run
            && self.members[place].is_up()
        {
            return self.is_awake(place).then_some(place);
        }
        let place = self.draw_awake()?;
        self.attach(watcher, place);
        Some(place)
    }

    fn attach(&mut self, watcher: usize, place: usize) {
        self.detach(watcher);
        let run = self.members[place].run;
        let process = self.members[place].process.as_ref();
        let store = process.and_then(|process| process.applier.machine().store());
        let (Some(store), Some(etcd)) = (store, &mut self.etcd) else { return };
        let client = &mut etcd.watchers[watcher];
        let woken = Arc::new(AtomicBool::new(true));
        let wake = Arc::clone(&woken);
        let request = WatchRequest { start_revision: client.next, ..client.request.clone() };
        let wake = Arc::new(move |_| wake.store(true, Ordering::Relaxed));
        let (id, revision) = store.watch(request, wake);
        if client.first.is_none() {
            client.first = Some(revision + 1);
            client.next = revision + 1;
        }
        client.attached = Some(AttachedWatch { place, run, id, woken });
        self.report.count("watch");
    }

    fn detach(&mut self, watcher: usize) {
        let Some(etcd) = &mut self.etcd else { return };
        let Some(attached) = etcd.watchers[watcher].attached.take() else { return };
        let member = &self.members[attached.place];
        if member.run == attached.run
            && let Some(process) = &member.process
            && let Some(store) = process.applier.machine().store()
        {
            store.cancel_watch(attached.id);
        }
    }

    /// Takes events until there are none for now. A watcher that was not woken does not ask.
    fn poll_watcher(&mut self, watcher: usize) -> Checked {
        for _ in 0..POLLS_MAX {
            let Some(place) = self.attached(watcher) else { return Ok(()) };
            let process = self.members[place].process.as_ref();
            let store = process.and_then(|process| process.applier.machine().store());
            let (Some(store), Some(etcd)) = (store, &mut self.etcd) else { return Ok(()) };
            let client = &mut etcd.watchers[watcher];
            let Some(attached) = &client.attached else { return Ok(()) };
            if !attached.woken.swap(false, Ordering::Relaxed) {
                return Ok(());
            }
            let (id, woken) = (attached.id, Arc::clone(&attached.woken));
            let poll = store.poll_watch(id, client.limits);
            match poll.map_err(|why| Violation::new("W1", why.to_string()))? {
                WatchPoll::Idle => {
                    let told = store.watch_progress(id);
                    client.next = client.next.max(told.map_or(0, |revision| revision + 1));
                    return Ok(());
                }
                WatchPoll::Events { revision, events, .. } => {
                    client.received.extend(events);
                    client.next = revision + 1;
                    woken.store(true, Ordering::Relaxed);
                }
                WatchPoll::Again => woken.store(true, Ordering::Relaxed),
                WatchPoll::Compacted { compact_revision } => {
                    client.attached = None;
                    if compact_revision <= client.next {
                        let (next, compacted) = (client.next, compact_revision);
                        let what = format!("revision {next} is called compacted, by {compacted}");
                        return Err(Violation::new("W1", what));
                    }
                    client.skipped.push((client.next, compact_revision));
                    client.next = compact_revision;
                    self.report.count("watch compacted");
                }
                WatchPoll::Gone => {
                    return Err(Violation::new("W1", "a watcher that was not cancelled is gone"));
                }
            }
        }
        Ok(())
    }

    /// Everything is applied: each watcher gets the rest.
    pub(super) fn drain_watchers(&mut self) -> Checked {
        let count = self.etcd.as_ref().map_or(0, |etcd| etcd.watchers.len());
        for watcher in 0..count {
            for _ in 0..1_000 {
                // A watch that is cancelled by a compaction continues at any member.
                if !self.attach_to_newest(watcher) {
                    return Ok(());
                }
                self.poll_watcher(watcher)?;
            }
            self.note_progress(watcher);
        }
        Ok(())
    }

    /// Attaches the watcher to a member that has applied everything. False if there is none.
    fn attach_to_newest(&mut self, watcher: usize) -> bool {
        let at = self.attached(watcher);
        let commit = self.invariants.commit();
        let is_newest = |place: &usize| {
            let process = self.members[*place].process.as_ref();
            let applied = process.is_some_and(|process| process.applier.applied() == commit);
            applied && self.is_awake(*place)
        };
        if at.as_ref().is_some_and(is_newest) {
            return true;
        }
        let newest = (0..self.members.len()).find(is_newest);
        newest.is_some_and(|place| {
            self.attach(watcher, place);
            true
        })
    }

    /// A watcher without events is told how far the store is, unless it has missed a wake-up.
    fn note_progress(&mut self, watcher: usize) {
        let Some(place) = self.attached(watcher) else { return };
        let process = self.members[place].process.as_ref();
        let store = process.and_then(|process| process.applier.machine().store());
        let (Some(store), Some(etcd)) = (store, &mut self.etcd) else { return };
        let client = &mut etcd.watchers[watcher];
        let Some(attached) = &client.attached else { return };
        let told = store.watch_progress(attached.id);
        client.next = client.next.max(told.map_or(0, |revision| revision + 1));
    }
}

/// Polls in a row.
const POLLS_MAX: usize = 8;

/// Compares what watchers received with the log.
pub(super) fn check(watchers: &[WatchClient], rerun: &RerunStore, judged: bool) -> Checked {
    for (number, client) in watchers.iter().enumerate() {
        let broken = |what: String| Err(Violation::new("W1", format!("watcher {number}: {what}")));
        let compacted = rerun.kv.compact_revision();
        if let Some((from, to)) = client.skipped.iter().find(|(_, to)| *to > compacted) {
            return broken(format!("{from} to {to} were called compacted, but are not"));
        }
        let mut expected = rerun.events.iter().filter(|event| client.wants(event));
        for event in &client.received {
            let next = expected.next();
            let is_expected = next.is_some_and(|next| is_same(event, next));
            if !is_expected {
                return broken(format!("got {event:?}, but {next:?} is next"));
            }
        }
        if let Some(missed) = expected.next() {
            return broken(format!("was not told {missed:?}"));
        }
        let newest = rerun.kv.revision();
        if judged && client.attached.is_some() && client.next <= newest {
            let next = client.next;
            return broken(format!("waits at revision {next}, but {newest} is applied"));
        }
    }
    Ok(())
}

/// The previous value may be missing where it was compacted.
fn is_same(event: &WatchEvent, expected: &WatchEvent) -> bool {
    event.kind == expected.kind && event.kv == expected.kv
}
