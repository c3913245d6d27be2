//! Handshakes on a thread of their own. A handshake takes a millisecond of computing, and strangers
//! cause as many as they like: on the thread that runs Raft they would delay heartbeats.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::connection::{AcceptedConnection, TlsAcceptor, TlsConnector};
use crate::runtime::OwnThread;
use crate::tcp::PeerStream;

/// A thread that performs handshakes for another runtime. It ends when this is dropped.
pub struct HandshakeThread {
    thread: OwnThread,
}

impl HandshakeThread {
    /// Starts the thread.
    pub fn start() -> io::Result<Self> {
        Ok(Self { thread: OwnThread::start("quorate-tls")? })
    }

    /// [`TlsAcceptor::accept`] on this thread. The connection then belongs to the caller's
    /// runtime. When the future is dropped, the handshake ends.
    pub async fn accept(
        &self,
        acceptor: &Arc<TlsAcceptor>,
        stream: TcpStream,
    ) -> io::Result<AcceptedConnection> {
        let (acceptor, stream) = (Arc::clone(acceptor), stream.into_std()?);
        let accepted = self.run(async move {
            let stream = TcpStream::from_std(stream)?;
            acceptor.handshake_or_log(stream).await
        });
        let mut stream = accepted.await?;
        stream.get_mut().0.move_to_this_runtime()?;
        Ok(AcceptedConnection::new(stream))
    }

    /// [`TlsConnector::connect`] on this thread. The connection then belongs to the caller's
    /// runtime. When the future is dropped, the handshake ends.
    pub async fn connect(
        &self,
        connector: &Arc<TlsConnector>,
        stream: TcpStream,
        address: &str,
    ) -> io::Result<Box<dyn PeerStream>> {
        let (connector, address) = (Arc::clone(connector), address.to_owned());
        let stream = stream.into_std()?;
        let connected = self.run(async move {
            let stream = TcpStream::from_std(stream)?;
            connector.handshake(stream, &address).await
        });
        let mut stream = connected.await?;
        stream.get_mut().0.move_to_this_runtime()?;
        Ok(Box::new(stream))
    }

    async fn run<T: Send + 'static>(
        &self,
        handshake: impl Future<Output = io::Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        // A set ends its tasks when it is dropped.
        let mut tasks = JoinSet::new();
        tasks.spawn_on(handshake, self.thread.handle());
        match tasks.join_next().await {
            Some(Ok(result)) => result,
            _ => Err(io::Error::other("handshakes have ended")),
        }
    }
}

impl fmt::Debug for HandshakeThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandshakeThread").finish_non_exhaustive()
    }
}

/// A connection that can move to another runtime, below the encryption.
pub(super) struct MovableStream(Option<TcpStream>);

impl MovableStream {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self(Some(stream))
    }

    /// From now on the runtime that calls this waits for the connection.
    fn move_to_this_runtime(&mut self) -> io::Result<()> {
        if let Some(stream) = self.0.take() {
            self.0 = Some(TcpStream::from_std(stream.into_std()?)?);
        }
        Ok(())
    }

    /// None after it could not be moved.
    fn poll_with<T>(
        &mut self,
        poll: impl FnOnce(Pin<&mut TcpStream>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match &mut self.0 {
            Some(stream) => poll(Pin::new(stream)),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncRead for MovableStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_with(|stream| stream.poll_read(context, buffer))
    }
}

impl AsyncWrite for MovableStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(|stream| stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(|stream| stream.poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.0.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_with(|stream| stream.poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_with(|stream| stream.poll_shutdown(context))
    }
}
