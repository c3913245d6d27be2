//! The state machine as a [`quorate::Machine`], behind the feature `machine`.
//!
//! [`Kv`] itself is a [`Machine`]. [`SharedKv`] is a machine that a server can read while the
//! node runs it: serializable reads, watches and leases do not go through the log.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;
use quorate::storage::StoreIdentity;
use quorate::{
    BadSnapshot, Machine, MachineError, SnapshotChunks, UnsupportedVersion, VersionRange,
};

use crate::command::Query;
use crate::error::KvError;
use crate::machine::{Applied, ApplyError, Kv};
use crate::reply::{KvCommandReply, KvOutcome, LeaseOutcome};
use crate::snapshot::{KvSnapshotError, SnapshotDecoder};
use crate::table::{Table, TableError};
use crate::version::{NewerVersion, VERSION_MAX, VERSION_MIN};
use crate::watch::{PollLimits, WakeFn, WatchHub, WatchPoll, WatchRequest, WatcherId};

/// Commands are encoded [`Command`](crate::Command)s, queries encoded [`Query`]s, and replies
/// encoded [`KvCommandReply`]s.
///
/// When the table fails, the member stops: one that missed a write must not answer.
///
/// # Panics
///
/// The chunks of a snapshot, when a row cannot be read. The node catches the panic, and stops the
/// member with its message as the reason.
impl<T: Table> Machine for Kv<T> {
    fn resume(&mut self, owner: &StoreIdentity) -> Result<u64, MachineError> {
        Ok(Self::resume(self, &owner_bytes(owner))?)
    }

    fn save(&mut self) -> Result<(), MachineError> {
        Ok(Self::save(self)?)
    }

    fn apply(&mut self, index: u64, command: &Bytes) -> Result<Bytes, MachineError> {
        Ok(self.apply_bytes(index, command).map_err(machine_error)?.reply.encode())
    }

    fn query(&self, query: &Bytes) -> Result<Bytes, MachineError> {
        let reply = match Query::decode(query) {
            Some(query) => Self::query(self, &query)?,
            None => {
                KvCommandReply { revision: self.revision(), result: Err(KvError::UnknownCommand) }
            }
        };
        Ok(reply.encode())
    }

    fn on_cluster_version(&mut self, index: u64, version: u32) {
        // A machine that resumed its own state has the version of a later entry already.
        if index >= self.applied() {
            self.set_cluster_version(version);
        }
    }

    fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
        let mut chunks = Self::snapshot(self)?;
        Ok(Box::new(std::iter::from_fn(move || {
            let chunk = chunks.next();
            // A snapshot that ends early would replace the log although rows are missing.
            match chunks.take_failure() {
                Some(error) => read_failed(&error),
                None => chunk,
            }
        })))
    }

    fn check_snapshot(chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        SnapshotDecoder::check(chunks).map_err(install_error)
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        Self::install(self, chunks).map_err(install_error)
    }
}

/// The member stops with the version that it needs.
fn machine_error(error: ApplyError) -> MachineError {
    match error {
        ApplyError::Newer(newer) => unsupported(newer),
        ApplyError::Table(error) => error.into(),
    }
}

fn unsupported(newer: NewerVersion) -> MachineError {
    UnsupportedVersion { needs: newer.needs, supported: SUPPORTED_VERSIONS }.into()
}

/// The cluster versions that this crate supports.
pub const SUPPORTED_VERSIONS: VersionRange = VersionRange::new(VERSION_MIN, VERSION_MAX);

/// The bytes that identify one disk of one member of one cluster.
fn owner_bytes(owner: &StoreIdentity) -> Vec<u8> {
    let numbers = [owner.cluster, owner.member.0, owner.incarnation];
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Chunks cannot be errors, and an early end would look like the end.
#[expect(clippy::panic, reason = "the node catches it and stops the member")]
fn read_failed(error: &TableError) -> ! {
    panic!("a snapshot cannot be read: {error}")
}

fn install_error(error: KvSnapshotError) -> MachineError {
    match error {
        KvSnapshotError::Table(error) => error.into(),
        KvSnapshotError::Newer(newer) => unsupported(newer),
        _ => BadSnapshot.into(),
    }
}

/// A machine with its watchers, shared between the node that applies commands to it and the
/// server that reads it. Clones are handles to the same machine.
pub struct SharedKv<T> {
    shared: Arc<SharedKvState<T>>,
}

struct SharedKvState<T> {
    kv: RwLock<Kv<T>>,
    /// Lock order: `kv` before `hub`.
    hub: Mutex<WatchHub>,
    /// Lock order: `kv` before `grants`.
    grants: Mutex<LeaseGrants>,
}

/// The leases granted since the last call of [`SharedKv::take_grants`]. A leader adds them
/// to its [`LeaseDeadlines`](crate::LeaseDeadlines).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum LeaseGrants {
    /// Tracking is off: no grants were recorded.
    #[default]
    NotTracked,
    /// The id and the TTL in seconds of each granted lease.
    Granted(Vec<(i64, i64)>),
    /// More grants than are recorded. Read all leases of the machine instead.
    Overflowed,
}

/// The number of grants recorded between two calls of [`SharedKv::take_grants`].
const GRANTS_MAX: usize = 65_536;

impl LeaseGrants {
    fn add(&mut self, id: i64, ttl: i64) {
        match self {
            Self::Granted(grants) if grants.len() < GRANTS_MAX => grants.push((id, ttl)),
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
    /// A shared handle to this machine, without watchers.
    pub fn new(kv: Kv<T>) -> Self {
        let hub = Mutex::new(WatchHub::new(kv.revision()));
        let grants = Mutex::default();
        Self { shared: Arc::new(SharedKvState { kv: RwLock::new(kv), hub, grants }) }
    }

    /// The machine for reading. Commands wait while the guard is held.
    pub fn read(&self) -> RwLockReadGuard<'_, Kv<T>> {
        self.shared.kv.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The machine for maintenance, such as saving or defragmenting it. Change the
    /// replicated state only through the log.
    pub fn write(&self) -> RwLockWriteGuard<'_, Kv<T>> {
        self.shared.kv.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn hub(&self) -> MutexGuard<'_, WatchHub> {
        self.shared.hub.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn grants(&self) -> MutexGuard<'_, LeaseGrants> {
        self.shared.grants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The leases granted since the last call. The first call turns tracking on and returns
    /// [`LeaseGrants::NotTracked`]: read all leases of the machine then.
    #[must_use]
    pub fn take_grants(&self) -> LeaseGrants {
        std::mem::replace(&mut *self.grants(), LeaseGrants::Granted(Vec::new()))
    }

    /// Turns the tracking of lease grants off.
    pub fn stop_tracking_grants(&self) {
        *self.grants() = LeaseGrants::NotTracked;
    }

    /// Creates a watcher. Returns its id and the current revision of the store.
    pub fn watch(&self, request: WatchRequest, wake: WakeFn) -> (WatcherId, i64) {
        let kv = self.read();
        let revision = kv.revision();
        (self.hub().create(request, revision, wake), revision)
    }

    /// See [`WatchHub::poll`].
    pub fn poll_watch(&self, id: WatcherId, limits: PollLimits) -> Result<WatchPoll, TableError> {
        let kv = self.read();
        self.hub().poll(&kv, id, limits)
    }

    /// See [`WatchHub::cancel`].
    pub fn cancel_watch(&self, id: WatcherId) -> bool {
        self.hub().cancel(id)
    }

    /// See [`WatchHub::progress`].
    pub fn watch_progress(&self, id: WatcherId) -> Option<i64> {
        self.hub().progress(id)
    }

    /// The number of watchers.
    pub fn watchers(&self) -> usize {
        self.hub().len()
    }
}

impl<T: Table> Machine for SharedKv<T> {
    fn resume(&mut self, owner: &StoreIdentity) -> Result<u64, MachineError> {
        let mut kv = self.write();
        let applied = Machine::resume(&mut *kv, owner)?;
        self.hub().restart(kv.revision());
        Ok(applied)
    }

    fn save(&mut self) -> Result<(), MachineError> {
        Machine::save(&mut *self.write())
    }

    fn apply(&mut self, index: u64, command: &Bytes) -> Result<Bytes, MachineError> {
        let mut kv = self.write();
        let Applied { reply, events } = kv.apply_bytes(index, command).map_err(machine_error)?;
        if !events.is_empty() {
            self.hub().publish(events);
        }
        if let Ok(KvOutcome::Lease(LeaseOutcome { id, ttl, .. })) = &reply.result {
            self.grants().add(*id, *ttl);
        }
        drop(kv);
        Ok(reply.encode())
    }

    fn query(&self, query: &Bytes) -> Result<Bytes, MachineError> {
        Machine::query(&*self.read(), query)
    }

    fn on_cluster_version(&mut self, index: u64, version: u32) {
        Machine::on_cluster_version(&mut *self.write(), index, version);
    }

    fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
        Machine::snapshot(&*self.read())
    }

    fn check_snapshot(chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        SnapshotDecoder::check(chunks).map_err(install_error)
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        let mut decoder = SnapshotDecoder::default();
        loop {
            // The lock is released between chunks: readers see the old state meanwhile and
            // never wait for the whole installation.
            let Some(chunk) = chunks.next() else {
                self.write().abort_install()?;
                return Err(BadSnapshot.into());
            };
            let mut kv = self.write();
            if kv.stage_chunk(&mut decoder, chunk).map_err(install_error)? {
                kv.finish_install(decoder).map_err(install_error)?;
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
    fn grants_are_recorded_while_tracked_up_to_a_limit() {
        let mut shared = SharedKv::new(Kv::open(MemoryTable::default()).unwrap());
        let mut grant = |id: i64| {
            let command = Command::LeaseGrant(LeaseGrant { id, ttl: 60 });
            shared.apply(id as u64, &command.encode()).unwrap();
            shared.clone()
        };
        assert_eq!(grant(1).take_grants(), LeaseGrants::NotTracked);
        assert_eq!(grant(2).take_grants(), LeaseGrants::Granted(vec![(2, 60)]));
        let shared = grant(3);
        shared.stop_tracking_grants();
        assert_eq!(shared.take_grants(), LeaseGrants::NotTracked);
        let count = GRANTS_MAX as i64;
        let shared = (4..4 + count).map(&mut grant).last().unwrap();
        assert!(
            matches!(shared.take_grants(), LeaseGrants::Granted(all) if all.len() == GRANTS_MAX)
        );
        let shared = (4 + count..=4 + 2 * count).map(&mut grant).last().unwrap();
        assert_eq!(shared.take_grants(), LeaseGrants::Overflowed);
    }
}
