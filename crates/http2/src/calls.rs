//! Calls in progress: from a request to a response within the windows of the client.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use tokio::time::Instant;

use crate::application::{Application, MessageCall, MessageReply, MessageRequest, ResponseFuture};
use crate::body::BodyBuffer;
use crate::connection::Http2Connection;
use crate::frame::{Reason, flag, kind, put_head, put_headers, put_window_update};
use crate::head::{ReceivedHead, TIMEOUT_NAME};
use crate::hpack::{encode_field, encode_status};

/// An open stream.
pub(crate) struct Stream<A: Application> {
    pub(crate) id: u32,
    pub(crate) state: CallState<A>,
    pub(crate) receiving: Receiving,
    pub(crate) send_window: i64,
    /// The body that the application reads.
    pub(crate) body: Option<Arc<BodyBuffer>>,
    /// When a call that is served as a message ends.
    pub(crate) deadline: Option<Instant>,
}

impl<A: Application> Stream<A> {
    pub(crate) fn is_receiving(&self) -> bool {
        !matches!(self.receiving, Receiving::Ended)
    }

    /// Whether its call has not been started.
    pub(crate) fn is_awaiting(&self) -> bool {
        matches!(self.state, CallState::Awaiting { .. })
    }
}

/// How far a call is.
pub(crate) enum CallState<A: Application> {
    /// Its message has not arrived.
    Awaiting {
        head: ReceivedHead,
        message: Bytes,
    },
    Message(Pin<Box<dyn Future<Output = MessageReply<A::Body>> + Send>>),
    Response(ResponseFuture<A::Body>),
    Sending(Box<SendingBody<A::Body>>),
    /// Only while its next state is determined.
    Taken,
}

/// The body of a response.
pub(crate) struct SendingBody<B> {
    /// `None` when all of it is in `pending`.
    body: Option<B>,
    /// What the windows have not allowed to send.
    pending: Bytes,
    /// gRPC's status follows `pending`.
    has_status: bool,
    /// `pending` takes no more memory than its length.
    is_own: bool,
}

impl<B> SendingBody<B> {
    /// Called when the client has to read first. What it has not read may be a part of a large
    /// response, which should not be kept for it.
    fn keep_pending_only(&mut self) {
        if !self.is_own {
            self.pending = Bytes::copy_from_slice(&self.pending);
            self.is_own = true;
        }
    }
}

/// What the client may still send on a stream.
#[derive(Debug)]
pub(crate) enum Receiving {
    Open { window: i64, to_release: usize, content_left: Option<u64> },
    Ended,
}

impl Receiving {
    pub(crate) fn new(window: u32, content_left: Option<u64>) -> Self {
        Self::Open { window: i64::from(window), to_release: 0, content_left }
    }

    /// Counts a frame with this length, of which this many bytes are data.
    pub(crate) fn accept(&mut self, length: usize, data: usize, ends: bool) -> Result<(), Reason> {
        let Self::Open { window, content_left, .. } = self else {
            return Err(Reason::STREAM_CLOSED);
        };
        *window -= length as i64;
        if *window < 0 {
            return Err(Reason::FLOW_CONTROL_ERROR);
        }
        if let Some(left) = content_left {
            *left = left.checked_sub(data as u64).ok_or(Reason::PROTOCOL_ERROR)?;
            if ends && *left > 0 {
                return Err(Reason::PROTOCOL_ERROR);
            }
        }
        Ok(())
    }

    /// Whether the client may end the request here.
    pub(crate) fn end(&mut self) -> bool {
        let previous = std::mem::replace(self, Self::Ended);
        !matches!(previous, Self::Open { content_left: Some(1..), .. })
    }

    /// Returns bytes to the window. The increment to tell the client, if it is large enough.
    pub(crate) fn release(&mut self, bytes: usize, window_max: u32) -> Option<u32> {
        let Self::Open { window, to_release, .. } = self else { return None };
        *to_release += bytes;
        if *to_release * 2 < window_max as usize {
            return None;
        }
        *window += *to_release as i64;
        Some(std::mem::take(to_release) as u32)
    }
}

impl<A: Application> Http2Connection<A> {
    /// Serves a complete request.
    pub(crate) fn start_message(&mut self, slot: usize) {
        let Some(stream) = &mut self.slots[slot].stream else { return };
        let CallState::Awaiting { head, message } = &stream.state else { return };
        let request =
            MessageRequest { head: &head.head, timeout: head.timeout.as_ref(), body: message };
        let Some(MessageCall { reply, deadline }) = self.application.serve_message(request) else {
            return self.start_call(slot);
        };
        stream.state = CallState::Message(reply);
        stream.deadline = deadline;
        if let Some(deadline) = deadline {
            self.next_deadline = Some(self.next_deadline.map_or(deadline, |it| it.min(deadline)));
        }
        self.slots[slot].waker.queue();
    }

    /// Serves any request. Its body is read while it arrives.
    pub(crate) fn start_call(&mut self, slot: usize) {
        let Self { application, slots, config, output, .. } = self;
        let slot = &mut slots[slot];
        let Some(stream) = &mut slot.stream else { return };
        let state = std::mem::replace(&mut stream.state, CallState::Taken);
        let CallState::Awaiting { head: ReceivedHead { head, timeout, .. }, message } = state
        else {
            stream.state = state;
            return;
        };
        let (shared, body) = BodyBuffer::new(Arc::clone(&slot.waker));
        if !message.is_empty() {
            // The connection counts these bytes as read already.
            shared.push_counted(&message);
            if let Some(more) = stream.receiving.release(message.len(), config.stream_window) {
                put_window_update(output, stream.id, more);
            }
        }
        if !stream.is_receiving() {
            shared.end();
        }
        stream.body = Some(shared);
        let mut request = Request::new(body);
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = head.uri.clone();
        *request.version_mut() = http::Version::HTTP_2;
        *request.headers_mut() = head.headers.clone();
        if let Some(timeout) = timeout {
            request.headers_mut().insert(TIMEOUT_NAME, timeout);
        }
        stream.state = CallState::Response(application.serve(request));
        slot.waker.queue();
    }

    /// Lets the call in this slot make progress.
    pub(crate) fn poll_slot(&mut self, slot: usize) {
        let Some(it) = self.slots.get(slot) else { return };
        it.waker.begin_poll();
        if it.stream.is_none() {
            return;
        }
        self.release_read(slot);
        let waker = Waker::from(Arc::clone(&self.slots[slot].waker));
        let mut context = Context::from_waker(&waker);
        loop {
            let Some(stream) = &mut self.slots[slot].stream else { return };
            match &mut stream.state {
                CallState::Message(reply) => match reply.as_mut().poll(&mut context) {
                    Poll::Ready(MessageReply::Message(message)) => {
                        return self.reply(slot, message, &mut context);
                    }
                    Poll::Ready(MessageReply::Response(response)) => self.respond(slot, response),
                    Poll::Pending => return,
                },
                CallState::Response(response) => match response.as_mut().poll(&mut context) {
                    Poll::Ready(response) => self.respond(slot, response),
                    Poll::Pending => return,
                },
                CallState::Sending(_) => return self.send_body(slot, &mut context),
                CallState::Awaiting { .. } | CallState::Taken => return,
            }
        }
    }

    /// Returns what the application has read to the windows of the client.
    fn release_read(&mut self, slot: usize) {
        let Some(stream) = &mut self.slots[slot].stream else { return };
        let Some(body) = &stream.body else { return };
        let (bytes, is_dropped) = body.take_read();
        if is_dropped {
            // What arrives from now on is returned when it arrives.
            stream.body = None;
        }
        if bytes == 0 {
            return;
        }
        let released = stream.receiving.release(bytes, self.config.stream_window);
        if let Some(increment) = released {
            put_window_update(&mut self.output, stream.id, increment);
        }
        self.release(bytes);
    }

    /// A successful gRPC response with one message.
    fn reply(&mut self, slot: usize, message: Vec<u8>, context: &mut Context<'_>) {
        let start = self.begin_block();
        let Some(stream) = &mut self.slots[slot].stream else { return };
        let length = message.len();
        let fits = length <= self.frame_bytes_max
            && length as i64 <= stream.send_window.min(self.send_window)
            && self.output.len() < OUTPUT_BYTES_MAX;
        let (id, output) = (stream.id, &mut self.output);
        let block_bytes = start.len() + GRPC_HEADERS.len();
        put_head(output, block_bytes, kind::HEADERS, flag::END_HEADERS, id);
        output.extend_from_slice(start);
        output.extend_from_slice(GRPC_HEADERS);
        if !fits {
            let pending = message.into();
            let sending = SendingBody { body: None, pending, has_status: true, is_own: true };
            stream.state = CallState::Sending(Box::new(sending));
            return self.send_body(slot, context);
        }
        put_head(output, length, kind::DATA, 0, id);
        output.extend_from_slice(&message);
        put_grpc_ok(output, id);
        self.send_window -= length as i64;
        self.finish(slot);
    }

    fn respond(&mut self, slot: usize, response: Response<A::Body>) {
        let start = self.begin_block();
        let Some(stream) = &mut self.slots[slot].stream else { return };
        let (parts, body) = response.into_parts();
        let mut block = start.to_vec();
        encode_status(parts.status, &mut block);
        encode_headers(&parts.headers, &mut block);
        let has_ended = body.is_end_stream();
        put_headers(&mut self.output, stream.id, &block, has_ended, self.frame_bytes_max);
        if has_ended {
            return self.finish(slot);
        }
        let pending = Bytes::new();
        let sending = SendingBody { body: Some(body), pending, has_status: false, is_own: true };
        stream.state = CallState::Sending(Box::new(sending));
    }

    /// Sends as much of a body as the windows allow and others leave room for.
    fn send_body(&mut self, slot: usize, context: &mut Context<'_>) {
        let mut turn_left = TURN_BYTES;
        loop {
            let Some(stream) = &mut self.slots[slot].stream else { return };
            let CallState::Sending(sending) = &mut stream.state else { return };
            if sending.pending.is_empty() && sending.body.is_none() {
                return self.end_body(slot);
            }
            if stream.send_window <= 0 {
                sending.keep_pending_only();
                return;
            }
            if self.send_window <= 0 || self.output.len() >= OUTPUT_BYTES_MAX {
                sending.keep_pending_only();
                return self.block(slot);
            }
            if sending.pending.is_empty()
                && let Some(body) = &mut sending.body
            {
                match Pin::new(body).poll_frame(context) {
                    Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                        Ok(data) => (sending.pending, sending.is_own) = (data, false),
                        Err(frame) => {
                            let trailers = frame.into_trailers().unwrap_or_default();
                            return self.send_trailers(slot, &trailers);
                        }
                    },
                    Poll::Ready(Some(Err(_))) => {
                        return self.reset_stream(slot, Reason::INTERNAL_ERROR);
                    }
                    Poll::Ready(None) => sending.body = None,
                    Poll::Pending => return,
                }
                continue;
            }
            let window = stream.send_window.min(self.send_window);
            let length = sending.pending.len().min(self.frame_bytes_max);
            let length = length.min(usize::try_from(window).unwrap_or(0));
            let piece = sending.pending.split_to(length);
            let is_last = sending.pending.is_empty()
                && !sending.has_status
                && sending.body.as_ref().is_none_or(Body::is_end_stream);
            let flags = if is_last { flag::END_STREAM } else { 0 };
            put_head(&mut self.output, length, kind::DATA, flags, stream.id);
            self.output.extend_from_slice(&piece);
            stream.send_window -= length as i64;
            self.send_window -= length as i64;
            if is_last {
                return self.finish(slot);
            }
            turn_left = turn_left.saturating_sub(length);
            if turn_left == 0 {
                // The others first.
                return self.slots[slot].waker.queue();
            }
        }
    }

    /// The end of a body without trailers.
    fn end_body(&mut self, slot: usize) {
        let Some(stream) = &self.slots[slot].stream else { return };
        let CallState::Sending(sending) = &stream.state else { return };
        if sending.has_status {
            put_grpc_ok(&mut self.output, stream.id);
        } else {
            put_head(&mut self.output, 0, kind::DATA, flag::END_STREAM, stream.id);
        }
        self.finish(slot);
    }

    fn send_trailers(&mut self, slot: usize, trailers: &HeaderMap) {
        let Some(stream) = &self.slots[slot].stream else { return };
        let mut block = Vec::with_capacity(64);
        encode_headers(trailers, &mut block);
        put_headers(&mut self.output, stream.id, &block, true, self.frame_bytes_max);
        self.finish(slot);
    }

    /// The response is complete. A client that still sends its request may stop.
    fn finish(&mut self, slot: usize) {
        match &self.slots[slot].stream {
            Some(stream) if stream.is_receiving() => self.reset_stream(slot, Reason::NO_ERROR),
            _ => self.close(slot),
        }
    }

    /// A response without a body to a request that is not served.
    pub(crate) fn put_status(&mut self, stream: u32, status: StatusCode) {
        let mut block = self.begin_block().to_vec();
        encode_status(status, &mut block);
        put_headers(&mut self.output, stream, &block, true, self.frame_bytes_max);
    }

    /// Ends the calls whose deadline has passed. Calls of one client have similar timeouts, so the
    /// next deadline is mostly that of a call that has just begun.
    pub(crate) fn end_late_calls(&mut self, now: Instant) {
        if self.next_deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        self.next_deadline = None;
        for slot in 0..self.slots.len() {
            let Some(stream) = &mut self.slots[slot].stream else { continue };
            let Some(deadline) = stream.deadline else { continue };
            if deadline > now {
                self.next_deadline =
                    Some(self.next_deadline.map_or(deadline, |it| it.min(deadline)));
            } else if matches!(stream.state, CallState::Message(_)) {
                stream.state = CallState::Taken;
                stream.deadline = None;
                let response = self.application.deadline_passed();
                self.respond(slot, response);
                self.slots[slot].waker.queue();
            }
        }
    }
}

fn encode_headers(headers: &HeaderMap, block: &mut Vec<u8>) {
    for (name, value) in headers {
        encode_field(name.as_str().as_bytes(), value.as_bytes(), block);
    }
}

/// `:status: 200`, `content-type: application/grpc`.
const GRPC_HEADERS: &[u8] = b"\x88\x0f\x10\x10application/grpc";
/// `grpc-status: 0`.
const GRPC_OK: &[u8] = b"\x00\x0bgrpc-status\x010";

fn put_grpc_ok(output: &mut Vec<u8>, stream: u32) {
    let flags = flag::END_HEADERS | flag::END_STREAM;
    put_head(output, GRPC_OK.len(), kind::HEADERS, flags, stream);
    output.extend_from_slice(GRPC_OK);
}

/// What may wait to be written to the socket before calls have to wait.
pub(crate) const OUTPUT_BYTES_MAX: usize = 256 << 10;
/// What one body may send before it is the turn of others.
const TURN_BYTES: usize = 64 << 10;
