//! `quorate bench watch`: how fast and how late events reach those who watch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_proto::etcdserverpb as etcd;
use quorate_proto::etcdserverpb::watch_client::WatchClient;
use quorate_proto::etcdserverpb::watch_request::RequestUnion;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use super::all_clients;
use super::client::{Outcome, PREFIX, Work};
use crate::failure::{Failure, said};

/// Events may be on their way when the last write is answered.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// Writes that are done, and whether there will be more: when watchers have seen enough.
struct Written {
    count: AtomicU64,
    all: AtomicBool,
}

/// Times are from the moment of asking for a write to the arrival of its event.
pub(crate) async fn run(channels: &[Channel], work: &Arc<Work>) -> Result<Outcome, Failure> {
    let watchers = work.arguments.watchers;
    let written = Arc::new(Written { count: AtomicU64::new(0), all: AtomicBool::new(false) });
    // All watch before the first write, so that each of them is to see every write.
    let ready = Arc::new(Barrier::new(watchers as usize + 1));
    let mut watching = JoinSet::new();
    for (_, channel) in (0..watchers).zip(channels.iter().cycle()) {
        watching.spawn(watch(channel.clone(), work.clone(), written.clone(), ready.clone()));
    }
    tokio::select! {
        _ = ready.wait() => {}
        Some(Ok(Err(failure))) = watching.join_next() => return Err(failure),
    }
    let writes = all_clients(channels, work).await;
    written.count.store(writes.times.total(), Ordering::Relaxed);
    written.all.store(true, Ordering::Release);
    let mut outcome = Outcome::new();
    outcome.errors = writes.errors;
    for seen in watching.join_all().await {
        outcome.add(&seen?);
    }
    Ok(outcome)
}

async fn watch(
    channel: Channel,
    work: Arc<Work>,
    written: Arc<Written>,
    ready: Arc<Barrier>,
) -> Result<Outcome, Failure> {
    let failed = |status| Failure::failed(format!("cannot watch: {}", said(&status)));
    let create = etcd::WatchCreateRequest {
        key: Bytes::from_static(PREFIX.as_bytes()),
        range_end: Bytes::from_static(b"bench0"),
        ..Default::default()
    };
    let create = etcd::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    // The stream of requests stays open as long as the watch.
    let (_open, requests) = tokio::sync::mpsc::channel::<etcd::WatchRequest>(1);
    let requests = tokio_stream::StreamExt::chain(tokio_stream::once(create), Receiver(requests));
    let stream = WatchClient::new(channel).watch(requests).await.map_err(failed)?;
    let mut stream = stream.into_inner();
    stream.message().await.map_err(failed)?;
    ready.wait().await;
    let mut outcome = Outcome::new();
    let mut drained_until = None;
    loop {
        let quiet = Duration::from_millis(20);
        if let Ok(reply) = tokio::time::timeout(quiet, stream.message()).await {
            let Some(reply) = reply.map_err(failed)? else { break };
            let now = Instant::now();
            reply.events.iter().for_each(|event| see(&mut outcome, &work, event, now));
        }
        if written.all.load(Ordering::Acquire) {
            let until = *drained_until.get_or_insert(Instant::now() + DRAIN_MAX);
            let wanted = written.count.load(Ordering::Relaxed);
            if outcome.times.total() >= wanted || Instant::now() >= until {
                break;
            }
        }
    }
    outcome.missing = written.count.load(Ordering::Relaxed).saturating_sub(outcome.times.total());
    Ok(outcome)
}

fn see(outcome: &mut Outcome, work: &Work, event: &quorate_proto::mvccpb::Event, now: Instant) {
    let value = event.kv.as_ref().map_or(&[][..], |kv| &kv.value);
    let Some(nanos) = value.first_chunk().map(|bytes| u64::from_be_bytes(*bytes)) else { return };
    // What somebody else writes there may hold anything.
    let Some(asked) = work.began.checked_add(Duration::from_nanos(nanos)) else { return };
    outcome.times.record(now.saturating_duration_since(asked));
    work.gaps.succeeded(now);
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
