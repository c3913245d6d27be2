//! etcd's data model, as simple as possible: a list of all writes, replayed from the start for
//! every query.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_kv::{
    Alarm, AlarmKind, Command, Compare, CompareOperator, CompareTarget, DeleteRange,
    DeleteRangeOutcome, KeyRange, KeyValue, KvCommandReply, KvError, KvOutcome, LeaseOutcome, Put,
    PutOutcome, Query, Quota, Range, RangeOutcome, SortOrder, SortTarget, Txn, TxnOperation,
    TxnOperationReply, TxnOutcome, check,
};

type Result<T> = std::result::Result<T, KvError>;
type KeyState = BTreeMap<Bytes, KeyValue>;

/// A write of a key; `None` deletes it.
#[derive(Clone, Debug)]
pub(crate) struct ReferenceWrite {
    pub(crate) revision: i64,
    pub(crate) key: Bytes,
    pub(crate) kv: Option<KeyValue>,
}

#[derive(Clone)]
pub(crate) struct ReferenceKv {
    pub(crate) writes: Vec<ReferenceWrite>,
    pub(crate) revision: i64,
    pub(crate) compact_revision: i64,
    leases: BTreeMap<i64, (i64, i64)>,
    alarms: Vec<Alarm>,
    quota: Quota,
}

impl ReferenceKv {
    pub(crate) fn new() -> Self {
        Self {
            writes: Vec::new(),
            revision: 1,
            compact_revision: -1,
            leases: BTreeMap::new(),
            alarms: Vec::new(),
            quota: Quota::default(),
        }
    }

    /// `bytes_in_use` comes from the machine: the size of rows is not modelled.
    pub(crate) fn apply(&mut self, command: &Command, bytes_in_use: u64) -> KvCommandReply {
        let before = self.clone();
        let result = self.run(command, bytes_in_use);
        if result.is_err() {
            let alarms = std::mem::take(&mut self.alarms);
            *self = Self { alarms, ..before };
        }
        let written = self.writes.last().map_or(1, |written| written.revision);
        self.revision = self.revision.max(written);
        KvCommandReply { revision: self.revision, result }
    }

    fn run(&mut self, command: &Command, bytes_in_use: u64) -> Result<KvOutcome> {
        check::command(command, usize::MAX)?;
        self.check_alarms(command, bytes_in_use)?;
        match command {
            Command::Noop => Ok(KvOutcome::Done),
            Command::Put(put) => self.put(put).map(KvOutcome::Put),
            Command::DeleteRange(deletion) => Ok(KvOutcome::DeleteRange(self.delete(deletion))),
            Command::Txn(txn) => {
                let before = self.now();
                self.check_txn(txn, &before)?;
                self.txn(txn, &before).map(KvOutcome::Txn)
            }
            Command::Compact(compact) => {
                if compact.revision <= self.compact_revision {
                    return Err(KvError::Compacted);
                }
                if compact.revision > self.revision {
                    return Err(KvError::FutureRevision);
                }
                self.compact_revision = compact.revision;
                Ok(KvOutcome::Done)
            }
            Command::LeaseGrant(grant) => {
                if grant.id == 0 {
                    return Err(KvError::LeaseNotFound);
                }
                if self.leases.contains_key(&grant.id) {
                    return Err(KvError::LeaseExists);
                }
                let ttl = grant.ttl.max(1);
                self.leases.insert(grant.id, (ttl, 0));
                Ok(KvOutcome::Lease(LeaseOutcome { id: grant.id, ttl, ..Default::default() }))
            }
            Command::LeaseRevoke(id) => {
                self.leases.remove(id).ok_or(KvError::LeaseNotFound)?;
                for (key, kv) in self.now() {
                    if kv.lease == *id {
                        self.write(key, None);
                    }
                }
                Ok(KvOutcome::Done)
            }
            Command::LeaseCheckpoint(checkpoints) => {
                for checkpoint in checkpoints {
                    if let Some((ttl, remaining)) = self.leases.get_mut(&checkpoint.id) {
                        *remaining = checkpoint.remaining.clamp(0, *ttl);
                    }
                }
                Ok(KvOutcome::Done)
            }
            Command::AlarmActivate(alarm) => {
                self.raise(*alarm);
                Ok(KvOutcome::Alarms(vec![*alarm]))
            }
            Command::AlarmDisarm(alarm) => {
                let active = self.alarms.contains(alarm);
                self.alarms.retain(|other| other != alarm);
                Ok(KvOutcome::Alarms(if active { vec![*alarm] } else { vec![] }))
            }
            Command::SetQuota(quota) => {
                self.quota = *quota;
                Ok(KvOutcome::Done)
            }
            // Not generated: they do not touch keys.
            Command::Auth(_) | Command::Issued(_) => Err(KvError::UnknownCommand),
        }
    }

    fn raise(&mut self, alarm: Alarm) {
        if !self.alarms.contains(&alarm) {
            self.alarms.push(alarm);
            self.alarms.sort();
        }
    }

    fn check_alarms(&mut self, command: &Command, bytes_in_use: u64) -> Result<()> {
        let corrupt = self.alarms.iter().any(|alarm| alarm.kind == AlarmKind::Corrupt);
        let full = self.alarms.iter().any(|alarm| alarm.kind == AlarmKind::NoSpace);
        let harmless = matches!(
            command,
            Command::Noop
                | Command::LeaseCheckpoint(_)
                | Command::AlarmActivate(_)
                | Command::AlarmDisarm(_)
                | Command::SetQuota(_)
        );
        if corrupt && !harmless {
            return Err(KvError::Corrupt);
        }
        let cost = match command {
            Command::Put(put) => 256 + put.key.len() + put.value.len(),
            Command::Txn(txn) => puts_bytes(txn),
            Command::LeaseGrant(_) => 64,
            _ => 0,
        };
        if cost > 0 && full {
            return Err(KvError::NoSpace);
        }
        let Quota { bytes, member } = self.quota;
        if cost > 0 && bytes > 0 && bytes_in_use + cost as u64 > bytes {
            self.raise(Alarm { kind: AlarmKind::NoSpace, member });
            return Err(KvError::NoSpace);
        }
        Ok(())
    }

    /// All keys at a revision.
    pub(crate) fn at(&self, revision: i64) -> KeyState {
        let mut state = KeyState::new();
        for written in self.writes.iter().filter(|written| written.revision <= revision) {
            match &written.kv {
                Some(kv) => state.insert(written.key.clone(), kv.clone()),
                None => state.remove(&written.key),
            };
        }
        state
    }

    fn now(&self) -> KeyState {
        self.at(i64::MAX)
    }

    /// The revision of the current command once it has written, otherwise the one before it.
    fn current(&self) -> i64 {
        self.writes.last().map_or(self.revision, |last| last.revision.max(self.revision))
    }

    fn write(&mut self, key: Bytes, kv: Option<KeyValue>) {
        self.writes.push(ReferenceWrite { revision: self.revision + 1, key, kv });
    }

    fn put(&mut self, put: &Put) -> Result<PutOutcome> {
        if put.lease != 0 && !self.leases.contains_key(&put.lease) {
            return Err(KvError::LeaseNotFound);
        }
        let old = self.now().remove(&put.key);
        if (put.ignore_value || put.ignore_lease) && old.is_none() {
            return Err(KvError::KeyNotFound);
        }
        let mut kv = KeyValue {
            key: put.key.clone(),
            value: put.value.clone(),
            lease: put.lease,
            mod_revision: self.revision + 1,
            create_revision: self.revision + 1,
            version: 1,
        };
        if let Some(old) = &old {
            kv.create_revision = old.create_revision;
            kv.version = old.version + 1;
            if put.ignore_value {
                kv.value = old.value.clone();
            }
            if put.ignore_lease {
                kv.lease = old.lease;
            }
        }
        self.write(put.key.clone(), Some(kv));
        Ok(PutOutcome { previous: if put.prev_kv { old } else { None } })
    }

    fn delete(&mut self, deletion: &DeleteRange) -> DeleteRangeOutcome {
        let mut outcome = DeleteRangeOutcome::default();
        for (key, kv) in self.now() {
            if within(&deletion.keys, &key) {
                outcome.deleted += 1;
                if deletion.prev_kv {
                    outcome.previous.push(kv);
                }
                self.write(key, None);
            }
        }
        outcome
    }

    /// Checks the operations of the chosen branches, in their order.
    fn check_txn(&self, txn: &Txn, before: &KeyState) -> Result<()> {
        let succeeded = txn.compare.iter().all(|compare| holds(compare, before));
        for request in if succeeded { &txn.success } else { &txn.failure } {
            match request {
                TxnOperation::Put(put) => {
                    if put.lease != 0 && !self.leases.contains_key(&put.lease) {
                        return Err(KvError::LeaseNotFound);
                    }
                    let keeps = put.ignore_value || put.ignore_lease;
                    if keeps && !before.contains_key(&put.key) {
                        return Err(KvError::KeyNotFound);
                    }
                }
                // The revision that the transaction itself writes cannot be requested.
                TxnOperation::Range(range) if range.revision > self.revision => {
                    return Err(KvError::FutureRevision);
                }
                TxnOperation::Range(range)
                    if range.revision != 0 && range.revision < self.compact_revision =>
                {
                    return Err(KvError::Compacted);
                }
                TxnOperation::Txn(txn) => self.check_txn(txn, before)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn txn(&mut self, txn: &Txn, before: &KeyState) -> Result<TxnOutcome> {
        let succeeded = txn.compare.iter().all(|compare| holds(compare, before));
        let mut responses = Vec::new();
        for request in if succeeded { &txn.success } else { &txn.failure } {
            let (outcome, nested) = match request {
                TxnOperation::Range(range) => (KvOutcome::Range(self.range(range)?), false),
                TxnOperation::Put(put) => (KvOutcome::Put(self.put(put)?), false),
                TxnOperation::DeleteRange(deletion) => {
                    (KvOutcome::DeleteRange(self.delete(deletion)), false)
                }
                TxnOperation::Txn(txn) => (KvOutcome::Txn(self.txn(txn, before)?), true),
            };
            let revision = if nested { 0 } else { self.current() };
            responses.push(TxnOperationReply { revision, outcome });
        }
        Ok(TxnOutcome { succeeded, responses })
    }

    fn range(&self, range: &Range) -> Result<RangeOutcome> {
        if range.revision > self.current() {
            return Err(KvError::FutureRevision);
        }
        let revision = if range.revision <= 0 { self.current() } else { range.revision };
        if revision < self.compact_revision {
            return Err(KvError::Compacted);
        }
        let mut kvs: Vec<KeyValue> = self.at(revision).into_values().collect();
        kvs.retain(|kv| within(&range.keys, &kv.key));
        let count = kvs.len() as i64;
        if range.count_only {
            return Ok(RangeOutcome { count, ..Default::default() });
        }
        // etcd's early limit: without an order it limits first and sorts then.
        let filters = [
            range.min_mod_revision,
            range.max_mod_revision,
            range.min_create_revision,
            range.max_create_revision,
        ];
        if range.limit > 0 && range.sort_order == SortOrder::None && filters == [0; 4] {
            kvs.truncate(range.limit as usize + 1);
        }
        kvs.retain(|kv| {
            (range.min_mod_revision == 0 || kv.mod_revision >= range.min_mod_revision)
                && (range.max_mod_revision == 0 || kv.mod_revision <= range.max_mod_revision)
                && (range.min_create_revision == 0
                    || kv.create_revision >= range.min_create_revision)
                && (range.max_create_revision == 0
                    || kv.create_revision <= range.max_create_revision)
        });
        let order = |a: &KeyValue, b: &KeyValue| -> Ordering {
            match range.sort_target {
                SortTarget::Key => a.key.cmp(&b.key),
                SortTarget::Version => a.version.cmp(&b.version),
                SortTarget::Create => a.create_revision.cmp(&b.create_revision),
                SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
                SortTarget::Value => a.value.cmp(&b.value),
            }
        };
        match range.sort_order {
            SortOrder::None | SortOrder::Ascend => kvs.sort_by(order),
            SortOrder::Descend => kvs.sort_by(|a, b| order(b, a)),
        }
        let more = range.limit > 0 && kvs.len() > range.limit as usize;
        if more {
            kvs.truncate(range.limit as usize);
        }
        if range.keys_only {
            kvs.iter_mut().for_each(|kv| kv.value = Bytes::new());
        }
        Ok(RangeOutcome { kvs, count, more })
    }

    /// `None` for queries that the reference does not model.
    pub(crate) fn query(&mut self, query: &Query) -> Option<KvCommandReply> {
        let result = match query {
            Query::Revision => Ok(KvOutcome::Done),
            Query::Range(range) => {
                check::range(range).and_then(|()| self.range(range).map(KvOutcome::Range))
            }
            Query::Txn(_) | Query::HashKv(_) => return None,
            Query::Lease(id) => match self.leases.get(id) {
                Some((ttl, remaining)) => {
                    let attached = self.now().into_values().filter(|kv| kv.lease == *id);
                    let keys = attached.map(|kv| kv.key).collect();
                    let (id, ttl, remaining) = (*id, *ttl, *remaining);
                    Ok(KvOutcome::Lease(LeaseOutcome { id, ttl, remaining, keys }))
                }
                None => Err(KvError::LeaseNotFound),
            },
            Query::Leases => Ok(KvOutcome::Leases(self.leases.keys().copied().collect())),
            Query::Alarms => Ok(KvOutcome::Alarms(self.alarms.clone())),
        };
        Some(KvCommandReply { revision: self.revision, result })
    }
}

pub(crate) fn within(keys: &KeyRange, key: &[u8]) -> bool {
    match &keys.range_end[..] {
        b"" => keys.key == key,
        b"\0" => keys.key <= key,
        end => keys.key <= key && key < end,
    }
}

fn holds(compare: &Compare, state: &KeyState) -> bool {
    let kvs: Vec<_> = state.values().filter(|kv| within(&compare.keys, &kv.key)).collect();
    if kvs.is_empty() {
        let value = matches!(compare.target, CompareTarget::Value(_));
        return !value && holds_of(compare, &KeyValue::default());
    }
    kvs.into_iter().all(|kv| holds_of(compare, kv))
}

fn holds_of(compare: &Compare, kv: &KeyValue) -> bool {
    let order = match &compare.target {
        CompareTarget::Version(number) => kv.version.cmp(number),
        CompareTarget::Create(number) => kv.create_revision.cmp(number),
        CompareTarget::Mod(number) => kv.mod_revision.cmp(number),
        CompareTarget::Lease(number) => kv.lease.cmp(number),
        CompareTarget::Value(value) => kv.value.cmp(value),
    };
    match compare.operator {
        CompareOperator::Equal => order == Ordering::Equal,
        CompareOperator::NotEqual => order != Ordering::Equal,
        CompareOperator::Greater => order == Ordering::Greater,
        CompareOperator::Less => order == Ordering::Less,
    }
}

fn puts_bytes(txn: &Txn) -> usize {
    let branch = |requests: &[TxnOperation]| {
        let mut bytes = 0;
        for request in requests {
            bytes += match request {
                TxnOperation::Put(put) => 256 + put.key.len() + put.value.len(),
                TxnOperation::Txn(txn) => puts_bytes(txn),
                _ => 0,
            };
        }
        bytes
    };
    branch(&txn.success).max(branch(&txn.failure))
}
