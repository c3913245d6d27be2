//! The service KV: every option and its response.

use quorate_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use quorate_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use quorate_proto::etcdserverpb::request_op::Request as Part;
use quorate_proto::etcdserverpb::response_op::Response as Answer;
use quorate_proto::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, LeaseGrantRequest, PutRequest, RangeRequest,
    RequestOp, ResponseOp, StatusRequest, TxnRequest,
};
use quorate_server::{EtcdRelease, ServiceLimits};

use crate::support::{CLUSTER, ServiceMember, from, get, put, text, wait_for, within};

fn part(request: Part) -> RequestOp {
    RequestOp { request: Some(request) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_can_be_read_with_its_revisions() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    let first = member.put("a", "1").await;
    let previous = PutRequest { prev_kv: true, ..put("a", "2") };
    let done = within("a put", member.kv().put(previous)).await.unwrap().into_inner();
    let header = done.header.unwrap();
    assert_eq!((header.cluster_id, header.member_id), (CLUSTER, 1));
    assert_eq!((header.revision, header.raft_term > 0), (first + 1, true));
    assert_eq!(text(&done.prev_kv.unwrap().value), "1");

    let found = member.range(get("a")).await;
    assert_eq!((found.count, found.more), (1, false));
    assert_eq!(found.header.unwrap().revision, first + 1);
    let kv = &found.kvs[0];
    assert_eq!((text(&kv.value), kv.version), ("2".into(), 2));
    assert_eq!((kv.create_revision, kv.mod_revision), (first, first + 1));

    let old = member.range(RangeRequest { revision: first, ..get("a") }).await;
    assert_eq!(text(&old.kvs[0].value), "1");
    // The header has the current revision, not the requested one.
    assert_eq!(old.header.unwrap().revision, first + 1);
    let serializable = RangeRequest { serializable: true, ..get("a") };
    assert_eq!(member.range(serializable).await.kvs.len(), 1);

    // First the value, then the lease is left unchanged.
    let keeps = PutRequest { ignore_value: true, ..put("a", "") };
    within("a put", member.kv().put(keeps)).await.unwrap();
    let keeps = PutRequest { ignore_lease: true, ..put("a", "3") };
    within("a put", member.kv().put(keeps)).await.unwrap();
    let kv = member.range(get("a")).await.kvs.remove(0);
    assert_eq!((text(&kv.value), kv.version), ("3".into(), 4));
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_are_limited_sorted_and_filtered() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    let first = member.put("a", "z").await;
    for (key, value) in [("b", "y"), ("c", "x"), ("a", "w")] {
        member.put(key, value).await;
    }
    let all = || from("a", "\0");
    assert_eq!(member.keys(all()).await, ["a", "b", "c"]);
    assert_eq!(member.keys(from("a", "c")).await, ["a", "b"]);
    assert_eq!(member.keys(from("c", "a")).await, [""; 0]);
    let limited = member.range(RangeRequest { limit: 2, ..all() }).await;
    assert_eq!((limited.kvs.len(), limited.count, limited.more), (2, 3, true));

    let sorted = |target: SortTarget, order: SortOrder| RangeRequest {
        sort_target: target as i32,
        sort_order: order as i32,
        ..all()
    };
    let cases = [
        (SortTarget::Key, SortOrder::Descend, ["c", "b", "a"]),
        (SortTarget::Version, SortOrder::Descend, ["a", "b", "c"]),
        (SortTarget::Create, SortOrder::Descend, ["c", "b", "a"]),
        (SortTarget::Mod, SortOrder::Ascend, ["b", "c", "a"]),
        (SortTarget::Value, SortOrder::Ascend, ["a", "c", "b"]),
    ];
    for (target, order, keys) in cases {
        assert_eq!(member.keys(sorted(target, order)).await, keys, "{target:?} {order:?}");
    }

    let only = member.range(RangeRequest { keys_only: true, ..all() }).await;
    assert!(only.kvs.iter().all(|kv| kv.value.is_empty()) && only.kvs.len() == 3);
    let counted = member.range(RangeRequest { count_only: true, ..all() }).await;
    assert_eq!((counted.kvs.len(), counted.count), (0, 3));
    let filters = [
        (RangeRequest { min_mod_revision: first + 2, ..all() }, vec!["a", "c"]),
        (RangeRequest { max_mod_revision: first + 2, ..all() }, vec!["b", "c"]),
        (RangeRequest { min_create_revision: first + 1, ..all() }, vec!["b", "c"]),
        (RangeRequest { max_create_revision: first + 1, ..all() }, vec!["a", "b"]),
    ];
    for (request, keys) in filters {
        assert_eq!(member.keys(request).await, keys);
    }
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletions_return_what_they_deleted() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    for key in ["a", "b", "c"] {
        member.put(key, "x").await;
    }
    let request = DeleteRangeRequest { key: "a".into(), range_end: "c".into(), prev_kv: true };
    let done = within("it", member.kv().delete_range(request)).await.unwrap().into_inner();
    assert_eq!((done.deleted, done.prev_kvs.len()), (2, 2));
    assert_eq!(done.header.unwrap().revision, 5);
    let request = DeleteRangeRequest { key: "a".into(), ..Default::default() };
    let done = within("it", member.kv().delete_range(request)).await.unwrap().into_inner();
    assert_eq!((done.deleted, done.header.unwrap().revision), (0, 5));
    assert_eq!(member.keys(from("\0", "\0")).await, ["c"]);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_compare_and_run_one_branch() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    let revision = member.put("a", "1").await;
    let compare = |result: CompareResult, target: CompareTarget, union: TargetUnion| Compare {
        result: result as i32,
        target: target as i32,
        key: "a".into(),
        target_union: Some(union),
        range_end: Default::default(),
    };
    use CompareResult::{Equal, Greater, Less, NotEqual};
    let cases = [
        (compare(Equal, CompareTarget::Version, TargetUnion::Version(1)), true),
        (compare(Less, CompareTarget::Create, TargetUnion::CreateRevision(revision)), false),
        (compare(Greater, CompareTarget::Mod, TargetUnion::ModRevision(revision - 1)), true),
        (compare(NotEqual, CompareTarget::Value, TargetUnion::Value("1".into())), false),
        (compare(Equal, CompareTarget::Lease, TargetUnion::Lease(0)), true),
        // A value of another kind than the target counts as none.
        (compare(Equal, CompareTarget::Version, TargetUnion::Lease(1)), false),
    ];
    for (compare, holds) in cases {
        let read = vec![part(Part::RequestRange(get("a")))];
        let txn = TxnRequest { compare: vec![compare], success: read, failure: Vec::new() };
        let done = within("a txn", member.kv().txn(txn)).await.unwrap().into_inner();
        assert_eq!((done.succeeded, done.responses.len()), (holds, usize::from(holds)));
        assert_eq!(done.header.unwrap().revision, revision, "a read writes nothing");
    }

    let nested = TxnRequest {
        failure: vec![part(Part::RequestPut(put("never", "")))],
        success: vec![part(Part::RequestPut(put("b", "2")))],
        compare: Vec::new(),
    };
    let deletion = DeleteRangeRequest { key: "a".into(), ..Default::default() };
    let success = vec![
        part(Part::RequestDeleteRange(deletion)),
        part(Part::RequestTxn(nested)),
        part(Part::RequestRange(get("b"))),
        part(Part::RequestPut(put("c", "3"))),
    ];
    let txn = TxnRequest { success, ..Default::default() };
    let done = within("a txn", member.kv().txn(txn)).await.unwrap().into_inner();
    assert!(done.succeeded && done.header.unwrap().revision == revision + 1);
    let answers: Vec<_> = done.responses.into_iter().map(|it| it.response.unwrap()).collect();
    let [Answer::ResponseDeleteRange(deleted), Answer::ResponseTxn(inner), found, written] =
        &answers[..]
    else {
        panic!("{answers:?}");
    };
    assert_eq!(deleted.deleted, 1);
    assert_eq!(inner.responses.len(), 1);
    let Answer::ResponseRange(found) = found else { panic!("{found:?}") };
    assert_eq!(text(&found.kvs[0].value), "2", "what the transaction itself wrote");
    let Answer::ResponsePut(written) = written else { panic!("{written:?}") };
    let header = written.header.unwrap();
    assert_eq!((header.cluster_id, header.revision), (0, revision + 1));
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_range_is_streamed_in_pieces() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    let value = "v".repeat(300 << 10);
    for number in 0..9 {
        member.put(&format!("key {number}"), &value).await;
    }
    let request = RangeRequest { limit: 8, ..from("k", "l") };
    let stream = within("a stream", member.kv().range_stream(request)).await.unwrap();
    let mut stream = stream.into_inner();
    let mut pieces = Vec::new();
    while let Some(piece) = within("a piece", stream.message()).await.unwrap() {
        pieces.push(piece.range_response.unwrap());
    }
    assert_eq!(pieces.iter().map(|piece| piece.kvs.len()).collect::<Vec<_>>(), [3, 3, 2]);
    assert_eq!(pieces.iter().map(|piece| piece.count).collect::<Vec<_>>(), [0, 0, 9]);
    assert_eq!(pieces.iter().map(|piece| piece.more).collect::<Vec<_>>(), [false, false, true]);
    let headers: Vec<bool> = pieces.iter().map(|piece| piece.header.is_some()).collect();
    assert_eq!(headers, [false, false, true], "as in etcd, only the last one has a header");
    let sorted = RangeRequest { sort_order: SortOrder::Descend as i32, ..from("k", "l") };
    let filtered = RangeRequest { min_mod_revision: 1, ..from("k", "l") };
    for (request, text) in [
        (sorted, "RangeStream does not support custom sort orders"),
        (filtered, "RangeStream does not support revision filters"),
    ] {
        let refused = within("it", member.kv().range_stream(request)).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (tonic::Code::Unimplemented, text));
    }
    let nothing = within("a stream", member.kv().range_stream(get("none"))).await.unwrap();
    let only = within("a piece", nothing.into_inner().message()).await.unwrap().unwrap();
    assert_eq!(only.range_response.unwrap().count, 0);
    member.stop().await;
}

/// Writes 1,500 keys twice, more than one command compacts. Returns the revision.
async fn write_twice(member: &ServiceMember) -> i64 {
    let mut revision = 0;
    for round in ["one", "two"] {
        let mut puts = tokio::task::JoinSet::new();
        for number in 0..1_500 {
            let mut kv = member.kv();
            let put = put(&format!("key {number}"), round);
            puts.spawn(async move { kv.put(put).await.unwrap() });
        }
        while let Some(done) = within("puts", puts.join_next()).await {
            revision = revision.max(done.unwrap().into_inner().header.unwrap().revision);
        }
    }
    revision
}

async fn bytes_in_use(member: &ServiceMember) -> i64 {
    let status = within("it", member.maintenance().status(StatusRequest {})).await.unwrap();
    status.into_inner().db_size_in_use
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_physical_compaction_has_deleted_the_rows_when_it_returns() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    let revision = write_twice(&member).await;
    let compaction = CompactionRequest { revision, physical: true };
    let done = within("it", member.kv().compact(compaction)).await.unwrap().into_inner();
    assert_eq!(done.header.unwrap().revision, revision);
    let one_round = bytes_in_use(&member).await;
    member.put("key 0", "three").await;
    let row = bytes_in_use(&member).await - one_round;
    assert!(one_round < row * 2_000, "{one_round} bytes are left, {row} for each key");
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compaction_is_finished_without_further_writes() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    let revision = write_twice(&member).await;
    let two_rounds = bytes_in_use(&member).await;
    let compaction = CompactionRequest { revision, physical: false };
    within("it", member.kv().compact(compaction)).await.unwrap();
    let half = two_rounds / 2 + two_rounds / 100;
    wait_for("the end of it", async || bytes_in_use(&member).await <= half).await;
    member.stop().await;
}

/// etcd leaves out the leases of keys that are read without values since 3.7, except when it sorts
/// them by value.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_without_values_have_leases_as_in_the_release_of_etcd() {
    for (etcd_release, expected) in [(EtcdRelease::V3_6, 7), (EtcdRelease::V3_7, 0)] {
        let limits = ServiceLimits { etcd_release, ..ServiceLimits::default() };
        let member = ServiceMember::single(limits).await;
        let grant = LeaseGrantRequest { id: 7, ttl: 1_000 };
        within("a lease", member.lease().lease_grant(grant)).await.unwrap();
        member.put_with("a", "1", 7).await;
        let keys = RangeRequest { keys_only: true, ..get("a") };
        let by_value = RangeRequest { sort_target: SortTarget::Value as i32, ..keys.clone() };
        for (range, lease) in [(keys.clone(), expected), (by_value.clone(), 7), (get("a"), 7)] {
            assert_eq!(member.range(range).await.kvs[0].lease, lease, "{etcd_release}");
        }
        let ranges = || {
            let range = |range: &RangeRequest| part(Part::RequestRange(range.clone()));
            vec![range(&get("a")), range(&keys), range(&by_value)]
        };
        let inner = TxnRequest { success: ranges(), ..TxnRequest::default() };
        let mut writes = ranges();
        writes.push(part(Part::RequestPut(put("b", "1"))));
        writes.push(part(Part::RequestTxn(inner.clone())));
        for txn in [inner, TxnRequest { success: writes, ..TxnRequest::default() }] {
            let done = within("a txn", member.kv().txn(txn)).await.unwrap().into_inner();
            assert_eq!(leases(&done.responses[..3]), [7, expected, 7], "{etcd_release}");
            if let Some(Answer::ResponseTxn(inner)) =
                done.responses.last().and_then(|last| last.response.as_ref())
            {
                assert_eq!(leases(&inner.responses), [7, expected, 7], "{etcd_release}");
            }
        }
        member.stop().await;
    }
}

/// The lease of the key that each range found.
fn leases(responses: &[ResponseOp]) -> Vec<i64> {
    let lease = |response: &ResponseOp| match &response.response {
        Some(Answer::ResponseRange(found)) => found.kvs[0].lease,
        other => panic!("{other:?}"),
    };
    responses.iter().map(lease).collect()
}
