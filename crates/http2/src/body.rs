//! The body of a request, which the application reads while the connection receives it.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};

use crate::ready::SlotWaker;

/// The body of a request. What is not read counts towards the windows of the client: it can send
/// only so much more.
#[derive(Debug)]
pub struct IncomingBody(Arc<BodyBuffer>);

/// The connection's side of a body.
#[derive(Debug)]
pub(crate) struct BodyBuffer {
    state: Mutex<UnreadBody>,
    connection: Arc<SlotWaker>,
}

#[derive(Debug, Default)]
struct UnreadBody {
    /// Received and not read. Small frames are joined, so that it takes little more memory than
    /// the bytes that the windows allow.
    unread: BytesMut,
    has_ended: bool,
    is_reset: bool,
    is_dropped: bool,
    /// Bytes that were read since the connection asked.
    read: usize,
    /// How many of the first bytes count as read already.
    counted: usize,
    reader: Option<Waker>,
}

impl UnreadBody {
    /// How many of these bytes did not count as read before.
    fn count(&mut self, bytes: usize) -> usize {
        let before = self.counted.min(bytes);
        self.counted -= before;
        bytes - before
    }
}

/// The client has reset the stream, or the connection has ended, before the body was complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestAborted;

impl fmt::Display for RequestAborted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the client has aborted the request")
    }
}

impl std::error::Error for RequestAborted {}

impl BodyBuffer {
    pub(crate) fn new(connection: Arc<SlotWaker>) -> (Arc<Self>, IncomingBody) {
        let shared = Arc::new(Self { state: Mutex::default(), connection });
        (Arc::clone(&shared), IncomingBody(shared))
    }

    fn lock(&self) -> MutexGuard<'_, UnreadBody> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends received bytes. Returns false if they will not be read.
    pub(crate) fn push(&self, bytes: &[u8]) -> bool {
        let mut state = self.lock();
        if state.is_dropped {
            return false;
        }
        state.unread.extend_from_slice(bytes);
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
        true
    }

    /// Appends bytes that count as read already.
    pub(crate) fn push_counted(&self, bytes: &[u8]) {
        let mut state = self.lock();
        state.unread.extend_from_slice(bytes);
        state.counted += bytes.len();
    }

    pub(crate) fn end(&self) {
        self.finish(|state| state.has_ended = true);
    }

    pub(crate) fn reset(&self) {
        self.finish(|state| state.is_reset = !state.has_ended);
    }

    fn finish(&self, change: impl FnOnce(&mut UnreadBody)) {
        let mut state = self.lock();
        change(&mut state);
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
    }

    /// The bytes that are not read when the stream ends: the connection no longer counts them.
    pub(crate) fn take_unread(&self) -> usize {
        let mut state = self.lock();
        let bytes = state.unread.len();
        let read = state.count(bytes) + std::mem::take(&mut state.read);
        // The reader gets what has arrived, without the connection.
        state.counted = bytes;
        read
    }

    /// The bytes that were read or dropped since the last call, and whether the reader is gone.
    pub(crate) fn take_read(&self) -> (usize, bool) {
        let mut state = self.lock();
        (std::mem::take(&mut state.read), state.is_dropped)
    }
}

impl Body for IncomingBody {
    type Data = Bytes;
    type Error = RequestAborted;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestAborted>>> {
        let mut state = self.0.lock();
        if !state.unread.is_empty() {
            let bytes = state.unread.split().freeze();
            let read = state.count(bytes.len());
            state.read += read;
            drop(state);
            self.0.connection.queue();
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        if state.is_reset {
            return Poll::Ready(Some(Err(RequestAborted)));
        }
        if state.has_ended {
            return Poll::Ready(None);
        }
        if !state.reader.as_ref().is_some_and(|reader| reader.will_wake(context.waker())) {
            state.reader = Some(context.waker().clone());
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        let state = self.0.lock();
        state.has_ended && state.unread.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let state = self.0.lock();
        match state.has_ended {
            true => SizeHint::with_exact(state.unread.len() as u64),
            false => SizeHint::default(),
        }
    }
}

impl Drop for IncomingBody {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_dropped = true;
        let unread = std::mem::take(&mut state.unread);
        let read = state.count(unread.len());
        state.read += read;
        let has_ended = state.has_ended;
        drop(state);
        if !unread.is_empty() || !has_ended {
            self.0.connection.queue();
        }
    }
}
