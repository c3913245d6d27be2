//! The machine: runs commands, answers questions.
//!
//! `apply` is a row of checks and one match; what each command does stands in a file of
//! its own. Nothing here knows of Raft, of time or of who asks.

use bytes::Bytes;

use crate::alarm::{Alarm, AlarmKind};
use crate::check;
use crate::command::{Command, LeaseCheckpoint, LeaseGrant, Query, Quota};
use crate::error::KvError;
use crate::lease::Lease;
use crate::reply::{KvOutcome, KvReply, LeaseOutcome};
use crate::revision::{RowKey, row_bytes};
use crate::state::State;
use crate::table::{Table, TableError};
use crate::watch::WatchEvent;

/// etcd's data model over a table. The same commands in the same order make the same
/// state and the same replies, whatever the table.
pub struct Kv<T> {
    pub(crate) table: T,
    pub(crate) state: State,
    batches: BatchConfig,
    /// Commands since the last commit, and commits since the last durable one.
    uncommitted: u32,
    undurable: u32,
}

/// How commands go into the table. No matter of the replicated state: members may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchConfig {
    /// So many commands make one transaction: all of them survive a crash, or none.
    pub commands: u32,
    /// Every so many transactions are made durable. A crash loses what came after; the
    /// log brings it again.
    pub durable_every: u32,
}

impl Default for BatchConfig {
    fn default() -> Self {
        Self { commands: 1_000, durable_every: 16 }
    }
}

/// What became of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    pub reply: KvReply,
    /// What it wrote, for those who watch.
    pub events: Vec<WatchEvent>,
}

/// Why a command ended early.
pub(crate) enum Stop {
    /// Part of the outcome, the same on every member.
    Refused(KvError),
    /// This member cannot go on.
    Failed(TableError),
}

impl From<KvError> for Stop {
    fn from(error: KvError) -> Self {
        Self::Refused(error)
    }
}

impl From<TableError> for Stop {
    fn from(error: TableError) -> Self {
        Self::Failed(error)
    }
}

impl<T: Table> Kv<T> {
    /// Goes on with what the table holds; an empty one is a store at revision 1.
    pub fn open(table: T) -> Result<Self, TableError> {
        let state = State::load(&table)?;
        Ok(Self { table, state, batches: BatchConfig::default(), uncommitted: 0, undurable: 0 })
    }

    /// Whose data it is, before any command: goes on with what the table has kept for this
    /// owner, and says up to which command that reaches. What was kept for another is
    /// dropped.
    pub fn resume(&mut self, owner: &[u8]) -> Result<u64, TableError> {
        if !self.table.claim(owner)? {
            self.state = State::default();
        }
        Ok(self.state.applied)
    }

    #[must_use]
    pub fn with_batch_config(self, batches: BatchConfig) -> Self {
        Self { batches, ..self }
    }

    /// Runs a command. Indexes rise; one that the state has seen already changes
    /// nothing, so that a log may be replayed over a table that is further.
    ///
    /// After an error the machine must not be used again.
    pub fn apply(&mut self, index: u64, command: &Command) -> Result<Applied, TableError> {
        if index <= self.state.applied {
            return Ok(self.answered(Ok(KvOutcome::Done), Vec::new()));
        }
        self.state.applied = index;
        self.go_on_compacting(command)?;
        let mut events = Vec::new();
        let result = match self.run(command, &mut events) {
            Ok(outcome) => Ok(outcome),
            Err(Stop::Refused(error)) => Err(error),
            Err(Stop::Failed(error)) => return Err(error),
        };
        if !events.is_empty() {
            self.state.revision += 1;
        }
        self.uncommitted += 1;
        if self.uncommitted >= self.batches.commands {
            self.commit(self.undurable + 1 >= self.batches.durable_every)?;
        }
        Ok(self.answered(result, events))
    }

    /// Runs an entry of the log. Bytes that are no command do nothing, on every member
    /// alike.
    pub fn apply_bytes(&mut self, index: u64, command: &Bytes) -> Result<Applied, TableError> {
        match Command::decode(command) {
            Some(command) => self.apply(index, &command),
            None => {
                let mut applied = self.apply(index, &Command::Noop)?;
                applied.reply.result = Err(KvError::UnknownCommand);
                Ok(applied)
            }
        }
    }

    fn run(&mut self, command: &Command, events: &mut Vec<WatchEvent>) -> Result<KvOutcome, Stop> {
        check::command(command, usize::MAX)?;
        self.refuse_by_alarm(command)?;
        match command {
            Command::Noop => Ok(KvOutcome::Done),
            Command::Put(put) => self.put(put, events).map(KvOutcome::Put),
            Command::DeleteRange(deletion) => {
                Ok(KvOutcome::DeleteRange(self.delete_range(deletion, events)?))
            }
            Command::Txn(txn) => self.txn(txn, events).map(KvOutcome::Txn),
            Command::Compact(compact) => self.compact(*compact),
            Command::LeaseGrant(grant) => self.grant(grant),
            Command::LeaseRevoke(id) => self.revoke(*id, events),
            Command::LeaseCheckpoint(checkpoints) => self.checkpoint(checkpoints),
            Command::AlarmActivate(alarm) => self.activate(*alarm),
            Command::AlarmDisarm(alarm) => self.disarm(*alarm),
            Command::SetQuota(quota) => self.set_quota(*quota),
        }
    }

    /// Answers a question from the state as it is.
    pub fn query(&self, question: &Query) -> Result<KvReply, TableError> {
        let now = self.state.revision;
        let result = match question {
            Query::Revision => Ok(KvOutcome::Done),
            Query::Range(range) => check::range(range)
                .map_err(Stop::from)
                .and_then(|()| self.read_range(range, now).map(KvOutcome::Range)),
            Query::Txn(txn) => check::txn(txn, usize::MAX)
                .map_err(Stop::from)
                .and_then(|()| self.read_txn(txn).map(KvOutcome::Txn)),
            Query::Lease(id) => self.lease_outcome(*id).map_err(Stop::from),
            Query::Leases => {
                Ok(KvOutcome::Leases(self.state.leases.iter().map(|(id, _)| id).collect()))
            }
            Query::Alarms => Ok(KvOutcome::Alarms(self.state.alarms.list())),
            Query::HashKv(revision) => self.hash_kv(*revision).map(KvOutcome::Hash),
        };
        match result {
            Ok(outcome) => Ok(self.reply(Ok(outcome))),
            Err(Stop::Refused(error)) => Ok(self.reply(Err(error))),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    fn answered(&self, result: Result<KvOutcome, KvError>, events: Vec<WatchEvent>) -> Applied {
        Applied { reply: self.reply(result), events }
    }

    fn reply(&self, result: Result<KvOutcome, KvError>) -> KvReply {
        KvReply { revision: self.state.revision, result }
    }

    /// Makes everything that was applied survive a crash.
    pub fn save(&mut self) -> Result<(), TableError> {
        self.commit(true)
    }

    /// The applied index goes with the data, so that a crash never parts them.
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

    /// Older revisions cannot be read; -1 before the first compaction.
    pub fn compact_revision(&self) -> i64 {
        self.state.compact_revision
    }

    /// The newest command that the state has seen. After a restart, the newest that
    /// the table had made durable: the log is replayed from there.
    pub fn applied(&self) -> u64 {
        self.state.applied
    }

    pub fn quota(&self) -> Quota {
        self.state.alarms.quota
    }

    pub fn alarms(&self) -> Vec<Alarm> {
        self.state.alarms.list()
    }

    /// Whether the state, as it is, would refuse this command for lack of space. Ask
    /// before proposing; the answer that counts is the reply.
    pub fn would_exceed_quota(&self, command: &Command) -> bool {
        let refused = self.state.alarms.refuse(command, self.state.row_bytes);
        refused.is_some_and(|refused| refused.error == KvError::NoSpace)
    }

    pub fn lease(&self, id: i64) -> Option<&Lease> {
        self.state.leases.get(id)
    }

    /// All leases by id: what a new leader's [`LeaseDeadlines`](crate::LeaseDeadlines) begin with.
    pub fn leases(&self) -> impl Iterator<Item = (i64, &Lease)> {
        self.state.leases.iter()
    }

    /// What all rows count towards the quota.
    pub fn bytes_in_use(&self) -> u64 {
        self.state.row_bytes
    }

    /// What the table takes up, on its disk if it has one.
    pub fn bytes_total(&self) -> Result<u64, TableError> {
        Ok(self.table.disk_bytes()?.unwrap_or(self.state.row_bytes))
    }

    /// How many keys are known, deleted ones included until they are compacted away.
    pub fn key_count(&self) -> usize {
        self.state.index.len()
    }

    /// Gives space back to the disk. [`TableError::Busy`] while a snapshot is read.
    pub fn defragment(&mut self) -> Result<(), TableError> {
        self.save()?;
        self.table.defragment()
    }

    fn refuse_by_alarm(&mut self, command: &Command) -> Result<(), Stop> {
        let Some(refused) = self.state.alarms.refuse(command, self.state.row_bytes) else {
            return Ok(());
        };
        if let Some(alarm) = refused.raise {
            self.activate(alarm)?;
        }
        Err(refused.error.into())
    }

    fn activate(&mut self, alarm: Alarm) -> Result<KvOutcome, Stop> {
        if self.state.alarms.activate(alarm) {
            self.table.put(alarm_row_key(alarm), Bytes::new())?;
        }
        Ok(KvOutcome::Alarms(vec![alarm]))
    }

    /// Answers with the alarms that were active, so with none or one.
    fn disarm(&mut self, alarm: Alarm) -> Result<KvOutcome, Stop> {
        let was_active = self.state.alarms.disarm(alarm);
        if was_active {
            self.table.remove(alarm_row_key(alarm))?;
        }
        Ok(KvOutcome::Alarms(was_active.then_some(alarm).into_iter().collect()))
    }

    fn set_quota(&mut self, quota: Quota) -> Result<KvOutcome, Stop> {
        self.state.alarms.quota = quota;
        Ok(KvOutcome::Done)
    }

    fn grant(&mut self, grant: &LeaseGrant) -> Result<KvOutcome, Stop> {
        let lease = self.state.leases.grant(grant)?;
        let (row, ttl) = (lease.row(), lease.ttl);
        self.add_row(RowKey::lease(grant.id), row)?;
        Ok(KvOutcome::Lease(LeaseOutcome { id: grant.id, ttl, ..LeaseOutcome::default() }))
    }

    /// Deletes the keys of the lease in one revision.
    fn revoke(&mut self, id: i64, events: &mut Vec<WatchEvent>) -> Result<KvOutcome, Stop> {
        let lease = self.state.leases.revoke(id)?;
        self.remove_row(RowKey::lease(id), row_bytes(&lease.row()))?;
        for key in lease.keys() {
            self.delete_key(&Bytes::copy_from_slice(key), events)?;
        }
        Ok(KvOutcome::Done)
    }

    fn checkpoint(&mut self, checkpoints: &[LeaseCheckpoint]) -> Result<KvOutcome, Stop> {
        for checkpoint in checkpoints {
            // One that was revoked meanwhile needs no note.
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
