//! A client of one member, with timeouts and retries.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::{Duration, Instant};

use quorate_proto::etcdserverpb::kv_client::KvClient;
use quorate_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quorate_proto::etcdserverpb::{
    HashKvRequest, PutRequest, RangeRequest, StatusRequest, StatusResponse,
};
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use crate::support::{POLL_INTERVAL, TEST_TIMEOUT};

/// Connects when it is first used, and reconnects when the connection is lost.
#[derive(Clone)]
pub(crate) struct FaultClient {
    pub(crate) channel: Channel,
}

impl FaultClient {
    pub(crate) fn new(url: &str) -> Self {
        Self { channel: Endpoint::from_shared(url.to_string()).unwrap().connect_lazy() }
    }

    pub(crate) fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone())
    }

    /// Returns the revision of the acknowledged write.
    pub(crate) async fn put(&self, key: &str, value: &str) -> Result<i64, Status> {
        let (key, value) = (key.to_string().into(), value.to_string().into());
        let request = PutRequest { key, value, ..Default::default() };
        let reply = with_timeout(self.kv().put(request)).await?;
        Ok(reply.header.unwrap_or_default().revision)
    }

    pub(crate) async fn put_retrying(&self, key: &str, value: &str) -> i64 {
        retry_until_ok(key, async || self.put(key, value).await).await
    }

    /// A linearizable read.
    pub(crate) async fn get(&self, key: &str) -> Result<Option<String>, Status> {
        let request = RangeRequest { key: key.to_string().into(), ..Default::default() };
        let reply = with_timeout(self.kv().range(request)).await?;
        Ok(reply.kvs.first().map(|kv| text(&kv.value)))
    }

    pub(crate) async fn get_retrying(&self, key: &str) -> Option<String> {
        retry_until_ok(key, async || self.get(key).await).await
    }

    /// The data of this member at a revision. An error if it does not have it yet.
    pub(crate) async fn data_at(&self, revision: i64) -> Result<BTreeMap<String, String>, Status> {
        let request = RangeRequest { revision, serializable: true, ..all_keys() };
        let mut kv = self.kv().max_decoding_message_size(usize::MAX);
        let reply = with_timeout(kv.range(request)).await?;
        Ok(reply.kvs.iter().map(|kv| (text(&kv.key), text(&kv.value))).collect())
    }

    /// The current revision, by a linearizable read.
    pub(crate) async fn revision(&self) -> Result<i64, Status> {
        // The revision is in the header of every reply, so the keys can be left out.
        let request = RangeRequest { count_only: true, ..all_keys() };
        Ok(with_timeout(self.kv().range(request)).await?.header.unwrap_or_default().revision)
    }

    pub(crate) async fn status(&self) -> Result<StatusResponse, Status> {
        let mut maintenance = MaintenanceClient::new(self.channel.clone());
        with_timeout(maintenance.status(StatusRequest {})).await
    }

    /// The hash of the whole history up to this revision.
    pub(crate) async fn hash(&self, revision: i64) -> Result<u32, Status> {
        let mut maintenance = MaintenanceClient::new(self.channel.clone());
        Ok(with_timeout(maintenance.hash_kv(HashKvRequest { revision })).await?.hash)
    }
}

fn all_keys() -> RangeRequest {
    RangeRequest { key: vec![0].into(), range_end: vec![0].into(), ..Default::default() }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Repeats a call until it succeeds.
pub(crate) async fn retry_until_ok<T>(
    description: &str,
    mut call: impl AsyncFnMut() -> Result<T, Status>,
) -> T {
    let started = Instant::now();
    loop {
        match call().await {
            Ok(value) => return value,
            Err(status) => {
                assert!(started.elapsed() < TEST_TIMEOUT, "timed out: {description}: {status}");
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Polls until there is a value.
pub(crate) async fn wait_for<T>(description: &str, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = poll().await {
            return value;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "timed out: {description}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// A call with the default timeout: a suspended member does not reply at all.
pub(crate) async fn with_timeout<T>(
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Status> {
    within(CALL_TIMEOUT, call).await
}

pub(crate) async fn within<T>(
    timeout: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Status> {
    let timed_out = |_| Err(Status::deadline_exceeded("request timed out"));
    tokio::time::timeout(timeout, call).await.unwrap_or_else(timed_out).map(Response::into_inner)
}

/// Longer than the server's own timeout of a request.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);
