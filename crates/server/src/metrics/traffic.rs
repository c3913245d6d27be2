//! The connections of clients: how much goes over them, and what is put right in the first
//! request.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::authority::Opening;
use crate::connections::Client;

/// Bytes in both directions, of all connections together.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
}

/// A connection whose bytes are counted, as many at once as the system moves.
pub(crate) struct Metered {
    stream: Client,
    traffic: Arc<Traffic>,
    /// Until the first request is through.
    opening: Option<Box<Held>>,
}

/// What came on a new connection, and what of it has yet to be read.
#[derive(Default)]
struct Held {
    opening: Opening,
    unread: Vec<u8>,
}

impl Metered {
    pub(crate) fn new(stream: Client, traffic: Arc<Traffic>) -> Self {
        Self { stream, traffic, opening: Some(Box::default()) }
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

    /// Reads through what looks at the first request.
    fn poll_opening(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(mut held) = self.opening.take() else { return Poll::Ready(Ok(())) };
        while held.unread.is_empty() {
            let mut bytes = [0; OPENING_BYTES];
            let mut piece = ReadBuf::new(&mut bytes);
            match self.poll_stream(context, &mut piece) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(_)) => held.unread = held.opening.pass(piece.filled()),
                Poll::Ready(Err(why)) => return Poll::Ready(Err(why)),
                Poll::Pending => {
                    self.opening = Some(held);
                    return Poll::Pending;
                }
            }
        }
        let length = held.unread.len().min(buffer.remaining());
        buffer.put_slice(&held.unread[..length]);
        held.unread.drain(..length);
        if !(held.opening.is_over() && held.unread.is_empty()) {
            self.opening = Some(held);
        }
        Poll::Ready(Ok(()))
    }

    fn count_sent(&self, bytes: usize) -> usize {
        self.traffic.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        bytes
    }
}

impl Connected for Metered {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.opening.is_some() {
            return self.poll_opening(context, buffer);
        }
        self.poll_stream(context, buffer).map_ok(|_| ())
    }
}

/// The first pieces of a connection are small.
const OPENING_BYTES: usize = 1024;

impl AsyncWrite for Metered {
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
