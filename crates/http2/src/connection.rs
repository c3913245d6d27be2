//! The protocol of one connection without its socket: bytes of the client in, bytes for the client
//! out. What the frames of the client mean is here; calls and their responses are in `calls.rs`.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::application::Application;
use crate::calls::{CallState, Receiving, Stream};
use crate::config::ConnectionConfig;
use crate::flood::FloodLimit;
use crate::frame::{
    ConnectionError, FRAME_BYTES_MAX, FrameHead, HEAD_BYTES, ID_MASK, Reason, WINDOW_DEFAULT, flag,
    kind, put_reset, put_settings, put_window_update, setting,
};
use crate::head::{HeadBlock, HeadDecoder};
use crate::hpack::HpackError;
use crate::ready::ReadyQueue;
use crate::stream_ids::{RecentIds, StreamIdHash};

/// The state of one connection.
pub(crate) struct Http2Connection<A: Application> {
    pub(crate) application: A,
    pub(crate) config: ConnectionConfig,
    /// What has to be written to the socket.
    pub(crate) output: Vec<u8>,
    /// The start of a frame whose end has not arrived.
    partial: Vec<u8>,
    heads: HeadDecoder,
    /// A header block whose end has not arrived.
    block: Option<PartialBlock>,
    pub(crate) has_settings: bool,
    pub(crate) flood: FloodLimit,
    /// The highest stream that the client has opened.
    pub(crate) highest: u32,
    /// Streams above this one are not served: the client was told to use another connection.
    pub(crate) last_served: u32,
    /// The client opens no further streams.
    pub(crate) client_is_leaving: bool,
    /// The reply to our last ping has arrived.
    pub(crate) ping_replied: bool,
    pub(crate) slots: Vec<Slot<A>>,
    pub(crate) free_slots: Vec<usize>,
    /// The slots of open streams.
    pub(crate) ids: HashMap<u32, usize, StreamIdHash>,
    /// Streams that were reset by the server: what the client sends before it knows is ignored.
    recently_reset: RecentIds,
    /// Slots of calls whose message has not begun to arrive, and of others.
    awaiting: Vec<usize>,
    /// When the first of these calls began to wait.
    pub(crate) awaiting_since: Option<Instant>,
    /// Slots of calls whose message arrives in pieces.
    incomplete: Vec<usize>,
    pub(crate) ready: Arc<ReadyQueue>,
    /// No call has an earlier deadline.
    pub(crate) next_deadline: Option<Instant>,
    pub(crate) send_window: i64,
    pub(crate) stream_send_window: i64,
    pub(crate) frame_bytes_max: usize,
    /// Slots that wait until the connection may send more, each once.
    pub(crate) blocked: VecDeque<usize>,
    /// Whether a header block was sent.
    has_sent_block: bool,
    receive_window: i64,
    /// Bytes that were read and not yet returned to the client's window.
    to_release: usize,
}

/// Holds one stream after the other.
pub(crate) struct Slot<A: Application> {
    pub(crate) waker: Arc<crate::ready::SlotWaker>,
    pub(crate) stream: Option<Stream<A>>,
    /// Whether it is in [`Http2Connection::blocked`].
    pub(crate) is_blocked: bool,
}

struct PartialBlock {
    stream: u32,
    ends_stream: bool,
    block: Vec<u8>,
    frames: usize,
    since: Instant,
}

impl<A: Application> Http2Connection<A> {
    pub(crate) fn new(application: A, config: ConnectionConfig) -> Self {
        let mut output = Vec::new();
        let mut settings = vec![
            (setting::INITIAL_WINDOW_SIZE, config.stream_window),
            (setting::MAX_HEADER_LIST_SIZE, config.header_bytes_max),
        ];
        if config.streams_max < u32::MAX {
            settings.push((setting::MAX_CONCURRENT_STREAMS, config.streams_max));
        }
        put_settings(&mut output, &settings);
        let more = i64::from(config.connection_window) - WINDOW_DEFAULT;
        if let Ok(more) = u32::try_from(more)
            && more > 0
        {
            put_window_update(&mut output, 0, more);
        }
        Self {
            application,
            output,
            partial: Vec::new(),
            heads: HeadDecoder::new(config.header_bytes_max as usize),
            block: None,
            has_settings: false,
            flood: FloodLimit::new(),
            highest: 0,
            last_served: ID_MASK,
            client_is_leaving: false,
            ping_replied: true,
            slots: Vec::new(),
            free_slots: Vec::new(),
            ids: HashMap::with_hasher(StreamIdHash::new()),
            recently_reset: RecentIds::default(),
            awaiting: Vec::new(),
            awaiting_since: None,
            incomplete: Vec::new(),
            ready: Arc::default(),
            next_deadline: None,
            send_window: WINDOW_DEFAULT,
            stream_send_window: WINDOW_DEFAULT,
            frame_bytes_max: FRAME_BYTES_MAX,
            blocked: VecDeque::new(),
            has_sent_block: false,
            receive_window: i64::from(config.connection_window).max(WINDOW_DEFAULT),
            to_release: 0,
            config,
        }
    }

    /// Processes bytes that the client has sent after its preface.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        let received = if self.partial.is_empty() {
            let used = self.receive_frames(bytes);
            used.map(|used| self.partial.extend_from_slice(&bytes[used..]))
        } else {
            let mut all = std::mem::take(&mut self.partial);
            all.extend_from_slice(bytes);
            let used = self.receive_frames(&all);
            used.map(|used| {
                all.drain(..used);
                self.partial = all;
            })
        };
        if self.partial.is_empty() && self.partial.capacity() > 0 {
            self.partial = Vec::new();
        }
        self.stop_awaiting();
        self.release(0);
        received
    }

    /// Processes all complete frames, and returns how many bytes they have.
    fn receive_frames(&mut self, bytes: &[u8]) -> Result<usize, ConnectionError> {
        let mut rest = bytes;
        while let Some((head, after)) = rest.split_first_chunk::<HEAD_BYTES>() {
            let head = FrameHead::parse(head);
            if head.length > FRAME_BYTES_MAX {
                return Err(ConnectionError::size("the frame is too long"));
            }
            let Some((payload, next)) = after.split_at_checked(head.length) else { break };
            self.receive_frame(head, payload)?;
            rest = next;
        }
        Ok(bytes.len() - rest.len())
    }

    fn receive_frame(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), ConnectionError> {
        if !self.has_settings && (head.kind != kind::SETTINGS || head.has(flag::ACK)) {
            return Err(ConnectionError::protocol("the first frame is not SETTINGS"));
        }
        if self
            .block
            .as_ref()
            .is_some_and(|block| head.kind != kind::CONTINUATION || head.stream != block.stream)
        {
            return Err(ConnectionError::protocol("a header block was not continued"));
        }
        match head.kind {
            kind::DATA => self.on_data(head, payload),
            kind::HEADERS => self.on_headers(head, payload),
            kind::PRIORITY => self.on_priority(head, payload),
            kind::RST_STREAM => self.on_reset(head, payload),
            kind::SETTINGS => self.on_settings(head, payload),
            kind::PUSH_PROMISE => Err(ConnectionError::protocol("clients do not push")),
            kind::PING => self.on_ping(head, payload),
            kind::GOAWAY => self.on_goaway(head, payload),
            kind::WINDOW_UPDATE => self.on_window_update(head, payload),
            kind::CONTINUATION => self.on_continuation(head, payload),
            _ => self.flood.count(),
        }
    }

    fn on_headers(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), ConnectionError> {
        if head.stream.is_multiple_of(2) {
            return Err(ConnectionError::protocol("HEADERS of a stream that no client opens"));
        }
        let mut block = without_padding(head, payload)?;
        if head.has(flag::PRIORITY) {
            let (priority, rest) = block
                .split_first_chunk::<5>()
                .ok_or(ConnectionError::size("HEADERS are too short for a priority"))?;
            if depends_on(priority) == head.stream {
                return Err(ConnectionError::protocol("a stream depends on itself"));
            }
            block = rest;
        }
        let ends_stream = head.has(flag::END_STREAM);
        if head.has(flag::END_HEADERS) {
            return self.on_block(head.stream, block, ends_stream);
        }
        let (block, since) = (block.to_vec(), Instant::now());
        let stream = head.stream;
        self.block = Some(PartialBlock { stream, ends_stream, block, frames: 1, since });
        Ok(())
    }

    fn on_continuation(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), ConnectionError> {
        let Some(mut partial) = self.block.take() else {
            return Err(ConnectionError::protocol("CONTINUATION without HEADERS"));
        };
        partial.block.extend_from_slice(payload);
        partial.frames += 1;
        // One that is a little too long gets a response.
        let bytes_max = 5 * self.config.header_bytes_max as usize;
        if partial.block.len() > bytes_max || partial.frames > CONTINUATIONS_MAX {
            let text = "the header block is too long";
            return Err(ConnectionError::new(Reason::ENHANCE_YOUR_CALM, text));
        }
        if !head.has(flag::END_HEADERS) {
            self.block = Some(partial);
            return Ok(());
        }
        self.on_block(partial.stream, &partial.block, partial.ends_stream)
    }

    /// A complete header block.
    fn on_block(
        &mut self,
        id: u32,
        block: &[u8],
        ends_stream: bool,
    ) -> Result<(), ConnectionError> {
        if let Some(slot) = self.ids.get(&id).copied() {
            let are_valid = self.heads.trailers(block).map_err(compression)?;
            let is_open = self.slots[slot].stream.as_ref().is_some_and(Stream::is_receiving);
            if !is_open {
                return Err(ConnectionError::new(Reason::STREAM_CLOSED, "HEADERS after the end"));
            }
            if !are_valid || !ends_stream {
                return self.reset(slot, Reason::PROTOCOL_ERROR);
            }
            return self.on_end(slot);
        }
        if id <= self.highest {
            self.heads.skip(block).map_err(compression)?;
            if self.recently_reset.contains(id) {
                return self.flood.count();
            }
            let text = "HEADERS of a closed stream";
            return Err(ConnectionError::new(Reason::STREAM_CLOSED, text));
        }
        self.highest = id;
        let head = self.heads.request(block).map_err(compression)?;
        if id > self.last_served {
            // The client was told that it is not served.
            self.recently_reset.insert(id);
            return self.flood.count();
        }
        if self.ids.len() >= self.config.streams_max as usize {
            return self.refuse(id, Reason::REFUSED_STREAM);
        }
        let head = match head {
            HeadBlock::Request(head) => head,
            HeadBlock::TooLarge => {
                self.put_status(id, http::StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
                return match ends_stream {
                    true => self.flood.count(),
                    false => self.refuse(id, Reason::NO_ERROR),
                };
            }
            HeadBlock::Malformed => return self.refuse(id, Reason::PROTOCOL_ERROR),
        };
        let content_length = head.head.content_length();
        if ends_stream && content_length.is_some_and(|length| length > 0) {
            return self.refuse(id, Reason::PROTOCOL_ERROR);
        }
        let takes_messages = self.application.takes_messages(&head.head);
        let receiving = match ends_stream {
            true => Receiving::Ended,
            false => Receiving::new(self.config.stream_window, content_length),
        };
        let may_wait = takes_messages && !ends_stream && head.is_known;
        let state = CallState::Awaiting { head, message: Bytes::new() };
        let slot = self.open(id, state, receiving);
        if may_wait {
            self.awaiting.push(slot);
        } else if takes_messages && !ends_stream {
            self.incomplete.push(slot);
        } else {
            self.start_call(slot);
        }
        Ok(())
    }

    /// Answers a stream that is not opened with a reset.
    fn refuse(&mut self, id: u32, reason: Reason) -> Result<(), ConnectionError> {
        put_reset(&mut self.output, id, reason);
        self.recently_reset.insert(id);
        self.flood.count()
    }

    fn on_data(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), ConnectionError> {
        if head.stream == 0 {
            return Err(ConnectionError::protocol("DATA of the connection"));
        }
        let data = without_padding(head, payload)?;
        let (length, ends_stream) = (payload.len(), head.has(flag::END_STREAM));
        self.receive_window -= length as i64;
        if self.receive_window < 0 {
            let text = "more DATA than the window of the connection allows";
            return Err(ConnectionError::new(Reason::FLOW_CONTROL_ERROR, text));
        }
        if data.is_empty() && !ends_stream {
            self.flood.count()?;
        }
        let Some(slot) = self.ids.get(&head.stream).copied() else {
            return self.on_data_of_closed(head.stream, length, ends_stream);
        };
        let Some(stream) = &mut self.slots[slot].stream else { return Ok(()) };
        let accepted = stream.receiving.accept(length, data.len(), ends_stream);
        if let Err(reason) = accepted {
            self.release(length);
            return self.reset(slot, reason);
        }
        if let CallState::Awaiting { message, .. } = &mut stream.state {
            if message.is_empty() {
                *message = Bytes::copy_from_slice(data);
                self.release(length);
                if ends_stream {
                    return self.on_end(slot);
                }
                // Many clients send the end of the stream later, in a frame of its own.
                match is_whole_message(data) {
                    true => self.start_message(slot),
                    false => self.incomplete.push(slot),
                }
                return Ok(());
            }
            if data.is_empty() && ends_stream {
                self.release(length);
                return self.on_end(slot);
            }
            // In more than one piece: it is served as it arrives.
            self.start_call(slot);
        }
        let is_read = self.slots[slot].stream.as_ref().is_some_and(|stream| match &stream.body {
            Some(body) => body.push(data),
            None => false,
        });
        self.release_padding(slot, length - data.len());
        // Padding, and what will not be read, are returned at once.
        self.release(if is_read { length - data.len() } else { length });
        if ends_stream { self.on_end(slot) } else { Ok(()) }
    }

    /// Returns padding to the window of a stream.
    fn release_padding(&mut self, slot: usize, bytes: usize) {
        let Some(stream) = self.slots[slot].stream.as_mut().filter(|_| bytes > 0) else { return };
        if let Some(more) = stream.receiving.release(bytes, self.config.stream_window) {
            put_window_update(&mut self.output, stream.id, more);
        }
    }

    fn on_data_of_closed(
        &mut self,
        id: u32,
        length: usize,
        ends_stream: bool,
    ) -> Result<(), ConnectionError> {
        if id > self.highest || id.is_multiple_of(2) {
            return Err(ConnectionError::protocol("DATA of a stream that is not open"));
        }
        self.release(length);
        if !self.recently_reset.contains(id) {
            return self.refuse(id, Reason::STREAM_CLOSED);
        }
        // A request that was answered before its end: honest clients do this with every call.
        if ends_stream { Ok(()) } else { self.flood.count() }
    }

    /// The request of this stream is complete.
    fn on_end(&mut self, slot: usize) -> Result<(), ConnectionError> {
        let Some(stream) = &mut self.slots[slot].stream else { return Ok(()) };
        if !stream.receiving.end() {
            return self.reset(slot, Reason::PROTOCOL_ERROR);
        }
        if stream.is_awaiting() {
            self.start_message(slot);
        } else if let Some(body) = &stream.body {
            body.end();
        }
        Ok(())
    }

    fn on_reset(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), ConnectionError> {
        if payload.len() != 4 {
            return Err(ConnectionError::size("RST_STREAM has four bytes"));
        }
        self.check_not_idle(head.stream)?;
        // Some clients reset every stream that is complete, which costs nothing.
        if let Some(slot) = self.ids.get(&head.stream).copied() {
            self.flood.count()?;
            self.close(slot);
        }
        Ok(())
    }

    pub(crate) fn check_not_idle(&self, id: u32) -> Result<(), ConnectionError> {
        if id == 0 || id > self.highest || id.is_multiple_of(2) {
            return Err(ConnectionError::protocol("a frame of a stream that was never open"));
        }
        Ok(())
    }

    /// The call in this slot waits until the connection may send more.
    pub(crate) fn block(&mut self, slot: usize) {
        if !std::mem::replace(&mut self.slots[slot].is_blocked, true) {
            self.blocked.push_back(slot);
        }
    }

    /// Lets calls go on that wait for the connection: the first ones, as many as the window may
    /// serve. The others follow while it is open.
    pub(crate) fn unblock(&mut self) {
        let count = 1 + usize::try_from(self.send_window).unwrap_or(0) / UNBLOCKED_BYTES;
        for slot in self.blocked.drain(..count.min(self.blocked.len())) {
            self.slots[slot].is_blocked = false;
            self.slots[slot].waker.queue();
        }
    }

    /// The start of a header block. The first one tells the client that no dynamic table is used:
    /// one that has announced a smaller table waits for that.
    pub(crate) fn begin_block(&mut self) -> &'static [u8] {
        match std::mem::replace(&mut self.has_sent_block, true) {
            false => NO_TABLE,
            true => &[],
        }
    }

    /// Returns bytes to the client's window of the connection, many at a time.
    pub(crate) fn release(&mut self, bytes: usize) {
        self.to_release += bytes;
        if self.to_release as i64 * 4 >= i64::from(self.config.connection_window) {
            put_window_update(&mut self.output, 0, self.to_release as u32);
            self.receive_window += self.to_release as i64;
            self.to_release = 0;
        }
    }

    /// Ends a stream because of an error of the client.
    pub(crate) fn reset(&mut self, slot: usize, reason: Reason) -> Result<(), ConnectionError> {
        self.reset_stream(slot, reason);
        self.flood.count()
    }

    /// Tells the client that the stream has ended.
    pub(crate) fn reset_stream(&mut self, slot: usize, reason: Reason) {
        if let Some(stream) = &self.slots[slot].stream {
            put_reset(&mut self.output, stream.id, reason);
            self.recently_reset.insert(stream.id);
        }
        self.close(slot);
    }

    fn open(&mut self, id: u32, state: CallState<A>, receiving: Receiving) -> usize {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            let slot = self.slots.len();
            let waker = crate::ready::SlotWaker::new(slot, Arc::clone(&self.ready));
            self.slots.push(Slot { waker, stream: None, is_blocked: false });
            slot
        });
        let send_window = self.stream_send_window;
        let stream = Stream { id, state, receiving, send_window, body: None, deadline: None };
        self.slots[slot].stream = Some(stream);
        self.ids.insert(id, slot);
        slot
    }

    /// Forgets a stream. Its call is cancelled if it is still in progress.
    pub(crate) fn close(&mut self, slot: usize) {
        let Some(stream) = self.slots[slot].stream.take() else { return };
        self.ids.remove(&stream.id);
        if let Some(body) = &stream.body {
            body.reset();
            // Dropping the stream may drop the reader; what was not read is returned now.
            let shared = Arc::clone(body);
            drop(stream);
            self.release(shared.take_unread());
        }
        self.free_slots.push(slot);
    }

    /// Frees the memory of a burst of streams.
    pub(crate) fn shrink(&mut self) {
        if self.ids.is_empty() && self.slots.len() > SLOTS_KEPT {
            self.slots.truncate(SLOTS_KEPT);
            self.slots.shrink_to_fit();
            self.free_slots = (0..self.slots.len()).collect();
            self.blocked = VecDeque::new();
            self.slots.iter_mut().for_each(|slot| slot.is_blocked = false);
            (self.awaiting, self.incomplete) = (Vec::new(), Vec::new());
            self.awaiting_since = None;
            self.ids.shrink_to_fit();
        }
    }

    /// Called when all bytes at hand are processed. Many clients send the message soon after the
    /// headers: a few calls wait for it here, where they take little memory. The others are served
    /// as their message arrives, within the limits of the application.
    fn stop_awaiting(&mut self) {
        let mut incomplete = std::mem::take(&mut self.incomplete);
        for slot in incomplete.drain(..) {
            self.start_if_awaiting(slot);
        }
        self.incomplete = incomplete;
        if self.awaiting.len() > AWAITING_MAX {
            let is_awaiting =
                |slot: &usize| self.slots[*slot].stream.as_ref().is_some_and(Stream::is_awaiting);
            self.awaiting.retain(is_awaiting);
            let excess = self.awaiting.len().saturating_sub(AWAITING_MAX);
            for slot in self.awaiting.drain(..excess).collect::<Vec<_>>() {
                self.start_if_awaiting(slot);
            }
        }
        if self.awaiting.is_empty() {
            self.awaiting_since = None;
        } else if self.awaiting_since.is_none() {
            self.awaiting_since = Some(Instant::now());
        }
    }

    /// Serves the calls that have waited for their message for some time.
    pub(crate) fn serve_awaiting(&mut self) {
        for slot in std::mem::take(&mut self.awaiting) {
            self.start_if_awaiting(slot);
        }
        self.awaiting_since = None;
    }

    fn start_if_awaiting(&mut self, slot: usize) {
        if self.slots[slot].stream.as_ref().is_some_and(Stream::is_awaiting) {
            self.start_call(slot);
        }
    }

    /// When the connection ends unless the header block that has begun is complete.
    pub(crate) fn block_deadline(&self) -> Option<Instant> {
        self.block.as_ref().map(|block| block.since + BLOCK_TIMEOUT)
    }

    pub(crate) fn open_streams(&self) -> usize {
        self.ids.len()
    }
}

/// Whether this is one message of gRPC: a flag, its length, and its content.
fn is_whole_message(data: &[u8]) -> bool {
    let prefix = data.split_first_chunk::<5>();
    prefix.is_some_and(|([_, length @ ..], content)| {
        u32::from_be_bytes(*length) as usize == content.len()
    })
}

fn compression(error: HpackError) -> ConnectionError {
    ConnectionError::new(Reason::COMPRESSION_ERROR, error.text())
}

/// The content of a frame that may be padded.
fn without_padding(head: FrameHead, payload: &[u8]) -> Result<&[u8], ConnectionError> {
    if !head.has(flag::PADDED) {
        return Ok(payload);
    }
    let Some((padding, content)) = payload.split_first() else {
        return Err(ConnectionError::size("a padded frame is empty"));
    };
    let length = content.len().checked_sub(usize::from(*padding));
    let length = length.ok_or(ConnectionError::protocol("a frame is all padding"))?;
    Ok(&content[..length])
}

pub(crate) fn depends_on(priority: &[u8; 5]) -> u32 {
    let [a, b, c, d, _] = *priority;
    u32::from_be_bytes([a, b, c, d]) & ID_MASK
}

/// A dynamic table of size 0 (RFC 7541, section 6.3).
const NO_TABLE: &[u8] = &[0x20];
/// A call is expected to send at least this much when the window of the connection opens.
const UNBLOCKED_BYTES: usize = 4_096;
/// How long a header block may take to arrive.
const BLOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// CONTINUATION frames of one header block.
const CONTINUATIONS_MAX: usize = 16;
/// Calls of a connection that may wait for their message.
const AWAITING_MAX: usize = 512;
/// Slots that a connection without streams keeps.
const SLOTS_KEPT: usize = 64;
