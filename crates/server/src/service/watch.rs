//! etcd's service Watch: many watches over one stream.
//!
//! One task for each stream; it alone asks the hub and sends. It waits for its client, and
//! what happens meanwhile waits in the store: a slow client costs no memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::ready;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use quorate_kv::{
    KeyRange, KvError, PollLimits, WakeFn, WatchEvent, WatchEventKind, WatchPoll,
    WatchRequest as Wanted, WatcherId, split_events,
};
use quorate_proto::etcdserverpb::watch_request::RequestUnion;
use quorate_proto::etcdserverpb::watch_server::Watch;
use quorate_proto::etcdserverpb::{
    ResponseHeader, WatchCreateRequest, WatchRequest, WatchResponse, watch_create_request,
};
use quorate_proto::mvccpb::{self, event::EventType};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::kv::key_value;
use crate::context::{Context, Needs, requires_leader};
use crate::errors::table;

pub(crate) struct WatchService {
    context: Context,
}

impl WatchService {
    pub(crate) fn new(context: Context) -> Self {
        Self { context }
    }
}

#[async_trait]
impl Watch for WatchService {
    type WatchStream = ReceiverStream<Result<WatchResponse, Status>>;

    async fn watch(
        &self,
        request: Request<Streaming<WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        self.context.admit(&request, Needs::Reader)?;
        let wants_leader = requires_leader(request.metadata());
        let (responses, stream) = mpsc::channel(RESPONSES_WAITING_MAX);
        let talk = Talk::new(self.context.clone(), responses);
        tokio::spawn(talk.run(request.into_inner(), wants_leader));
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// One stream and its watches. When it goes, they go.
struct Talk {
    context: Context,
    responses: mpsc::Sender<Result<WatchResponse, Status>>,
    watches: BTreeMap<i64, OneWatch>,
    ids: BTreeMap<WatcherId, i64>,
    /// Those that may have news, each once.
    ready: VecDeque<WatcherId>,
    woken: Arc<Woken>,
    wake: WakeFn,
    next_id: i64,
    /// The client asked how far everything is, and not everything was told yet.
    progress_wanted: bool,
}

struct OneWatch {
    watcher: WatcherId,
    /// In `ready`.
    queued: bool,
    start_revision: i64,
    fragment: bool,
    progress_notify: bool,
    /// Something was sent since progress was last due.
    heard: bool,
}

/// Watchers with news, each once, until the task looks.
#[derive(Default)]
struct Woken {
    watchers: Mutex<BTreeSet<WatcherId>>,
    news: Notify,
}

/// The client is gone, or the stream is to end.
struct Over;

impl Talk {
    fn new(context: Context, responses: mpsc::Sender<Result<WatchResponse, Status>>) -> Self {
        let woken = Arc::new(Woken::default());
        let wake: WakeFn = Arc::new({
            let woken = Arc::clone(&woken);
            move |watcher| {
                woken.watchers.lock().unwrap_or_else(PoisonError::into_inner).insert(watcher);
                woken.news.notify_one();
            }
        });
        Self {
            context,
            responses,
            watches: BTreeMap::new(),
            ids: BTreeMap::new(),
            ready: VecDeque::new(),
            woken,
            wake,
            next_id: 0,
            progress_wanted: false,
        }
    }

    async fn run(mut self, requests: Streaming<WatchRequest>, wants_leader: bool) {
        let context = self.context.clone();
        let responses = self.responses.clone();
        tokio::select! {
            _ = self.serve(requests) => {}
            why = context.end_of_stream(wants_leader) => {
                let _ = responses.try_send(Err(why));
            }
            () = responses.closed() => {}
        }
    }

    async fn serve(&mut self, mut requests: Streaming<WatchRequest>) -> Result<(), Over> {
        let mut progress = self.progress_timer();
        let woken = Arc::clone(&self.woken);
        // A client that has no more requests may go on listening.
        let mut open = true;
        loop {
            tokio::select! {
                biased;
                request = requests.message(), if open => match request {
                    Ok(Some(request)) => self.on_request(request).await?,
                    Ok(None) => open = false,
                    Err(why) => {
                        // Nobody hears it if the client is gone.
                        let _ = self.responses.send(Err(why)).await;
                        return Err(Over);
                    }
                },
                _ = progress.tick() => self.notify_progress().await?,
                () = woken.news.notified() => self.queue_woken(),
                () = ready(()), if !self.ready.is_empty() => self.poll_one().await?,
            }
            if self.progress_wanted {
                self.tell_progress().await?;
            }
        }
    }

    /// Not all streams at the same moment, though many begin together.
    fn progress_timer(&self) -> Interval {
        let every = self.context.limits.watch_progress_every.max(PROGRESS_EVERY_MIN);
        let percent = (RandomState::new().hash_one(self.next_id) % 100) as u32;
        let every = every + every / 1_000 * percent;
        let mut timer = interval_at(Instant::now() + every, every);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        timer
    }

    async fn on_request(&mut self, request: WatchRequest) -> Result<(), Over> {
        match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => self.create(request).await,
            Some(RequestUnion::CancelRequest(request)) => self.cancel(request.watch_id).await,
            Some(RequestUnion::ProgressRequest(_)) => {
                self.progress_wanted = !self.watches.is_empty();
                Ok(())
            }
            None => Ok(()),
        }
    }

    async fn create(&mut self, request: WatchCreateRequest) -> Result<(), Over> {
        let id = match self.id_for(&request) {
            Ok(id) => id,
            Err(reason) => {
                let revision = self.context.store.read().revision();
                return self.send(refusal(self.context.header(revision), reason)).await;
            }
        };
        let (watcher, revision) = self.context.store.watch(wanted(&request), self.wake.clone());
        let watch = OneWatch {
            watcher,
            queued: true,
            start_revision: request.start_revision,
            fragment: request.fragment,
            progress_notify: request.progress_notify,
            heard: false,
        };
        self.watches.insert(id, watch);
        self.ids.insert(watcher, id);
        self.ready.push_back(watcher);
        let header = Some(self.context.header(revision));
        let created = WatchResponse { header, watch_id: id, created: true, ..Default::default() };
        self.send(created).await
    }

    /// The id of a new watch, or why there will be none, in etcd's words.
    fn id_for(&mut self, request: &WatchCreateRequest) -> Result<i64, &'static str> {
        let KeyRange { key, range_end } = &keys(request);
        if request.start_revision < 0 {
            return Err(KvError::Compacted.text());
        }
        if !range_end.is_empty() && range_end[..] != [0] && key >= range_end {
            return Err("mvcc: watcher range is empty");
        }
        if self.watches.len() >= WATCHES_MAX {
            return Err("etcdserver: too many requests");
        }
        if request.watch_id != AUTO_ID && request.watch_id != NO_ID {
            let taken = self.watches.contains_key(&request.watch_id);
            let duplicate = "mvcc: duplicate watch ID provided on the WatchStream";
            return if taken { Err(duplicate) } else { Ok(request.watch_id) };
        }
        while self.watches.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        Ok(self.next_id - 1)
    }

    async fn cancel(&mut self, id: i64) -> Result<(), Over> {
        if !self.forget(id) {
            return Ok(());
        }
        let revision = self.context.store.read().revision();
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

    /// Tells one watch what comes next; the others have their turn before it has another.
    async fn poll_one(&mut self) -> Result<(), Over> {
        let Some(watcher) = self.ready.pop_front() else { return Ok(()) };
        let Some(id) = self.ids.get(&watcher).copied() else { return Ok(()) };
        let Some(watch) = self.watches.get_mut(&id) else { return Ok(()) };
        watch.queued = false;
        match self.context.store.poll_watch(watcher, PollLimits::default()) {
            Ok(WatchPoll::Idle) => return Ok(()),
            Ok(WatchPoll::Gone) => {
                self.forget(id);
                return Ok(());
            }
            Ok(WatchPoll::Compacted { compact_revision }) => {
                return self.end_compacted(id, compact_revision).await;
            }
            Ok(WatchPoll::Again) => tokio::task::yield_now().await,
            Ok(WatchPoll::Events { revision, events }) => {
                watch.heard = true;
                let fragment = watch.fragment;
                self.send_events(id, fragment, revision, events).await?;
            }
            Err(why) => {
                let _ = self.responses.send(Err(table(&why))).await;
                return Err(Over);
            }
        }
        if let Some(watch) = self.watches.get_mut(&id) {
            watch.queued = true;
            self.ready.push_back(watcher);
        }
        Ok(())
    }

    async fn send_events(
        &self,
        watch_id: i64,
        fragment: bool,
        revision: i64,
        events: Vec<WatchEvent>,
    ) -> Result<(), Over> {
        let header = Some(self.context.header(revision));
        if !fragment {
            let events = events.into_iter().map(event).collect();
            let told = WatchResponse { header, watch_id, events, ..Default::default() };
            return self.send(told).await;
        }
        let pieces = split_events(&events, self.context.limits.request_bytes_max + OVERHEAD_BYTES);
        let last = pieces.len().saturating_sub(1);
        for (place, piece) in pieces.into_iter().enumerate() {
            let events = piece.iter().cloned().map(event).collect();
            let fragment = place < last;
            let told = WatchResponse { header, watch_id, fragment, events, ..Default::default() };
            self.send(told).await?;
        }
        Ok(())
    }

    async fn end_compacted(&mut self, id: i64, compact_revision: i64) -> Result<(), Over> {
        self.forget(id);
        let revision = self.context.store.read().revision();
        let canceled = WatchResponse {
            header: Some(self.context.header(revision)),
            watch_id: id,
            canceled: true,
            compact_revision,
            cancel_reason: KvError::Compacted.text().into(),
            ..Default::default()
        };
        self.send(canceled).await
    }

    /// How far one watch is: everything up to there was sent.
    fn progress_of(&self, watch: &OneWatch) -> Option<i64> {
        let revision = self.context.store.watch_progress(watch.watcher)?;
        (watch.start_revision <= revision).then_some(revision)
    }

    /// Answers a request for progress, once every watch of the stream has heard everything.
    async fn tell_progress(&mut self) -> Result<(), Over> {
        let mut furthest_all: Option<i64> = None;
        for watch in self.watches.values() {
            let Some(revision) = self.progress_of(watch) else { return Ok(()) };
            furthest_all = Some(furthest_all.map_or(revision, |all| all.min(revision)));
        }
        self.progress_wanted = false;
        match furthest_all {
            Some(revision) => self.send_progress(NO_ID, revision).await,
            None => Ok(()),
        }
    }

    /// Watches that want to know hear that nothing happened, if nothing was sent.
    async fn notify_progress(&mut self) -> Result<(), Over> {
        let ids: Vec<i64> = self.watches.keys().copied().collect();
        for id in ids {
            let Some(watch) = self.watches.get_mut(&id) else { continue };
            let quiet = !std::mem::take(&mut watch.heard) && watch.progress_notify;
            let progress = self.watches.get(&id).and_then(|watch| self.progress_of(watch));
            if let Some(revision) = progress.filter(|_| quiet) {
                self.send_progress(id, revision).await?;
            }
        }
        Ok(())
    }

    async fn send_progress(&self, watch_id: i64, revision: i64) -> Result<(), Over> {
        let header = Some(self.context.header(revision));
        self.send(WatchResponse { header, watch_id, ..Default::default() }).await
    }

    async fn send(&self, response: WatchResponse) -> Result<(), Over> {
        self.responses.send(Ok(response)).await.map_err(|_| Over)
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        for watch in self.watches.values() {
            self.context.store.cancel_watch(watch.watcher);
        }
    }
}

fn refusal(header: ResponseHeader, reason: &str) -> WatchResponse {
    WatchResponse {
        header: Some(header),
        watch_id: NO_ID,
        created: true,
        canceled: true,
        cancel_reason: reason.into(),
        ..Default::default()
    }
}

fn wanted(request: &WatchCreateRequest) -> Wanted {
    use watch_create_request::FilterType;
    let filters = |filter: FilterType| request.filters().any(|given| given == filter);
    Wanted {
        keys: keys(request),
        start_revision: request.start_revision,
        no_put: filters(FilterType::Noput),
        no_delete: filters(FilterType::Nodelete),
        prev_kv: request.prev_kv,
    }
}

/// An empty key stands for the first one.
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

/// As a client asks for an id of the server's choice, and as the server names no watch.
const AUTO_ID: i64 = 0;
const NO_ID: i64 = -1;
const PROGRESS_EVERY_MIN: Duration = Duration::from_millis(100);
/// Watches of one stream.
const WATCHES_MAX: usize = 100_000;
/// Responses that wait for a slow client before the stream stops looking for more.
const RESPONSES_WAITING_MAX: usize = 16;
/// What etcd lets messages weigh beyond the largest request.
pub(crate) const OVERHEAD_BYTES: usize = 512 << 10;
