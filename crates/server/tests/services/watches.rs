//! The service Watch: every option, and the exact responses.

use std::time::Duration;

use quorate_proto::etcdserverpb::watch_create_request::FilterType;
use quorate_proto::etcdserverpb::watch_request::RequestUnion;
use quorate_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, WatchCancelRequest, WatchCreateRequest,
    WatchProgressRequest, WatchRequest, WatchResponse,
};
use quorate_server::ServiceLimits;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming};

use crate::support::{ServiceMember, text, wait_for, within};

/// The client side of a stream.
pub(crate) struct WatchClientStream {
    requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
}

impl WatchClientStream {
    pub(crate) async fn open(member: &ServiceMember) -> Self {
        let (requests, receiver) = mpsc::channel(16);
        let mut request = Request::new(ReceiverStream::new(receiver));
        request.metadata_mut().insert("hasleader", "true".parse().unwrap());
        let responses = within("a stream", member.watch().watch(request)).await.unwrap();
        Self { requests, responses: responses.into_inner() }
    }

    pub(crate) async fn send(&self, union: RequestUnion) {
        self.requests.send(WatchRequest { request_union: Some(union) }).await.unwrap();
    }

    pub(crate) async fn next(&mut self) -> WatchResponse {
        within("a response", self.responses.message()).await.unwrap().unwrap()
    }

    pub(crate) async fn create(&mut self, request: WatchCreateRequest) -> WatchResponse {
        self.send(RequestUnion::CreateRequest(request)).await;
        self.next().await
    }

    async fn end(mut self) -> Status {
        within("the end", self.responses.message()).await.unwrap_err()
    }
}

pub(crate) fn watch_of(key: &str) -> WatchCreateRequest {
    WatchCreateRequest { key: key.to_owned().into(), ..Default::default() }
}

fn all() -> WatchCreateRequest {
    WatchCreateRequest { range_end: "\0".into(), ..watch_of("") }
}

/// Each event as `put key=value` or `delete key`.
pub(crate) fn events(response: &WatchResponse) -> Vec<String> {
    let describe = |event: &quorate_proto::mvccpb::Event| {
        let kv = event.kv.as_ref().unwrap();
        match event.r#type {
            0 => format!("put {}={}", text(&kv.key), text(&kv.value)),
            _ => format!("delete {}", text(&kv.key)),
        }
    };
    response.events.iter().map(describe).collect()
}

async fn delete(member: &ServiceMember, key: &str) {
    let request = DeleteRangeRequest { key: key.to_owned().into(), ..Default::default() };
    within("it", member.kv().delete_range(request)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_receive_their_events() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    let mut stream = WatchClientStream::open(&member).await;
    let created = stream.create(watch_of("a")).await;
    let header = created.header.unwrap();
    assert!(created.created && !created.canceled && created.events.is_empty());
    assert_eq!((created.watch_id, header.revision, header.member_id), (0, 1, 1));

    let revision = member.put("a", "1").await;
    member.put("b", "2").await;
    let response = stream.next().await;
    assert_eq!((response.watch_id, events(&response)), (0, vec!["put a=1".into()]));
    assert_eq!(response.header.unwrap().revision, revision);

    // An id of the server's choice, of the client's choice, and a duplicate.
    assert_eq!(
        stream.create(WatchCreateRequest { watch_id: -1, ..watch_of("c") }).await.watch_id,
        1
    );
    assert_eq!(
        stream.create(WatchCreateRequest { watch_id: 9, ..watch_of("c") }).await.watch_id,
        9
    );
    let taken = stream.create(WatchCreateRequest { watch_id: 9, ..watch_of("c") }).await;
    assert_eq!((taken.watch_id, taken.created, taken.canceled), (-1, true, true));
    assert_eq!(taken.cancel_reason, "mvcc: duplicate watch ID provided on the WatchStream");
    let empty = stream.create(WatchCreateRequest { range_end: "a".into(), ..watch_of("b") }).await;
    assert_eq!((empty.watch_id, empty.canceled), (-1, true));
    assert_eq!(empty.cancel_reason, "mvcc: watcher range is empty");
    let past = stream.create(WatchCreateRequest { start_revision: -1, ..watch_of("c") }).await;
    assert_eq!((past.watch_id, past.created, past.canceled), (-1, true, true));

    // One write, two watches; then only one of them.
    member.put("c", "3").await;
    let mut ids = [stream.next().await.watch_id, stream.next().await.watch_id];
    ids.sort_unstable();
    assert_eq!(ids, [1, 9]);
    stream.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: 9 })).await;
    let canceled = stream.next().await;
    assert_eq!((canceled.watch_id, canceled.canceled, canceled.created), (9, true, false));
    assert_eq!((canceled.compact_revision, &canceled.cancel_reason[..]), (0, ""));
    // Cancelling an unknown watch gets no response.
    stream.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: 9 })).await;
    member.put("c", "4").await;
    assert_eq!(stream.next().await.watch_id, 1);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_and_previous_values() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    let mut stream = WatchClientStream::open(&member).await;
    let only = |filter: FilterType, watch_id| WatchCreateRequest {
        filters: vec![filter as i32],
        watch_id,
        prev_kv: true,
        ..all()
    };
    stream.create(only(FilterType::Noput, 1)).await;
    stream.create(only(FilterType::Nodelete, 2)).await;
    member.put("a", "1").await;
    let put = stream.next().await;
    assert_eq!((put.watch_id, events(&put)), (2, vec!["put a=1".into()]));
    assert_eq!(put.events[0].prev_kv, None);
    delete(&member, "a").await;
    let deletion = stream.next().await;
    assert_eq!((deletion.watch_id, events(&deletion)), (1, vec!["delete a".into()]));
    assert_eq!(text(&deletion.events[0].prev_kv.as_ref().unwrap().value), "1");
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_is_sent_from_any_revision_that_is_not_compacted() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    for number in 1..=5 {
        member.put("a", &number.to_string()).await;
    }
    let mut stream = WatchClientStream::open(&member).await;
    stream.create(WatchCreateRequest { start_revision: 3, ..watch_of("a") }).await;
    let mut received = Vec::new();
    while received.len() < 4 {
        received.extend(events(&stream.next().await));
    }
    assert_eq!(received, ["put a=2", "put a=3", "put a=4", "put a=5"]);

    // A watch from a future revision gets no earlier events.
    stream.create(WatchCreateRequest { start_revision: 8, watch_id: 7, ..watch_of("b") }).await;
    member.put("b", "7").await;
    member.put("b", "8").await;
    let later = stream.next().await;
    assert_eq!((later.watch_id, events(&later)), (7, vec!["put b=8".into()]));

    let compaction = CompactionRequest { revision: 5, physical: false };
    within("it", member.kv().compact(compaction)).await.unwrap();
    let created = stream.create(WatchCreateRequest { start_revision: 4, ..watch_of("a") }).await;
    assert!(created.created && !created.canceled);
    let canceled = stream.next().await;
    assert_eq!((canceled.watch_id, canceled.canceled), (created.watch_id, true));
    assert_eq!((canceled.compact_revision, canceled.events.len()), (5, 0));
    // As etcd's: clients know from the revision why it ended.
    assert_eq!((canceled.cancel_reason.as_str(), canceled.header.unwrap().revision), ("", 0));
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_catches_up_is_told_the_revision_of_the_store() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    for number in 1..=3 {
        member.put("a", &number.to_string()).await;
    }
    let newest = member.put("b", "1").await;
    let mut stream = WatchClientStream::open(&member).await;
    stream.create(WatchCreateRequest { start_revision: 2, ..watch_of("a") }).await;
    let response = stream.next().await;
    assert_eq!(events(&response), ["put a=1", "put a=2", "put a=3"]);
    assert_eq!(response.header.unwrap().revision, newest);
    // From now on it is that of the event.
    let revision = member.put("a", "4").await;
    let response = stream.next().await;
    assert_eq!(
        (events(&response), response.header.unwrap().revision),
        (vec!["put a=4".into()], revision)
    );
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_revisions_are_sent_in_fragments_on_request() {
    let limits = ServiceLimits { request_bytes_max: 1 << 20, ..ServiceLimits::default() };
    let member = ServiceMember::single(limits).await;
    let value = "v".repeat(700 << 10);
    for key in ["a", "b", "c", "d"] {
        member.put(key, &value).await;
    }
    let mut stream = WatchClientStream::open(&member).await;
    let watch = WatchCreateRequest { start_revision: 5, watch_id: 1, ..all() };
    stream.create(WatchCreateRequest { fragment: true, prev_kv: true, ..watch.clone() }).await;
    // Four keys are deleted in one revision, with their previous values: about 2.8 MB.
    assert_eq!(stream.next().await.events.len(), 1);
    let request = DeleteRangeRequest { key: "a".into(), range_end: "z".into(), prev_kv: false };
    within("it", member.kv().delete_range(request)).await.unwrap();
    let pieces = [stream.next().await, stream.next().await];
    assert_eq!(
        pieces.each_ref().map(|piece| (piece.fragment, piece.events.len())),
        [(true, 2), (false, 2)]
    );
    let mut whole = WatchClientStream::open(&member).await;
    whole.create(WatchCreateRequest { start_revision: 6, prev_kv: true, ..watch }).await;
    let response = whole.next().await;
    assert_eq!((response.fragment, response.events.len()), (false, 4));
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_is_sent_on_request_and_periodically() {
    let limits = ServiceLimits {
        watch_progress_interval: Duration::from_millis(300),
        ..ServiceLimits::default()
    };
    let member = ServiceMember::single(limits).await;
    let mut stream = WatchClientStream::open(&member).await;
    stream.create(watch_of("a")).await;
    let revision = member.put("b", "1").await;
    stream.send(RequestUnion::ProgressRequest(WatchProgressRequest {})).await;
    let progress = stream.next().await;
    assert_eq!((progress.watch_id, progress.events.len()), (-1, 0));
    assert_eq!(progress.header.unwrap().revision, revision);

    stream.create(WatchCreateRequest { progress_notify: true, watch_id: 5, ..watch_of("a") }).await;
    let revision = member.put("b", "2").await;
    let mut progress = stream.next().await;
    while progress.header.unwrap().revision < revision {
        progress = stream.next().await;
    }
    assert_eq!((progress.watch_id, progress.events.len()), (5, 0));
    assert!(!progress.created && !progress.canceled);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_client_misses_no_event_and_a_closed_stream_leaves_no_watch() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    let mut stream = WatchClientStream::open(&member).await;
    stream.create(all()).await;
    // Far more than the buffers hold, and the client does not read meanwhile.
    let value = "v".repeat(100 << 10);
    for number in 0..300 {
        member.put(&format!("key {number:03}"), &value).await;
    }
    let mut received = Vec::new();
    while received.len() < 300 {
        let response = stream.next().await;
        received.extend(response.events.into_iter().map(|event| text(&event.kv.unwrap().key)));
    }
    let expected: Vec<String> = (0..300).map(|number| format!("key {number:03}")).collect();
    assert_eq!(received, expected);
    let mut second = WatchClientStream::open(&member).await;
    for _ in 0..100 {
        second.create(watch_of("a")).await;
    }
    assert_eq!(member.watchers(), 101);
    drop(second);
    wait_for("its watches gone", async || member.watchers() == 1).await;
    // When the server stops, streams end with that error.
    member.context.close();
    let end = stream.end().await;
    assert_eq!((end.code(), end.message()), (Code::Unavailable, "etcdserver: server stopped"));
    member.stop().await;
}
