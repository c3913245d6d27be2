//! Fixed requests whose answers once differed from etcd's.

use std::time::Duration;

use quorate_proto::etcdserverpb::alarm_request::AlarmAction;
use quorate_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use quorate_proto::etcdserverpb::kv_client::KvClient;
use quorate_proto::etcdserverpb::lease_client::LeaseClient;
use quorate_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quorate_proto::etcdserverpb::watch_client::WatchClient;
use quorate_proto::etcdserverpb::watch_request::RequestUnion;
use quorate_proto::etcdserverpb::{
    AlarmRequest, AlarmType, CompactionRequest, Compare, LeaseGrantRequest, LeaseLeasesRequest,
    LeaseTimeToLiveRequest, PutRequest, ResponseHeader, StatusRequest, TxnRequest,
    WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};

use crate::support::{TEST_TIMEOUT, http_get};

/// What one server answered, line by line, without ids and terms.
pub(crate) async fn answers(channel: Channel, address: std::net::SocketAddr) -> Vec<String> {
    let mut answers = Vec::new();
    comparisons(&channel, &mut answers).await;
    leases(&channel, &mut answers).await;
    watches(&channel, &mut answers).await;
    alarms(&channel, &mut answers).await;
    let status = MaintenanceClient::new(channel).status(StatusRequest {}).await.unwrap();
    answers.push(format!("the size is positive: {}", status.into_inner().db_size > 0));
    for page in ["/livez", "/livez?verbose", "/livez/serializable_read", "/livez/nope", "/readyz"] {
        let (line, body) = http_get(address, page).await;
        answers.push(format!("{page}: {line} {body:?}"));
    }
    answers
}

/// Numbers that are no operators and no targets.
async fn comparisons(channel: &Channel, answers: &mut Vec<String>) {
    let mut kv = KvClient::new(channel.clone());
    let put = PutRequest { key: "a".into(), value: "1".into(), ..PutRequest::default() };
    kv.put(put).await.unwrap();
    for key in ["a", "absent"] {
        for result in [0, 1, 2, 3, 77] {
            for target in [0, 1, 2, 3, 4, 99] {
                let target_union =
                    (target == CompareTarget::Value as i32).then(|| TargetUnion::Value("1".into()));
                let compare =
                    Compare { result, target, key: key.into(), target_union, ..Default::default() };
                let txn = TxnRequest { compare: vec![compare], ..TxnRequest::default() };
                let succeeded = kv.txn(txn).await.unwrap().into_inner().succeeded;
                answers.push(format!("compare {key} {result} {target}: {succeeded}"));
            }
        }
    }
    assert!(CompareResult::try_from(77).is_err() && CompareTarget::try_from(99).is_err());
}

/// Listed by their end; the time left is below the TTL at once.
async fn leases(channel: &Channel, answers: &mut Vec<String>) {
    let mut lease = LeaseClient::new(channel.clone());
    for (id, ttl) in [(5, 900), (9, 300), (1, 600)] {
        lease.lease_grant(LeaseGrantRequest { id, ttl }).await.unwrap();
    }
    let listed = lease.lease_leases(LeaseLeasesRequest {}).await.unwrap().into_inner().leases;
    let ids: Vec<i64> = listed.iter().map(|lease| lease.id).collect();
    answers.push(format!("leases {ids:?}"));
    let request = LeaseTimeToLiveRequest { id: 5, keys: false };
    let left = lease.lease_time_to_live(request).await.unwrap().into_inner();
    answers.push(format!("time left below the TTL: {}", left.ttl < left.granted_ttl));
}

async fn watches(channel: &Channel, answers: &mut Vec<String>) {
    let mut kv = KvClient::new(channel.clone());
    for number in 0..5 {
        let value = number.to_string().into();
        kv.put(PutRequest { key: "w".into(), value, ..PutRequest::default() }).await.unwrap();
    }
    let revision = kv.put(put("other")).await.unwrap().into_inner().header.unwrap().revision;
    // No watch, no progress: the answer to the second request comes first.
    let progress = RequestUnion::ProgressRequest(WatchProgressRequest {});
    let mut watch = OpenStream::open(channel, [progress, create("w", revision - 4)]).await;
    answers.push(watch.next().await);
    answers.push(watch.next().await);
    kv.put(put("w")).await.unwrap();
    answers.push(watch.next().await);
    watch.send(RequestUnion::ProgressRequest(WatchProgressRequest {})).await;
    answers.push(watch.next().await);
    watch.send(create("w", -1)).await;
    answers.push(watch.next().await);
    let compaction = CompactionRequest { revision, physical: true };
    kv.compact(compaction).await.unwrap();
    watch.send(create("w", revision - 3)).await;
    answers.push(watch.next().await);
    answers.push(watch.next().await);
}

async fn alarms(channel: &Channel, answers: &mut Vec<String>) {
    let mut maintenance = MaintenanceClient::new(channel.clone());
    for action in
        [AlarmAction::Get, AlarmAction::Activate, AlarmAction::Get, AlarmAction::Deactivate]
    {
        let request =
            AlarmRequest { action: action as i32, member_id: 7, alarm: AlarmType::Nospace as i32 };
        let answer = maintenance.alarm(request).await;
        answers.push(described(answer.map(|answer| {
            answer.map(|mut answer| {
                clear(&mut answer.header);
                format!("{answer:?}")
            })
        })));
    }
}

fn put(key: &str) -> PutRequest {
    PutRequest { key: key.to_owned().into(), value: "x".into(), ..PutRequest::default() }
}

fn described(answer: Result<Response<String>, Status>) -> String {
    match answer {
        Ok(answer) => answer.into_inner(),
        Err(status) => format!("{:?} {}", status.code(), status.message()),
    }
}

/// Ids and terms differ.
fn clear(header: &mut Option<ResponseHeader>) {
    if let Some(header) = header {
        *header = ResponseHeader { revision: header.revision, ..ResponseHeader::default() };
    }
}

struct OpenStream {
    requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
}

impl OpenStream {
    /// etcd answers a call only with its first response, so that the first requests come first.
    async fn open(channel: &Channel, first: [RequestUnion; 2]) -> Self {
        let (requests, stream) = mpsc::channel(8);
        for request in first {
            requests.send(WatchRequest { request_union: Some(request) }).await.unwrap();
        }
        let mut watch = WatchClient::new(channel.clone());
        let responses = watch.watch(ReceiverStream::new(stream)).await.unwrap().into_inner();
        Self { requests, responses }
    }

    async fn send(&self, request: RequestUnion) {
        self.requests.send(WatchRequest { request_union: Some(request) }).await.unwrap();
        // etcd answers requests and events from different tasks.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    async fn next(&mut self) -> String {
        let response = tokio::time::timeout(TEST_TIMEOUT, self.responses.message()).await;
        let mut response = response.unwrap().unwrap().unwrap();
        clear(&mut response.header);
        format!("{response:?}")
    }
}

fn create(key: &str, start_revision: i64) -> RequestUnion {
    let key = key.to_owned().into();
    let default = WatchCreateRequest::default();
    RequestUnion::CreateRequest(WatchCreateRequest { key, start_revision, ..default })
}
