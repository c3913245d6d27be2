//! The machine as the node runs it, behind the feature `machine`.
//!
//! [`Kv`] itself is a [`Machine`]. [`SharedKv`] is one that a server looks into while
//! the node runs it: reads, watches and leases need no way through the log.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;
use quorate::{BadSnapshot, Machine, SnapshotChunks, StoreIdentity};

use crate::command::Query;
use crate::error::KvError;
use crate::machine::{Applied, Kv};
use crate::reply::{KvOutcome, KvReply, LeaseOutcome};
use crate::snapshot::{Installation, KvSnapshotError};
use crate::table::{Table, TableError};
use crate::watch::{PollLimits, WakeFn, WatchHub, WatchPoll, WatchRequest, WatcherId};

/// Commands are [`Command`](crate::Command)s, questions [`Query`]s, answers
/// [`KvReply`]s, as bytes.
///
/// # Panics
///
/// When the table fails. A member that missed a write must not answer, and a crash is
/// what the cluster is made for.
impl<T: Table> Machine for Kv<T> {
    fn resume(&mut self, owner: &StoreIdentity) -> u64 {
        or_end(Self::resume(self, &mark_of(owner)))
    }

    fn save(&mut self) {
        or_end(Self::save(self));
    }

    fn apply(&mut self, index: u64, command: &Bytes) -> Bytes {
        or_end(self.apply_bytes(index, command)).reply.encode()
    }

    fn query(&self, question: &Bytes) -> Bytes {
        let reply = match Query::decode(question) {
            Some(question) => or_end(Self::query(self, &question)),
            None => KvReply { revision: self.revision(), result: Err(KvError::UnknownCommand) },
        };
        reply.encode()
    }

    fn snapshot(&self) -> SnapshotChunks {
        Box::new(or_end(Self::snapshot(self)))
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), BadSnapshot> {
        or_bad(Self::install(self, chunks))
    }
}

/// As bytes, what tells one disk of one member of one cluster from all others.
fn mark_of(owner: &StoreIdentity) -> Vec<u8> {
    let numbers = [owner.cluster, owner.member.0, owner.incarnation];
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

#[expect(clippy::panic, reason = "there is no state to go on with")]
fn or_end<R>(result: Result<R, TableError>) -> R {
    match result {
        Ok(done) => done,
        Err(error) => panic!("the state machine cannot go on: {error}"),
    }
}

fn or_bad<R>(result: Result<R, KvSnapshotError>) -> Result<R, BadSnapshot> {
    match result {
        Err(KvSnapshotError::Table(error)) => or_end(Err(error)),
        result => result.map_err(|_| BadSnapshot),
    }
}

/// A machine with its watchers, shared by the node that runs commands on it and the
/// server that looks at it. Cloning gives another handle.
pub struct SharedKv<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    kv: RwLock<Kv<T>>,
    /// Taken after `kv`, never before.
    hub: Mutex<WatchHub>,
    /// Taken after `kv`, never before.
    grants: Mutex<LeaseGrants>,
}

/// What somebody who counts the time of leases has to hear of.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum LeaseGrants {
    /// Nobody listens: nothing is kept.
    #[default]
    NotTracked,
    /// Granted since the last look: the id and the seconds of each.
    Granted(Vec<(i64, i64)>),
    /// More than are kept. Look at all leases.
    Overflowed,
}

/// Grants that are kept until somebody looks.
const GRANTS_KEPT: usize = 65_536;

impl LeaseGrants {
    fn add(&mut self, id: i64, ttl: i64) {
        match self {
            Self::Granted(grants) if grants.len() < GRANTS_KEPT => grants.push((id, ttl)),
            Self::Granted(_) => *self = Self::Overflowed,
            Self::NotTracked | Self::Overflowed => {}
        }
    }
}

impl<T> Clone for SharedKv<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T: Table> SharedKv<T> {
    pub fn new(kv: Kv<T>) -> Self {
        let hub = Mutex::new(WatchHub::new(kv.revision()));
        let grants = Mutex::default();
        Self { shared: Arc::new(Shared { kv: RwLock::new(kv), hub, grants }) }
    }

    /// The machine, to read from. Commands wait as long as this is held.
    pub fn read(&self) -> RwLockReadGuard<'_, Kv<T>> {
        self.shared.kv.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The machine, for what is no command: to save or defragment it.
    pub fn write(&self) -> RwLockWriteGuard<'_, Kv<T>> {
        self.shared.kv.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn hub(&self) -> MutexGuard<'_, WatchHub> {
        self.shared.hub.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn grants(&self) -> MutexGuard<'_, LeaseGrants> {
        self.shared.grants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The leases granted since this was last called, and from now on keeps them until the
    /// next call. Before the first call nothing was kept: look at all leases then.
    pub fn take_grants(&self) -> LeaseGrants {
        std::mem::replace(&mut *self.grants(), LeaseGrants::Granted(Vec::new()))
    }

    /// Keeps no grants any more.
    pub fn stop_tracking_grants(&self) {
        *self.grants() = LeaseGrants::NotTracked;
    }

    /// Begins to watch, and says at which revision the store is.
    pub fn watch(&self, request: WatchRequest, wake: WakeFn) -> (WatcherId, i64) {
        let kv = self.read();
        let revision = kv.revision();
        (self.hub().create(request, revision, wake), revision)
    }

    pub fn poll_watch(&self, id: WatcherId, limits: PollLimits) -> Result<WatchPoll, TableError> {
        let kv = self.read();
        self.hub().poll(&kv, id, limits)
    }

    pub fn cancel_watch(&self, id: WatcherId) -> bool {
        self.hub().cancel(id)
    }

    /// See [`WatchHub::progress`].
    pub fn watch_progress(&self, id: WatcherId) -> Option<i64> {
        self.hub().progress(id)
    }

    pub fn watchers(&self) -> usize {
        self.hub().len()
    }
}

impl<T: Table> Machine for SharedKv<T> {
    fn resume(&mut self, owner: &StoreIdentity) -> u64 {
        let mut kv = self.write();
        let kept = Machine::resume(&mut *kv, owner);
        self.hub().restart(kv.revision());
        kept
    }

    fn save(&mut self) {
        Machine::save(&mut *self.write());
    }

    fn apply(&mut self, index: u64, command: &Bytes) -> Bytes {
        let mut kv = self.write();
        let Applied { reply, events } = or_end(kv.apply_bytes(index, command));
        if !events.is_empty() {
            self.hub().publish(events);
        }
        if let Ok(KvOutcome::Lease(LeaseOutcome { id, ttl, .. })) = &reply.result {
            self.grants().add(*id, *ttl);
        }
        drop(kv);
        reply.encode()
    }

    fn query(&self, question: &Bytes) -> Bytes {
        Machine::query(&*self.read(), question)
    }

    fn snapshot(&self) -> SnapshotChunks {
        Machine::snapshot(&*self.read())
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), BadSnapshot> {
        let mut installation = Installation::default();
        loop {
            // Those who read have the old state while chunks arrive; nobody waits for all.
            let Some(chunk) = chunks.next() else {
                or_end(self.write().drop_install());
                return Err(BadSnapshot);
            };
            let mut kv = self.write();
            if or_bad(kv.take_chunk(&mut installation, chunk))? {
                or_bad(kv.finish_install(installation))?;
                self.hub().restart(kv.revision());
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Command, LeaseGrant};
    use crate::table::MemoryTable;

    #[test]
    fn grants_are_kept_for_who_looks_and_only_so_many() {
        let mut shared = SharedKv::new(Kv::open(MemoryTable::default()).unwrap());
        let mut grant = |id: i64| {
            let command = Command::LeaseGrant(LeaseGrant { id, ttl: 60 });
            shared.apply(id as u64, &command.encode());
            shared.clone()
        };
        assert_eq!(grant(1).take_grants(), LeaseGrants::NotTracked);
        assert_eq!(grant(2).take_grants(), LeaseGrants::Granted(vec![(2, 60)]));
        let shared = grant(3);
        shared.stop_tracking_grants();
        assert_eq!(shared.take_grants(), LeaseGrants::NotTracked);
        let kept = GRANTS_KEPT as i64;
        let shared = (4..4 + kept).map(&mut grant).last().unwrap();
        assert!(
            matches!(shared.take_grants(), LeaseGrants::Granted(all) if all.len() == GRANTS_KEPT)
        );
        let shared = (4 + kept..=4 + 2 * kept).map(&mut grant).last().unwrap();
        assert_eq!(shared.take_grants(), LeaseGrants::Overflowed);
    }
}
