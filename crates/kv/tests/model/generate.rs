//! Random commands and queries over few keys, so that they affect each other.

use bytes::Bytes;
use quorate_kv::{
    Alarm, AlarmKind, Command, Compact, Compare, CompareOperator, CompareTarget, DeleteRange,
    KeyRange, LeaseCheckpoint, LeaseGrant, Put, Query, Quota, Range, SortOrder, SortTarget, Txn,
    TxnOperation, WatchRequest,
};

/// Generates everything from one seed (splitmix64).
pub(crate) struct Generator(pub(crate) u64);

impl Generator {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn key(&mut self) -> Bytes {
        const KEYS: [&str; 14] =
            ["", "a", "b", "c", "d", "e", "f", "g", "aa", "ab", "ac", "b\0", "ba", "\u{ff}"];
        let long = format!("a-key-that-is-too-long-to-be-stored-inline-{}", self.below(2));
        match self.below(30) {
            0 => Bytes::new(),
            1 => long.into(),
            _ => KEYS[1 + self.below(KEYS.len() as u64 - 1) as usize].into(),
        }
    }

    fn keys(&mut self) -> KeyRange {
        let key = self.key();
        let range_end = match self.below(6) {
            0..3 => Bytes::new(),
            3 => "\0".into(),
            _ => self.key(),
        };
        KeyRange { key, range_end }
    }

    fn value(&mut self) -> Bytes {
        let length = if self.chance(2) { 3_000 } else { self.below(4) };
        (0..length).map(|_| b'0' + self.below(3) as u8).collect()
    }

    fn lease(&mut self) -> i64 {
        self.below(4) as i64
    }

    /// Mostly existing revisions, rarely later ones.
    fn revision(&mut self, now: i64) -> i64 {
        match self.below(20) {
            0..8 => 0,
            8 => now + 1,
            9 => -1,
            _ => (now - self.below(25) as i64).max(1),
        }
    }

    fn put(&mut self) -> Put {
        let ignore_value = self.chance(6);
        let ignore_lease = self.chance(6);
        let value = if ignore_value && self.chance(90) { Bytes::new() } else { self.value() };
        let lease =
            if self.chance(75) || ignore_lease && self.chance(90) { 0 } else { self.lease() };
        Put { key: self.key(), value, lease, prev_kv: self.chance(40), ignore_value, ignore_lease }
    }

    fn deletion(&mut self) -> DeleteRange {
        let mut keys = self.keys();
        // Wide deletions would leave nothing to read.
        if self.chance(80) {
            keys.range_end = Bytes::new();
        }
        DeleteRange { keys, prev_kv: self.chance(50) }
    }

    pub(crate) fn range(&mut self, now: i64) -> Range {
        let mut filter = |percent| if self.chance(percent) { self.revision(now) } else { 0 };
        let min_mod_revision = filter(8);
        let max_mod_revision = filter(8);
        let min_create_revision = filter(8);
        let max_create_revision = filter(8);
        let orders = [SortOrder::None, SortOrder::Ascend, SortOrder::Descend];
        let targets = [
            SortTarget::Key,
            SortTarget::Version,
            SortTarget::Create,
            SortTarget::Mod,
            SortTarget::Value,
        ];
        Range {
            keys: self.keys(),
            limit: if self.chance(50) { 0 } else { self.below(6) as i64 },
            revision: self.revision(now),
            sort_order: orders[self.below(3) as usize],
            sort_target: targets[self.below(5) as usize],
            keys_only: self.chance(10),
            count_only: self.chance(10),
            min_mod_revision,
            max_mod_revision,
            min_create_revision,
            max_create_revision,
        }
    }

    fn compare(&mut self, now: i64) -> Compare {
        let operators = [
            CompareOperator::Equal,
            CompareOperator::Greater,
            CompareOperator::Less,
            CompareOperator::NotEqual,
        ];
        let target = match self.below(5) {
            0 => CompareTarget::Version(self.below(4) as i64),
            1 => CompareTarget::Create(self.revision(now)),
            2 => CompareTarget::Mod(self.revision(now)),
            3 => CompareTarget::Value(self.value()),
            _ => CompareTarget::Lease(self.lease()),
        };
        Compare { keys: self.keys(), operator: operators[self.below(4) as usize], target }
    }

    pub(crate) fn txn(&mut self, now: i64, depth: u64) -> Txn {
        let compare = (0..self.below(3)).map(|_| self.compare(now)).collect();
        let mut branch = || (0..self.below(4)).map(|_| self.request(now, depth)).collect();
        Txn { compare, success: branch(), failure: branch() }
    }

    fn request(&mut self, now: i64, depth: u64) -> TxnOperation {
        match self.below(10) {
            0..3 => TxnOperation::Range(self.range(now)),
            3..7 => TxnOperation::Put(self.put()),
            7 if depth < 3 => TxnOperation::Txn(self.txn(now, depth + 1)),
            _ => TxnOperation::DeleteRange(self.deletion()),
        }
    }

    pub(crate) fn command(&mut self, now: i64) -> Command {
        match self.below(100) {
            0..45 => Command::Put(self.put()),
            45..52 => Command::DeleteRange(self.deletion()),
            52..78 => Command::Txn(self.txn(now, 0)),
            78..82 => Command::Compact(Compact { revision: self.revision(now) }),
            82..87 => {
                Command::LeaseGrant(LeaseGrant { id: self.lease(), ttl: self.below(100) as i64 })
            }
            87..90 => Command::LeaseRevoke(self.lease()),
            90..92 => Command::LeaseCheckpoint(
                (0..self.below(3))
                    .map(|_| LeaseCheckpoint {
                        id: self.lease(),
                        remaining: self.below(200) as i64,
                    })
                    .collect(),
            ),
            92 if self.chance(30) => Command::AlarmActivate(self.alarm()),
            92..98 => Command::AlarmDisarm(self.alarm()),
            98 => {
                let bytes = if self.chance(60) { 0 } else { self.below(40_000) };
                Command::SetQuota(Quota { bytes, member: self.below(2) })
            }
            _ => Command::Noop,
        }
    }

    fn alarm(&mut self) -> Alarm {
        let kind = if self.chance(70) { AlarmKind::NoSpace } else { AlarmKind::Corrupt };
        Alarm { kind, member: self.below(2) }
    }

    pub(crate) fn query(&mut self, now: i64) -> Query {
        match self.below(20) {
            0 => Query::Revision,
            1 => Query::Lease(self.lease()),
            2 => Query::Leases,
            3 => Query::Alarms,
            4 => Query::HashKv(self.revision(now)),
            5..7 => Query::Txn(self.txn(now, 0)),
            _ => Query::Range(self.range(now)),
        }
    }

    pub(crate) fn watch(&mut self, now: i64) -> WatchRequest {
        WatchRequest {
            keys: self.keys(),
            start_revision: if self.chance(50) { 0 } else { self.revision(now) },
            no_put: self.chance(15),
            no_delete: self.chance(15),
            prev_kv: self.chance(30),
        }
    }
}
