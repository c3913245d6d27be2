//! Frames of the server in, calls' ends out.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;

use super::reply_head::{ReplyFields, ReplyHeads};
use super::request_head::{CallTarget, RequestHeads};
use crate::PREFACE;
use crate::frame::{
    self, ConnectionError, FRAME_BYTES_MAX, FrameHead, HEAD_BYTES, ID_MASK, Reason, WINDOW_DEFAULT,
    WINDOW_MAX, flag, kind, setting,
};
use crate::stream_ids::StreamIdHash;

/// A connection to a server, without its socket.
#[derive(Debug)]
pub struct UnaryConnection {
    heads: RequestHeads,
    reply_heads: ReplyHeads,
    calls: HashMap<u32, PendingCall, StreamIdHash>,
    next_id: u32,
    /// Open calls whose request does not fit into the windows, the first to be sent first.
    pub(super) blocked: VecDeque<u32>,
    server: ServerLimits,
    has_settings: bool,
    /// What the server may still send before it is told that it may send more.
    receive_window: i64,
    /// Bytes of an incomplete frame.
    input: Vec<u8>,
    /// A header block whose end is in later frames.
    partial: Option<UnfinishedBlock>,
    pub(super) output: Vec<u8>,
    /// How much of the output is sent.
    sent: usize,
    /// A lower bound of how much of the unsent output answers frames of the server.
    answer_bytes: usize,
    goaway: Option<Goaway>,
    spare: Vec<u8>,
}

/// Identifies a call of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallId(u32);

/// How a call ended.
#[derive(Debug)]
pub enum CallEnd<'a> {
    /// The message of the reply; the status is OK.
    Reply(&'a [u8]),
    /// Another status, or none: `:status` and all fields of the trailers, or of the head if there
    /// are no trailers.
    Refused { http_status: u16, fields: &'a HeaderMap },
    /// The server has reset the stream.
    Reset(Reason),
    /// The server ended the connection before it processed the call.
    NotProcessed,
    /// What the server sent is not a unary reply.
    Malformed(&'static str),
}

#[derive(Debug)]
struct PendingCall {
    tag: u32,
    /// The rest of the request.
    unsent: Bytes,
    send_window: i64,
    receive_window: i64,
    head: Option<Arc<ReplyFields>>,
    body: Vec<u8>,
}

/// What the server allows.
#[derive(Debug)]
struct ServerLimits {
    streams: u32,
    frame_bytes: usize,
    stream_window: i64,
    connection_window: i64,
}

#[derive(Debug)]
struct UnfinishedBlock {
    stream: u32,
    flags: u8,
    block: Vec<u8>,
}

#[derive(Debug)]
struct Goaway {
    reason: Reason,
    text: String,
}

/// The longest reply: gRPC's usual limit.
pub const REPLY_BYTES_MAX: usize = 4 << 20;

impl UnaryConnection {
    pub fn new(target: &CallTarget) -> Self {
        let mut output = PREFACE.to_vec();
        let settings =
            [(setting::ENABLE_PUSH, 0), (setting::INITIAL_WINDOW_SIZE, STREAM_WINDOW as u32)];
        frame::put_settings(&mut output, &settings);
        let increment = CONNECTION_WINDOW - WINDOW_DEFAULT;
        frame::put_window_update(&mut output, 0, increment as u32);
        Self {
            heads: RequestHeads::new(target),
            reply_heads: ReplyHeads::new(),
            calls: HashMap::with_hasher(StreamIdHash::new()),
            next_id: 1,
            blocked: VecDeque::new(),
            server: ServerLimits {
                streams: u32::MAX,
                frame_bytes: FRAME_BYTES_MAX,
                stream_window: WINDOW_DEFAULT,
                connection_window: WINDOW_DEFAULT,
            },
            has_settings: false,
            receive_window: CONNECTION_WINDOW,
            input: Vec::new(),
            partial: None,
            output,
            sent: 0,
            answer_bytes: 0,
            goaway: None,
            spare: Vec::new(),
        }
    }

    /// Whether another call may start now: not before the server has said how many may be open,
    /// and not while it does not read what was sent before.
    pub fn has_room(&self) -> bool {
        let may_start = self.has_settings && !self.is_closing();
        let is_sending = self.output().len() < OUTPUT_BYTES_MAX;
        may_start && is_sending && self.calls.len() < self.server.streams as usize
    }

    /// Whether the server has sent its settings, the first that it sends.
    pub fn has_settings(&self) -> bool {
        self.has_settings
    }

    /// Whether no call may start any more. The connection is of no use when the open calls have
    /// ended.
    pub fn is_closing(&self) -> bool {
        self.goaway.is_some() || self.next_id > ID_MASK
    }

    pub fn open_calls(&self) -> usize {
        self.calls.len()
    }

    /// Why the server ends the connection, if it said so.
    pub fn closing_error(&self) -> Option<String> {
        let goaway = self.goaway.as_ref().filter(|goaway| goaway.reason != Reason::NO_ERROR)?;
        Some(format!("HTTP/2 error {}: {}", goaway.reason.0, goaway.text))
    }

    /// Starts a call, if there is room. `encode` appends the message of the request; `tag` comes
    /// back with the end of the call.
    pub fn start(
        &mut self,
        path: &'static str,
        tag: u32,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Option<CallId> {
        if !self.has_room() {
            return None;
        }
        let id = self.next_id;
        self.next_id += 2;
        let block = self.heads.block(path);
        frame::put_headers(&mut self.output, id, block, false, self.server.frame_bytes);
        // Most messages are one frame: they are encoded where they are sent.
        let start = self.output.len();
        frame::put_head(&mut self.output, 0, kind::DATA, flag::END_STREAM, id);
        self.output.extend_from_slice(&[0; PREFIX_BYTES]);
        encode(&mut self.output);
        let body_start = start + HEAD_BYTES;
        let length = self.output.len() - body_start;
        let message_bytes = u32::try_from(length - PREFIX_BYTES).unwrap_or(u32::MAX).to_be_bytes();
        self.output[body_start + 1..body_start + PREFIX_BYTES].copy_from_slice(&message_bytes);
        let window = self.server.connection_window.min(self.server.stream_window);
        let mut call = PendingCall {
            tag,
            unsent: Bytes::new(),
            send_window: self.server.stream_window,
            receive_window: STREAM_WINDOW,
            head: None,
            body: std::mem::take(&mut self.spare),
        };
        let fits = length <= self.server.frame_bytes && length as i64 <= window;
        if fits && self.blocked.is_empty() {
            let [_, a, b, c] = (length as u32).to_be_bytes();
            self.output[start..start + 3].copy_from_slice(&[a, b, c]);
            call.send_window -= length as i64;
            self.server.connection_window -= length as i64;
        } else {
            call.unsent = Bytes::from(self.output.split_off(body_start));
            self.output.truncate(start);
            self.blocked.push_back(id);
        }
        self.calls.insert(id, call);
        if !self.blocked.is_empty() {
            self.send_blocked();
        }
        Some(CallId(id))
    }

    /// Ends a call without a reply. Its end is not reported.
    pub fn cancel(&mut self, CallId(id): CallId) {
        if self.remove(id).is_some() {
            frame::put_reset(&mut self.output, id, Reason::CANCEL);
        }
    }

    /// Removes a call, also from those that wait for a window.
    fn remove(&mut self, id: u32) -> Option<PendingCall> {
        let call = self.calls.remove(&id)?;
        if !call.unsent.is_empty() {
            self.blocked.retain(|blocked| *blocked != id);
        }
        Some(call)
    }

    /// What has to be sent.
    pub fn output(&self) -> &[u8] {
        &self.output[self.sent..]
    }

    /// So much of the output was sent.
    pub fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        // As if answers were sent before requests: never too many are counted.
        self.answer_bytes = self.answer_bytes.saturating_sub(bytes);
        if self.sent >= self.output.len() {
            self.output.clear();
            self.output.shrink_to(OUTPUT_KEPT);
            self.sent = 0;
        } else if self.sent >= OUTPUT_KEPT && self.sent > self.output.len() / 2 {
            // Memory would grow without end if something always waits.
            self.output.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Processes what was received, and reports the calls that ended with it.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        mut ended: impl FnMut(u32, CallEnd<'_>),
    ) -> Result<(), ConnectionError> {
        if self.input.is_empty() {
            let used = self.frames(bytes, &mut ended)?;
            self.input.extend_from_slice(&bytes[used..]);
            return Ok(());
        }
        let mut input = std::mem::take(&mut self.input);
        input.extend_from_slice(bytes);
        let used = self.frames(&input, &mut ended)?;
        input.drain(..used);
        self.input = input;
        Ok(())
    }

    /// Processes complete frames. Returns their length.
    fn frames(
        &mut self,
        bytes: &[u8],
        ended: &mut impl FnMut(u32, CallEnd<'_>),
    ) -> Result<usize, ConnectionError> {
        let mut rest = bytes;
        while let Some((head, after)) = rest.split_first_chunk() {
            let head = FrameHead::parse(head);
            if head.length > FRAME_BYTES_MAX {
                return Err(ConnectionError::size("a frame is too long"));
            }
            let Some((payload, next)) = after.split_at_checked(head.length) else { break };
            self.frame(head, payload, ended)?;
            if self.answer_bytes > ANSWER_BYTES_MAX {
                let text = "the server sends many frames and reads no answers";
                return Err(ConnectionError::new(Reason::ENHANCE_YOUR_CALM, text));
            }
            rest = next;
        }
        if self.receive_window < CONNECTION_WINDOW / 2 {
            let increment = CONNECTION_WINDOW - self.receive_window;
            frame::put_window_update(&mut self.output, 0, increment as u32);
            self.receive_window = CONNECTION_WINDOW;
        }
        Ok(bytes.len() - rest.len())
    }

    fn frame(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        ended: &mut impl FnMut(u32, CallEnd<'_>),
    ) -> Result<(), ConnectionError> {
        if !self.has_settings && (head.kind != kind::SETTINGS || head.has(flag::ACK)) {
            return Err(ConnectionError::protocol("the first frame is not SETTINGS"));
        }
        if self.partial.is_some() != (head.kind == kind::CONTINUATION) {
            return Err(ConnectionError::protocol("a header block is interrupted or continued"));
        }
        let needs_stream = matches!(
            head.kind,
            kind::DATA | kind::HEADERS | kind::RST_STREAM | kind::CONTINUATION | kind::PRIORITY
        );
        let needs_none = matches!(head.kind, kind::SETTINGS | kind::PING | kind::GOAWAY);
        if needs_stream && head.stream == 0 || needs_none && head.stream != 0 {
            return Err(ConnectionError::protocol("a frame on a wrong stream"));
        }
        if needs_stream && (head.stream.is_multiple_of(2) || head.stream >= self.next_id) {
            return Err(ConnectionError::protocol("a frame of a stream that was not opened"));
        }
        match head.kind {
            kind::DATA => self.data(head, payload, ended),
            kind::HEADERS => {
                let mut block = unpadded(head, payload)?;
                if head.has(flag::PRIORITY) {
                    let after = block.split_at_checked(PRIORITY_BYTES);
                    (_, block) = after.ok_or(ConnectionError::size("HEADERS are too short"))?;
                }
                if head.has(flag::END_HEADERS) {
                    return self.headers(head.stream, head.flags, block, ended);
                }
                let (stream, flags, block) = (head.stream, head.flags, block.to_vec());
                self.partial = Some(UnfinishedBlock { stream, flags, block });
                Ok(())
            }
            kind::CONTINUATION => self.continuation(head, payload, ended),
            kind::RST_STREAM => {
                let reason = Reason(four_bytes(payload)?);
                if let Some(call) = self.remove(head.stream) {
                    ended(call.tag, CallEnd::Reset(reason));
                }
                Ok(())
            }
            kind::SETTINGS => self.settings(head, payload),
            kind::PING => {
                let Ok(content) = payload.try_into() else {
                    return Err(ConnectionError::size("PING is not eight bytes long"));
                };
                if !head.has(flag::ACK) {
                    frame::put_ping(&mut self.output, flag::ACK, content);
                    self.answer_bytes += HEAD_BYTES + content.len();
                }
                Ok(())
            }
            kind::GOAWAY => self.goaway(payload, ended),
            kind::WINDOW_UPDATE => self.window_update(head.stream, four_bytes(payload)?),
            kind::PUSH_PROMISE => Err(ConnectionError::protocol("push is disabled")),
            _ => Ok(()),
        }
    }

    fn data(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        ended: &mut impl FnMut(u32, CallEnd<'_>),
    ) -> Result<(), ConnectionError> {
        self.receive_window -= head.length as i64;
        if self.receive_window < 0 {
            return Err(window_exceeded());
        }
        let data = unpadded(head, payload)?;
        let Some(call) = self.calls.get_mut(&head.stream) else { return Ok(()) };
        call.receive_window -= head.length as i64;
        if call.receive_window < 0 {
            return Err(window_exceeded());
        }
        if call.head.is_none() {
            self.abort(head.stream, "data before the head of the reply", ended);
        } else if call.body.len() + data.len() > REPLY_BYTES_MAX + PREFIX_BYTES {
            self.abort(head.stream, "the reply is larger than 4 MiB", ended);
        } else {
            call.body.extend_from_slice(data);
            if head.has(flag::END_STREAM) {
                self.finish(head.stream, None, ended);
            }
        }
        Ok(())
    }

    fn continuation(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        ended: &mut impl FnMut(u32, CallEnd<'_>),
    ) -> Result<(), ConnectionError> {
        let Some(mut partial) = self.partial.take().filter(|it| it.stream == head.stream) else {
            return Err(ConnectionError::protocol("CONTINUATION of another stream"));
        };
        let is_last = head.has(flag::END_HEADERS);
        let is_idle = payload.is_empty() && !is_last;
        // There could be any number of frames without bytes.
        if is_idle || partial.block.len() + payload.len() > BLOCK_BYTES_MAX {
            let text = "a header block has too many bytes or empty frames";
            return Err(ConnectionError::new(Reason::ENHANCE_YOUR_CALM, text));
        }
        partial.block.extend_from_slice(payload);
        if is_last {
            return self.headers(partial.stream, partial.flags, &partial.block, ended);
        }
        self.partial = Some(partial);
        Ok(())
    }

    fn headers(
        &mut self,
        stream: u32,
        flags: u8,
        block: &[u8],
        ended: &mut impl FnMut(u32, CallEnd<'_>),
    ) -> Result<(), ConnectionError> {
        // The tables must stay the same on both sides, even if the call has ended.
        let fields = self.reply_heads.decode(block);
        let fields = fields
            .map_err(|error| ConnectionError::new(Reason::COMPRESSION_ERROR, error.text()))?;
        let Some(call) = self.calls.get_mut(&stream) else { return Ok(()) };
        let ends = flags & flag::END_STREAM != 0;
        match (&call.head, fields.http_status) {
            (None, None) => self.abort(stream, "a reply without a status", ended),
            (None, Some(100..200)) if !ends => {}
            (None, Some(_)) => {
                call.head = Some(fields);
                if ends {
                    self.finish(stream, None, ended);
                }
            }
            (Some(_), None) if ends => self.finish(stream, Some(fields), ended),
            (Some(_), _) => self.abort(stream, "two heads of a reply", ended),
        }
        Ok(())
    }

    /// A call whose reply is complete.
    fn finish(
        &mut self,
        stream: u32,
        trailers: Option<Arc<ReplyFields>>,
        ended: &mut impl FnMut(u32, CallEnd<'_>),
    ) {
        let Some(mut call) = self.remove(stream) else { return };
        if !call.unsent.is_empty() {
            frame::put_reset(&mut self.output, stream, Reason::CANCEL);
        }
        let Some(head) = call.head else { return };
        let fields = trailers.as_ref().unwrap_or(&head);
        let http_status = head.http_status.unwrap_or_default();
        let end = match fields.is_ok && http_status == 200 {
            true => message_of(&call.body).map_or_else(CallEnd::Malformed, CallEnd::Reply),
            false => CallEnd::Refused { http_status, fields: &fields.headers },
        };
        ended(call.tag, end);
        if call.body.capacity() <= SPARE_BYTES_MAX {
            call.body.clear();
            self.spare = call.body;
        }
    }

    /// Ends a call whose reply makes no sense.
    fn abort(&mut self, stream: u32, text: &'static str, ended: &mut impl FnMut(u32, CallEnd<'_>)) {
        if let Some(call) = self.remove(stream) {
            frame::put_reset(&mut self.output, stream, Reason::CANCEL);
            ended(call.tag, CallEnd::Malformed(text));
        }
    }

    fn settings(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), ConnectionError> {
        let (settings, []) = payload.as_chunks::<6>() else {
            return Err(ConnectionError::size("SETTINGS with a wrong length"));
        };
        if head.has(flag::ACK) {
            let is_empty = payload.is_empty();
            let error = ConnectionError::size("an acknowledgement of SETTINGS with a payload");
            return if is_empty { Ok(()) } else { Err(error) };
        }
        let mut window = self.server.stream_window;
        for [a, b, value @ ..] in settings {
            let value = u32::from_be_bytes(*value);
            match u16::from_be_bytes([*a, *b]) {
                setting::HEADER_TABLE_SIZE => self.heads.table_size_allowed(value),
                setting::ENABLE_PUSH if value != 0 => {
                    return Err(ConnectionError::protocol("a server cannot enable push"));
                }
                setting::MAX_CONCURRENT_STREAMS => self.server.streams = value,
                setting::INITIAL_WINDOW_SIZE if i64::from(value) > WINDOW_MAX => {
                    return Err(window_too_large());
                }
                setting::INITIAL_WINDOW_SIZE => window = i64::from(value),
                setting::MAX_FRAME_SIZE => {
                    let value = value as usize;
                    if !(FRAME_BYTES_MAX..1 << 24).contains(&value) {
                        return Err(ConnectionError::protocol("an invalid frame size"));
                    }
                    self.server.frame_bytes = value;
                }
                _ => {}
            }
        }
        // Once for all of them: it visits every call.
        self.set_stream_windows(window)?;
        self.has_settings = true;
        frame::put_head(&mut self.output, 0, kind::SETTINGS, flag::ACK, 0);
        self.answer_bytes += HEAD_BYTES;
        self.send_blocked();
        Ok(())
    }

    fn set_stream_windows(&mut self, window: i64) -> Result<(), ConnectionError> {
        let change = window - self.server.stream_window;
        if change == 0 {
            return Ok(());
        }
        self.server.stream_window = window;
        for call in self.calls.values_mut() {
            call.send_window += change;
            if call.send_window > WINDOW_MAX {
                return Err(window_too_large());
            }
        }
        Ok(())
    }

    fn window_update(&mut self, stream: u32, increment: u32) -> Result<(), ConnectionError> {
        let increment = i64::from(increment & ID_MASK);
        if increment == 0 {
            return Err(ConnectionError::protocol("a window update of 0"));
        }
        if stream >= self.next_id {
            return Err(ConnectionError::protocol("a frame of a stream that was not opened"));
        }
        let window = match self.calls.get_mut(&stream) {
            Some(call) => &mut call.send_window,
            None if stream == 0 => &mut self.server.connection_window,
            None => return Ok(()),
        };
        *window += increment;
        if *window > WINDOW_MAX {
            return Err(window_too_large());
        }
        self.send_blocked();
        Ok(())
    }

    fn goaway(
        &mut self,
        payload: &[u8],
        ended: &mut impl FnMut(u32, CallEnd<'_>),
    ) -> Result<(), ConnectionError> {
        let Some(([a, b, c, d, e, f, g, h], text)) = payload.split_first_chunk() else {
            return Err(ConnectionError::size("GOAWAY is too short"));
        };
        let last = u32::from_be_bytes([*a, *b, *c, *d]) & ID_MASK;
        let reason = Reason(u32::from_be_bytes([*e, *f, *g, *h]));
        let text = String::from_utf8_lossy(&text[..text.len().min(TEXT_BYTES_MAX)]).into_owned();
        self.goaway = Some(Goaway { reason, text });
        self.calls.retain(|id, call| {
            if *id > last {
                ended(call.tag, CallEnd::NotProcessed);
            }
            *id <= last
        });
        self.blocked.retain(|id| *id <= last);
        Ok(())
    }

    /// Sends of the waiting requests what fits into the windows.
    fn send_blocked(&mut self) {
        for _ in 0..self.blocked.len() {
            if self.server.connection_window <= 0 {
                return;
            }
            let Some(id) = self.blocked.pop_front() else { return };
            let Some(call) = self.calls.get_mut(&id) else { continue };
            let window = call.send_window.min(self.server.connection_window).max(0) as usize;
            let length = call.unsent.len().min(window);
            let is_all = length == call.unsent.len();
            let now = call.unsent.split_to(length);
            let pieces = now.chunks(self.server.frame_bytes);
            let count = pieces.len();
            for (number, piece) in pieces.enumerate() {
                let is_last = is_all && number + 1 == count;
                let flags = if is_last { flag::END_STREAM } else { 0 };
                frame::put_head(&mut self.output, piece.len(), kind::DATA, flags, id);
                self.output.extend_from_slice(piece);
            }
            call.send_window -= length as i64;
            self.server.connection_window -= length as i64;
            if !is_all {
                self.blocked.push_back(id);
            }
        }
    }
}

/// The one message of a body.
fn message_of(body: &[u8]) -> Result<&[u8], &'static str> {
    match body.split_first_chunk() {
        None if body.is_empty() => Err("Missing response message."),
        None => Err("the reply is cut off"),
        Some(([0, a, b, c, d], message)) => {
            let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
            if length == message.len() { Ok(message) } else { Err("the reply is not one message") }
        }
        Some(_) => Err("the reply is compressed"),
    }
}

/// The payload of a frame without its padding.
fn unpadded(head: FrameHead, payload: &[u8]) -> Result<&[u8], ConnectionError> {
    if !head.has(flag::PADDED) {
        return Ok(payload);
    }
    let error = ConnectionError::protocol("padding is longer than its frame");
    let (padding, rest) = payload.split_first().ok_or(error)?;
    let length = rest.len().checked_sub(usize::from(*padding)).ok_or(error)?;
    Ok(&rest[..length])
}

fn four_bytes(payload: &[u8]) -> Result<u32, ConnectionError> {
    let bytes = payload.try_into().map_err(|_| ConnectionError::size("a frame is not four bytes"));
    bytes.map(u32::from_be_bytes)
}

fn window_exceeded() -> ConnectionError {
    ConnectionError::new(Reason::FLOW_CONTROL_ERROR, "more data than the window allows")
}

fn window_too_large() -> ConnectionError {
    ConnectionError::new(Reason::FLOW_CONTROL_ERROR, "a window is too large")
}

/// The flag and the length before a message.
const PREFIX_BYTES: usize = 5;
const PRIORITY_BYTES: usize = 5;
/// What the server may send: a whole reply with some padding, and many of them.
const STREAM_WINDOW: i64 = 8 << 20;
const CONNECTION_WINDOW: i64 = 256 << 20;
/// The longest header block in several frames.
const BLOCK_BYTES_MAX: usize = 64 << 10;
/// Output that may wait to be sent when a call starts. The server may have ended earlier calls
/// without reading their requests.
const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// Answers to the server's frames that may wait to be sent: ten thousand.
const ANSWER_BYTES_MAX: usize = 170 << 10;
/// Of the text of a GOAWAY.
const TEXT_BYTES_MAX: usize = 256;
/// Space that is kept for later calls, and output that is sent and not freed yet.
const OUTPUT_KEPT: usize = 256 << 10;
const SPARE_BYTES_MAX: usize = 64 << 10;
