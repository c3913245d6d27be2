//! `quorate bench watch`: throughput and delay of events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_proto::etcdserverpb as etcd;
use quorate_proto::etcdserverpb::watch_client::WatchClient;
use quorate_proto::etcdserverpb::watch_request::RequestUnion;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::client::{BenchResult, BenchRun, PREFIX};
use super::load::PreparedLoad;
use crate::client::{ClientChannel, Connection, open_as};
use crate::error::{CliError, status_text};

/// Events may still be in flight when the last write is acknowledged.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// How many writes there were, once the writers have finished: then watchers know how many
/// events to expect.
struct WritesDone {
    count: AtomicU64,
    finished: AtomicBool,
}

/// Measures the time from the start of a write to the arrival of its event.
pub(crate) async fn run(
    load: PreparedLoad,
    connections: &[Connection],
    run: &Arc<BenchRun>,
) -> Result<BenchResult, CliError> {
    let watchers = run.arguments.watchers;
    let channels = watch_channels(connections, run).await?;
    let written =
        Arc::new(WritesDone { count: AtomicU64::new(0), finished: AtomicBool::new(false) });
    // All watchers start before the first write, so that each one receives every event.
    let ready = Arc::new(Barrier::new(watchers as usize + 1));
    let mut watches = JoinSet::new();
    for (_, channel) in (0..watchers).zip(channels.iter().cycle()) {
        watches.spawn(watch(channel.clone(), run.clone(), written.clone(), ready.clone()));
    }
    tokio::select! {
        _ = ready.wait() => {}
        Some(Ok(Err(error))) = watches.join_next() => return Err(error),
    }
    let writes = load.run(run).await?;
    written.count.store(writes.times.total(), Ordering::Relaxed);
    written.finished.store(true, Ordering::Release);
    let mut total = BenchResult::new();
    total.errors = writes.errors;
    for result in watches.join_all().await {
        total.add(&result?);
    }
    Ok(total)
}

/// As many channels for watchers as there are connections for writers.
async fn watch_channels(
    connections: &[Connection],
    run: &BenchRun,
) -> Result<Vec<ClientChannel>, CliError> {
    let mut channels: Vec<_> = connections.iter().map(|one| one.channel.clone()).collect();
    let watchers = run.arguments.connections.min(run.arguments.watchers) as usize;
    for connection in connections.iter().cycle().take(watchers.saturating_sub(channels.len())) {
        let other = open_as(&connection.endpoint, &run.arguments.client).await?;
        channels.push(other.channel);
    }
    Ok(channels)
}

async fn watch(
    channel: ClientChannel,
    run: Arc<BenchRun>,
    written: Arc<WritesDone>,
    ready: Arc<Barrier>,
) -> Result<BenchResult, CliError> {
    let failed = |status| CliError::failed(format!("cannot watch: {}", status_text(&status)));
    let create = etcd::WatchCreateRequest {
        key: Bytes::from_static(PREFIX.as_bytes()),
        range_end: Bytes::from_static(b"bench0"),
        ..Default::default()
    };
    let create = etcd::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    // The watch ends when the request stream is closed, so keep the sender.
    let (_sender, requests) = tokio::sync::mpsc::channel::<etcd::WatchRequest>(1);
    let requests = tokio_stream::StreamExt::chain(tokio_stream::once(create), Receiver(requests));
    let stream = WatchClient::new(channel).watch(requests).await.map_err(failed)?;
    let mut stream = stream.into_inner();
    stream.message().await.map_err(failed)?;
    ready.wait().await;
    let mut result = BenchResult::new();
    let mut drain_deadline = None;
    loop {
        let interval = Duration::from_millis(20);
        if let Ok(reply) = tokio::time::timeout(interval, stream.message()).await {
            let Some(reply) = reply.map_err(failed)? else { break };
            let now = Instant::now();
            reply.events.iter().for_each(|event| record(&mut result, &run, event, now));
        }
        if written.finished.load(Ordering::Acquire) {
            let deadline = *drain_deadline.get_or_insert(Instant::now() + DRAIN_TIMEOUT);
            let expected = written.count.load(Ordering::Relaxed);
            if result.times.total() >= expected || Instant::now() >= deadline {
                break;
            }
        }
    }
    result.missing = written.count.load(Ordering::Relaxed).saturating_sub(result.times.total());
    Ok(result)
}

fn record(
    result: &mut BenchResult,
    run: &BenchRun,
    event: &quorate_proto::mvccpb::Event,
    now: Instant,
) {
    let value = event.kv.as_ref().map_or(&[][..], |kv| &kv.value);
    let Some(nanos) = value.first_chunk().map(|bytes| u64::from_be_bytes(*bytes)) else { return };
    // Other clients may have written arbitrary values to these keys.
    let Some(written) = run.started.checked_add(Duration::from_nanos(nanos)) else { return };
    result.times.record(now.saturating_duration_since(written));
    run.gaps.succeeded(now);
}

/// The receiving end of a channel as a stream.
struct Receiver(tokio::sync::mpsc::Receiver<etcd::WatchRequest>);

impl tokio_stream::Stream for Receiver {
    type Item = etcd::WatchRequest;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}
