//! etcd's service Watch: many watches over one stream.
//!
//! Each stream has one task, which polls the watch hub and sends. It waits for its client
//! (backpressure); events that happen meanwhile stay in the store. What waits to be sent is in the
//! memory budget for responses.

mod rights;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::ready;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use quorate_kv::{
    AnyTable, KeyRange, Kv, PollLimits, ReadLimits, TableError, WakeFn, WatchEvent, WatchEventKind,
    WatchPoll, WatcherId, split_events,
};
use quorate_proto::etcdserverpb::watch_request::RequestUnion;
use quorate_proto::etcdserverpb::watch_server::Watch;
use quorate_proto::etcdserverpb::{
    ResponseHeader, WatchCreateRequest, WatchRequest, WatchResponse, watch_create_request,
};
use quorate_proto::mvccpb::{self, event::EventType};
use tokio::sync::Notify;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::kv::{key_value, read_previous};
use crate::access::{ClientAction, ClientIdentity};
use crate::auth::{UserIdentity, token_expired};
use crate::context::{ServiceContext, requires_leader};
use crate::metrics::ServiceCounters;
use crate::response_budget::{MemoryWait, ResponseMemory, SMALL_BYTES_MAX};
use crate::response_queue::{Closed, ResponseReceiver, ResponseSender, response_queue};
use crate::status::ServiceError;

pub(crate) struct WatchService {
    context: ServiceContext,
}

impl WatchService {
    pub(crate) fn new(context: ServiceContext) -> Self {
        Self { context }
    }
}

#[async_trait]
impl Watch for WatchService {
    type WatchStream = ResponseReceiver<WatchResponse>;

    async fn watch(
        &self,
        request: Request<Streaming<WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let client = self.context.admit(&request, &ClientAction::WatchStream).await?;
        let requires_leader = requires_leader(request.metadata());
        let (responses, receiver) = response_queue(RESPONSES_QUEUED_MAX);
        ServiceCounters::increment(&self.context.counters.watch_streams);
        let stream = WatchStream::new(self.context.clone(), client, Arc::new(responses)).await;
        tokio::spawn(stream.run(request.into_inner(), requires_leader));
        Ok(Response::new(receiver))
    }
}

/// One stream and its watches, which end with it.
struct WatchStream {
    context: ServiceContext,
    client: ClientIdentity,
    responses: Arc<ResponseSender<WatchResponse>>,
    watches: BTreeMap<i64, StreamWatch>,
    ids: BTreeMap<WatcherId, i64>,
    /// Watchers that may have events, each once, in the order of their turns.
    ready: VecDeque<WatcherId>,
    woken: Arc<WakeQueue>,
    wake: WakeFn,
    next_id: i64,
    /// The client requested progress, and some watch has not been sent everything yet.
    progress_requested: bool,
    /// Keeps the token of the client valid while the stream is open.
    identity: Option<UserIdentity>,
}

struct StreamWatch {
    watcher: WatcherId,
    /// In `ready`.
    queued: bool,
    keys: KeyRange,
    start_revision: i64,
    fragment: bool,
    prev_kv: bool,
    progress_notify: bool,
    /// Events were sent since the last progress interval.
    sent_events: bool,
}

/// Watchers with new events, each once, until the task takes them.
#[derive(Default)]
struct WakeQueue {
    watchers: Mutex<BTreeSet<WatcherId>>,
    notify: Notify,
}

impl WatchStream {
    async fn new(
        context: ServiceContext,
        client: ClientIdentity,
        responses: Arc<ResponseSender<WatchResponse>>,
    ) -> Self {
        let woken = Arc::new(WakeQueue::default());
        let wake: WakeFn = Arc::new({
            let woken = Arc::clone(&woken);
            move |watcher| {
                woken.watchers.lock().unwrap_or_else(PoisonError::into_inner).insert(watcher);
                woken.notify.notify_one();
            }
        });
        let identity = context.hold_token(&client).await;
        Self {
            identity,
            context,
            client,
            responses,
            watches: BTreeMap::new(),
            ids: BTreeMap::new(),
            ready: VecDeque::new(),
            woken,
            wake,
            next_id: 0,
            progress_requested: false,
        }
    }

    async fn run(mut self, requests: Streaming<WatchRequest>, requires_leader: bool) {
        let context = self.context.clone();
        let responses = Arc::clone(&self.responses);
        tokio::select! {
            _ = self.serve(requests) => {}
            error = context.end_of_stream(requires_leader) => {
                responses.send_last(error.into());
            }
            () = responses.closed() => {}
        }
    }

    async fn serve(&mut self, mut requests: Streaming<WatchRequest>) -> Result<(), Closed> {
        let mut progress = self.progress_timer();
        let woken = Arc::clone(&self.woken);
        let mut auth_changes = self.context.auth.changes.subscribe();
        // A client that closes its side of the stream may keep receiving.
        let mut open = true;
        loop {
            tokio::select! {
                biased;
                request = requests.message(), if open => match request {
                    Ok(Some(request)) => self.on_request(request).await?,
                    Ok(None) => open = false,
                    Err(status) => {
                        // If the client is gone, the error is lost, which is fine.
                        self.responses.send_last(status);
                        return Err(Closed);
                    }
                },
                Ok(()) = auth_changes.changed() => self.check_rights().await?,
                () = token_expired(self.identity.as_ref()) => self.check_rights().await?,
                _ = progress.tick() => self.notify_progress().await?,
                () = woken.notify.notified() => self.queue_woken(),
                () = ready(()), if !self.ready.is_empty() => self.poll_one().await?,
            }
            if self.progress_requested {
                self.answer_progress_request().await?;
            }
        }
    }

    /// With jitter: many streams begin together, and should not all report at the same moment.
    fn progress_timer(&self) -> Interval {
        let interval = self.context.limits.watch_progress_interval.max(PROGRESS_INTERVAL_MIN);
        let percent = (RandomState::new().hash_one(self.next_id) % 100) as u32;
        let interval = interval + interval / 1_000 * percent;
        let mut timer = interval_at(Instant::now() + interval, interval);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        timer
    }

    async fn on_request(&mut self, request: WatchRequest) -> Result<(), Closed> {
        match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => self.create(request).await,
            Some(RequestUnion::CancelRequest(request)) => self.cancel(request.watch_id).await,
            Some(RequestUnion::ProgressRequest(_)) => {
                self.progress_requested = !self.watches.is_empty();
                Ok(())
            }
            None => Ok(()),
        }
    }

    async fn create(&mut self, request: WatchCreateRequest) -> Result<(), Closed> {
        let id = match self.allowed_id_for(&request).await {
            Ok(id) => id,
            Err(reason) => {
                let revision = self.context.store.read_when_free().await.revision();
                return self.send(creation_refused(self.context.header(revision), &reason)).await;
            }
        };
        let store = &self.context.store;
        let (watcher, revision) = {
            let kv = store.read_when_free().await;
            store.watch_in(&kv, kv_request(&request), self.wake.clone())
        };
        let watch = StreamWatch {
            watcher,
            queued: true,
            keys: keys(&request),
            start_revision: request.start_revision,
            fragment: request.fragment,
            prev_kv: request.prev_kv,
            progress_notify: request.progress_notify,
            sent_events: false,
        };
        self.watches.insert(id, watch);
        self.ids.insert(watcher, id);
        self.ready.push_back(watcher);
        let header = Some(self.context.header(revision));
        let created = WatchResponse { header, watch_id: id, created: true, ..Default::default() };
        self.send(created).await
    }

    /// The id of a new watch, or why it is refused, in etcd's words.
    fn id_for(&mut self, request: &WatchCreateRequest) -> Result<i64, String> {
        let KeyRange { key, range_end } = &keys(request);
        if !range_end.is_empty() && range_end[..] != [0] && key >= range_end {
            return Err("mvcc: watcher range is empty".into());
        }
        if self.watches.len() >= WATCHES_MAX {
            return Err("etcdserver: too many requests".into());
        }
        if request.watch_id != AUTO_ID && request.watch_id != NO_ID {
            let taken = self.watches.contains_key(&request.watch_id);
            let duplicate = "mvcc: duplicate watch ID provided on the WatchStream";
            return if taken { Err(duplicate.into()) } else { Ok(request.watch_id) };
        }
        while self.watches.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        Ok(self.next_id - 1)
    }

    async fn cancel(&mut self, id: i64) -> Result<(), Closed> {
        if !self.forget(id) {
            return Ok(());
        }
        let revision = self.context.store.read_when_free().await.revision();
        let header = Some(self.context.header(revision));
        let canceled = WatchResponse { header, watch_id: id, canceled: true, ..Default::default() };
        self.send(canceled).await
    }

    fn forget(&mut self, id: i64) -> bool {
        let Some(watch) = self.watches.remove(&id) else { return false };
        self.ids.remove(&watch.watcher);
        self.context.store.cancel_watch(watch.watcher);
        true
    }

    fn queue_woken(&mut self) {
        let mut woken = self.woken.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        for watcher in std::mem::take(&mut *woken) {
            let watch = self.ids.get(&watcher).and_then(|id| self.watches.get_mut(id));
            if let Some(watch) = watch.filter(|watch| !watch.queued) {
                watch.queued = true;
                self.ready.push_back(watcher);
            }
        }
    }

    /// Sends the next events of one watch. All others get a turn before it gets another.
    async fn poll_one(&mut self) -> Result<(), Closed> {
        let Some(watcher) = self.ready.pop_front() else { return Ok(()) };
        let Some(id) = self.ids.get(&watcher).copied() else { return Ok(()) };
        let Some(watch) = self.watches.get_mut(&id) else { return Ok(()) };
        watch.queued = false;
        let prev_kv = watch.prev_kv;
        // Nothing is read from the store before there is memory for it. It reserves all that a small
        // response may need: streams that hold some and wait for more would wait for each other.
        let memory = self.context.responses.reserve(SMALL_BYTES_MAX, MemoryWait::UntilFree).await;
        let memory = memory.map_err(|error| self.end(error))?;
        let limits = PollLimits::default().bytes_max(POLL_BYTES_MAX);
        let store = &self.context.store;
        let (polled, is_complete) = {
            let kv = store.read_when_free().await;
            let mut polled = store.poll_watch_events_in(&kv, watcher, limits);
            let is_complete = match &mut polled {
                Ok(WatchPoll::Events { events, .. }) if prev_kv => read_small_previous(&kv, events),
                _ => Ok(true),
            };
            (polled, is_complete)
        };
        let is_complete = is_complete.map_err(|error| self.end(ServiceError::Table(error)))?;
        match polled {
            Ok(WatchPoll::Idle) => return Ok(()),
            Ok(WatchPoll::Gone) => {
                self.forget(id);
                return Ok(());
            }
            Ok(WatchPoll::Compacted { compact_revision }) => {
                return self.end_compacted(id, compact_revision).await;
            }
            Ok(WatchPoll::Again) => tokio::task::yield_now().await,
            Ok(WatchPoll::Events { header_revision, events, .. }) => {
                if let Some(watch) = self.watches.get_mut(&id) {
                    watch.sent_events = true;
                }
                let sent = &self.context.counters.events_sent;
                sent.fetch_add(events.len() as u64, Ordering::Relaxed);
                if is_complete {
                    self.send_events(id, header_revision, events, memory).await?;
                } else {
                    self.send_large_events(id, header_revision, events, memory).await?;
                }
            }
            Err(error) => return Err(self.end(ServiceError::Table(error))),
        }
        if let Some(watch) = self.watches.get_mut(&id) {
            watch.queued = true;
            self.ready.push_back(watcher);
        }
        Ok(())
    }

    /// Ends the stream with an error.
    fn end(&self, error: ServiceError) -> Closed {
        self.responses.send_last(error.into());
        Closed
    }

    /// The memory is as large as most events are; a single revision may have more.
    async fn send_events(
        &mut self,
        watch_id: i64,
        revision: i64,
        events: Vec<WatchEvent>,
        mut memory: ResponseMemory,
    ) -> Result<(), Closed> {
        let header = Some(self.context.header(revision));
        let fragment = self.watches.get(&watch_id).is_some_and(|watch| watch.fragment);
        if !fragment {
            let events = events.into_iter().map(event).collect();
            let response = WatchResponse { header, watch_id, events, ..Default::default() };
            let bytes = response.encoded_len() as u64;
            return match memory.resize(bytes, MemoryWait::UntilFree).await {
                Ok(()) => self.send_with(response, Some(memory)).await,
                Err(error) => self.end_watch(watch_id, &error).await,
            };
        }
        drop(memory);
        let pieces = split_events(&events, self.context.limits.request_bytes_max + OVERHEAD_BYTES);
        let last = pieces.len().saturating_sub(1);
        for (number, piece) in pieces.into_iter().enumerate() {
            let events = piece.iter().cloned().map(event).collect();
            let fragment = number < last;
            let response =
                WatchResponse { header, watch_id, fragment, events, ..Default::default() };
            let bytes = response.encoded_len() as u64;
            match self.context.responses.reserve(bytes, MemoryWait::UntilFree).await {
                Ok(memory) => self.send_with(response, Some(memory)).await?,
                Err(error) => return self.end_watch(watch_id, &error).await,
            }
        }
        Ok(())
    }

    /// Sends events whose previous pairs are not read yet: a response at a time, once there is memory for it.
    async fn send_large_events(
        &mut self,
        watch_id: i64,
        revision: i64,
        events: Vec<WatchEvent>,
        memory: ResponseMemory,
    ) -> Result<(), Closed> {
        // It may wait for much, and must not hold what others wait for.
        drop(memory);
        let header = Some(self.context.header(revision));
        let fragments = self.watches.get(&watch_id).is_some_and(|watch| watch.fragment);
        let mut events = events.into_iter();
        while !events.as_slice().is_empty() {
            let (count, bytes) = match fragments {
                true => self.measure_fragment(events.as_slice()).await,
                false => self.measure_all(events.as_slice()).await,
            };
            let memory = self.context.responses.reserve(bytes as u64, MemoryWait::UntilFree).await;
            let memory = match memory {
                Ok(memory) => memory,
                Err(error) => return self.end_watch(watch_id, &error).await,
            };
            let piece = events.by_ref().take(count).collect();
            let piece = read_previous(&self.context, &self.client, piece).await;
            let piece = piece.map_err(|error| self.end(error))?;
            let fragment = !events.as_slice().is_empty();
            let events = piece.into_iter().map(event).collect();
            let response =
                WatchResponse { header, watch_id, fragment, events, ..Default::default() };
            self.send_with(response, Some(memory)).await?;
        }
        Ok(())
    }

    /// How many events are the next fragment, and their bytes with their previous pairs.
    async fn measure_fragment(&self, events: &[WatchEvent]) -> (usize, usize) {
        let bytes_max = self.context.limits.request_bytes_max + OVERHEAD_BYTES;
        self.context.store.read_when_free().await.measure_previous(events, bytes_max)
    }

    /// The same of one response.
    async fn measure_all(&self, events: &[WatchEvent]) -> (usize, usize) {
        let (mut count, mut bytes) = (0, 0);
        while count < events.len() {
            let rest = events.get(count..).unwrap_or_default();
            let kv = self.context.store.read_when_free().await;
            let (more, more_bytes) = kv.measure_previous(rest, usize::MAX);
            (count, bytes) = (count + more, bytes + more_bytes);
        }
        (count, bytes)
    }

    /// Cancels a watch whose next events cannot be sent.
    async fn end_watch(&mut self, id: i64, reason: &ServiceError) -> Result<(), Closed> {
        self.forget_and_report(id, reason.code_and_text().1).await
    }

    /// As etcd's: without a text and a revision. Clients know from `compact_revision`.
    async fn end_compacted(&mut self, id: i64, compact_revision: i64) -> Result<(), Closed> {
        self.forget(id);
        let canceled = WatchResponse {
            header: Some(self.context.header(0)),
            watch_id: id,
            canceled: true,
            compact_revision,
            ..Default::default()
        };
        self.send(canceled).await
    }

    /// Ends a watch and says why.
    async fn forget_and_report(
        &mut self,
        watch_id: i64,
        cancel_reason: String,
    ) -> Result<(), Closed> {
        self.forget(watch_id);
        let revision = self.context.store.read_when_free().await.revision();
        let canceled = WatchResponse {
            header: Some(self.context.header(revision)),
            watch_id,
            canceled: true,
            cancel_reason,
            ..Default::default()
        };
        self.send(canceled).await
    }

    /// The revision up to which one watch has been sent everything.
    fn progress_of(&self, watch: &StreamWatch) -> Option<i64> {
        let revision = self.context.store.watch_progress(watch.watcher)?;
        (watch.start_revision <= revision).then_some(revision)
    }

    /// Answers a progress request once every watch of the stream has been sent everything.
    async fn answer_progress_request(&mut self) -> Result<(), Closed> {
        let mut lowest: Option<i64> = None;
        for watch in self.watches.values() {
            let Some(revision) = self.progress_of(watch) else { return Ok(()) };
            lowest = Some(lowest.map_or(revision, |lowest| lowest.min(revision)));
        }
        self.progress_requested = false;
        match lowest {
            Some(revision) => self.send_progress(NO_ID, revision).await,
            None => Ok(()),
        }
    }

    /// Sends progress to the watches that asked for it and were sent no events.
    async fn notify_progress(&mut self) -> Result<(), Closed> {
        let ids: Vec<i64> = self.watches.keys().copied().collect();
        for id in ids {
            let Some(watch) = self.watches.get_mut(&id) else { continue };
            let is_due = !std::mem::take(&mut watch.sent_events) && watch.progress_notify;
            let progress = self.watches.get(&id).and_then(|watch| self.progress_of(watch));
            if let Some(revision) = progress.filter(|_| is_due) {
                self.send_progress(id, revision).await?;
            }
        }
        Ok(())
    }

    async fn send_progress(&self, watch_id: i64, revision: i64) -> Result<(), Closed> {
        let header = Some(self.context.header(revision));
        self.send(WatchResponse { header, watch_id, ..Default::default() }).await
    }

    /// Sends a response without events.
    async fn send(&self, response: WatchResponse) -> Result<(), Closed> {
        self.send_with(response, None).await
    }

    async fn send_with(
        &self,
        response: WatchResponse,
        memory: Option<ResponseMemory>,
    ) -> Result<(), Closed> {
        self.responses.send(Ok(response), memory).await
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        ServiceCounters::decrement(&self.context.counters.watch_streams);
        for watch in self.watches.values() {
            self.context.store.cancel_watch(watch.watcher);
        }
    }
}

/// Reads the previous pairs of events if they are no more than one step of a read, and their memory is
/// reserved. Whether they are complete.
fn read_small_previous(kv: &Kv<AnyTable>, events: &mut [WatchEvent]) -> Result<bool, TableError> {
    let all = events.len();
    let (count, bytes) = kv.measure_previous(events, SMALL_BYTES_MAX as usize);
    let is_small = count == all && bytes as u64 <= SMALL_BYTES_MAX;
    Ok(is_small && kv.read_previous(events, ReadLimits::default())? == all)
}

fn creation_refused(header: ResponseHeader, reason: &str) -> WatchResponse {
    WatchResponse {
        header: Some(header),
        watch_id: NO_ID,
        created: true,
        canceled: true,
        cancel_reason: reason.into(),
        ..Default::default()
    }
}

fn kv_request(request: &WatchCreateRequest) -> quorate_kv::WatchRequest {
    use watch_create_request::FilterType;
    let filters = |filter: FilterType| request.filters().any(|given| given == filter);
    quorate_kv::WatchRequest {
        keys: keys(request),
        start_revision: request.start_revision,
        no_put: filters(FilterType::Noput),
        no_delete: filters(FilterType::Nodelete),
        prev_kv: request.prev_kv,
    }
}

/// An empty key means the first possible key.
fn keys(request: &WatchCreateRequest) -> KeyRange {
    let first = Bytes::from_static(b"\0");
    let key = if request.key.is_empty() { first } else { request.key.clone() };
    KeyRange { key, range_end: request.range_end.clone() }
}

fn event(event: WatchEvent) -> mvccpb::Event {
    let kind = match event.kind {
        WatchEventKind::Put => EventType::Put,
        WatchEventKind::Delete => EventType::Delete,
    };
    mvccpb::Event {
        r#type: kind as i32,
        kv: Some(key_value(event.kv)),
        prev_kv: event.previous.map(key_value),
    }
}

/// In a request: the server chooses the id.
const AUTO_ID: i64 = 0;
/// In a response: it concerns no single watch.
const NO_ID: i64 = -1;
const PROGRESS_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Watches of one stream.
const WATCHES_MAX: usize = 100_000;
/// Events of one response, in bytes; a revision is never split. Every stream keeps buffers of this
/// size while it is busy.
const POLL_BYTES_MAX: usize = 16 << 10;
/// Responses queued for a slow client. When the queue is full, the stream stops polling: events stay
/// in the store, and leave together later.
const RESPONSES_QUEUED_MAX: usize = 2;
/// How much larger than the largest request etcd lets a message be.
pub(crate) const OVERHEAD_BYTES: usize = 512 << 10;
