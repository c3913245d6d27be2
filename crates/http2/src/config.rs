//! Limits and intervals of connections.

use std::time::Duration;

/// Limits and intervals of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionConfig {
    /// Streams that a client may have open.
    pub streams_max: u32,
    /// The size of all header fields of a request.
    pub header_bytes_max: u32,
    /// What a client may send on a stream before the server has read it.
    pub stream_window: u32,
    /// The same for all streams of a connection.
    pub connection_window: u32,
    /// A client that sends nothing for so long is asked for a sign of life.
    pub keep_alive_interval: Duration,
    /// The connection ends when it gives none for so long.
    pub keep_alive_timeout: Duration,
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        Self {
            streams_max: u32::MAX,
            header_bytes_max: 16 << 10,
            stream_window: 128 << 10,
            connection_window: 16 << 20,
            keep_alive_interval: Duration::from_secs(30),
            keep_alive_timeout: Duration::from_secs(20),
        }
    }
}
