//! Calls of gRPC as they come and end. On the way of every request: nothing here locks, and
//! only streams allocate, once each.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use axum::http::{HeaderMap, Request, Response};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::{Code, Status};

use super::histogram::{CALLS, Histogram};
use super::methods::{Kind, METHODS, Method};

/// How often what was called, and what came of it.
#[derive(Debug)]
pub(crate) struct Calls {
    counts: Box<[Counts]>,
    /// Also how long it took.
    timed: bool,
}

/// Of one method.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) started: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
    /// By the number of the code.
    pub(crate) handled: [AtomicU64; CODES.len()],
    pub(crate) took: Histogram,
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

impl Calls {
    pub(crate) fn new(timed: bool) -> Arc<Self> {
        let counts = METHODS.iter().map(|_| Counts {
            started: AtomicU64::new(0),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            handled: [const { AtomicU64::new(0) }; CODES.len()],
            took: Histogram::new(CALLS),
        });
        Arc::new(Self { counts: counts.collect(), timed })
    }

    pub(crate) fn is_timed(&self) -> bool {
        self.timed
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static Method, &Counts)> {
        METHODS.iter().zip(&self.counts)
    }

    /// None for what is no call of ours.
    fn begin(self: &Arc<Self>, path: &str) -> Option<Call> {
        let method = METHODS.iter().position(|method| method.path == path)?;
        let began = self.timed.then(Instant::now);
        let call = Call { calls: Arc::clone(self), method, began, ended: false };
        add(&call.counts().started, 1);
        Some(call)
    }
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

/// One call under way. Dropped before its end it was cancelled.
struct Call {
    calls: Arc<Calls>,
    method: usize,
    began: Option<Instant>,
    ended: bool,
}

impl Call {
    fn counts(&self) -> &Counts {
        &self.calls.counts[self.method]
    }

    fn kind(&self) -> Kind {
        METHODS[self.method].kind
    }

    fn end(mut self, code: Code) {
        self.count_end(code);
        self.ended = true;
    }

    fn count_end(&self, code: Code) {
        let counts = self.counts();
        add(&counts.handled[code as usize], 1);
        if let Some(began) = self.began {
            counts.took.observe(began.elapsed());
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.ended {
            self.count_end(Code::Cancelled);
        }
    }
}

/// A service whose calls are counted.
#[derive(Clone)]
pub(crate) struct Counted<S> {
    inner: S,
    calls: Arc<Calls>,
}

impl<S> Counted<S> {
    pub(crate) fn new(inner: S, calls: Arc<Calls>) -> Self {
        Self { inner, calls }
    }
}

impl<S> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Answering<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let call = self.calls.begin(request.uri().path());
        let request = match &call {
            Some(call) if call.kind() == Kind::BothStream => {
                let (calls, method) = (Arc::clone(&call.calls), call.method);
                request.map(|body| {
                    let count = move |messages| add(&calls.counts[method].received, messages);
                    Body::new(Messages { body, reader: Prefixes::default(), count, call: None })
                })
            }
            Some(call) => {
                add(&call.counts().received, 1);
                request
            }
            None => request,
        };
        Answering { answer: self.inner.call(request), call }
    }
}

pin_project_lite::pin_project! {
    /// A call until its answer begins.
    pub(crate) struct Answering<F> {
        #[pin]
        answer: F,
        call: Option<Call>,
    }
}

impl<F, E> Future for Answering<F>
where
    F: Future<Output = Result<Response<Body>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.answer.poll(context))?;
        let Some(call) = this.call.take() else { return Poll::Ready(Ok(response)) };
        // A status before the body says that there is none; otherwise it stands behind it.
        match (code(response.headers()), call.kind()) {
            (Some(code), _) => call.end(code),
            (None, Kind::Unary) => {
                add(&call.counts().sent, 1);
                call.end(Code::Ok);
            }
            (None, _) => {
                let (calls, method) = (Arc::clone(&call.calls), call.method);
                let count = move |messages| add(&calls.counts[method].sent, messages);
                let (reader, call) = (Prefixes::default(), Some(call));
                let counted = |body| Body::new(Messages { body, reader, count, call });
                return Poll::Ready(Ok(response.map(counted)));
            }
        }
        Poll::Ready(Ok(response))
    }
}

fn code(headers: &HeaderMap) -> Option<Code> {
    headers.get("grpc-status").map(|value| Code::from_bytes(value.as_bytes()))
}

/// One direction of a stream. With a call, its end is the end of that.
struct Messages<C> {
    body: Body,
    reader: Prefixes,
    count: C,
    call: Option<Call>,
}

impl<C: Fn(u64) + Unpin> http_body::Body for Messages<C> {
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
                    (this.count)(this.reader.count(data));
                } else if let Some(trailers) = frame.trailers_ref()
                    && let Some(call) = this.call.take()
                {
                    call.end(code(trailers).unwrap_or(Code::Unknown));
                }
            }
            Some(Err(why)) => this.call.take().into_iter().for_each(|call| call.end(why.code())),
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

/// Finds where messages begin: each has a flag and its length before it.
#[derive(Default)]
struct Prefixes {
    /// What is there of a prefix that goes on in the next piece.
    prefix: [u8; 5],
    prefix_bytes: usize,
    /// What is left of a message.
    bytes_left: usize,
}

impl Prefixes {
    /// How many messages begin in this piece.
    fn count(&mut self, mut piece: &[u8]) -> u64 {
        let mut messages = 0;
        loop {
            let passed = self.bytes_left.min(piece.len());
            self.bytes_left -= passed;
            piece = &piece[passed..];
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
    fn messages_are_counted_however_they_are_cut() {
        let message = |length: usize| {
            let mut bytes = vec![0];
            bytes.extend((length as u32).to_be_bytes());
            bytes.resize(5 + length, 9);
            bytes
        };
        let all = [message(0), message(3), message(700), message(0)].concat();
        for size in 1..=all.len() {
            let mut reader = Prefixes::default();
            let count: u64 = all.chunks(size).map(|piece| reader.count(piece)).sum();
            assert_eq!(count, 4, "in pieces of {size}");
        }
    }

    #[test]
    fn a_call_ends_once() {
        let calls = Calls::new(true);
        assert!(calls.begin("/etcdserverpb.KV/put").is_none());
        calls.begin("/etcdserverpb.KV/Put").unwrap().end(Code::NotFound);
        drop(calls.begin("/etcdserverpb.KV/Put").unwrap());
        let handled = |code: Code| calls.counts[0].handled[code as usize].load(Ordering::Relaxed);
        let ended = [Code::Ok, Code::NotFound, Code::Cancelled].map(handled);
        assert_eq!((ended, calls.counts[0].took.count()), ([0, 1, 1], 2));
    }
}
