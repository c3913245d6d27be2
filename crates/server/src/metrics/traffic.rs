//! Counts the bytes of client connections.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

use crate::connections::{ClientConnectInfo, ClientConnection};

/// Bytes in both directions, summed over all connections.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
}

/// A connection whose bytes are counted.
pub(crate) struct MeteredConnection {
    stream: ClientConnection,
    traffic: Arc<Traffic>,
    /// Bytes that were read to find out the protocol, and that are read again.
    unread: Vec<u8>,
}

impl MeteredConnection {
    pub(crate) fn new(stream: ClientConnection, traffic: Arc<Traffic>) -> Self {
        Self { stream, traffic, unread: Vec::new() }
    }

    /// The same connection, from which these bytes are read first.
    pub(crate) fn with_unread(self, unread: Vec<u8>) -> Self {
        Self { unread, ..self }
    }

    fn count_sent(&self, bytes: usize) -> usize {
        self.traffic.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        bytes
    }
}

impl Connected for MeteredConnection {
    type ConnectInfo = ClientConnectInfo;

    fn connect_info(&self) -> ClientConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for MeteredConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.unread.is_empty() {
            let length = self.unread.len().min(buffer.remaining());
            buffer.put_slice(&self.unread[..length]);
            self.unread.drain(..length);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let bytes = buffer.filled().len() - before;
        self.traffic.received.fetch_add(bytes as u64, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for MeteredConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        Poll::Ready(Ok(self.count_sent(written)))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, pieces))?;
        Poll::Ready(Ok(self.count_sent(written)))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
