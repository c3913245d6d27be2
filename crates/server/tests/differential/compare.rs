//! Sends requests to both servers, and compares the responses.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate_proto::etcdserverpb::kv_client::KvClient;
use quorate_proto::etcdserverpb::lease_client::LeaseClient;
use quorate_proto::etcdserverpb::watch_client::WatchClient;
use quorate_proto::etcdserverpb::watch_request::RequestUnion;
use quorate_proto::etcdserverpb::{
    LeaseLeasesRequest, PutRequest, ResponseHeader, WatchCreateRequest, WatchRequest, WatchResponse,
};
use quorate_proto::mvccpb::Event;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

use crate::random_requests::{RandomRequest, RandomRequests};
use crate::support::TEST_TIMEOUT;

/// etcd and this server, after the same requests.
pub(crate) struct Both {
    etcd: ServerClients,
    ours: ServerClients,
    /// The revision of both stores.
    pub(crate) revision: i64,
    pub(crate) compacted: i64,
    /// An etcd before 3.5 checks the operations of a transaction in another order, so that it may
    /// refuse it for another reason.
    pub(crate) old_etcd: bool,
}

/// The clients of one server.
pub(crate) struct ServerClients {
    pub(crate) channel: Channel,
    /// The token of the requests that follow.
    pub(crate) token: RequestToken,
    kv: KvClient<Authorized>,
    lease: LeaseClient<Authorized>,
    watch: WatchClient<Authorized>,
    watching: Option<OpenWatches>,
}

pub(crate) type Authorized = InterceptedService<Channel, RequestToken>;

/// Adds a token to requests, if there is one.
#[derive(Clone, Default)]
pub(crate) struct RequestToken(Arc<Mutex<Option<String>>>);

impl RequestToken {
    pub(crate) fn set(&self, token: Option<String>) {
        *self.0.lock().unwrap() = token;
    }
}

impl Interceptor for RequestToken {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &*self.0.lock().unwrap() {
            request.metadata_mut().insert("token", MetadataValue::try_from(token).unwrap());
        }
        Ok(request)
    }
}

struct OpenWatches {
    _requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
    logs: BTreeMap<i64, WatchLog>,
}

/// A response without ids and terms: its revision, and the rest as text.
pub(crate) type Comparable = Result<(i64, String), (i32, String)>;

const WATCHES: usize = 30;

impl Both {
    pub(crate) fn new(etcd: Channel, ours: Channel) -> Self {
        Self {
            etcd: ServerClients::new(etcd),
            ours: ServerClients::new(ours),
            revision: 1,
            compacted: -1,
            old_etcd: false,
        }
    }

    pub(crate) async fn send(&mut self, label: &str, request: RandomRequest) {
        let (etcd, ours) = tokio::join!(self.etcd.send(&request), self.ours.send(&request));
        let both_refuse = ours.is_err() && etcd.is_err();
        if self.old_etcd && both_refuse && matches!(request, RandomRequest::Txn(_)) {
            return;
        }
        assert_eq!(ours, etcd, "ours, then etcd; {label}, at {}: {request:?}", self.revision);
        if let Ok((revision, _)) = etcd {
            self.revision = self.revision.max(revision);
            if let RandomRequest::Compact(compaction) = request {
                self.compacted = compaction.revision;
            }
        }
    }

    pub(crate) async fn begin_watching(&mut self, random: &mut RandomRequests) {
        let everything =
            WatchCreateRequest { key: MARK.as_bytes().into(), ..WatchCreateRequest::default() };
        let mut create_requests = vec![everything];
        create_requests.extend((1..WATCHES).map(|_| random.watch()));
        for side in [&mut self.etcd, &mut self.ours] {
            side.begin_watching(&create_requests).await;
        }
    }

    /// Checks that every watch received the same events from both.
    pub(crate) async fn end_watching(&mut self, label: &str) {
        let put = PutRequest { key: MARK.as_bytes().into(), ..PutRequest::default() };
        self.send(label, RandomRequest::Put(put)).await;
        let (etcd, ours) = tokio::join!(self.etcd.end_watching(), self.ours.end_watching());
        let counts = |logs: &BTreeMap<i64, WatchLog>| -> usize {
            logs.values().map(|log| log.events.len()).sum()
        };
        assert!(counts(&etcd) > WATCHES, "the watches received events");
        assert_eq!(ours.len(), etcd.len());
        for (id, etcd) in &etcd {
            let ours = &ours[id];
            assert_eq!(ours.other_responses, etcd.other_responses, "watch {id}, {label}");
            for (ours, etcd) in ours.events.iter().zip(&etcd.events) {
                // A compaction may have deleted the previous value before it was read.
                let (mut ours, mut etcd) = (ours.clone(), etcd.clone());
                if ours.prev_kv.is_none() || etcd.prev_kv.is_none() {
                    (ours.prev_kv, etcd.prev_kv) = (None, None);
                }
                assert_eq!(ours, etcd, "watch {id}, {label}");
            }
            assert_eq!(ours.events.len(), etcd.events.len(), "watch {id}, {label}");
        }
    }
}

/// What one watch received.
#[derive(Default)]
struct WatchLog {
    /// Responses without events.
    other_responses: Vec<String>,
    events: Vec<Event>,
}

const MARK: &str = "no request is about this key";

impl ServerClients {
    pub(crate) fn new(channel: Channel) -> Self {
        let token = RequestToken::default();
        let service = InterceptedService::new(channel.clone(), token.clone());
        Self {
            channel,
            token,
            kv: KvClient::new(service.clone()),
            lease: LeaseClient::new(service.clone()),
            watch: WatchClient::new(service),
            watching: None,
        }
    }

    pub(crate) fn service(&self) -> Authorized {
        InterceptedService::new(self.channel.clone(), self.token.clone())
    }

    pub(crate) async fn send(&mut self, request: &RandomRequest) -> Comparable {
        let reply = tokio::time::timeout(TEST_TIMEOUT, self.send_without_timeout(request)).await;
        reply.unwrap_or_else(|_| panic!("no response to {request:?}"))
    }

    async fn send_without_timeout(&mut self, request: &RandomRequest) -> Comparable {
        let (kv, lease) = (&mut self.kv, &mut self.lease);
        match request.clone() {
            RandomRequest::Range(request) => {
                comparable(kv.range(request).await, |it| &mut it.header)
            }
            RandomRequest::Put(request) => comparable(kv.put(request).await, |it| &mut it.header),
            RandomRequest::Delete(request) => {
                comparable(kv.delete_range(request).await, |it| &mut it.header)
            }
            RandomRequest::Txn(request) => comparable(kv.txn(request).await, |it| &mut it.header),
            RandomRequest::Compact(request) => {
                comparable(kv.compact(request).await, |it| &mut it.header)
            }
            RandomRequest::Grant(request) => {
                comparable(lease.lease_grant(request).await, |it| &mut it.header)
            }
            RandomRequest::Revoke(request) => {
                comparable(lease.lease_revoke(request).await, |it| &mut it.header)
            }
            RandomRequest::TimeToLive(request) => {
                comparable(lease.lease_time_to_live(request).await, |it| {
                    if it.ttl > it.granted_ttl - 300 {
                        it.ttl = it.granted_ttl;
                    }
                    it.keys.sort();
                    &mut it.header
                })
            }
            RandomRequest::KeepAlive(request) => {
                let stream = lease.lease_keep_alive(tokio_stream::once(request)).await;
                let response = match stream {
                    Ok(stream) => stream.into_inner().message().await,
                    Err(status) => Err(status),
                };
                comparable(response.map(|response| Response::new(response.unwrap())), |it| {
                    &mut it.header
                })
            }
            RandomRequest::Leases => {
                comparable(lease.lease_leases(LeaseLeasesRequest {}).await, |it| {
                    it.leases.sort_by_key(|lease| lease.id);
                    &mut it.header
                })
            }
        }
    }

    async fn begin_watching(&mut self, create_requests: &[WatchCreateRequest]) {
        let (requests, stream) = mpsc::channel(WATCHES);
        for create in create_requests {
            let request_union = Some(RequestUnion::CreateRequest(create.clone()));
            requests.send(WatchRequest { request_union }).await.unwrap();
        }
        let responses = self.watch.watch(ReceiverStream::new(stream)).await.unwrap().into_inner();
        let mut watching = OpenWatches { _requests: requests, responses, logs: BTreeMap::new() };
        for _ in create_requests {
            let response = tokio::time::timeout(TEST_TIMEOUT, watching.responses.message()).await;
            watching.record(response.unwrap().unwrap().unwrap());
        }
        self.watching = Some(watching);
    }

    /// What every watch received up to the mark, by its id.
    async fn end_watching(&mut self) -> BTreeMap<i64, WatchLog> {
        let mut watching = self.watching.take().unwrap();
        let mut marked = false;
        loop {
            // Watches receive the last write in any order.
            let quiet = if marked { Duration::from_secs(1) } else { TEST_TIMEOUT };
            match tokio::time::timeout(quiet, watching.responses.message()).await {
                Ok(response) => marked |= watching.record(response.unwrap().unwrap()),
                Err(_) if marked => return watching.logs,
                Err(_) => panic!("the watch of the mark received nothing"),
            }
        }
    }
}

impl OpenWatches {
    /// Records a response. Returns whether it contains the mark.
    fn record(&mut self, mut response: WatchResponse) -> bool {
        let one = self.logs.entry(response.watch_id).or_default();
        let events = std::mem::take(&mut response.events);
        if events.is_empty() {
            clear(&mut response.header);
            one.other_responses.push(format!("{response:?}"));
        }
        let marked = events.iter().any(|it| it.kv.as_ref().unwrap().key == MARK.as_bytes());
        one.events.extend(events);
        marked
    }
}

pub(crate) fn comparable<T: Debug>(
    response: Result<Response<T>, Status>,
    header: impl FnOnce(&mut T) -> &mut Option<ResponseHeader>,
) -> Comparable {
    match response {
        Ok(response) => {
            let mut response = response.into_inner();
            let revision = clear(header(&mut response));
            Ok((revision, format!("{response:?}")))
        }
        Err(status) => Err((status.code() as i32, status.message().to_owned())),
    }
}

/// Removes ids and terms from a header. Returns the revision.
pub(crate) fn clear(header: &mut Option<ResponseHeader>) -> i64 {
    let Some(header) = header else { return 0 };
    *header = ResponseHeader { revision: header.revision, ..ResponseHeader::default() };
    header.revision
}
