//! Accepts client connections: limits their number, and closes one that does not send the start
//! of a request in time. After that, HTTP's own limits apply.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Sleep, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// The limit of open connections. Further ones wait in the listener's backlog until another
/// connection closes.
#[derive(Clone)]
pub(crate) struct ConnectionLimit(Arc<Semaphore>);

impl ConnectionLimit {
    pub(crate) fn new(count: usize) -> Self {
        Self(Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS))))
    }

    /// As many as the limit of open files allows, less those that peers and disk need. The soft
    /// limit is raised to the hard limit first, since its default is low.
    pub(crate) fn for_clients() -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        let files = if raised.is_ok() { maximum } else { current };
        let files = files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
        Self::new(files.saturating_sub(FILES_RESERVED).max(CONNECTIONS_MIN))
    }
}

/// A listener whose queue of new connections is as long as etcd's. (The system limits it to
/// `net.core.somaxconn`.)
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restarted server listens while connections of its predecessor are still closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// The connections accepted by this listener, until the stream is dropped.
pub(crate) fn accept_connections(
    listener: TcpListener,
    limit: ConnectionLimit,
) -> ReceiverStream<io::Result<ClientConnection>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(accept_all(listener, limit, sender));
    ReceiverStream::new(receiver)
}

async fn accept_all(
    listener: TcpListener,
    limit: ConnectionLimit,
    connections: mpsc::Sender<io::Result<ClientConnection>>,
) {
    loop {
        let next = async {
            let permit = Arc::clone(&limit.0).acquire_owned().await.map_err(io::Error::other)?;
            let (stream, _) = listener.accept().await?;
            Ok::<_, io::Error>(ClientConnection::new(stream, permit))
        };
        let next = tokio::select! {
            () = connections.closed() => return,
            next = next => next,
        };
        match next {
            Ok(connection) => {
                if connections.send(Ok(connection)).await.is_err() {
                    return;
                }
            }
            // The usual cause is that no file descriptor is free, which does not change at once.
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                sleep(ACCEPT_RETRY_INTERVAL).await;
            }
        }
    }
}

/// A client's connection.
pub(crate) struct ClientConnection {
    stream: TcpStream,
    preface: Option<PrefaceDeadline>,
    _permit: OwnedSemaphorePermit,
}

/// The state of a connection that has sent nothing but a part of HTTP/2's preface.
struct PrefaceDeadline {
    bytes: usize,
    deadline: Pin<Box<Sleep>>,
}

impl ClientConnection {
    fn new(stream: TcpStream, permit: OwnedSemaphorePermit) -> Self {
        // Responses are small and clients wait for them, so they are sent at once. This fails
        // only on a closed connection, which the next read reports.
        let _ = stream.set_nodelay(true);
        let deadline = Box::pin(sleep(PREFACE_TIMEOUT));
        let preface = PrefaceDeadline { bytes: 0, deadline };
        Self { stream, preface: Some(preface), _permit: permit }
    }
}

impl AsyncRead for ClientConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let Self { stream, preface, .. } = &mut *self;
        let read = Pin::new(stream).poll_read(context, buffer);
        let Some(received) = preface else { return read };
        if read.is_pending() {
            ready!(received.deadline.as_mut().poll(context));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let new = &buffer.filled()[before..];
        let expected = &PREFACE[received.bytes..];
        received.bytes += new.len();
        // From now on HTTP's own timeouts apply.
        if !expected.starts_with(new) || received.bytes == PREFACE.len() {
            *preface = None;
        }
        read
    }
}

impl AsyncWrite for ClientConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
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

impl Connected for ClientConnection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

/// What an HTTP/2 client sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// File descriptors that etcd keeps for its own use.
const FILES_RESERVED: usize = 150;
const CONNECTIONS_MIN: usize = 32;
/// Connections that wait until they are accepted.
const BACKLOG: u32 = 4_096;

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    /// Nobody accepts them. Beyond the backlog a connection attempt gets no answer.
    #[tokio::test]
    async fn many_connections_wait_to_be_accepted() {
        let somaxconn = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        let backlog = somaxconn.trim().parse::<usize>().unwrap().min(BACKLOG as usize);
        // More than the default of 1,024, and less than the limit of open files.
        let files = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |max| max as usize);
        let count = 1_500.min(backlog).min(files.saturating_sub(100));
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let mut waiting = Vec::new();
        for number in 0..count {
            let connected = timeout(Duration::from_secs(60), TcpStream::connect(address)).await;
            waiting.push(connected.unwrap_or_else(|_| panic!("{number} wait")).unwrap());
        }
    }
}
