//! The service Watch: every option, and the exact answers.

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

use crate::support::{Member, text, wait_for, within};

/// A client's end of a stream.
struct WatchStream {
    requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
}

impl WatchStream {
    async fn open(member: &Member) -> Self {
        let (requests, stream) = mpsc::channel(16);
        let mut request = Request::new(ReceiverStream::new(stream));
        request.metadata_mut().insert("hasleader", "true".parse().unwrap());
        let responses = within("a stream", member.watch().watch(request)).await.unwrap();
        Self { requests, responses: responses.into_inner() }
    }

    async fn ask(&self, union: RequestUnion) {
        self.requests.send(WatchRequest { request_union: Some(union) }).await.unwrap();
    }

    async fn next(&mut self) -> WatchResponse {
        within("a response", self.responses.message()).await.unwrap().unwrap()
    }

    async fn create(&mut self, request: WatchCreateRequest) -> WatchResponse {
        self.ask(RequestUnion::CreateRequest(request)).await;
        self.next().await
    }

    async fn end(mut self) -> Status {
        within("the end", self.responses.message()).await.unwrap_err()
    }
}

fn of(key: &str) -> WatchCreateRequest {
    WatchCreateRequest { key: key.to_owned().into(), ..Default::default() }
}

fn all() -> WatchCreateRequest {
    WatchCreateRequest { range_end: "\0".into(), ..of("") }
}

/// Each event as `put key=value` or `delete key`.
fn told(response: &WatchResponse) -> Vec<String> {
    let event = |event: &quorate_proto::mvccpb::Event| {
        let kv = event.kv.as_ref().unwrap();
        match event.r#type {
            0 => format!("put {}={}", text(&kv.key), text(&kv.value)),
            _ => format!("delete {}", text(&kv.key)),
        }
    };
    response.events.iter().map(event).collect()
}

async fn delete(member: &Member, key: &str) {
    let request = DeleteRangeRequest { key: key.to_owned().into(), ..Default::default() };
    within("it", member.kv().delete_range(request)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_hear_what_they_asked_for() {
    let member = Member::alone(ServiceLimits::default()).await;
    let mut talk = WatchStream::open(&member).await;
    let created = talk.create(of("a")).await;
    let header = created.header.unwrap();
    assert!(created.created && !created.canceled && created.events.is_empty());
    assert_eq!((created.watch_id, header.revision, header.member_id), (0, 1, 1));

    let revision = member.put("a", "1").await;
    member.put("b", "2").await;
    let response = talk.next().await;
    assert_eq!((response.watch_id, told(&response)), (0, vec!["put a=1".into()]));
    assert_eq!(response.header.unwrap().revision, revision);

    // The server's choice, the client's, and one that is taken.
    assert_eq!(talk.create(WatchCreateRequest { watch_id: -1, ..of("c") }).await.watch_id, 1);
    assert_eq!(talk.create(WatchCreateRequest { watch_id: 9, ..of("c") }).await.watch_id, 9);
    let taken = talk.create(WatchCreateRequest { watch_id: 9, ..of("c") }).await;
    assert_eq!((taken.watch_id, taken.created, taken.canceled), (-1, true, true));
    assert_eq!(taken.cancel_reason, "mvcc: duplicate watch ID provided on the WatchStream");
    let empty = talk.create(WatchCreateRequest { range_end: "a".into(), ..of("b") }).await;
    assert_eq!((empty.watch_id, empty.canceled), (-1, true));
    assert_eq!(empty.cancel_reason, "mvcc: watcher range is empty");
    let past = talk.create(WatchCreateRequest { start_revision: -1, ..of("c") }).await;
    assert_eq!((past.watch_id, past.created, past.canceled), (-1, true, true));

    // One write, two watches; then only one of them.
    member.put("c", "3").await;
    let mut ids = [talk.next().await.watch_id, talk.next().await.watch_id];
    ids.sort_unstable();
    assert_eq!(ids, [1, 9]);
    talk.ask(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: 9 })).await;
    let canceled = talk.next().await;
    assert_eq!((canceled.watch_id, canceled.canceled, canceled.created), (9, true, false));
    assert_eq!((canceled.compact_revision, &canceled.cancel_reason[..]), (0, ""));
    // Nothing is said about what is not there.
    talk.ask(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: 9 })).await;
    member.put("c", "4").await;
    assert_eq!(talk.next().await.watch_id, 1);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_and_previous_values() {
    let member = Member::alone(ServiceLimits::default()).await;
    let mut talk = WatchStream::open(&member).await;
    let only = |filter: FilterType, watch_id| WatchCreateRequest {
        filters: vec![filter as i32],
        watch_id,
        prev_kv: true,
        ..all()
    };
    talk.create(only(FilterType::Noput, 1)).await;
    talk.create(only(FilterType::Nodelete, 2)).await;
    member.put("a", "1").await;
    let put = talk.next().await;
    assert_eq!((put.watch_id, told(&put)), (2, vec!["put a=1".into()]));
    assert_eq!(put.events[0].prev_kv, None);
    delete(&member, "a").await;
    let deletion = talk.next().await;
    assert_eq!((deletion.watch_id, told(&deletion)), (1, vec!["delete a".into()]));
    assert_eq!(text(&deletion.events[0].prev_kv.as_ref().unwrap().value), "1");
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_is_told_from_any_revision_that_is_left() {
    let member = Member::alone(ServiceLimits::default()).await;
    for number in 1..=5 {
        member.put("a", &number.to_string()).await;
    }
    let mut talk = WatchStream::open(&member).await;
    talk.create(WatchCreateRequest { start_revision: 3, ..of("a") }).await;
    let mut heard = Vec::new();
    while heard.len() < 4 {
        heard.extend(told(&talk.next().await));
    }
    assert_eq!(heard, ["put a=2", "put a=3", "put a=4", "put a=5"]);

    // What is to come is not told before.
    talk.create(WatchCreateRequest { start_revision: 8, watch_id: 7, ..of("b") }).await;
    member.put("b", "7").await;
    member.put("b", "8").await;
    let later = talk.next().await;
    assert_eq!((later.watch_id, told(&later)), (7, vec!["put b=8".into()]));

    let compaction = CompactionRequest { revision: 5, physical: false };
    within("it", member.kv().compact(compaction)).await.unwrap();
    let created = talk.create(WatchCreateRequest { start_revision: 4, ..of("a") }).await;
    assert!(created.created && !created.canceled);
    let canceled = talk.next().await;
    assert_eq!((canceled.watch_id, canceled.canceled), (created.watch_id, true));
    assert_eq!((canceled.compact_revision, canceled.events.len()), (5, 0));
    let reason = "etcdserver: mvcc: required revision has been compacted";
    assert_eq!(canceled.cancel_reason, reason);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_revisions_come_in_fragments_if_asked() {
    let limits = ServiceLimits { request_bytes_max: 1 << 20, ..ServiceLimits::default() };
    let member = Member::alone(limits).await;
    let value = "v".repeat(700 << 10);
    for key in ["a", "b", "c", "d"] {
        member.put(key, &value).await;
    }
    let mut talk = WatchStream::open(&member).await;
    let watch = WatchCreateRequest { start_revision: 5, watch_id: 1, ..all() };
    talk.create(WatchCreateRequest { fragment: true, prev_kv: true, ..watch.clone() }).await;
    // Four keys go in one revision, with what they were: some 2.8 MB.
    assert_eq!(talk.next().await.events.len(), 1);
    let request = DeleteRangeRequest { key: "a".into(), range_end: "z".into(), prev_kv: false };
    within("it", member.kv().delete_range(request)).await.unwrap();
    let pieces = [talk.next().await, talk.next().await];
    assert_eq!(
        pieces.each_ref().map(|piece| (piece.fragment, piece.events.len())),
        [(true, 2), (false, 2)]
    );
    let mut whole = WatchStream::open(&member).await;
    whole.create(WatchCreateRequest { start_revision: 6, prev_kv: true, ..watch }).await;
    let response = whole.next().await;
    assert_eq!((response.fragment, response.events.len()), (false, 4));
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_is_told_when_asked_and_now_and_then() {
    let limits = ServiceLimits {
        watch_progress_interval: Duration::from_millis(300),
        ..ServiceLimits::default()
    };
    let member = Member::alone(limits).await;
    let mut talk = WatchStream::open(&member).await;
    talk.create(of("a")).await;
    let revision = member.put("b", "1").await;
    talk.ask(RequestUnion::ProgressRequest(WatchProgressRequest {})).await;
    let progress = talk.next().await;
    assert_eq!((progress.watch_id, progress.events.len()), (-1, 0));
    assert_eq!(progress.header.unwrap().revision, revision);

    talk.create(WatchCreateRequest { progress_notify: true, watch_id: 5, ..of("a") }).await;
    let revision = member.put("b", "2").await;
    let mut progress = talk.next().await;
    while progress.header.unwrap().revision < revision {
        progress = talk.next().await;
    }
    assert_eq!((progress.watch_id, progress.events.len()), (5, 0));
    assert!(!progress.created && !progress.canceled);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_client_misses_nothing_and_a_gone_one_leaves_nothing() {
    let member = Member::alone(ServiceLimits::default()).await;
    let mut talk = WatchStream::open(&member).await;
    talk.create(all()).await;
    // Far more than what waits in buffers: nobody reads meanwhile.
    let value = "v".repeat(100 << 10);
    for number in 0..300 {
        member.put(&format!("key {number:03}"), &value).await;
    }
    let mut heard = Vec::new();
    while heard.len() < 300 {
        let response = talk.next().await;
        heard.extend(response.events.into_iter().map(|event| text(&event.kv.unwrap().key)));
    }
    let expected: Vec<String> = (0..300).map(|number| format!("key {number:03}")).collect();
    assert_eq!(heard, expected);
    let mut second = WatchStream::open(&member).await;
    for _ in 0..100 {
        second.create(of("a")).await;
    }
    assert_eq!(member.watchers(), 101);
    drop(second);
    wait_for("its watches gone", async || member.watchers() == 1).await;
    // When the server stops, streams end and say so.
    member.context.close();
    let end = talk.end().await;
    assert_eq!((end.code(), end.message()), (Code::Unavailable, "etcdserver: server stopped"));
    member.stop().await;
}
