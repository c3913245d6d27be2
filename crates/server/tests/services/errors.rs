//! Refused requests get etcd's codes and texts.

use quorate_proto::etcdserverpb::request_op::Request as Part;
use quorate_proto::etcdserverpb::{
    AlarmRequest, AlarmType, CompactionRequest, DeleteRangeRequest, DowngradeRequest,
    HashKvRequest, LeaseGrantRequest, LeaseRevokeRequest, MoveLeaderRequest, PutRequest,
    RangeRequest, RequestOp, StatusRequest, TxnRequest, alarm_request,
};
use quorate_server::ServiceLimits;
use tonic::{Code, Response, Status};

use crate::support::{ServiceMember, get, put, text, within};

/// Counts the cases, so that none is left out by mistake.
#[derive(Default)]
struct Cases(usize);

impl Cases {
    fn refused<T>(&mut self, reply: Result<Response<T>, Status>, code: Code, text: &str) {
        let Err(status) = reply else { panic!("done, want: {text}") };
        assert_eq!((status.code(), status.message()), (code, text));
        self.0 += 1;
    }
}

fn txn(parts: impl IntoIterator<Item = Option<Part>>) -> TxnRequest {
    let success = parts.into_iter().map(|request| RequestOp { request }).collect();
    TxnRequest { success, ..Default::default() }
}

const EMPTY_KEY: &str = "etcdserver: key is not provided";
const BAD_SORT: &str = "etcdserver: invalid sort option";
const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
const FUTURE: &str = "etcdserver: mvcc: required revision is a future revision";
const NO_LEASE: &str = "etcdserver: requested lease not found";
const DUPLICATE: &str = "etcdserver: duplicate key given in txn request";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_requests_are_refused_with_etcds_texts() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    let mut kv = member.kv();
    let mut cases = Cases::default();
    let invalid = Code::InvalidArgument;
    cases.refused(kv.range(get("")).await, invalid, EMPTY_KEY);
    cases.refused(kv.put(put("", "x")).await, invalid, EMPTY_KEY);
    cases.refused(kv.delete_range(DeleteRangeRequest::default()).await, invalid, EMPTY_KEY);
    let inner = txn([Some(Part::RequestPut(put("", "")))]);
    cases.refused(kv.txn(inner).await, invalid, EMPTY_KEY);
    let reply = kv.txn(txn([None])).await;
    cases.refused(reply, invalid, "etcdserver: key not found");
    let keeps = PutRequest { ignore_value: true, ..put("none", "") };
    cases.refused(kv.put(keeps).await, invalid, "etcdserver: key not found");
    let both = PutRequest { ignore_value: true, ..put("a", "x") };
    cases.refused(kv.put(both).await, invalid, "etcdserver: value is provided");
    let both = PutRequest { ignore_lease: true, lease: 7, ..put("a", "x") };
    cases.refused(kv.put(both).await, invalid, "etcdserver: lease is provided");
    let unknown = PutRequest { lease: 7, ..put("a", "x") };
    cases.refused(kv.put(unknown).await, Code::NotFound, NO_LEASE);
    let twice = txn(["a", "a"].map(|key| Some(Part::RequestPut(put(key, "")))));
    cases.refused(kv.txn(twice).await, invalid, DUPLICATE);
    let puts = |count| {
        txn((0..count).map(|number| Some(Part::RequestPut(put(&format!("key {number}"), "")))))
    };
    kv.txn(puts(128)).await.unwrap();
    let many = "etcdserver: too many operations in txn request";
    cases.refused(kv.txn(puts(129)).await, invalid, many);
    let large = put("large", &"x".repeat(3 << 19));
    cases.refused(kv.put(large).await, invalid, "etcdserver: request is too large");
    kv.put(put("large", &"x".repeat((3 << 19) - 64))).await.unwrap();
    let future = RangeRequest { revision: 99, ..get("a") };
    cases.refused(kv.range(future.clone()).await, Code::OutOfRange, FUTURE);
    cases.refused(kv.range_stream(future).await, Code::OutOfRange, FUTURE);
    let compaction = |revision| CompactionRequest { revision, physical: false };
    cases.refused(kv.compact(compaction(99)).await, Code::OutOfRange, FUTURE);
    kv.compact(compaction(3)).await.unwrap();
    cases.refused(kv.compact(compaction(3)).await, Code::OutOfRange, COMPACTED);
    let old = RangeRequest { revision: 2, ..get("a") };
    cases.refused(kv.range(old).await, Code::OutOfRange, COMPACTED);
    for (sort_order, sort_target) in [(9, 0), (0, 9)] {
        let sort = RangeRequest { sort_order, sort_target, ..get("a") };
        cases.refused(kv.range(sort.clone()).await, invalid, BAD_SORT);
        cases.refused(kv.txn(txn([Some(Part::RequestRange(sort))])).await, invalid, BAD_SORT);
    }
    assert_eq!(cases.0, 21);

    // Above the size of a message: rejected before it is decoded.
    let huge = kv.put(put("huge", &"x".repeat(3 << 20))).await.unwrap_err();
    assert!(matches!(huge.code(), Code::OutOfRange | Code::ResourceExhausted), "{huge:?}");
    assert_eq!(text(&member.range(get("key 7")).await.kvs[0].key), "key 7", "still serves");
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_and_maintenance_errors_have_etcds_texts() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    let (mut lease, mut maintenance) = (member.lease(), member.maintenance());
    let mut cases = Cases::default();
    cases.refused(lease.lease_revoke(LeaseRevokeRequest { id: 7 }).await, Code::NotFound, NO_LEASE);
    let grant = |id, ttl| LeaseGrantRequest { id, ttl };
    lease.lease_grant(grant(8, 60)).await.unwrap();
    let exists = "etcdserver: lease already exists";
    cases.refused(lease.lease_grant(grant(8, 60)).await, Code::FailedPrecondition, exists);
    let long = "etcdserver: too large lease TTL";
    cases.refused(lease.lease_grant(grant(0, 9_000_000_001)).await, Code::OutOfRange, long);
    let hash = |revision| HashKvRequest { revision };
    cases.refused(maintenance.hash_kv(hash(99)).await, Code::OutOfRange, FUTURE);
    let unknown = MoveLeaderRequest { target_id: 9 };
    let bad = "etcdserver: bad leader transferee";
    cases.refused(maintenance.move_leader(unknown).await, Code::FailedPrecondition, bad);
    for (version, text) in [
        ("3.5", "etcdserver: wrong downgrade target version format"),
        ("1", "etcdserver: invalid downgrade target version"),
    ] {
        let request = DowngradeRequest { version: version.into(), ..Default::default() };
        let refused = maintenance.downgrade(request).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, text));
    }
    assert_eq!(cases.0, 5);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_space_only_requests_that_add_data_are_refused() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    member.put("a", "x").await;
    let mut maintenance = member.maintenance();
    let alarm = |action: alarm_request::AlarmAction| AlarmRequest {
        action: action as i32,
        member_id: 1,
        alarm: AlarmType::Nospace as i32,
    };
    let raised = maintenance.alarm(alarm(alarm_request::AlarmAction::Activate)).await.unwrap();
    assert_eq!(raised.into_inner().alarms[0].member_id, 1);
    let listed = maintenance.alarm(AlarmRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.alarms.len(), 1);
    let status = maintenance.status(StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.errors, ["memberID:1 alarm:NOSPACE "]);

    let mut cases = Cases::default();
    let space = "etcdserver: mvcc: database space exceeded";
    cases.refused(member.kv().put(put("b", "x")).await, Code::ResourceExhausted, space);
    let grant = LeaseGrantRequest { id: 0, ttl: 60 };
    cases.refused(member.lease().lease_grant(grant).await, Code::ResourceExhausted, space);
    assert_eq!(cases.0, 2);
    assert_eq!(member.range(get("a")).await.count, 1);
    let deletion = DeleteRangeRequest { key: "a".into(), ..Default::default() };
    let deleted = within("it", member.kv().delete_range(deletion)).await.unwrap();
    assert_eq!(deleted.into_inner().deleted, 1);
    let compaction = CompactionRequest { revision: 2, physical: false };
    within("it", member.kv().compact(compaction)).await.unwrap();
    let disarmed = maintenance.alarm(alarm(alarm_request::AlarmAction::Deactivate)).await.unwrap();
    assert_eq!(disarmed.into_inner().alarms.len(), 1);
    member.put("b", "x").await;
    member.stop().await;
}
