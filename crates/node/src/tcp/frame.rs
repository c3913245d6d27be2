//! Frames: the unit of everything on a connection. Their contents are in `handshake` and
//! `message`.
//!
//! ```text
//!  0      1      4         8         12        16        20        24
//!  +------+------+---------+---------+---------+---------+---------+------+------
//!  | kind | 0    | channel | head    | body    | body    | crc     | head | body
//!  |      |      |         | bytes   | bytes   | crc     |         |      |
//!  +------+------+---------+---------+---------+---------+---------+------+------
//! ```
//! *crc* covers the 20 bytes before it and the head. Numbers are little-endian, checksums
//! CRC-32C. Lengths are checked before anything else, and before memory is reserved.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use crc32c::{crc32c, crc32c_append};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::counters::{TcpCounter, TcpCounters};
use super::port_budget::{FrameBytes, OverBudget, PortBudget};

pub(crate) const HEADER_BYTES: usize = 24;

/// How much is read at once. A frame that fits is copied out of the buffer; a longer one
/// keeps the memory it was read into. So no small payload keeps a whole buffer alive.
const READ_BYTES: usize = 64 << 10;

/// The head of a message has numbers and short texts. Decoding it may take several times its length.
const MESSAGE_HEAD_BYTES_MAX: usize = 64 << 10;

/// Bodies of at least this length are written without a copy.
const OWN_SLICE_BYTES: usize = 16 << 10;

/// For callers that apply a timeout of their own.
pub(crate) const NO_TIMEOUT: Duration = Duration::from_secs(1 << 30);

/// The kind of a frame. The numbers never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Hello = 1,
    HelloReply = 2,
    Introduce = 3,
    Welcome = 4,
    Refused = 5,
    Leave = 6,
    KeepAlive = 7,
    HostedMembers = 8,
    Message = 16,
    SideMessage = 17,
    SnapshotBegin = 32,
    SnapshotChunk = 33,
    SnapshotEnd = 34,
    SnapshotDone = 35,
    SnapshotRefused = 36,
}

impl FrameKind {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Hello,
            2 => Self::HelloReply,
            3 => Self::Introduce,
            4 => Self::Welcome,
            5 => Self::Refused,
            6 => Self::Leave,
            7 => Self::KeepAlive,
            8 => Self::HostedMembers,
            16 => Self::Message,
            17 => Self::SideMessage,
            32 => Self::SnapshotBegin,
            33 => Self::SnapshotChunk,
            34 => Self::SnapshotEnd,
            35 => Self::SnapshotDone,
            36 => Self::SnapshotRefused,
            _ => return None,
        })
    }
}

/// A frame that arrived whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: FrameKind,
    pub(crate) channel: u32,
    pub(crate) head: HeadBytes,
    pub(crate) body: Bytes,
}

/// The head of a frame. Most are short and need no memory of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HeadBytes {
    Short { length: u8, bytes: [u8; SHORT_HEAD_BYTES] },
    Long(Box<[u8]>),
}

const SHORT_HEAD_BYTES: usize = 62;

impl From<&[u8]> for HeadBytes {
    fn from(head: &[u8]) -> Self {
        let mut bytes = [0; SHORT_HEAD_BYTES];
        match bytes.get_mut(..head.len()) {
            Some(start) => {
                start.copy_from_slice(head);
                Self::Short { length: head.len() as u8, bytes }
            }
            None => Self::Long(head.into()),
        }
    }
}

impl std::ops::Deref for HeadBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Short { length, bytes } => &bytes[..usize::from(*length)],
            Self::Long(head) => head,
        }
    }
}

/// The bytes of a body with their checksum, which is computed once for all peers.
#[derive(Clone, Debug)]
pub(crate) struct FrameBody {
    pub(crate) bytes: Bytes,
    checksum: u32,
}

impl FrameBody {
    pub(crate) fn new(bytes: Bytes) -> Self {
        let checksum = crc32c(&bytes);
        Self { bytes, checksum }
    }
}

/// Why reading from a connection failed.
#[derive(Debug)]
pub(crate) enum FrameReadError {
    /// The peer closed it, between two frames.
    Closed,
    /// The peer closed it within a frame.
    Truncated,
    Oversized,
    OverBudget,
    BadChecksum,
    UnknownKind,
    Malformed,
    Silent,
    Io(io::Error),
}

impl FrameReadError {
    /// The counter for it.
    pub(crate) fn counter(&self) -> Option<TcpCounter> {
        match self {
            Self::Truncated => Some(TcpCounter::Truncated),
            Self::Oversized => Some(TcpCounter::Oversized),
            Self::OverBudget => Some(TcpCounter::OverBudget),
            Self::BadChecksum => Some(TcpCounter::BadChecksum),
            Self::UnknownKind => Some(TcpCounter::UnknownKind),
            Self::Malformed => Some(TcpCounter::Malformed),
            Self::Silent => Some(TcpCounter::Silent),
            Self::Closed | Self::Io(_) => None,
        }
    }
}

impl std::fmt::Display for FrameReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Closed => "closed by the peer",
            Self::Truncated => "closed by the peer within a frame",
            Self::Oversized => "a frame is too long",
            Self::OverBudget => "too much is buffered for peers",
            Self::BadChecksum => "a checksum does not match",
            Self::UnknownKind => "a frame of an unknown kind",
            Self::Malformed => "a malformed frame",
            Self::Silent => "nothing was received for too long",
            Self::Io(why) => return write!(f, "{why}"),
        })
    }
}

impl From<OverBudget> for FrameReadError {
    fn from(_: OverBudget) -> Self {
        Self::OverBudget
    }
}

struct FrameHeader {
    kind: u8,
    channel: u32,
    head_bytes: usize,
    body_bytes: usize,
    body_checksum: u32,
    checksum: u32,
}

impl FrameHeader {
    fn decode(bytes: &[u8; HEADER_BYTES]) -> Self {
        let number = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Self {
            kind: bytes[0],
            channel: number(4),
            head_bytes: number(8) as usize,
            body_bytes: number(12) as usize,
            body_checksum: number(16),
            checksum: number(20),
        }
    }

    fn frame_bytes(&self) -> usize {
        HEADER_BYTES.saturating_add(self.head_bytes).saturating_add(self.body_bytes)
    }
}

/// The header of the first frame in these bytes; none while it is incomplete.
fn peek(bytes: &[u8], frame_bytes_max: usize) -> Result<Option<FrameHeader>, FrameReadError> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>().map(FrameHeader::decode) else {
        return Ok(None);
    };
    let is_message =
        [FrameKind::Message as u8, FrameKind::SideMessage as u8].contains(&header.kind);
    if header.frame_bytes() > frame_bytes_max
        || is_message && header.head_bytes > MESSAGE_HEAD_BYTES_MAX
    {
        return Err(FrameReadError::Oversized);
    }
    Ok(Some(header))
}

/// Checks a complete frame.
fn check(header: &FrameHeader, bytes: &[u8]) -> Result<FrameKind, FrameReadError> {
    let (head, body) = bytes[HEADER_BYTES..].split_at(header.head_bytes);
    let checksum = crc32c_append(crc32c(&bytes[..HEADER_BYTES - 4]), head);
    if checksum != header.checksum || crc32c(body) != header.body_checksum {
        return Err(FrameReadError::BadChecksum);
    }
    if bytes[1..4] != [0; 3] {
        return Err(FrameReadError::Malformed);
    }
    FrameKind::from_number(header.kind).ok_or(FrameReadError::UnknownKind)
}

/// Takes the first frame out of a buffer; none while it is incomplete.
pub(crate) fn take_frame(
    buffer: &mut BytesMut,
    frame_bytes_max: usize,
) -> Result<Option<Frame>, FrameReadError> {
    let Some(header) = peek(buffer, frame_bytes_max)? else { return Ok(None) };
    let length = header.frame_bytes();
    if buffer.len() < length {
        return Ok(None);
    }
    let kind = check(&header, &buffer[..length])?;
    let body_start = HEADER_BYTES + header.head_bytes;
    let head = HeadBytes::from(&buffer[HEADER_BYTES..body_start]);
    let body = if length <= READ_BYTES {
        let body = Bytes::copy_from_slice(&buffer[body_start..length]);
        buffer.advance(length);
        body
    } else {
        buffer.split_to(length).freeze().slice(body_start..)
    };
    Ok(Some(Frame { kind, channel: header.channel, head, body }))
}

/// Reads frames. Cancelling a call loses nothing.
pub(crate) struct FrameReader<R> {
    reader: R,
    buffer: BytesMut,
    frame_bytes_max: usize,
    /// None: frames are short.
    budget: Option<Arc<PortBudget>>,
    /// The long frame that is arriving.
    arriving: Option<FrameBytes>,
    /// The long frame that was taken last.
    taken: Option<FrameBytes>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(crate) fn new(reader: R, frame_bytes_max: usize) -> Self {
        let (budget, arriving, taken) = (None, None, None);
        Self { reader, buffer: BytesMut::new(), frame_bytes_max, budget, arriving, taken }
    }

    /// Long frames count from now on.
    pub(crate) fn set_budget(&mut self, budget: &Arc<PortBudget>) {
        self.budget = Some(Arc::clone(budget));
    }

    /// The bytes that the frame taken last counts for, until they are dropped.
    pub(crate) fn take_held(&mut self) -> Option<FrameBytes> {
        self.taken.take()
    }

    pub(crate) fn set_frame_bytes_max(&mut self, frame_bytes_max: usize) {
        self.frame_bytes_max = frame_bytes_max;
    }

    /// The next frame that is already in the buffer.
    pub(crate) fn take(&mut self) -> Result<Option<Frame>, FrameReadError> {
        let frame = take_frame(&mut self.buffer, self.frame_bytes_max)?;
        if frame.is_some() {
            // A frame that was too short to count arrived with others: nothing is arriving.
            self.taken = self.arriving.take().inspect(FrameBytes::complete);
        }
        Ok(frame)
    }

    /// The next bytes, unframed.
    pub(crate) fn take_bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = *self.buffer.first_chunk::<N>()?;
        self.buffer.advance(N);
        Some(bytes)
    }

    /// Waits for more bytes, and reads all that are available.
    pub(crate) async fn fill(&mut self, limit: Duration) -> Result<usize, FrameReadError> {
        // Room for the rest of a long frame, but never much more than has arrived: its length
        // is not to be trusted.
        let known = peek(&self.buffer, self.frame_bytes_max)?.map_or(0, |h| h.frame_bytes());
        let missing = known.saturating_sub(self.buffer.len());
        // A stranger's frames are short, and so is its buffer.
        let room = missing.clamp(READ_BYTES / 4, self.buffer.len().max(READ_BYTES));
        let room = room.min(self.frame_bytes_max);
        if known > READ_BYTES
            && let Some(budget) = &self.budget
        {
            let arriving = self.arriving.get_or_insert_with(|| budget.begin_frame());
            arriving.grow_to(known.min(self.buffer.len() + room), limit).await?;
        }
        self.buffer.reserve(room);
        let read = timeout(limit, self.reader.read_buf(&mut self.buffer));
        let read = match &self.arriving {
            None => read.await,
            Some(arriving) => tokio::select! {
                read = read => read,
                () = arriving.evicted() => return Err(FrameReadError::OverBudget),
            },
        };
        match read {
            Err(_) => Err(FrameReadError::Silent),
            Ok(Err(why)) => Err(FrameReadError::Io(why)),
            Ok(Ok(0)) if self.buffer.is_empty() => Err(FrameReadError::Closed),
            Ok(Ok(0)) => Err(FrameReadError::Truncated),
            Ok(Ok(count)) => Ok(count),
        }
    }

    /// Waits for the next frame.
    pub(crate) async fn next(&mut self, limit: Duration) -> Result<Frame, FrameReadError> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(frame);
            }
            self.fill(limit).await?;
        }
    }

    /// Reads and discards until the peer has closed too, so that it can read what was written
    /// last: unread bytes would make the system reset the connection.
    pub(crate) async fn drain(&mut self, limit: Duration) {
        let mut discarded = 0;
        let _ = timeout(limit, async {
            while discarded < READ_BYTES * 16 {
                self.buffer.clear();
                match self.fill(limit).await {
                    Ok(count) => discarded += count,
                    Err(_) => return,
                }
            }
        })
        .await;
    }
}

/// Frames that are written together.
#[derive(Default)]
pub(crate) struct FrameBatch {
    /// Headers, heads and short bodies.
    bytes: Vec<u8>,
    /// Long bodies, and the offset in `bytes` where each is inserted.
    long: Vec<(usize, Bytes)>,
    frames: u64,
}

impl FrameBatch {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// A frame without a body.
    pub(crate) fn push(&mut self, kind: FrameKind, channel: u32, head: &impl prost::Message) {
        self.push_with_body(kind, channel, head, None);
    }

    pub(crate) fn push_with_body(
        &mut self,
        kind: FrameKind,
        channel: u32,
        head: &impl prost::Message,
        body: Option<&FrameBody>,
    ) {
        let start = self.bytes.len();
        self.bytes.resize(start + HEADER_BYTES, 0);
        // Writing to a Vec cannot fail.
        let _ = head.encode(&mut self.bytes);
        let head_bytes = self.bytes.len() - start - HEADER_BYTES;
        let body_bytes = body.map_or(0, |body| body.bytes.len());
        let (header, head) = self.bytes[start..].split_at_mut(HEADER_BYTES);
        header[0] = kind as u8;
        header[4..8].copy_from_slice(&channel.to_le_bytes());
        header[8..12].copy_from_slice(&(head_bytes as u32).to_le_bytes());
        header[12..16].copy_from_slice(&(body_bytes as u32).to_le_bytes());
        header[16..20].copy_from_slice(&body.map_or(0, |body| body.checksum).to_le_bytes());
        let checksum = crc32c_append(crc32c(&header[..20]), head);
        header[20..24].copy_from_slice(&checksum.to_le_bytes());
        if let Some(body) = body {
            if body_bytes < OWN_SLICE_BYTES {
                self.bytes.extend_from_slice(&body.bytes);
            } else {
                self.long.push((self.bytes.len(), body.bytes.clone()));
            }
        }
        self.frames += 1;
    }

    /// Writes everything and empties the batch. The limit applies to each write, so that this
    /// takes as long as there is progress.
    pub(crate) async fn write_to(
        &mut self,
        writer: &mut (impl AsyncWrite + Unpin),
        limit: Duration,
        counts: &TcpCounters,
    ) -> io::Result<()> {
        let mut slices = Vec::with_capacity(2 * self.long.len() + 1);
        let mut from = 0;
        for (to, body) in &self.long {
            slices.push(IoSlice::new(&self.bytes[from..*to]));
            slices.push(IoSlice::new(body));
            from = *to;
        }
        slices.push(IoSlice::new(&self.bytes[from..]));
        let mut left = &mut slices[..];
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            let Ok(written) = timeout(limit, writer.write_vectored(left)).await else {
                counts.one(TcpCounter::WriteTimeout);
                return Err(io::ErrorKind::TimedOut.into());
            };
            let written = written?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            counts.one(TcpCounter::Writes);
            counts.add(TcpCounter::BytesSent, written as u64);
            IoSlice::advance_slices(&mut left, written);
        }
        counts.add(TcpCounter::FramesSent, self.frames);
        self.clear();
        match timeout(limit, writer.flush()).await {
            Ok(flushed) => flushed,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Drops what was not written.
    pub(crate) fn clear(&mut self) {
        // A burst must not hold its memory forever.
        self.bytes.clear();
        self.bytes.shrink_to(READ_BYTES * 4);
        self.long.clear();
        self.frames = 0;
    }

    /// The bytes as they would be written.
    #[cfg(test)]
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut all = Vec::new();
        let mut from = 0;
        for (to, body) in &self.long {
            all.extend_from_slice(&self.bytes[from..*to]);
            all.extend_from_slice(body);
            from = *to;
        }
        all.extend_from_slice(&self.bytes[from..]);
        all
    }
}
