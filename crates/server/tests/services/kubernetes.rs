//! The requests that Kubernetes' API server sends to etcd.

use quorate_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use quorate_proto::etcdserverpb::request_op::Request;
use quorate_proto::etcdserverpb::response_op::Response;
use quorate_proto::etcdserverpb::watch_request::RequestUnion;
use quorate_proto::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp,
    TxnRequest, TxnResponse, WatchCreateRequest, WatchProgressRequest,
};
use quorate_server::ServiceLimits;
use tonic::Code;

use crate::support::{ServiceMember, from, get, put, text, within};
use crate::watches::{WatchClientStream, events};

fn operation(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// The condition of an optimistic update: the key was not written since this revision.
fn unchanged_since(key: &str, revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal as i32,
        target: CompareTarget::Mod as i32,
        key: key.to_owned().into(),
        target_union: Some(TargetUnion::ModRevision(revision)),
        ..Compare::default()
    }
}

/// Creates, updates or deletes a key if its revision is still this one; otherwise reads it.
fn guarded(key: &str, revision: i64, request: Request) -> TxnRequest {
    TxnRequest {
        compare: vec![unchanged_since(key, revision)],
        success: vec![operation(request)],
        failure: vec![operation(Request::RequestRange(get(key)))],
    }
}

async fn send(member: &ServiceMember, txn: TxnRequest) -> TxnResponse {
    within("a transaction", member.kv().txn(txn)).await.unwrap().into_inner()
}

fn revision(response: &TxnResponse) -> i64 {
    response.header.as_ref().unwrap().revision
}

/// The value that a refused update has read.
fn current(response: &TxnResponse) -> Option<String> {
    match &response.responses[0].response {
        Some(Response::ResponseRange(range)) => range.kvs.first().map(|kv| text(&kv.value)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_are_optimistic() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    let key = "/registry/pods/a";
    let write = |value: &str| Request::RequestPut(put(key, value));
    let created = send(&member, guarded(key, 0, write("1"))).await;
    assert!(created.succeeded);
    let again = send(&member, guarded(key, 0, write("2"))).await;
    assert_eq!((again.succeeded, current(&again)), (false, Some("1".into())));
    let updated = send(&member, guarded(key, revision(&created), write("2"))).await;
    assert!(updated.succeeded && revision(&updated) > revision(&created));
    let deletion = || {
        let key = key.to_owned().into();
        Request::RequestDeleteRange(DeleteRangeRequest { key, prev_kv: true, ..Default::default() })
    };
    let stale = send(&member, guarded(key, revision(&created), deletion())).await;
    assert_eq!((stale.succeeded, current(&stale)), (false, Some("2".into())));
    let deleted = send(&member, guarded(key, revision(&updated), deletion())).await;
    assert!(deleted.succeeded);
    match &deleted.responses[0].response {
        Some(Response::ResponseDeleteRange(done)) => {
            assert_eq!((done.deleted, text(&done.prev_kvs[0].value)), (1, "2".into()));
        }
        other => panic!("{other:?}"),
    }
    let gone = send(&member, guarded(key, revision(&updated), write("3"))).await;
    assert_eq!((gone.succeeded, current(&gone)), (false, None));
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_a_list_are_of_one_revision() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    for number in 0..7 {
        member.put(&format!("/registry/pods/{number}"), "old").await;
    }
    let first = RangeRequest { limit: 3, ..from("/registry/pods/", "/registry/pods0") };
    let page = member.range(first.clone()).await;
    let pinned = page.header.as_ref().unwrap().revision;
    assert_eq!((page.kvs.len(), page.count, page.more), (3, 7, true));
    // Meanwhile objects change, appear and disappear.
    member.put("/registry/pods/5", "new").await;
    member.put("/registry/pods/45", "new").await;
    let deletion = DeleteRangeRequest { key: "/registry/pods/6".into(), ..Default::default() };
    within("it", member.kv().delete_range(deletion)).await.unwrap();
    let mut listed: Vec<String> = page.kvs.iter().map(|kv| text(&kv.value)).collect();
    let mut page = page;
    let mut counts = Vec::new();
    while page.more {
        let mut next = page.kvs.last().unwrap().key.to_vec();
        next.push(0);
        let request = RangeRequest { key: next.into(), revision: pinned, ..first.clone() };
        page = member.range(request).await;
        assert!(page.header.as_ref().unwrap().revision > pinned);
        counts.push(page.count);
        listed.extend(page.kvs.iter().map(|kv| text(&kv.value)));
    }
    assert_eq!((listed, counts), (vec!["old".to_owned(); 7], vec![4, 1]));
    // A page of a revision that was compacted: the list has to start again.
    let newest = member.put("/registry/pods/0", "new").await;
    let compaction = CompactionRequest { revision: newest, physical: false };
    within("it", member.kv().compact(compaction)).await.unwrap();
    let request = RangeRequest { revision: pinned, ..first.clone() };
    let refused = within("it", member.kv().range(request)).await.unwrap_err();
    let expected = "etcdserver: mvcc: required revision has been compacted";
    assert_eq!((refused.code(), refused.message()), (Code::OutOfRange, expected));
    // How many objects there are.
    let count = RangeRequest { count_only: true, ..from("/registry/pods/", "/registry/pods0") };
    assert_eq!(member.range(count).await.count, 7);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_continues_a_list_and_reports_its_progress() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    let listed = member.put("/registry/pods/a", "1").await;
    member.put("/registry/pods/a", "2").await;
    let mut stream = WatchClientStream::open(&member).await;
    let create = WatchCreateRequest {
        key: "/registry/pods/".into(),
        range_end: "/registry/pods0".into(),
        start_revision: listed + 1,
        prev_kv: true,
        progress_notify: true,
        ..WatchCreateRequest::default()
    };
    assert!(stream.create(create).await.created);
    let changed = stream.next().await;
    assert_eq!(events(&changed), ["put /registry/pods/a=2"]);
    assert_eq!(text(&changed.events[0].prev_kv.as_ref().unwrap().value), "1");
    // Writes of other objects: a bookmark says up to where the watch is complete.
    let newest = member.put("/registry/nodes/n", "1").await;
    stream.send(RequestUnion::ProgressRequest(WatchProgressRequest {})).await;
    let bookmark = stream.next().await;
    assert_eq!((bookmark.watch_id, bookmark.events.len()), (-1, 0));
    assert_eq!(bookmark.header.unwrap().revision, newest);
    member.stop().await;
}

/// The compactor of the API servers: the one whose transaction succeeds compacts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_api_server_compacts() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    let key = "compact_rev_key";
    let turn = |version: i64, revision: i64| {
        let mut txn = guarded(
            key,
            0,
            Request::RequestPut(PutRequest {
                key: key.into(),
                value: revision.to_string().into(),
                ..PutRequest::default()
            }),
        );
        txn.compare[0].target = CompareTarget::Version as i32;
        txn.compare[0].target_union = Some(TargetUnion::Version(version));
        txn
    };
    let written = member.put("/registry/pods/a", "1").await;
    let won = send(&member, turn(0, written)).await;
    let lost = send(&member, turn(0, written)).await;
    assert_eq!((won.succeeded, lost.succeeded), (true, false));
    assert_eq!(current(&lost), Some(written.to_string()));
    for (expected, result) in [(true, written), (false, written)] {
        let compaction = CompactionRequest { revision: result, physical: false };
        let done = within("it", member.kv().compact(compaction)).await;
        assert_eq!(done.is_ok(), expected);
    }
    let next = send(&member, turn(1, revision(&won))).await;
    assert!(next.succeeded);
    member.stop().await;
}
