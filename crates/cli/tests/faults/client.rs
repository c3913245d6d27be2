//! One member, as its clients see it.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::{Duration, Instant};

use quorate_proto::etcdserverpb::kv_client::KvClient;
use quorate_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quorate_proto::etcdserverpb::{
    HashKvRequest, PutRequest, RangeRequest, RangeResponse, StatusRequest, StatusResponse,
};
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use crate::common::PATIENCE;

/// A connection that is made when it is first used, and again when it was lost.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) channel: Channel,
}

impl Client {
    pub(crate) fn at(url: &str) -> Self {
        Self { channel: Endpoint::from_shared(url.to_string()).unwrap().connect_lazy() }
    }

    pub(crate) fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone())
    }

    /// The revision of the write, once it is acknowledged.
    pub(crate) async fn put(&self, key: &str, value: &str) -> Result<i64, Status> {
        let (key, value) = (key.to_string().into(), value.to_string().into());
        let request = PutRequest { key, value, ..Default::default() };
        let reply = answered(self.kv().put(request)).await?;
        Ok(reply.header.unwrap_or_default().revision)
    }

    pub(crate) async fn put_surely(&self, key: &str, value: &str) -> i64 {
        surely(key, async || self.put(key, value).await).await
    }

    /// Linearizably.
    pub(crate) async fn get(&self, key: &str) -> Result<Option<String>, Status> {
        let request = RangeRequest { key: key.to_string().into(), ..Default::default() };
        let reply = answered(self.kv().range(request)).await?;
        Ok(reply.kvs.first().map(|kv| text(&kv.value)))
    }

    pub(crate) async fn get_surely(&self, key: &str) -> Option<String> {
        surely(key, async || self.get(key).await).await
    }

    /// Everything that this member has, however old, and as of which revision.
    pub(crate) async fn everything(&self) -> Result<(i64, BTreeMap<String, String>), Status> {
        let reply = self.range_all(true).await?;
        let pairs = reply.kvs.iter().map(|kv| (text(&kv.key), text(&kv.value)));
        Ok((reply.header.unwrap_or_default().revision, pairs.collect()))
    }

    /// As new as anything that was acknowledged before.
    pub(crate) async fn revision(&self) -> Result<i64, Status> {
        Ok(self.range_all(false).await?.header.unwrap_or_default().revision)
    }

    async fn range_all(&self, serializable: bool) -> Result<RangeResponse, Status> {
        let (key, range_end) = (vec![0].into(), vec![0].into());
        // The revision is in the header, whatever is left out of the answer.
        let count_only = !serializable;
        let request =
            RangeRequest { key, range_end, serializable, count_only, ..Default::default() };
        let mut kv = self.kv().max_decoding_message_size(usize::MAX);
        answered(kv.range(request)).await
    }

    pub(crate) async fn status(&self) -> Result<StatusResponse, Status> {
        let mut maintenance = MaintenanceClient::new(self.channel.clone());
        answered(maintenance.status(StatusRequest {})).await
    }

    /// Of the whole history up to this revision.
    pub(crate) async fn hash(&self, revision: i64) -> Result<u32, Status> {
        let mut maintenance = MaintenanceClient::new(self.channel.clone());
        Ok(answered(maintenance.hash_kv(HashKvRequest { revision })).await?.hash)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Asks again whatever was not done.
pub(crate) async fn surely<T>(what: &str, mut ask: impl AsyncFnMut() -> Result<T, Status>) -> T {
    let began = Instant::now();
    loop {
        match ask().await {
            Ok(done) => return done,
            Err(why) => assert!(began.elapsed() < PATIENCE, "{what}: {why}"),
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Looks until there is something to see.
pub(crate) async fn wait_for<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(began.elapsed() < PATIENCE, "waited too long until {what}");
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// A member that stands still answers nothing, not even that it will not.
pub(crate) async fn answered<T>(
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Status> {
    answered_within(ANSWER_PATIENCE, call).await
}

pub(crate) async fn answered_within<T>(
    patience: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Status> {
    let silent = |_| Err(Status::deadline_exceeded("no answer"));
    tokio::time::timeout(patience, call).await.unwrap_or_else(silent).map(Response::into_inner)
}

/// Longer than a server lets a request wait.
const ANSWER_PATIENCE: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
