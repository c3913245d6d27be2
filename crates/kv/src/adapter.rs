//! The state machine as a [`quorate::Machine`], behind the feature `machine`.
//!
//! [`Kv`] itself is a [`Machine`]. [`SharedKv`] is a machine that a server can read while the
//! node runs it: serializable reads, watches and leases do not go through the log.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLockReadGuard};

use bytes::Bytes;
use quorate::storage::StoreIdentity;
use quorate::{
    BadSnapshot, LoadedState, Machine, MachineError, SnapshotChunks, SnapshotLoader,
    UnsupportedVersion, VersionRange, WorkProgress,
};

use crate::auth::{AuthState, IssuedToken};
use crate::command::Query;
use crate::error::KvError;
use crate::machine::{Applied, ApplyError, Kv};
use crate::reply::{KvCommandReply, KvOutcome, LeaseOutcome};
use crate::shared_lock::{ReadWhenFree, SharedLock, WriteGuard};
use crate::snapshot::{KvSnapshotError, SnapshotDecoder};
use crate::table::{Table, TableError};
use crate::version::{NewerVersion, VERSION_MAX, VERSION_MIN};
use crate::watch::{
    PollLimits, WakeFn, WatchBacklog, WatchHub, WatchPoll, WatchRequest, WatcherId,
};

/// Commands are encoded [`Command`](crate::Command)s, queries encoded [`Query`]s, and replies
/// encoded [`KvCommandReply`]s.
///
/// When the table fails, the member stops: one that missed a write must not answer.
impl<T: Table> Machine for Kv<T> {
    fn resume(&mut self, owner: &StoreIdentity) -> Result<u64, MachineError> {
        Ok(Self::resume(self, &owner_bytes(owner))?)
    }

    fn save(&mut self) -> Result<(), MachineError> {
        Ok(Self::save(self)?)
    }

    fn report_progress_to(&mut self, progress: WorkProgress) {
        Self::report_progress_to(self, Arc::new(move || progress.advance()));
    }

    fn prepare(&mut self, commands: &[(u64, &[u8])]) {
        Self::prepare(self, commands);
    }

    fn apply(&mut self, index: u64, command: &Bytes) -> Result<Bytes, MachineError> {
        self.reply_with_reads(true);
        Ok(self.apply_bytes(index, command).map_err(machine_error)?.reply.encode())
    }

    fn apply_without_reply(&mut self, index: u64, command: &Bytes) -> Result<(), MachineError> {
        self.reply_with_reads(false);
        self.apply_bytes(index, command).map(drop).map_err(machine_error)
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
                Some(error) => Some(Err(error.into())),
                None => chunk.map(Ok),
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

fn install_error(error: KvSnapshotError) -> MachineError {
    match error {
        KvSnapshotError::Table(error) => error.into(),
        KvSnapshotError::Newer(newer) => unsupported(newer),
        _ => BadSnapshot.into(),
    }
}

/// A machine with its watchers, shared between the node that applies commands to it and the
/// server that reads it. Clones are handles to the same machine.
pub struct SharedKv<T: Table> {
    shared: Arc<SharedKvState<T>>,
}

struct SharedKvState<T: Table> {
    kv: SharedLock<Kv<T>>,
    /// Lock order: `kv` before `hub`.
    hub: Mutex<WatchHub>,
    /// Lock order: `kv` before `grants`.
    grants: Mutex<LeaseGrants>,
    /// Lock order: `kv` before `tokens`.
    tokens: Mutex<VecDeque<IssuedToken>>,
    observer: OnceLock<Arc<dyn CommandObserver>>,
    /// [`AuthVersion`] as a number, so that most requests need no lock to read it. Written with
    /// the write lock of `kv`.
    auth: AtomicU64,
}

/// Observes the commands that a [`SharedKv`] applies, for metrics.
pub trait CommandObserver: Send + Sync {
    /// A command begins. The result, such as the time, is passed to [`Self::applied`].
    fn begin(&self) -> u64;

    /// The command was applied, and its reply is not sent yet. If nobody waits for it, it lacks what the
    /// command read ([`Kv::reply_with_reads`]).
    fn applied(&self, began: u64, applied: &Applied);
}

/// Changes with every change of users and roles, and when authentication is enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AuthVersion {
    /// Whether requests are checked.
    pub enabled: bool,
    /// The auth revision.
    pub revision: u64,
}

impl AuthVersion {
    /// The version of this state.
    pub fn of(auth: &AuthState) -> Self {
        Self { enabled: auth.is_enabled(), revision: auth.revision() }
    }
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

/// The number of tokens kept between two calls of [`SharedKv::take_tokens`].
const TOKENS_MAX: usize = 65_536;

fn auth_number<T: Table>(kv: &Kv<T>) -> u64 {
    let auth = kv.auth();
    auth.revision() << 1 | u64::from(auth.is_enabled())
}

impl LeaseGrants {
    fn add(&mut self, id: i64, ttl: i64) {
        match self {
            Self::Granted(grants) if grants.len() < GRANTS_MAX => grants.push((id, ttl)),
            Self::Granted(_) => *self = Self::Overflowed,
            Self::NotTracked | Self::Overflowed => {}
        }
    }
}

impl<T: Table> Clone for SharedKv<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T: Table> SharedKv<T> {
    /// A shared handle to this machine, without watchers.
    pub fn new(kv: Kv<T>) -> Self {
        let hub = Mutex::new(WatchHub::new(kv.revision()));
        let auth = AtomicU64::new(auth_number(&kv));
        let (grants, tokens) = (Mutex::default(), Mutex::default());
        let kv = SharedLock::new(kv);
        let observer = OnceLock::new();
        Self { shared: Arc::new(SharedKvState { kv, hub, grants, tokens, observer, auth }) }
    }

    /// From now on this observer is told of every command. Only the first one counts.
    pub fn observe(&self, observer: Arc<dyn CommandObserver>) {
        let _ = self.shared.observer.set(observer);
    }

    /// The machine for reading. Commands wait while the guard is held. Blocks the thread while a
    /// command is applied, which takes long if it deletes very many keys.
    pub fn read(&self) -> RwLockReadGuard<'_, Kv<T>> {
        self.shared.kv.read()
    }

    /// The same without blocking the thread, for tasks that share their threads with others.
    pub fn read_when_free(&self) -> ReadWhenFree<'_, Kv<T>> {
        self.shared.kv.read_when_free()
    }

    /// The machine for maintenance, such as saving or defragmenting it. Change the
    /// replicated state only through the log.
    pub fn write(&self) -> WriteGuard<'_, Kv<T>> {
        self.shared.kv.write()
    }

    /// The current auth revision, and whether requests are checked. Takes no lock.
    pub fn auth_version(&self) -> AuthVersion {
        let number = self.shared.auth.load(Ordering::Acquire);
        AuthVersion { enabled: number & 1 == 1, revision: number >> 1 }
    }

    /// The tokens issued since the last call, oldest first. If there were very many, only the
    /// newest ones.
    pub fn take_tokens(&self) -> VecDeque<IssuedToken> {
        std::mem::take(&mut *self.tokens())
    }

    fn tokens(&self) -> MutexGuard<'_, VecDeque<IssuedToken>> {
        self.shared.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Call it with the write lock held.
    fn publish_auth(&self, kv: &Kv<T>) {
        self.shared.auth.store(auth_number(kv), Ordering::Release);
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
        self.watch_in(&self.read(), request, wake)
    }

    /// The same with the machine that is being read.
    pub fn watch_in(&self, kv: &Kv<T>, request: WatchRequest, wake: WakeFn) -> (WatcherId, i64) {
        let revision = kv.revision();
        (self.hub().create(request, revision, wake), revision)
    }

    /// See [`WatchHub::poll`].
    pub fn poll_watch(&self, id: WatcherId, limits: PollLimits) -> Result<WatchPoll, TableError> {
        self.poll_watch_in(&self.read(), id, limits)
    }

    /// The same with the machine that is being read.
    pub fn poll_watch_in(
        &self,
        kv: &Kv<T>,
        id: WatcherId,
        limits: PollLimits,
    ) -> Result<WatchPoll, TableError> {
        self.hub().poll(kv, id, limits)
    }

    /// See [`WatchHub::poll_events`].
    pub fn poll_watch_events_in(
        &self,
        kv: &Kv<T>,
        id: WatcherId,
        limits: PollLimits,
    ) -> Result<WatchPoll, TableError> {
        self.hub().poll_events(kv, id, limits)
    }

    /// See [`WatchHub::cancel`].
    pub fn cancel_watch(&self, id: WatcherId) -> bool {
        self.hub().cancel(id)
    }

    /// See [`WatchHub::progress`].
    pub fn watch_progress(&self, id: WatcherId) -> Option<i64> {
        self.hub().progress(id)
    }

    /// See [`WatchHub::backlog`].
    pub fn watch_backlog(&self, revision: i64) -> WatchBacklog {
        self.hub().backlog(revision)
    }

    /// The number of watchers.
    pub fn watchers(&self) -> usize {
        self.hub().len()
    }

    /// Applies a command, and tells watchers and the observer. Without `replies`, the reply lacks what
    /// the command read.
    fn apply_shared(
        &self,
        index: u64,
        command: &Bytes,
        replies: bool,
    ) -> Result<KvCommandReply, MachineError> {
        let observer = self.shared.observer.get();
        let began = observer.map_or(0, |observer| observer.begin());
        let mut kv = self.write();
        // No watcher is created while the machine is locked for writing.
        kv.collect_events(!self.hub().is_empty());
        kv.reply_with_reads(replies);
        let applied = kv.apply_bytes(index, command).map_err(machine_error)?;
        if let Some(observer) = observer {
            observer.applied(began, &applied);
        }
        let Applied { reply, events, token, .. } = applied;
        if let Some(token) = token {
            let mut tokens = self.tokens();
            if tokens.len() >= TOKENS_MAX {
                tokens.pop_front();
            }
            tokens.push_back(token);
        }
        self.publish_auth(&kv);
        if !events.is_empty() {
            self.hub().publish(events);
        }
        if let Ok(KvOutcome::Lease(LeaseOutcome { id, ttl, .. })) = &reply.result {
            self.grants().add(*id, *ttl);
        }
        drop(kv);
        Ok(reply)
    }
}

impl<T: Table + Send + 'static> Machine for SharedKv<T> {
    fn resume(&mut self, owner: &StoreIdentity) -> Result<u64, MachineError> {
        let mut kv = self.write();
        let applied = Machine::resume(&mut *kv, owner)?;
        self.publish_auth(&kv);
        self.hub().restart(kv.revision());
        Ok(applied)
    }

    fn save(&mut self) -> Result<(), MachineError> {
        Machine::save(&mut *self.write())
    }

    fn report_progress_to(&mut self, progress: WorkProgress) {
        Machine::report_progress_to(&mut *self.write(), progress);
    }

    fn prepare(&mut self, commands: &[(u64, &[u8])]) {
        Kv::prepare(&mut self.write(), commands);
    }

    fn apply(&mut self, index: u64, command: &Bytes) -> Result<Bytes, MachineError> {
        Ok(self.apply_shared(index, command, true)?.encode())
    }

    fn apply_without_reply(&mut self, index: u64, command: &Bytes) -> Result<(), MachineError> {
        self.apply_shared(index, command, false).map(drop)
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

    fn snapshot_loader(&self) -> SnapshotLoader {
        let Some(make_table) = self.read().table.make_detached() else {
            return Box::new(|chunks| Self::check_snapshot(chunks).map(|()| None));
        };
        Box::new(move |chunks| {
            let mut loaded = Kv::open(make_table())?;
            loaded.install(chunks).map_err(install_error)?;
            Ok(Some(LoadedState::new(loaded)))
        })
    }

    fn install_loaded(&mut self, state: LoadedState) -> Result<(), MachineError> {
        let loaded: Kv<T> = state.downcast().ok_or(BadSnapshot)?;
        let mut kv = self.write();
        let replaced = kv.replace_by(loaded);
        self.publish_auth(&kv);
        self.hub().restart(kv.revision());
        drop(kv);
        // Readers do not wait until the memory is freed.
        drop(replaced);
        Ok(())
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
            (kv.progress)();
            if kv.stage_chunk(&mut decoder, chunk).map_err(install_error)? {
                kv.finish_install(decoder).map_err(install_error)?;
                self.publish_auth(&kv);
                self.hub().restart(kv.revision());
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Command, KeyRange, LeaseGrant, Put, Range, Txn, TxnOperation};
    use crate::table::{MemoryTable, RowFile};

    #[test]
    fn a_command_without_a_reply_reads_nothing_for_it_and_writes_the_same() {
        let mut shared = SharedKv::new(Kv::open(MemoryTable::default()).unwrap());
        let put = |value: &'static str, prev_kv| {
            TxnOperation::Put(Put {
                key: "k".into(),
                value: value.into(),
                prev_kv,
                ..Put::default()
            })
        };
        let read = TxnOperation::Range(Range { keys: KeyRange::single("k"), ..Range::default() });
        let txn = |value| {
            let success = vec![read.clone(), put(value, true)];
            Command::Txn(Txn { success, ..Txn::default() }).encode()
        };
        let _ = shared.apply(1, &txn("first")).unwrap();
        for count_only in [false, true] {
            let range = Range { keys: KeyRange::single("k"), count_only, ..Range::default() };
            let reads = Txn { success: vec![TxnOperation::Range(range)], ..Txn::default() };
            let mut measured = shared.read().start_txn(reads.clone()).unwrap();
            let nothing = crate::ReadLimits::default().keys_max(0);
            let _ = shared.read().continue_read(&mut measured, nothing).unwrap().unwrap();
            assert!(shared.read().measure_read(&mut measured, 10));
            let expected = Some(measured.bytes_measured());
            assert_eq!(shared.read().size_of_single_keys(&reads), expected, "{count_only}");
        }
        let answered = |reply: &KvCommandReply| {
            let Ok(KvOutcome::Txn(done)) = &reply.result else { panic!("{reply:?}") };
            let KvOutcome::Range(range) = &done.responses[0].outcome else { panic!("{done:?}") };
            let KvOutcome::Put(put) = &done.responses[1].outcome else { panic!("{done:?}") };
            (range.kvs.len(), put.previous.is_some())
        };
        assert_eq!(answered(&shared.apply_shared(2, &txn("second"), true).unwrap()), (1, true));
        assert_eq!(answered(&shared.apply_shared(3, &txn("third"), false).unwrap()), (0, false));
        let range = Range { keys: KeyRange::single("k"), revision: 4, ..Range::default() };
        let found = shared.read().read_single_key(&range).unwrap().unwrap().0.kvs;
        assert_eq!((&found[0].value[..], found[0].version), (&b"third"[..], 3));
    }

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

    /// The whole state, as bytes.
    fn captured(shared: &SharedKv<MemoryTable>) -> Vec<Bytes> {
        let chunks = Machine::snapshot(shared).unwrap();
        chunks.collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn a_state_that_was_loaded_from_a_snapshot_replaces_the_old_one() {
        loaded_state_replaces_the_old_one(&MemoryTable::default);
    }

    /// A learner that loads much data needs no more memory than its table may take.
    #[test]
    fn a_loaded_state_is_in_the_file_of_the_table_that_it_replaces() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows");
        let file = RowFile::create(&path, 0, Box::new(|_| {})).unwrap();
        loaded_state_replaces_the_old_one(&|| MemoryTable::with_file(file.clone()));

        let value = Bytes::from(vec![7; 1_000]);
        let mut source = SharedKv::new(Kv::open(MemoryTable::default()).unwrap());
        for index in 1..1_000u64 {
            let (key, value) = (index.to_string().into(), value.clone());
            let put = Command::Put(Put { key, value, ..Put::default() });
            source.apply(index, &put.encode()).unwrap();
        }
        let chunks = captured(&source);
        let new = Kv::open(MemoryTable::with_file(file.clone())).unwrap();
        let mut other = SharedKv::new(new);
        file.wait_until_written();
        assert_eq!(file.usage().file_bytes, 0);
        let loaded = other.snapshot_loader()(&mut chunks.clone().into_iter()).unwrap();
        file.wait_until_written();
        let usage = file.usage();
        assert!(usage.file_bytes > 900_000 && usage.memory_bytes == 0, "{usage:?}");
        other.install_loaded(loaded.unwrap()).unwrap();
        assert_eq!(captured(&other), chunks);
        assert_eq!(file.usage(), usage);
    }

    fn loaded_state_replaces_the_old_one(table: &dyn Fn() -> MemoryTable) {
        let new = || SharedKv::new(Kv::open(table()).unwrap());
        let put = |shared: &mut SharedKv<MemoryTable>, index: u64, lease| {
            let key = format!("key {}", index % 7).into();
            let put = Put { key, value: "v".into(), lease, ..Put::default() };
            shared.apply(index, &Command::Put(put).encode()).unwrap();
        };
        let mut source = new();
        let grant = Command::LeaseGrant(LeaseGrant { id: 5, ttl: 60 });
        source.apply(1, &grant.encode()).unwrap();
        (2..40).for_each(|index| put(&mut source, index, 5));
        let chunks = captured(&source);

        let mut other = new();
        (1..9).for_each(|index| put(&mut other, index, 0));
        let load = other.snapshot_loader();
        let loaded = load(&mut chunks.clone().into_iter()).unwrap().unwrap();
        assert_ne!(captured(&other), chunks, "nothing is replaced yet");
        other.install_loaded(loaded).unwrap();
        assert_eq!(captured(&other), chunks);
        // Both continue in the same way, with the lease and its keys.
        for shared in [&mut source, &mut other] {
            put(shared, 40, 0);
            let revoke = Command::LeaseRevoke(5);
            shared.apply(41, &revoke.encode()).unwrap();
        }
        assert_eq!(captured(&other), captured(&source));

        let incomplete = chunks[..chunks.len() - 1].to_vec();
        assert!(load(&mut incomplete.into_iter()).is_err());
        assert!(other.install_loaded(LoadedState::new(1)).is_err());
        assert_eq!(captured(&other), captured(&source));
    }

    /// Writes that nobody watched are read from the table, and none is lost or comes twice
    /// whenever watchers come and go.
    #[test]
    fn watchers_receive_every_event_also_of_writes_that_nobody_watched() {
        let mut shared = SharedKv::new(Kv::open(MemoryTable::default()).unwrap());
        let mut index = 0;
        let mut put = |shared: &mut SharedKv<MemoryTable>| {
            index += 1;
            let put = Put { key: "k".into(), value: "v".into(), ..Put::default() };
            shared.apply_without_reply(index, &Command::Put(put).encode()).unwrap();
        };
        let request = |start_revision| {
            let keys = KeyRange { key: "k".into(), ..KeyRange::default() };
            WatchRequest { keys, start_revision, ..WatchRequest::default() }
        };
        let polled = |shared: &SharedKv<MemoryTable>, id| match shared
            .poll_watch(id, PollLimits::default())
            .unwrap()
        {
            WatchPoll::Events { events, .. } => {
                events.iter().map(|event| event.kv.mod_revision).collect()
            }
            WatchPoll::Idle => Vec::new(),
            other => panic!("{other:?}"),
        };
        for round in 0..3 {
            let before = shared.read().revision();
            put(&mut shared);
            put(&mut shared);
            let (new, _) = shared.watch(request(0), Arc::new(|_| {}));
            let (old, _) = shared.watch(request(before + 2), Arc::new(|_| {}));
            assert_eq!(shared.watch_progress(new), Some(before + 2), "round {round}");
            assert_eq!(polled(&shared, old), [before + 2]);
            put(&mut shared);
            assert_eq!(polled(&shared, new), [before + 3]);
            assert_eq!(polled(&shared, old), [before + 3]);
            assert_eq!(polled(&shared, new), [0i64; 0]);
            assert!(shared.cancel_watch(new) && shared.cancel_watch(old));
        }
    }
}
