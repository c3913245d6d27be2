//! Counts gRPC calls as they start and end. This runs for every request: it takes no lock, and
//! allocates only for streams, once each.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use axum::http::{HeaderMap, Request, Response};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::{Code, Status};

use super::histogram::{CALLS, DISK, DurationHistogram, SHORT};
use super::methods::{METHODS, Method, StreamKind};
use crate::client_threads::OpenCall;

/// The calls of all methods, and how they ended.
#[derive(Debug)]
pub(crate) struct CallCounters {
    methods: Box<[MethodCounters]>,
    /// Whether the durations of calls are on the page by method.
    timed: bool,
    pub(crate) clients: ClientVersions,
}

/// Requests by the version that the client says it has.
#[derive(Debug, Default)]
pub(crate) struct ClientVersions {
    versions: RwLock<Vec<ClientVersion>>,
}

#[derive(Debug)]
struct ClientVersion {
    version: String,
    unary: AtomicU64,
    stream: AtomicU64,
}

impl ClientVersions {
    fn count(&self, headers: &HeaderMap, kind: StreamKind) {
        self.count_version(client_version(headers), kind);
    }

    fn count_version(&self, version: &str, kind: StreamKind) {
        if !self.count_known(version, kind) {
            self.insert(version);
            // Clients that make up versions are counted together.
            let _ = self.count_known(version, kind) || self.count_known(UNKNOWN_VERSION, kind);
        }
    }

    fn count_known(&self, version: &str, kind: StreamKind) -> bool {
        let versions = self.versions.read().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = versions.iter().find(|known| known.version == version) else {
            return false;
        };
        add(if kind == StreamKind::Unary { &known.unary } else { &known.stream }, 1);
        true
    }

    fn insert(&self, version: &str) {
        let mut versions = self.versions.write().unwrap_or_else(PoisonError::into_inner);
        for version in [UNKNOWN_VERSION, version] {
            let is_known = versions.iter().any(|known| known.version == version);
            if !is_known && versions.len() < VERSIONS_MAX {
                let (unary, stream) = (AtomicU64::new(0), AtomicU64::new(0));
                versions.push(ClientVersion { version: version.to_owned(), unary, stream });
            }
        }
    }

    /// Each version with its unary and its streaming requests.
    pub(crate) fn counts(&self) -> Vec<(String, u64, u64)> {
        let versions = self.versions.read().unwrap_or_else(PoisonError::into_inner);
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let one =
            |one: &ClientVersion| (one.version.clone(), count(&one.unary), count(&one.stream));
        versions.iter().map(one).collect()
    }
}

/// The version that a client says it has.
pub(crate) fn client_version(headers: &HeaderMap) -> &str {
    let given = headers.get("client-api-version").and_then(|version| version.to_str().ok());
    let is_version = |text: &&str| {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
        !text.is_empty() && text.len() <= VERSION_BYTES_MAX && text.bytes().all(is_allowed)
    };
    given.filter(is_version).unwrap_or(UNKNOWN_VERSION)
}

const UNKNOWN_VERSION: &str = "unknown";
const VERSION_BYTES_MAX: usize = 32;
/// Versions that are counted apart.
const VERSIONS_MAX: usize = 32;

/// The counters of one method.
#[derive(Debug)]
pub(crate) struct MethodCounters {
    pub(crate) started: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
    /// Indexed by the number of the status code.
    pub(crate) handled: [AtomicU64; CODES.len()],
    pub(crate) duration: DurationHistogram,
    /// Of failed calls and of the others, with the buckets of etcd's requests.
    pub(crate) durations: [DurationHistogram; 2],
    /// The same with the buckets of etcd's ranges.
    pub(crate) short_durations: [DurationHistogram; 2],
}

/// The names of gRPC's codes, by number.
pub(crate) const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

impl CallCounters {
    pub(crate) fn new(timed: bool) -> Arc<Self> {
        let methods = METHODS.iter().map(|_| MethodCounters {
            started: AtomicU64::new(0),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            handled: [const { AtomicU64::new(0) }; CODES.len()],
            duration: DurationHistogram::new(CALLS),
            durations: [DurationHistogram::new(DISK), DurationHistogram::new(DISK)],
            short_durations: [DurationHistogram::new(SHORT), DurationHistogram::new(SHORT)],
        });
        Arc::new(Self { methods: methods.collect(), timed, clients: ClientVersions::default() })
    }

    pub(crate) fn is_timed(&self) -> bool {
        self.timed
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static Method, &MethodCounters)> {
        METHODS.iter().zip(&self.methods)
    }

    /// `None` for a path that is none of our methods.
    fn start(self: &Arc<Self>, path: &str) -> Option<ActiveCall> {
        method_of(path).map(|method| self.start_method(method))
    }

    fn start_method(self: &Arc<Self>, method: MethodIndex) -> ActiveCall {
        let started = Instant::now();
        let calls = Arc::clone(self);
        let call = ActiveCall { calls, method: method.0, started, ended: false, open: None };
        add(&call.counters().started, 1);
        call
    }

    /// Counts a unary call of KV that has arrived completely.
    pub(crate) fn start_unary(self: &Arc<Self>, method: MethodIndex, client: &str) -> ActiveCall {
        let mut call = self.start_method(method);
        call.open = Some(OpenCall::begin());
        add(&call.counters().received, 1);
        self.clients.count_version(client, StreamKind::Unary);
        call
    }
}

/// A method among all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MethodIndex(usize);

pub(crate) fn method_of(path: &str) -> Option<MethodIndex> {
    METHODS.iter().position(|method| method.path == path).map(MethodIndex)
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

/// One call in progress. If it is dropped before it ends, it counts as cancelled.
pub(crate) struct ActiveCall {
    calls: Arc<CallCounters>,
    method: usize,
    started: Instant,
    ended: bool,
    /// For a unary call of KV.
    open: Option<OpenCall>,
}

impl ActiveCall {
    fn counters(&self) -> &MethodCounters {
        &self.calls.methods[self.method]
    }

    fn kind(&self) -> StreamKind {
        METHODS[self.method].kind
    }

    fn end(mut self, code: Code) {
        self.count_end(code);
        self.ended = true;
    }

    /// Counts the end of a unary call.
    pub(crate) fn end_unary(self, code: Code) {
        if code == Code::Ok {
            add(&self.counters().sent, 1);
        }
        self.end(code);
    }

    fn count_end(&self, code: Code) {
        let counters = self.counters();
        add(&counters.handled[code as usize], 1);
        let (method, took) = (&METHODS[self.method], self.started.elapsed());
        let success = usize::from(code == Code::Ok);
        if self.calls.timed {
            counters.duration.observe(took);
        }
        if method.kind == StreamKind::Unary {
            counters.durations[success].observe(took);
            if method.path == super::RANGE {
                counters.short_durations[success].observe(took);
            }
        }
        tracing::debug!(method = method.path, ?code, ?took, "request handled");
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        if !self.ended {
            self.count_end(Code::Cancelled);
        }
    }
}

/// A service whose calls are counted.
#[derive(Clone)]
pub(crate) struct CountedService<S> {
    inner: S,
    calls: Arc<CallCounters>,
}

impl<S> CountedService<S> {
    pub(crate) fn new(inner: S, calls: Arc<CallCounters>) -> Self {
        Self { inner, calls }
    }
}

impl<S> Service<Request<Body>> for CountedService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = CountedFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let call = self.calls.start(request.uri().path());
        if let Some(call) = &call {
            self.calls.clients.count(request.headers(), call.kind());
        }
        let request = match &call {
            Some(call) if call.kind() == StreamKind::BidiStream => {
                let (calls, method) = (Arc::clone(&call.calls), call.method);
                request.map(|body| {
                    let count = move |messages| add(&calls.methods[method].received, messages);
                    Body::new(CountedBody {
                        body,
                        counter: MessageCounter::default(),
                        count,
                        call: None,
                    })
                })
            }
            Some(call) => {
                add(&call.counters().received, 1);
                request
            }
            None => request,
        };
        CountedFuture { response: self.inner.call(request), call }
    }
}

pin_project_lite::pin_project! {
    /// A call until its response begins.
    pub(crate) struct CountedFuture<F> {
        #[pin]
        response: F,
        call: Option<ActiveCall>,
    }
}

impl<F, E> Future for CountedFuture<F>
where
    F: Future<Output = Result<Response<Body>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.response.poll(context))?;
        let Some(call) = this.call.take() else { return Poll::Ready(Ok(response)) };
        // A status in the headers means that there is no body; otherwise it follows the body.
        match (code(response.headers()), call.kind()) {
            (Some(code), _) => call.end(code),
            (None, StreamKind::Unary) => {
                add(&call.counters().sent, 1);
                call.end(Code::Ok);
            }
            (None, _) => {
                let (calls, method) = (Arc::clone(&call.calls), call.method);
                let count = move |messages| add(&calls.methods[method].sent, messages);
                let (counter, call) = (MessageCounter::default(), Some(call));
                let counted = |body| Body::new(CountedBody { body, counter, count, call });
                return Poll::Ready(Ok(response.map(counted)));
            }
        }
        Poll::Ready(Ok(response))
    }
}

fn code(headers: &HeaderMap) -> Option<Code> {
    headers.get("grpc-status").map(|value| Code::from_bytes(value.as_bytes()))
}

/// One direction of a stream. With `call`, the end of the body is the end of the call.
struct CountedBody<C> {
    body: Body,
    counter: MessageCounter,
    count: C,
    call: Option<ActiveCall>,
}

impl<C: Fn(u64) + Unpin> http_body::Body for CountedBody<C> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    (this.count)(this.counter.count(data));
                } else if let Some(trailers) = frame.trailers_ref()
                    && let Some(call) = this.call.take()
                {
                    call.end(code(trailers).unwrap_or(Code::Unknown));
                }
            }
            Some(Err(error)) => {
                this.call.take().into_iter().for_each(|call| call.end(error.code()));
            }
            None => this.call.take().into_iter().for_each(|call| call.end(Code::Unknown)),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Counts the messages of a body. Each begins with a prefix: a flag and its length.
#[derive(Default)]
struct MessageCounter {
    /// The part of a prefix that was received so far.
    prefix: [u8; 5],
    prefix_bytes: usize,
    /// The remaining bytes of the present message.
    bytes_left: usize,
}

impl MessageCounter {
    /// The number of messages whose prefix ends in this piece.
    fn count(&mut self, mut piece: &[u8]) -> u64 {
        let mut messages = 0;
        loop {
            let skipped = self.bytes_left.min(piece.len());
            self.bytes_left -= skipped;
            piece = &piece[skipped..];
            let Some((byte, rest)) = piece.split_first() else { return messages };
            piece = rest;
            self.prefix[self.prefix_bytes] = *byte;
            self.prefix_bytes += 1;
            if self.prefix_bytes == self.prefix.len() {
                let [_, length @ ..] = self.prefix;
                self.bytes_left = u32::from_be_bytes(length) as usize;
                self.prefix_bytes = 0;
                messages += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_for_every_split_of_the_body() {
        let message = |length: usize| {
            let mut bytes = vec![0];
            bytes.extend((length as u32).to_be_bytes());
            bytes.resize(5 + length, 9);
            bytes
        };
        let all = [message(0), message(3), message(700), message(0)].concat();
        for size in 1..=all.len() {
            let mut counter = MessageCounter::default();
            let count: u64 = all.chunks(size).map(|piece| counter.count(piece)).sum();
            assert_eq!(count, 4, "in pieces of {size}");
        }
    }

    #[test]
    fn a_call_is_counted_once() {
        let calls = CallCounters::new(true);
        assert!(calls.start("/etcdserverpb.KV/put").is_none());
        calls.start("/etcdserverpb.KV/Put").unwrap().end(Code::NotFound);
        drop(calls.start("/etcdserverpb.KV/Put").unwrap());
        let handled = |code: Code| calls.methods[0].handled[code as usize].load(Ordering::Relaxed);
        let ended = [Code::Ok, Code::NotFound, Code::Cancelled].map(handled);
        assert_eq!((ended, calls.methods[0].duration.count()), ([0, 1, 1], 2));
    }
}
