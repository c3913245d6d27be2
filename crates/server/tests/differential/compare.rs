//! Asks both, and compares what they say.

use std::collections::BTreeMap;
use std::fmt::Debug;
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
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};

use crate::random_requests::{Asked, Draw};
use crate::support::PATIENCE;

/// etcd and ours, after the same requests.
pub(crate) struct Both {
    etcd: Side,
    ours: Side,
    /// Of both stores.
    pub(crate) revision: i64,
    pub(crate) compacted: i64,
}

struct Side {
    kv: KvClient<Channel>,
    lease: LeaseClient<Channel>,
    watch: WatchClient<Channel>,
    watching: Option<Watching>,
}

struct Watching {
    _requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
    told: BTreeMap<i64, Told>,
}

/// An answer without what differs by nature: its revision, and the rest as text.
type EventFields = Result<(i64, String), (i32, String)>;

const WATCHES: usize = 30;

impl Both {
    pub(crate) fn new(etcd: Channel, ours: Channel) -> Self {
        Self { etcd: Side::new(etcd), ours: Side::new(ours), revision: 1, compacted: -1 }
    }

    pub(crate) async fn ask(&mut self, which: &str, asked: Asked) {
        let (etcd, ours) = tokio::join!(self.etcd.ask(&asked), self.ours.ask(&asked));
        assert_eq!(ours, etcd, "ours, then etcd; {which}, at {}: {asked:?}", self.revision);
        if let Ok((revision, _)) = etcd {
            self.revision = self.revision.max(revision);
            if let Asked::Compact(compaction) = asked {
                self.compacted = compaction.revision;
            }
        }
    }

    pub(crate) async fn begin_watching(&mut self, draw: &mut Draw) {
        let everything =
            WatchCreateRequest { key: MARK.as_bytes().into(), ..WatchCreateRequest::default() };
        let mut wanted = vec![everything];
        wanted.extend((1..WATCHES).map(|_| draw.watch()));
        for side in [&mut self.etcd, &mut self.ours] {
            side.begin_watching(&wanted).await;
        }
    }

    /// All events of every watch were the same.
    pub(crate) async fn end_watching(&mut self, which: &str) {
        let put = PutRequest { key: MARK.as_bytes().into(), ..PutRequest::default() };
        self.ask(which, Asked::Put(put)).await;
        let (etcd, ours) = tokio::join!(self.etcd.end_watching(), self.ours.end_watching());
        let counts = |told: &BTreeMap<i64, Told>| -> usize {
            told.values().map(|told| told.events.len()).sum()
        };
        assert!(counts(&etcd) > WATCHES, "the watches have seen something");
        assert_eq!(ours.len(), etcd.len());
        for (id, etcd) in &etcd {
            let ours = &ours[id];
            assert_eq!(ours.words, etcd.words, "watch {id}, {which}");
            for (ours, etcd) in ours.events.iter().zip(&etcd.events) {
                // A compaction may be quicker than the look at what was before.
                let (mut ours, mut etcd) = (ours.clone(), etcd.clone());
                if ours.prev_kv.is_none() || etcd.prev_kv.is_none() {
                    (ours.prev_kv, etcd.prev_kv) = (None, None);
                }
                assert_eq!(ours, etcd, "watch {id}, {which}");
            }
            assert_eq!(ours.events.len(), etcd.events.len(), "watch {id}, {which}");
        }
    }
}

/// What one watch was told.
#[derive(Default)]
struct Told {
    /// Everything but events.
    words: Vec<String>,
    events: Vec<Event>,
}

const MARK: &str = "no request is about this key";

impl Side {
    fn new(channel: Channel) -> Self {
        Self {
            kv: KvClient::new(channel.clone()),
            lease: LeaseClient::new(channel.clone()),
            watch: WatchClient::new(channel),
            watching: None,
        }
    }

    async fn ask(&mut self, asked: &Asked) -> EventFields {
        let said = tokio::time::timeout(PATIENCE, self.ask_patiently(asked)).await;
        said.unwrap_or_else(|_| panic!("no answer to {asked:?}"))
    }

    async fn ask_patiently(&mut self, asked: &Asked) -> EventFields {
        let (kv, lease) = (&mut self.kv, &mut self.lease);
        match asked.clone() {
            Asked::Range(request) => said(kv.range(request).await, |it| &mut it.header),
            Asked::Put(request) => said(kv.put(request).await, |it| &mut it.header),
            Asked::Delete(request) => said(kv.delete_range(request).await, |it| &mut it.header),
            Asked::Txn(request) => said(kv.txn(request).await, |it| &mut it.header),
            Asked::Compact(request) => said(kv.compact(request).await, |it| &mut it.header),
            Asked::Grant(request) => said(lease.lease_grant(request).await, |it| &mut it.header),
            Asked::Revoke(request) => said(lease.lease_revoke(request).await, |it| &mut it.header),
            Asked::TimeToLive(request) => said(lease.lease_time_to_live(request).await, |it| {
                if it.ttl > it.granted_ttl - 300 {
                    it.ttl = it.granted_ttl;
                }
                it.keys.sort();
                &mut it.header
            }),
            Asked::KeepAlive(request) => {
                let stream = lease.lease_keep_alive(tokio_stream::once(request)).await;
                let told = match stream {
                    Ok(stream) => stream.into_inner().message().await,
                    Err(why) => Err(why),
                };
                said(told.map(|told| Response::new(told.unwrap())), |it| &mut it.header)
            }
            Asked::Leases => said(lease.lease_leases(LeaseLeasesRequest {}).await, |it| {
                it.leases.sort_by_key(|lease| lease.id);
                &mut it.header
            }),
        }
    }

    async fn begin_watching(&mut self, wanted: &[WatchCreateRequest]) {
        let (requests, stream) = mpsc::channel(WATCHES);
        for create in wanted {
            let request_union = Some(RequestUnion::CreateRequest(create.clone()));
            requests.send(WatchRequest { request_union }).await.unwrap();
        }
        let responses = self.watch.watch(ReceiverStream::new(stream)).await.unwrap().into_inner();
        let mut watching = Watching { _requests: requests, responses, told: BTreeMap::new() };
        for _ in wanted {
            let response = tokio::time::timeout(PATIENCE, watching.responses.message()).await;
            watching.hear(response.unwrap().unwrap().unwrap());
        }
        self.watching = Some(watching);
    }

    /// What every watch was told up to the mark, by its id.
    async fn end_watching(&mut self) -> BTreeMap<i64, Told> {
        let mut watching = self.watching.take().unwrap();
        let mut marked = false;
        loop {
            // Watches hear of the last write in any order.
            let quiet = if marked { Duration::from_secs(1) } else { PATIENCE };
            match tokio::time::timeout(quiet, watching.responses.message()).await {
                Ok(response) => marked |= watching.hear(response.unwrap().unwrap()),
                Err(_) if marked => return watching.told,
                Err(_) => panic!("the watch of the mark says nothing"),
            }
        }
    }
}

impl Watching {
    /// Answers whether this is about the mark.
    fn hear(&mut self, mut response: WatchResponse) -> bool {
        let one = self.told.entry(response.watch_id).or_default();
        let events = std::mem::take(&mut response.events);
        if events.is_empty() {
            clear(&mut response.header);
            one.words.push(format!("{response:?}"));
        }
        let marked = events.iter().any(|it| it.kv.as_ref().unwrap().key == MARK.as_bytes());
        one.events.extend(events);
        marked
    }
}

fn said<T: Debug>(
    answer: Result<Response<T>, Status>,
    header: impl FnOnce(&mut T) -> &mut Option<ResponseHeader>,
) -> EventFields {
    match answer {
        Ok(response) => {
            let mut response = response.into_inner();
            let revision = clear(header(&mut response));
            Ok((revision, format!("{response:?}")))
        }
        Err(why) => Err((why.code() as i32, why.message().to_owned())),
    }
}

/// Takes away what differs between any two clusters. Answers the revision.
fn clear(header: &mut Option<ResponseHeader>) -> i64 {
    let Some(header) = header else { return 0 };
    *header = ResponseHeader { revision: header.revision, ..ResponseHeader::default() };
    header.revision
}
