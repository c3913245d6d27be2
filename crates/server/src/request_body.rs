//! Bodies of requests that wait for their message: a body is read when the message is complete.
//! Until then it is counted in the budget of incomplete requests, and has to make progress.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};
use tonic::Status;
use tonic::body::Body;

use crate::message_scan::MessageScan;
use crate::request_budget::{AwaitedRequest, ConnectionRequests};
use crate::status::ServiceError;

/// A body that is read one complete message at a time. It ends with an error if a message that was
/// begun does not arrive in time.
pub(crate) struct AwaitedBody {
    body: Body,
    requests: ConnectionRequests,
    /// A stream of requests may stay empty. Other bodies have one message, and end.
    is_stream: bool,
    messages: MessageScan,
    /// What was not read.
    arrived: ArrivedBytes,
    /// It may be read.
    is_complete: bool,
    /// Nothing has to be awaited any longer.
    has_passed: bool,
    waiting: Option<Box<AwaitedMessage>>,
}

type BodyFrame = Option<Result<Frame<Bytes>, Status>>;

/// What has arrived of a message.
#[derive(Default)]
struct ArrivedBytes {
    /// Copies: a frame refers to the buffer of its connection, which is much larger.
    start: BytesMut,
    /// The frame that completed it.
    last: Option<BodyFrame>,
}

impl ArrivedBytes {
    fn is_empty(&self) -> bool {
        self.start.is_empty() && self.last.is_none()
    }

    /// The next frame to read.
    fn take(&mut self) -> BodyFrame {
        if self.start.is_empty() {
            return self.last.take().flatten();
        }
        Some(Ok(Frame::data(std::mem::take(&mut self.start).freeze())))
    }
}

/// A request or a message that has not arrived completely.
struct AwaitedMessage {
    counted: AwaitedRequest,
    /// None before a message of a stream begins.
    clock: Option<MessageClock>,
}

/// Limits the time of a message.
struct MessageClock {
    began: Instant,
    progressed: Instant,
    /// When it is checked next.
    check: Pin<Box<Sleep>>,
    bytes_at_check: usize,
}

impl MessageClock {
    fn start() -> Self {
        let now = Instant::now();
        let check = Box::pin(sleep(CHECK_INTERVAL));
        Self { began: now, progressed: now, check, bytes_at_check: 0 }
    }

    /// Ready when the message takes too long. This many bytes are here.
    fn poll_late(
        &mut self,
        bytes: usize,
        requests: &ConnectionRequests,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        loop {
            ready!(self.check.as_mut().poll(context));
            let now = Instant::now();
            let more = bytes - self.bytes_at_check;
            if more > 0 {
                self.progressed = now;
            }
            let is_late = now - self.progressed >= MESSAGE_TIMEOUT
                || now - self.began >= MESSAGE_TIMEOUT_MAX
                || (more < PROGRESS_BYTES_MIN && requests.is_short());
            if is_late {
                return Poll::Ready(());
            }
            self.bytes_at_check = bytes;
            self.check.as_mut().reset(now + CHECK_INTERVAL);
        }
    }
}

impl AwaitedBody {
    /// Messages above `bytes_max` are not awaited: the service refuses them.
    pub(crate) fn new(
        body: Body,
        requests: ConnectionRequests,
        is_stream: bool,
        bytes_max: usize,
    ) -> Self {
        Self {
            body,
            requests,
            is_stream,
            messages: MessageScan::new(bytes_max),
            arrived: ArrivedBytes::default(),
            is_complete: false,
            has_passed: false,
            waiting: None,
        }
    }

    /// Whether the message is here already, which is usual: it follows the headers.
    pub(crate) fn has_arrived(&mut self) -> bool {
        // Without it, `poll_arrived` follows, with the waker of the call.
        let mut context = Context::from_waker(Waker::noop());
        while !self.is_complete {
            match Pin::new(&mut self.body).poll_frame(&mut context) {
                Poll::Ready(frame) => self.receive(frame),
                Poll::Pending => return false,
            }
        }
        true
    }

    fn receive(&mut self, frame: BodyFrame) {
        let ended_before = self.messages.ended();
        let data = match &frame {
            Some(Ok(frame)) => frame.data_ref(),
            _ => None,
        };
        if let Some(data) = data {
            self.messages.advance(data);
        }
        let ended = self.messages.ended();
        let is_enough = match self.is_stream {
            true => ended > ended_before,
            // A second message is refused by the service.
            false => ended > 1 || (ended == 1 && !self.messages.is_between_messages()),
        };
        let is_last = data.is_none() || (!self.is_stream && self.body.is_end_stream());
        self.is_complete = is_enough || is_last || self.messages.is_refused();
        match data {
            Some(data) if !self.is_complete => self.arrived.start.extend_from_slice(data),
            _ => self.arrived.last = Some(frame),
        }
    }

    /// Waits for the message; it remains to be read.
    pub(crate) fn poll_arrived(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        while !self.is_complete {
            if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
                self.receive(frame);
                // What is here is counted before more is read.
                if let Some(waiting) = &mut self.waiting {
                    waiting.counted.resize(self.arrived.start.capacity())?;
                }
                continue;
            }
            // A stream may wait for as long as it likes between messages. It is counted until its
            // first one.
            let has_begun = !self.is_stream || !self.messages.is_between_messages();
            if !has_begun && self.messages.ended() > 0 {
                return Poll::Pending;
            }
            let waiting = match &mut self.waiting {
                Some(waiting) => waiting,
                empty => {
                    let counted = self.requests.begin()?;
                    empty.insert(Box::new(AwaitedMessage { counted, clock: None }))
                }
            };
            waiting.counted.resize(self.arrived.start.capacity())?;
            if !has_begun {
                return Poll::Pending;
            }
            let clock = waiting.clock.get_or_insert_with(MessageClock::start);
            ready!(clock.poll_late(self.arrived.start.len(), &self.requests, context));
            return Poll::Ready(Err(ServiceError::RequestNotSent.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl http_body::Body for AwaitedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.has_passed {
            return Pin::new(&mut self.body).poll_frame(context);
        }
        if let Err(status) = ready!(self.poll_arrived(context)) {
            self.waiting = None;
            self.has_passed = true;
            return Poll::Ready(Some(Err(status)));
        }
        let frame = self.arrived.take();
        if self.arrived.is_empty() {
            self.waiting = None;
            let is_over = !self.is_stream || frame.is_none() || self.messages.is_refused();
            self.has_passed = is_over;
            self.is_complete = is_over;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        // A frame that was not read may be the last one of the body below.
        self.arrived.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.arrived.is_empty() {
            true => self.body.size_hint(),
            false => SizeHint::default(),
        }
    }
}

/// How long a message may make no progress.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a message may take.
const MESSAGE_TIMEOUT_MAX: Duration = Duration::from_secs(300);
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How much of a message has to arrive between two checks while memory is short.
const PROGRESS_BYTES_MIN: usize = 16 << 10;

#[cfg(test)]
mod tests;
