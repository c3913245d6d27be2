use quorate_kv::{KvOutcome, MemoryTable, Query, Range};

use super::*;

/// An entry with one request, by the number of its field.
fn entry(index: u64, number: u64, message: &impl Message, user: Option<(&str, u64)>) -> WalEntry {
    let mut data = Vec::new();
    let mut put = |number: u64, bytes: &[u8]| {
        prost::encoding::encode_varint(number << 3 | 2, &mut data);
        prost::encoding::encode_varint(bytes.len() as u64, &mut data);
        data.extend_from_slice(bytes);
    };
    put(number, &message.encode_to_vec());
    let mut header = vec![8, 77];
    if let Some((name, revision)) = user {
        header.extend([18, name.len() as u8]);
        header.extend_from_slice(name.as_bytes());
        header.extend([24, revision as u8]);
    }
    put(HEADER, &header);
    WalEntry { kind: NORMAL, term: 1, index, data: data.into() }
}

struct LogStore {
    kv: Kv<MemoryTable>,
    index: u64,
}

impl LogStore {
    fn new() -> Self {
        Self { kv: Kv::open(MemoryTable::default()).unwrap(), index: 0 }
    }

    fn run(&mut self, number: u64, message: &impl Message, user: Option<(&str, u64)>) {
        self.index += 1;
        apply_entry(&mut self.kv, &entry(self.index, number, message, user), true).unwrap();
    }

    fn keys(&self) -> Vec<Bytes> {
        let range = Range { keys: KeyRange::all(), ..Range::default() };
        match self.kv.query(&Query::Range(range)).unwrap().result {
            Ok(KvOutcome::Range(found)) => found.kvs.into_iter().map(|kv| kv.key).collect(),
            other => panic!("{other:?}"),
        }
    }
}

fn put(key: &str) -> pb::PutRequest {
    pb::PutRequest { key: key.to_owned().into(), ..Default::default() }
}

#[test]
fn requests_that_etcd_refuses_change_nothing() {
    let mut store = LogStore::new();
    store.run(4, &put("a"), None);
    store.run(4, &pb::PutRequest { lease: 99, ..put("without a lease") }, None);
    store.run(7, &pb::CompactionRequest { revision: 50, physical: false }, None);
    store.run(8, &pb::LeaseGrantRequest { id: 5, ttl: LEASE_TTL_MAX + 1 }, None);
    store.run(8, &pb::LeaseGrantRequest { id: 6, ttl: 1 }, None);
    assert_eq!(store.keys(), ["a"]);
    assert_eq!((store.kv.revision(), store.kv.compact_revision()), (2, -1));
    assert!(store.kv.lease(5).is_none());
    assert_eq!(store.kv.lease(6).unwrap().ttl, LEASE_TTL_MIN);
}

/// etcd validates a transaction before it is logged, and lets through what our validation
/// refuses: a deletion "from this key on" beside a put of a later key.
#[test]
fn validation_is_not_repeated() {
    let mut store = LogStore::new();
    store.run(4, &put("b"), None);
    let deletion =
        pb::DeleteRangeRequest { key: "a".into(), range_end: "\0".into(), ..Default::default() };
    let operation = |request| pb::RequestOp { request: Some(request) };
    let success = vec![
        operation(pb::request_op::Request::RequestDeleteRange(deletion)),
        operation(pb::request_op::Request::RequestPut(put("c"))),
    ];
    store.run(6, &pb::TxnRequest { success, ..Default::default() }, None);
    assert_eq!(store.keys(), ["c"]);
}

/// Before etcd 3.7, only the member that a client waited for noticed a read of a future revision.
#[test]
fn reads_of_a_transaction_are_dropped_before_3_7() {
    let range = pb::RangeRequest { key: "a".into(), revision: 99, ..Default::default() };
    let operation = |request| pb::RequestOp { request: Some(request) };
    let success = vec![
        operation(pb::request_op::Request::RequestRange(range)),
        operation(pb::request_op::Request::RequestPut(put("c"))),
    ];
    let txn = pb::TxnRequest { success, ..Default::default() };
    for (drops_ranges, keys) in [(true, 1), (false, 0)] {
        let mut store = LogStore::new();
        apply_entry(&mut store.kv, &entry(1, 6, &txn, None), drops_ranges).unwrap();
        assert_eq!(store.keys().len(), keys, "{drops_ranges}");
    }
}

#[test]
fn rights_are_checked_as_they_were() {
    let mut store = LogStore::new();
    let password = |name: &str| pb::AuthUserAddRequest {
        name: name.into(),
        password: "secret".into(),
        ..Default::default()
    };
    store.run(1100, &password("root"), None);
    store.run(1100, &password("alice"), None);
    let grant = pb::AuthUserGrantRoleRequest { user: "root".into(), role: "root".into() };
    store.run(1104, &grant, None);
    store.run(1000, &pb::AuthEnableRequest {}, None);
    assert!(store.kv.auth().is_enabled());
    let revision = store.kv.auth().revision();
    store.run(4, &put("by nobody"), None);
    store.run(4, &put("by alice"), Some(("alice", revision)));
    store.run(4, &put("by an old root"), Some(("root", revision - 1)));
    store.run(4, &put("by root"), Some(("root", revision)));
    assert_eq!(store.keys(), ["by root"]);
    // The same entry gives the same hash on every member.
    let hash = |store: &LogStore| store.kv.auth().user("alice").unwrap().password().cloned();
    let mut other = LogStore::new();
    other.run(1100, &password("root"), None);
    other.run(1100, &password("alice"), None);
    assert_eq!(hash(&store), hash(&other));
    let text = hash(&store).unwrap();
    let text = std::str::from_utf8(text.as_bytes()).unwrap().to_owned();
    assert!(bcrypt::verify("secret", &text).unwrap() && !bcrypt::verify("other", &text).unwrap());
}

#[test]
fn entries_without_data_are_skipped_and_unknown_ones_refused() {
    let mut kv = Kv::open(MemoryTable::default()).unwrap();
    let mut apply = |kind: u64, data: &[u8]| {
        let data = Bytes::copy_from_slice(data);
        apply_entry(&mut kv, &WalEntry { kind, term: 1, index: 7, data }, true)
    };
    apply(NORMAL, b"").unwrap();
    apply(1, b"a change of the members").unwrap();
    // PUT /0/version of etcd's old API: the whole entry is the request.
    apply(NORMAL, b"\x08\x01\x12\x03PUT\x1a\x0a/0/version\x22\x053.4.0").unwrap();
    let error = apply(NORMAL, &[0xa2, 0x9c, 0x01, 0, 0xa2, 0x06, 0]).unwrap_err().to_string();
    assert_eq!(error, "log entry 7: requests of kind 2500 are unknown");
    let error = apply(NORMAL, &[0x22, 5, 1]).unwrap_err().to_string();
    assert_eq!(error, "log entry 7: the request cannot be decoded");
}
