//! Counts the bytes of client connections, and rewrites the authority of the first request
//! (`http2_authority`).

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

use crate::connections::{ClientConnectInfo, ClientConnection};
use crate::http2_authority::AuthorityRewriter;

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
    /// Until the first request has been read.
    first_request: Option<Box<FirstRequest>>,
}

/// Rewrites the first request, and buffers what was not read yet.
#[derive(Default)]
struct FirstRequest {
    rewriter: AuthorityRewriter,
    unread: Vec<u8>,
}

impl MeteredConnection {
    pub(crate) fn new(stream: ClientConnection, traffic: Arc<Traffic>) -> Self {
        Self { stream, traffic, first_request: Some(Box::default()) }
    }

    fn poll_stream(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let bytes = buffer.filled().len() - before;
        self.traffic.received.fetch_add(bytes as u64, Ordering::Relaxed);
        Poll::Ready(Ok(bytes))
    }

    /// Reads through the rewriter.
    fn poll_first_request(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(mut first) = self.first_request.take() else { return Poll::Ready(Ok(())) };
        while first.unread.is_empty() {
            let mut bytes = [0; FIRST_READ_BYTES];
            let mut piece = ReadBuf::new(&mut bytes);
            match self.poll_stream(context, &mut piece) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(_)) => first.unread = first.rewriter.rewrite(piece.filled()),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.first_request = Some(first);
                    return Poll::Pending;
                }
            }
        }
        let length = first.unread.len().min(buffer.remaining());
        buffer.put_slice(&first.unread[..length]);
        first.unread.drain(..length);
        if !(first.rewriter.is_done() && first.unread.is_empty()) {
            self.first_request = Some(first);
        }
        Poll::Ready(Ok(()))
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
        if self.first_request.is_some() {
            return self.poll_first_request(context, buffer);
        }
        self.poll_stream(context, buffer).map_ok(|_| ())
    }
}

/// The first reads of a connection are small.
const FIRST_READ_BYTES: usize = 1024;

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
