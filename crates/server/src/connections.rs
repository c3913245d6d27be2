//! Connections as they come in: how many there may be at a time, and how long one may take
//! before it has said what it speaks. What is said after that is limited by HTTP itself.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Sleep, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// How many connections there may be. Who comes when there are as many waits to be
/// accepted, until somebody else goes.
#[derive(Clone)]
pub(crate) struct Places(Arc<Semaphore>);

impl Places {
    pub(crate) fn new(count: usize) -> Self {
        Self(Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS))))
    }

    /// As many as there can be files open, apart from those that peers and disk need. The
    /// system's first offer is low, and raised as far as it goes.
    pub(crate) fn for_clients() -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        let files = if raised.is_ok() { maximum } else { current };
        let files = files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
        Self::new(files.saturating_sub(FILES_RESERVED).max(CONNECTIONS_MIN))
    }
}

/// The connections that come to this listener, as long as somebody takes them.
pub(crate) fn accepted(
    listener: TcpListener,
    places: Places,
) -> ReceiverStream<io::Result<Client>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(accept_all(listener, places, sender));
    ReceiverStream::new(receiver)
}

async fn accept_all(
    listener: TcpListener,
    places: Places,
    clients: mpsc::Sender<io::Result<Client>>,
) {
    loop {
        let next = async {
            let place = Arc::clone(&places.0).acquire_owned().await.map_err(io::Error::other)?;
            let (stream, _) = listener.accept().await?;
            Ok::<_, io::Error>(Client::new(stream, place))
        };
        let next = tokio::select! {
            () = clients.closed() => return,
            next = next => next,
        };
        match next {
            Ok(client) => {
                if clients.send(Ok(client)).await.is_err() {
                    return;
                }
            }
            // Nothing is to be had by asking again at once: files do not come back so soon.
            Err(why) => {
                tracing::warn!(%why, "a connection was not accepted");
                sleep(ACCEPT_AGAIN_AFTER).await;
            }
        }
    }
}

/// A client's connection.
pub(crate) struct Client {
    stream: TcpStream,
    opening: Option<Opening>,
    _place: OwnedSemaphorePermit,
}

/// So far a client has sent nothing but a part of HTTP/2's first line.
struct Opening {
    bytes: usize,
    deadline: Pin<Box<Sleep>>,
}

impl Client {
    fn new(stream: TcpStream, place: OwnedSemaphorePermit) -> Self {
        // Answers are small and waited for: they leave at once. If this fails, it is closed
        // already, and whoever reads from it will find out.
        let _ = stream.set_nodelay(true);
        let opening = Opening { bytes: 0, deadline: Box::pin(sleep(OPENING_PATIENCE)) };
        Self { stream, opening: Some(opening), _place: place }
    }
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let Self { stream, opening, .. } = &mut *self;
        let read = Pin::new(stream).poll_read(context, buffer);
        let Some(still) = opening else { return read };
        if read.is_pending() {
            ready!(still.deadline.as_mut().poll(context));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let new = &buffer.filled()[before..];
        let expected = &PREFACE[still.bytes..];
        still.bytes += new.len();
        // From here on it is HTTP that keeps the time.
        if !expected.starts_with(new) || still.bytes == PREFACE.len() {
            *opening = None;
        }
        read
    }
}

impl AsyncWrite for Client {
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

impl Connected for Client {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

/// What a client of HTTP/2 sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const OPENING_PATIENCE: Duration = Duration::from_secs(10);
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// What etcd keeps for itself.
const FILES_RESERVED: usize = 150;
const CONNECTIONS_MIN: usize = 32;
