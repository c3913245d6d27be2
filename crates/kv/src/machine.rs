//! The state machine: applies commands and answers queries.
//!
//! `apply` runs the checks and then one match; each command is implemented in its own file.
//! This crate has no knowledge of Raft, of time or of the client that sent a request.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::alarm::{Alarm, AlarmKind};
use crate::auth::{AuthCommand, IssuedToken};
use crate::check;
use crate::command::{Command, KeyRange, LeaseCheckpoint, LeaseGrant, Query, Quota, Txn};
use crate::encode::first_key;
use crate::error::KvError;
use crate::hash::CompactionHashes;
use crate::incremental::ReadLimits;
use crate::index::{KeyFinder, PreparedFinders};
use crate::lease::Lease;
use crate::reply::{KvCommandReply, KvOutcome, LeaseOutcome};
use crate::revision::{RowKey, row_bytes};
use crate::state::KvState;
use crate::table::{Table, TableError};
use crate::version::{CommandDecodeError, NewerVersion};
use crate::watch::WatchEvent;
use crate::writes::CommandWrites;

/// etcd's data model over a [`Table`]. The same commands in the same order produce the same
/// state and the same replies with every table.
pub struct Kv<T: Table> {
    pub(crate) table: T,
    pub(crate) state: KvState,
    pub(crate) compaction_hashes: CompactionHashes<T::View>,
    batches: BatchConfig,
    /// Commands since the last commit of the table.
    uncommitted: u32,
    /// Commits since the last durable one.
    undurable: u32,
    /// Called for each key of a command that may have very many.
    pub(crate) progress: ProgressFn,
    collects_events: bool,
    /// Whether replies contain what the commands read.
    pub(crate) replies_with_reads: bool,
    /// Where the next commands find their keys.
    prepared: PreparedFinders,
}

/// Called while a long command runs, at short intervals.
pub type ProgressFn = Arc<dyn Fn() + Send + Sync>;

/// Why a machine cannot run the payload of an entry. Its member must stop.
#[derive(Debug)]
#[non_exhaustive]
pub enum ApplyError {
    /// The table failed.
    Table(TableError),
    /// The cluster has a later version than this crate supports.
    Newer(NewerVersion),
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(error) => write!(f, "{error}"),
            Self::Newer(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for ApplyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Table(error) => Some(error),
            Self::Newer(error) => Some(error),
        }
    }
}

impl From<TableError> for ApplyError {
    fn from(error: TableError) -> Self {
        Self::Table(error)
    }
}

/// How commands are batched into transactions of the table. This is not part of the
/// replicated state: members may use different values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchConfig {
    /// Commands per transaction. After a crash either all of them are there or none.
    pub commands: u32,
    /// Every how many transactions one is made durable. A crash loses the later ones, and
    /// the log replays them.
    pub durable_every: u32,
}

impl BatchConfig {
    /// Sets [`Self::commands`].
    #[must_use]
    pub fn commands(self, commands: u32) -> Self {
        Self { commands, ..self }
    }

    /// Sets [`Self::durable_every`].
    #[must_use]
    pub fn durable_every(self, durable_every: u32) -> Self {
        Self { durable_every, ..self }
    }
}

impl Default for BatchConfig {
    fn default() -> Self {
        Self { commands: 1_000, durable_every: 16 }
    }
}

/// The result of applying a command.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "it has the reply for the client and the events for watchers"]
pub struct Applied {
    /// The reply to the proposer.
    pub reply: KvCommandReply,
    /// What the command wrote, for [`WatchHub::publish`](crate::WatchHub::publish). Empty while
    /// [`Kv::collect_events`] is off.
    pub events: Vec<WatchEvent>,
    /// The bytes of all keys and values that it put.
    pub put_bytes: u64,
    /// The token that the command issued, for the server of this member to remember.
    pub token: Option<IssuedToken>,
    /// The operation, by etcd's name; empty for bytes that are not a command.
    pub operation: &'static str,
}

/// Why a command ended early.
pub(crate) enum CommandError {
    /// Part of the replicated result: the same on every member.
    Refused(KvError),
    /// The table of this member failed. The member must stop.
    Failed(TableError),
}

impl From<KvError> for CommandError {
    fn from(error: KvError) -> Self {
        Self::Refused(error)
    }
}

impl From<TableError> for CommandError {
    fn from(error: TableError) -> Self {
        Self::Failed(error)
    }
}

impl<T: Table> Kv<T> {
    /// Opens the machine with the state that the table holds. An empty table is a store at
    /// revision 1.
    pub fn open(table: T) -> Result<Self, TableError> {
        let state = KvState::load(&table)?;
        let batches = BatchConfig::default();
        let progress: ProgressFn = Arc::new(|| {});
        let compaction_hashes = CompactionHashes::default();
        Ok(Self {
            table,
            state,
            compaction_hashes,
            batches,
            uncommitted: 0,
            undurable: 0,
            progress,
            collects_events: true,
            replies_with_reads: true,
            prepared: PreparedFinders::default(),
        })
    }

    /// Whether commands return the events of their writes. Off, they cost less: for a machine
    /// that nobody watches.
    pub fn collect_events(&mut self, collects: bool) {
        self.collects_events = collects;
    }

    /// Whether the replies to commands contain the pairs that these read: ranges of transactions, and
    /// previous pairs. Off, they cost less: for commands whose reply nobody waits for. On at first; the
    /// methods of `quorate::Machine` set it for each command.
    pub fn reply_with_reads(&mut self, replies: bool) {
        self.replies_with_reads = replies;
    }

    /// From now on long commands call this function while they run.
    pub fn report_progress_to(&mut self, progress: ProgressFn) {
        self.table.report_progress_to(progress.clone());
        self.progress = progress;
    }

    /// Claims the table for this owner, before any command. Returns the index of the newest
    /// command in the table, or 0 if the rows belonged to another owner and were dropped.
    pub fn resume(&mut self, owner: &[u8]) -> Result<u64, TableError> {
        if !self.table.claim(owner)? {
            self.state = KvState::default();
        }
        Ok(self.state.applied)
    }

    /// The machine with another batch configuration.
    #[must_use]
    pub fn with_batch_config(self, batches: BatchConfig) -> Self {
        Self { batches, ..self }
    }

    /// The encoded commands that are applied next, with their indexes. Only a hint: their keys are searched
    /// together, which takes less time than one after the other.
    pub fn prepare(&mut self, commands: &[(u64, &[u8])]) {
        let keys =
            commands.iter().filter_map(|(index, command)| Some((*index, first_key(command)?)));
        let keys: Vec<_> = keys.collect();
        self.state.index.prepare(&keys, &mut self.prepared);
    }

    /// Applies a command. Indexes must rise. A command at or below the applied index changes
    /// nothing, so that the log can be replayed over a table that is ahead of it.
    ///
    /// After an error the machine must not be used again: it may have missed a write.
    pub fn apply(&mut self, index: u64, command: &Command) -> Result<Applied, TableError> {
        self.apply_validated(index, command, true)
    }

    /// Applies a command of etcd's log. etcd validates requests only before they are logged, so
    /// this does not repeat the validation: ours refuses a little more.
    ///
    /// After an error the machine must not be used again: it may have missed a write.
    pub fn apply_of_etcd(&mut self, index: u64, command: &Command) -> Result<Applied, TableError> {
        self.apply_validated(index, command, false)
    }

    fn apply_validated(
        &mut self,
        index: u64,
        command: &Command,
        validates: bool,
    ) -> Result<Applied, TableError> {
        if index <= self.state.applied {
            let nothing = CommandWrites::new(self.state.revision, false, KeyFinder::default());
            return Ok(self.applied_with(command, Ok(KvOutcome::Done), nothing, None));
        }
        self.state.applied = index;
        self.continue_compaction(command)?;
        let finder = self.prepared.take(index);
        let mut writes = CommandWrites::new(self.state.revision + 1, self.collects_events, finder);
        let mut token = None;
        let result = match self.run(command, validates, &mut writes, &mut token) {
            Ok(outcome) => Ok(outcome),
            Err(CommandError::Refused(error)) => Err(error),
            Err(CommandError::Failed(error)) => return Err(error),
        };
        if !writes.is_empty() {
            self.state.revision += 1;
        }
        self.uncommitted += 1;
        if self.uncommitted >= self.batches.commands {
            self.commit(self.undurable + 1 >= self.batches.durable_every)?;
        }
        Ok(self.applied_with(command, result, writes, token))
    }

    /// Applies the payload of a log entry. Bytes that are not a command, and commands of a later
    /// version than the cluster has, change nothing, on every member alike.
    ///
    /// # Errors
    /// When the cluster version allows the command, and this crate does not know it: all other
    /// members may run it, so this one must not skip it.
    pub fn apply_bytes(&mut self, index: u64, command: &Bytes) -> Result<Applied, ApplyError> {
        let allowed = self.state.cluster_version;
        match Command::decode(command) {
            Ok(command) if command.version() <= allowed => Ok(self.apply(index, &command)?),
            Err(CommandDecodeError::Newer(newer)) if newer.needs <= allowed => {
                Err(ApplyError::Newer(newer))
            }
            Ok(_) | Err(_) => {
                let mut applied = self.apply(index, &Command::Noop)?;
                applied.reply.result = Err(KvError::UnknownCommand);
                applied.operation = "";
                Ok(applied)
            }
        }
    }

    /// The cluster version that commands and rows follow.
    pub fn cluster_version(&self) -> u32 {
        self.state.cluster_version
    }

    /// Sets the cluster version: from now on commands of it may run, and rows and snapshots are
    /// written as it says. A version that removes a kind of row has to remove its rows here.
    pub fn set_cluster_version(&mut self, version: u32) {
        self.state.cluster_version = version;
    }

    fn run(
        &mut self,
        command: &Command,
        validates: bool,
        writes: &mut CommandWrites,
        token: &mut Option<IssuedToken>,
    ) -> Result<KvOutcome, CommandError> {
        let (issuer, command) = command.split_issuer();
        self.auth_check(issuer).command(command)?;
        if validates {
            check::command(command, usize::MAX)?;
        }
        self.refuse_by_alarm(command)?;
        match command {
            Command::Noop => Ok(KvOutcome::Done),
            Command::Put(put) => self.put(put, writes).map(KvOutcome::Put),
            Command::DeleteRange(deletion) => {
                Ok(KvOutcome::DeleteRange(self.delete_range(deletion, writes)?))
            }
            Command::Txn(txn) => self.txn(txn, writes).map(KvOutcome::Txn),
            Command::Compact(compact) => self.compact(*compact),
            Command::LeaseGrant(grant) => self.grant(grant),
            Command::LeaseRevoke(id) => self.revoke(*id, writes),
            Command::LeaseCheckpoint(checkpoints) => self.checkpoint(checkpoints),
            Command::AlarmActivate(alarm) => self.activate(*alarm),
            Command::AlarmDisarm(alarm) => self.disarm(*alarm),
            Command::SetQuota(quota) => self.set_quota(*quota),
            Command::Auth(AuthCommand::IssueToken(request)) => {
                *token = Some(self.state.auth.issue_token(request)?);
                Ok(KvOutcome::Done)
            }
            Command::Auth(auth) => self.change_auth(auth),
            // The issuer was taken off, and there is no second one.
            Command::Issued(_) => Err(KvError::UnknownCommand.into()),
            #[cfg(feature = "next-version-for-tests")]
            Command::PutReversed(put) => {
                let value = put.value.iter().rev().copied().collect::<Vec<u8>>().into();
                let put = crate::command::Put { value, ..put.clone() };
                self.put(&put, writes).map(KvOutcome::Put)
            }
        }
    }

    /// Answers a query from the current state.
    pub fn query(&self, query: &Query) -> Result<KvCommandReply, TableError> {
        let now = self.state.revision;
        let result = match query {
            Query::Revision => Ok(KvOutcome::Done),
            Query::Range(range) => check::range(range).map_err(CommandError::from).and_then(|()| {
                let mut finder = KeyFinder::default();
                self.read_range(range, now, &mut finder).map(KvOutcome::Range)
            }),
            Query::Txn(txn) => return self.read_txn(txn.clone()),
            Query::Lease(id) => self.lease_outcome(*id).map_err(CommandError::from),
            Query::Leases => {
                Ok(KvOutcome::Leases(self.state.leases.iter().map(|(id, _)| id).collect()))
            }
            Query::Alarms => Ok(KvOutcome::Alarms(self.state.alarms.list())),
            Query::HashKv(revision) => self.hash_kv(*revision).map(KvOutcome::Hash),
        };
        match result {
            Ok(outcome) => Ok(self.reply(Ok(outcome))),
            Err(CommandError::Refused(error)) => Ok(self.reply(Err(error))),
            Err(CommandError::Failed(error)) => Err(error),
        }
    }

    fn read_txn(&self, txn: Txn) -> Result<KvCommandReply, TableError> {
        let mut read = match self.start_txn(txn) {
            Ok(read) => read,
            Err(refused) => return Ok(self.reply(Err(refused))),
        };
        match self.continue_read(&mut read, ReadLimits::NONE)? {
            Ok(_) => Ok(read.finish()),
            Err(refused) => Ok(self.reply(Err(refused))),
        }
    }

    fn applied_with(
        &self,
        command: &Command,
        result: Result<KvOutcome, KvError>,
        writes: CommandWrites,
        token: Option<IssuedToken>,
    ) -> Applied {
        let (put_bytes, operation) = (writes.put_bytes(), command.operation());
        let events = writes.into_events();
        Applied { reply: self.reply(result), events, put_bytes, token, operation }
    }

    fn reply(&self, result: Result<KvOutcome, KvError>) -> KvCommandReply {
        KvCommandReply { revision: self.state.revision, result }
    }

    /// Makes all applied commands durable.
    pub fn save(&mut self) -> Result<(), TableError> {
        self.commit(true)
    }

    /// Writes the applied index in the same transaction as the data, so that a crash never
    /// separates them.
    fn commit(&mut self, durable: bool) -> Result<(), TableError> {
        self.table.put(RowKey::META, self.state.meta_row())?;
        self.table.commit(durable)?;
        self.uncommitted = 0;
        self.undurable = if durable { 0 } else { self.undurable + 1 };
        Ok(())
    }

    /// The revision of the newest write.
    pub fn revision(&self) -> i64 {
        self.state.revision
    }

    /// The oldest revision that can be read; -1 before the first compaction.
    pub fn compact_revision(&self) -> i64 {
        self.state.compact_revision
    }

    /// The index of the newest applied command. After a restart, the newest durable one: the
    /// log is replayed from there.
    pub fn applied(&self) -> u64 {
        self.state.applied
    }

    /// The limit on stored bytes.
    pub fn quota(&self) -> Quota {
        self.state.alarms.quota
    }

    /// All active alarms.
    pub fn alarms(&self) -> Vec<Alarm> {
        self.state.alarms.list()
    }

    /// Whether the current state would refuse this command for lack of space. Check this
    /// before proposing; only the reply of the applied command is authoritative.
    pub fn would_exceed_quota(&self, command: &Command) -> bool {
        let refused = self.state.alarms.refuse(command, self.state.row_bytes);
        refused.is_some_and(|refused| refused.error == KvError::NoSpace)
    }

    /// The lease with this id.
    pub fn lease(&self, id: i64) -> Option<&Lease> {
        self.state.leases.get(id)
    }

    /// All leases by id. A new leader creates its
    /// [`LeaseDeadlines`](crate::LeaseDeadlines) from them.
    pub fn leases(&self) -> impl Iterator<Item = (i64, &Lease)> {
        self.state.leases.iter()
    }

    /// The bytes that all rows count towards the quota.
    pub fn bytes_in_use(&self) -> u64 {
        self.state.row_bytes
    }

    /// The size of the table, on its disk if it has one. Never less than
    /// [`Self::bytes_in_use`]: rows that are not written to the disk yet need space there too.
    pub fn bytes_total(&self) -> Result<u64, TableError> {
        let on_disk = self.table.disk_bytes()?.unwrap_or_default();
        Ok(on_disk.max(self.state.row_bytes))
    }

    /// The number of keys in the index, including deleted keys that are not compacted yet.
    pub fn key_count(&self) -> usize {
        self.state.index.len()
    }

    /// The number of keys that exist now.
    pub fn live_key_count(&self) -> usize {
        let all = KeyRange { key: Bytes::from_static(&[0]), range_end: Bytes::from_static(&[0]) };
        let mut work = usize::MAX;
        self.state.index.count(&all, &all.key, self.state.revision, &mut work).0
    }

    /// Returns unused space to the disk. Fails with [`TableError::Busy`] while a snapshot is
    /// being read.
    pub fn defragment(&mut self) -> Result<(), TableError> {
        self.save()?;
        self.table.defragment()
    }

    fn refuse_by_alarm(&mut self, command: &Command) -> Result<(), CommandError> {
        let Some(refused) = self.state.alarms.refuse(command, self.state.row_bytes) else {
            return Ok(());
        };
        if let Some(alarm) = refused.raise {
            self.activate(alarm)?;
        }
        Err(refused.error.into())
    }

    fn activate(&mut self, alarm: Alarm) -> Result<KvOutcome, CommandError> {
        if self.state.alarms.activate(alarm) {
            self.table.put(alarm_row_key(alarm), Bytes::new())?;
        }
        Ok(KvOutcome::Alarms(vec![alarm]))
    }

    /// Returns the alarms that were active: none or one.
    fn disarm(&mut self, alarm: Alarm) -> Result<KvOutcome, CommandError> {
        let was_active = self.state.alarms.disarm(alarm);
        if was_active {
            self.table.remove(alarm_row_key(alarm))?;
        }
        Ok(KvOutcome::Alarms(was_active.then_some(alarm).into_iter().collect()))
    }

    fn set_quota(&mut self, quota: Quota) -> Result<KvOutcome, CommandError> {
        self.state.alarms.quota = quota;
        Ok(KvOutcome::Done)
    }

    fn grant(&mut self, grant: &LeaseGrant) -> Result<KvOutcome, CommandError> {
        let lease = self.state.leases.grant(grant)?;
        let (row, ttl) = (lease.row(), lease.ttl);
        self.add_row(RowKey::lease(grant.id), row)?;
        Ok(KvOutcome::Lease(LeaseOutcome { id: grant.id, ttl, ..LeaseOutcome::default() }))
    }

    /// Deletes all keys of the lease in one revision.
    fn revoke(&mut self, id: i64, writes: &mut CommandWrites) -> Result<KvOutcome, CommandError> {
        let lease = self.state.leases.revoke(id)?;
        self.remove_row(RowKey::lease(id), row_bytes(&lease.row()))?;
        for key in lease.keys() {
            self.delete_key(&Bytes::copy_from_slice(key), writes)?;
        }
        Ok(KvOutcome::Done)
    }

    fn checkpoint(&mut self, checkpoints: &[LeaseCheckpoint]) -> Result<KvOutcome, CommandError> {
        for checkpoint in checkpoints {
            // The lease may have been revoked since the checkpoint was proposed.
            if let Some(lease) = self.state.leases.checkpoint(*checkpoint) {
                self.table.put(RowKey::lease(checkpoint.id), lease.row())?;
            }
        }
        Ok(KvOutcome::Done)
    }

    fn lease_outcome(&self, id: i64) -> Result<KvOutcome, KvError> {
        let lease = self.state.leases.get(id).ok_or(KvError::LeaseNotFound)?;
        let keys = lease.keys().map(Bytes::copy_from_slice).collect();
        let Lease { ttl, remaining, .. } = *lease;
        Ok(KvOutcome::Lease(LeaseOutcome { id, ttl, remaining, keys }))
    }
}

fn alarm_row_key(alarm: Alarm) -> RowKey {
    RowKey::alarm(alarm.member, AlarmKind::number(alarm.kind))
}
