//! Random requests, biased towards edge cases.

use bytes::Bytes;
use quorate_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use quorate_proto::etcdserverpb::request_op::Request as Part;
use quorate_proto::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseKeepAliveRequest,
    LeaseRevokeRequest, LeaseTimeToLiveRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
    WatchCreateRequest,
};

#[derive(Clone, Debug)]
pub(crate) enum RandomRequest {
    Range(RangeRequest),
    Put(PutRequest),
    Delete(DeleteRangeRequest),
    Txn(TxnRequest),
    Compact(CompactionRequest),
    Grant(LeaseGrantRequest),
    Revoke(LeaseRevokeRequest),
    TimeToLive(LeaseTimeToLiveRequest),
    KeepAlive(LeaseKeepAliveRequest),
    Leases,
}

pub(crate) struct RandomRequests {
    seed: u64,
    state: u64,
    /// The current revision of the stores: requests use revisions near it.
    revision: i64,
    compacted: i64,
    /// Whether requests may be such that versions of etcd treat them differently.
    disputed: bool,
}

/// Few enough that etcd's sort, which is not stable, keeps the order of equal keys.
const KEYS: [&[u8]; 9] = [
    b"a",
    b"b",
    b"c",
    b"aa",
    b"ab",
    b"b\0",
    b"\0",
    b"\xff",
    b"a key that is longer than forty bytes in all",
];
const ENDS: [&[u8]; 11] =
    [b"", b"", b"", b"\0", b"\0", b"b", b"c", b"a\0", b"b\0", b"\xff\xff", b"\0\0"];
const LEASES: [i64; 6] = [1, 2, 3, -4, i64::MAX, i64::MIN];
/// Long enough that no lease expires during the test.
const TTLS: [i64; 4] = [600, 100_000, 9_000_000_000, 9_000_000_001];

impl RandomRequests {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, state: seed, revision: 1, compacted: -1, disputed: true }
    }

    /// The same without ranges that end before they begin: whether etcd allows them to a user
    /// depends on the order in which permissions were granted. And without puts that keep a value
    /// and set a lease: if neither exists, versions of etcd report one or the other. And without
    /// reads of keys alone, which show leases or not.
    pub(crate) fn without_disputed(self) -> Self {
        Self { disputed: false, ..self }
    }

    /// The generator is SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    pub(crate) fn request(&mut self, revision: i64, compacted: i64) -> RandomRequest {
        (self.revision, self.compacted) = (revision, compacted);
        match self.below(100) {
            0..25 => RandomRequest::Range(self.range()),
            25..50 => RandomRequest::Put(self.put()),
            50..60 => RandomRequest::Delete(self.deletion()),
            60..85 => RandomRequest::Txn(self.txn(3)),
            85..88 => {
                let revision = if self.one_in(3) { self.a_revision() } else { compacted + 9 };
                RandomRequest::Compact(CompactionRequest { revision, physical: self.one_in(2) })
            }
            88..92 => RandomRequest::Grant(LeaseGrantRequest {
                id: self.of(&LEASES),
                ttl: self.of(&TTLS),
            }),
            92..94 => RandomRequest::Revoke(LeaseRevokeRequest { id: self.lease() }),
            94..97 => {
                let keys = self.one_in(2);
                RandomRequest::TimeToLive(LeaseTimeToLiveRequest { id: self.lease(), keys })
            }
            97..99 => RandomRequest::KeepAlive(LeaseKeepAliveRequest { id: self.lease() }),
            _ => RandomRequest::Leases,
        }
    }

    pub(crate) fn key(&mut self) -> Bytes {
        if self.one_in(60) { Bytes::new() } else { Bytes::from_static(self.of(&KEYS)) }
    }

    fn end(&mut self) -> Bytes {
        Bytes::from_static(self.of(&ENDS))
    }

    /// Always the same for a key.
    pub(crate) fn end_for(&self, key: &Bytes) -> Bytes {
        let mut fixed =
            Self::new(key.iter().fold(self.seed, |seed, byte| {
                seed.wrapping_mul(31).wrapping_add(u64::from(*byte))
            }));
        fixed.end()
    }

    /// A key, and the end of a range.
    fn keys(&mut self) -> (Bytes, Bytes) {
        let (key, end) = (self.key(), self.end());
        let end = self.end_after(&key, end);
        (key, end)
    }

    fn end_after(&self, key: &Bytes, end: Bytes) -> Bytes {
        let is_empty = !end.is_empty() && end[..] != [0] && end <= *key;
        if is_empty && !self.disputed { Bytes::new() } else { end }
    }

    fn lease(&mut self) -> i64 {
        if self.one_in(4) { 0 } else { self.of(&LEASES) }
    }

    fn a_revision(&mut self) -> i64 {
        let (now, compacted) = (self.revision, self.compacted);
        let near = [now - 2, now - 1, now, now + 1, compacted - 1, compacted, compacted + 1];
        match self.below(10) {
            0 => self.of(&[-1, -7, i64::MIN, i64::MAX]),
            1..5 => self.of(&near),
            _ => 1 + self.below(now as usize) as i64,
        }
    }

    fn now_or_then(&mut self) -> i64 {
        if self.one_in(3) { self.a_revision() } else { 0 }
    }

    fn range(&mut self) -> RangeRequest {
        let filter = |random: &mut Self| if random.one_in(8) { random.a_revision() } else { 0 };
        let (key, range_end) = self.keys();
        RangeRequest {
            key,
            range_end,
            limit: self.of(&[0, 0, 0, 1, 2, 3, 100, -1, i64::MAX, i64::MIN]),
            revision: self.now_or_then(),
            sort_order: self.of(&[0, 0, 1, 2]),
            sort_target: self.of(&[0, 0, 1, 2, 3, 4]),
            serializable: self.one_in(3),
            keys_only: self.one_in(5) && self.disputed,
            count_only: self.one_in(6),
            min_mod_revision: filter(self),
            max_mod_revision: filter(self),
            min_create_revision: filter(self),
            max_create_revision: filter(self),
        }
    }

    fn value(&mut self) -> Bytes {
        Bytes::from_static(self.of(&[b"", b"1", b"2", b"a value"]))
    }

    fn put(&mut self) -> PutRequest {
        let ignore_value = self.one_in(8);
        let ignore_lease = self.one_in(8);
        let value = if ignore_value && !self.one_in(6) { Bytes::new() } else { self.value() };
        let lease =
            if ignore_lease && !self.one_in(6) || !self.one_in(3) { 0 } else { self.lease() };
        let lease = if ignore_value && !self.disputed { 0 } else { lease };
        let (key, prev_kv) = (self.key(), self.one_in(2));
        PutRequest { key, value, lease, prev_kv, ignore_value, ignore_lease }
    }

    fn deletion(&mut self) -> DeleteRangeRequest {
        let (key, range_end) = self.keys();
        DeleteRangeRequest { key, range_end, prev_kv: self.one_in(2) }
    }

    fn txn(&mut self, depth: usize) -> TxnRequest {
        let compare = (0..self.below(3)).map(|_| self.compare()).collect();
        let reads_only = self.one_in(6);
        TxnRequest {
            compare,
            success: self.parts(depth, reads_only),
            failure: self.parts(depth, reads_only),
        }
    }

    fn parts(&mut self, depth: usize, reads_only: bool) -> Vec<RequestOp> {
        let count = self.below(4);
        (0..count).map(|_| RequestOp { request: Some(self.part(depth, reads_only)) }).collect()
    }

    fn part(&mut self, depth: usize, reads_only: bool) -> Part {
        let kind = if reads_only { self.below(3) } else { self.below(10) };
        match kind {
            0..2 => Part::RequestRange(self.range()),
            2 if depth > 0 => Part::RequestTxn(self.txn(depth - 1)),
            2 => Part::RequestRange(self.range()),
            3..5 => {
                // etcd does not detect that a range without an end overlaps with later keys.
                let mut deletion = self.deletion();
                if deletion.range_end[..] == [0] {
                    deletion.range_end = Bytes::new();
                }
                Part::RequestDeleteRange(deletion)
            }
            _ => Part::RequestPut(self.put()),
        }
    }

    fn compare(&mut self) -> Compare {
        let target = self.of(&[
            CompareTarget::Version,
            CompareTarget::Create,
            CompareTarget::Mod,
            CompareTarget::Value,
            CompareTarget::Lease,
        ]);
        let of_target = if self.one_in(10) { CompareTarget::Lease } else { target };
        let union = match of_target {
            CompareTarget::Version => TargetUnion::Version(self.of(&[0, 1, 2, -1])),
            CompareTarget::Create => TargetUnion::CreateRevision(self.a_revision()),
            CompareTarget::Mod => TargetUnion::ModRevision(self.a_revision()),
            CompareTarget::Value => TargetUnion::Value(self.value()),
            CompareTarget::Lease => TargetUnion::Lease(self.lease()),
        };
        let result = self.of(&[
            CompareResult::Equal,
            CompareResult::Greater,
            CompareResult::Less,
            CompareResult::NotEqual,
        ]);
        let key = self.key();
        let target_union = (!self.one_in(12)).then_some(union);
        let range_end = if self.one_in(3) { self.end() } else { Bytes::new() };
        let range_end = self.end_after(&key, range_end);
        let (result, target) = (result as i32, target as i32);
        Compare { result, target, key, target_union, range_end }
    }

    pub(crate) fn watch(&mut self) -> WatchCreateRequest {
        let (key, range_end) = self.keys();
        WatchCreateRequest {
            key,
            range_end,
            start_revision: 0,
            progress_notify: false,
            filters: (0..2).filter(|_| self.one_in(5)).collect(),
            prev_kv: self.one_in(2),
            watch_id: 0,
            fragment: self.one_in(2),
        }
    }
}
