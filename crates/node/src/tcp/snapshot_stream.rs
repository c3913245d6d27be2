//! The frames of a connection for a snapshot: its message, chunks, an end; then a reply.

use crc32c::crc32c_append;

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct ChunkHead {
    /// CRC-32C of all bytes up to the end of this chunk.
    #[prost(fixed32, tag = "1")]
    pub(crate) running: u32,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct EndHead {
    #[prost(uint64, tag = "1")]
    pub(crate) bytes: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) chunks: u64,
    #[prost(fixed32, tag = "3")]
    pub(crate) running: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SnapshotRefusedHead {
    /// The reason in words, for the log.
    #[prost(string, tag = "1")]
    pub(crate) text: String,
    /// A [`SnapshotReceiveError`](crate::transport::SnapshotReceiveError) by its code; 0, or a number of a
    /// later version, is an unknown reason.
    #[prost(uint32, tag = "2")]
    pub(crate) reason: u32,
}

/// How much was transferred: the same on both sides, or something was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SnapshotProgress {
    pub(crate) bytes: u64,
    pub(crate) chunks: u64,
    running: u32,
}

impl SnapshotProgress {
    pub(crate) fn add(&mut self, chunk: &[u8]) -> ChunkHead {
        self.bytes += chunk.len() as u64;
        self.chunks += 1;
        self.running = crc32c_append(self.running, chunk);
        ChunkHead { running: self.running }
    }

    pub(crate) fn end(&self) -> EndHead {
        EndHead { bytes: self.bytes, chunks: self.chunks, running: self.running }
    }
}
