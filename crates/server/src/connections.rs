//! Accepts client connections, with TLS or without: limits their number, and closes one that does
//! not send the start of a request in time. After that, HTTP's own limits apply.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::Extensions;
use quorate::tcp::PeerStream;
use quorate::tls::TlsAcceptor;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Sleep, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::client_certificate::ClientCertificate;
use crate::server::ServerError;
use crate::tls::Handshakes;
use crate::url::Url;

/// The limit of open connections. Further ones wait in the listener's backlog until another
/// connection closes.
#[derive(Clone)]
pub(crate) struct ConnectionLimit(Arc<Semaphore>);

impl ConnectionLimit {
    pub(crate) fn new(count: usize) -> Self {
        Self(Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS))))
    }
}

/// How the open files that the process may have are divided, so that what strangers open never
/// takes those that peers and disk need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileLimits {
    files: usize,
}

impl FileLimits {
    /// Raises the soft limit to the hard limit first, since its default is low.
    pub(crate) fn of_process() -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        let files = if raised.is_ok() { maximum } else { current };
        let files = files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
        Self { files }
    }

    /// Connections of clients: the rest.
    pub(crate) fn clients(self) -> usize {
        let others = self.handshakes() + self.unidentified_peers() + 2 * self.metrics();
        self.files.saturating_sub(FILES_RESERVED + others).max(CONNECTIONS_MIN)
    }

    /// TLS handshakes with clients, beside the connections.
    pub(crate) fn handshakes(self) -> usize {
        (self.files / 8).clamp(CONNECTIONS_MIN, HANDSHAKES_MAX)
    }

    /// Connections to the peer port that have not said which member they are for.
    pub(crate) fn unidentified_peers(self) -> usize {
        (self.files / 16).clamp(16, UNIDENTIFIED_PEERS_MAX)
    }

    /// Connections to the ports for metrics; as many handshakes are beside them.
    pub(crate) fn metrics(self) -> usize {
        (self.files / 64).clamp(4, METRICS_CONNECTIONS_MAX)
    }
}

/// A bound port for clients.
pub(crate) struct ClientListener {
    listener: ListenerSocket,
    security: ListenerSecurity,
}

/// How the connections of a port are secured.
#[derive(Clone)]
enum ListenerSecurity {
    Plain,
    Tls(Arc<TlsAcceptor>),
    /// An `http` and an `https` URL name the same port: each client chooses.
    Either(Arc<TlsAcceptor>),
}

impl ListenerSecurity {
    /// That of a port with this URL.
    fn of(url: &Url, acceptor: Option<&Arc<TlsAcceptor>>) -> Self {
        match acceptor.filter(|_| url.is_tls()) {
            Some(acceptor) => Self::Tls(Arc::clone(acceptor)),
            None => Self::Plain,
        }
    }

    /// That of a port with the URLs of both.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Plain, Self::Plain) => Self::Plain,
            (Self::Tls(acceptor), Self::Tls(_)) => Self::Tls(acceptor),
            (Self::Either(acceptor), _)
            | (_, Self::Either(acceptor))
            | (Self::Plain, Self::Tls(acceptor))
            | (Self::Tls(acceptor), Self::Plain) => Self::Either(acceptor),
        }
    }
}

impl ClientListener {
    /// Whether it listens on this address. Port 0 is another port each time.
    fn is_on(&self, address: SocketAddr) -> bool {
        match &self.listener {
            ListenerSocket::Tcp(listener) => {
                address.port() != 0 && listener.local_addr().is_ok_and(|own| own == address)
            }
            ListenerSocket::Unix { .. } => false,
        }
    }
}

/// What a listener accepts connections on.
enum ListenerSocket {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _file: SocketFile },
}

/// The file of a socket, which is removed with its listener, as etcd does it.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // It may have been removed already.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl ListenerSocket {
    /// A socket in this file. One that a killed server left behind is replaced; a file that is no
    /// socket is not.
    fn bind_file(path: &str) -> io::Result<Self> {
        let is_socket = |metadata: std::fs::Metadata| metadata.file_type().is_socket();
        if std::fs::symlink_metadata(path).is_ok_and(is_socket) {
            std::fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        Ok(Self::Unix { listener, _file: SocketFile(path.into()) })
    }

    async fn accept(&self) -> io::Result<AcceptedSocket> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(tcp, _)| AcceptedSocket::Tcp(tcp)),
            Self::Unix { listener, .. } => {
                listener.accept().await.map(|(unix, _)| AcceptedSocket::Unix(unix))
            }
        }
    }
}

/// A connection before TLS.
enum AcceptedSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl AcceptedSocket {
    /// The address to limit handshakes by. All clients of a socket in a file are on this machine.
    fn address(&self) -> IpAddr {
        let unknown = Ipv4Addr::UNSPECIFIED.into();
        match self {
            Self::Tcp(stream) => stream.peer_addr().map_or(unknown, |a| canonical(a.ip())),
            Self::Unix(_) => Ipv4Addr::LOCALHOST.into(),
        }
    }

    fn connect_info(&self) -> ClientConnectInfo {
        match self {
            Self::Tcp(stream) => ClientConnectInfo::new(stream, None),
            Self::Unix(_) => {
                let addresses = TcpConnectInfo { local_addr: None, remote_addr: None };
                ClientConnectInfo { addresses, certificate: None, is_secured: false }
            }
        }
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

/// Binds all of these; those with `https` use the acceptor. As in etcd, several URLs may name one
/// port.
pub(crate) async fn bind_all(
    urls: &[Url],
    acceptor: Option<&Arc<TlsAcceptor>>,
) -> Result<Vec<ClientListener>, ServerError> {
    let mut bound: Vec<ClientListener> = Vec::new();
    for url in urls {
        let security = ListenerSecurity::of(url, acceptor);
        let failed = |error| ServerError::Bind { url: url.to_string(), error };
        let listener = match url.socket_path() {
            Some(path) => ListenerSocket::bind_file(path).map_err(failed)?,
            None => {
                let address = url.resolve().await.map_err(failed)?;
                if let Some(same) = bound.iter_mut().find(|one| one.is_on(address)) {
                    same.security = same.security.clone().and(security);
                    continue;
                }
                ListenerSocket::Tcp(listen(address).map_err(failed)?)
            }
        };
        bound.push(ClientListener { listener, security });
    }
    Ok(bound)
}

/// The addresses of those that have one.
pub(crate) fn addresses(listeners: &[ClientListener]) -> Result<Vec<SocketAddr>, ServerError> {
    let tcp = listeners.iter().filter_map(|one| match &one.listener {
        ListenerSocket::Tcp(listener) => Some(listener),
        ListenerSocket::Unix { .. } => None,
    });
    tcp.map(|listener| listener.local_addr().map_err(ServerError::System)).collect()
}

/// The connections accepted by this listener, until the stream is dropped. The address is free when the
/// task has ended.
pub(crate) fn accept_connections(
    listener: ClientListener,
    limit: ConnectionLimit,
    handshakes: &Handshakes,
) -> (ReceiverStream<io::Result<ClientConnection>>, JoinHandle<()>) {
    let (sender, receiver) = mpsc::channel(1);
    let ClientListener { listener, security } = listener;
    let accepts_plain = matches!(security, ListenerSecurity::Either(_));
    let accepting = match security {
        ListenerSecurity::Plain => tokio::spawn(accept_all(listener, limit, sender)),
        ListenerSecurity::Tls(acceptor) | ListenerSecurity::Either(acceptor) => {
            let handshakes = handshakes.clone();
            let secured = SecuredListener { acceptor, accepts_plain, limit, handshakes };
            tokio::spawn(secured.accept_all(listener, sender))
        }
    };
    (ReceiverStream::new(receiver), accepting)
}

async fn accept_all(
    listener: ListenerSocket,
    limit: ConnectionLimit,
    connections: mpsc::Sender<io::Result<ClientConnection>>,
) {
    loop {
        let next = async {
            let permit = Arc::clone(&limit.0).acquire_owned().await.map_err(io::Error::other)?;
            let socket = listener.accept().await?;
            let info = socket.connect_info();
            let stream = match socket {
                AcceptedSocket::Tcp(stream) => ClientStream::Plain(stream),
                AcceptedSocket::Unix(stream) => ClientStream::Unix(stream),
            };
            Ok::<_, io::Error>(ClientConnection::new(stream, info, permit))
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

/// A listener with TLS. A connection counts as one only after its handshake.
struct SecuredListener {
    acceptor: Arc<TlsAcceptor>,
    /// Whether clients may omit TLS.
    accepts_plain: bool,
    limit: ConnectionLimit,
    handshakes: Handshakes,
}

impl SecuredListener {
    async fn accept_all(
        self,
        listener: ListenerSocket,
        connections: mpsc::Sender<io::Result<ClientConnection>>,
    ) {
        loop {
            let next = tokio::select! {
                () = connections.closed() => return,
                next = listener.accept() => next,
            };
            match next {
                Ok(socket) => self.begin_handshake(socket, connections.clone()),
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    sleep(ACCEPT_RETRY_INTERVAL).await;
                }
            }
        }
    }

    fn begin_handshake(
        &self,
        socket: AcceptedSocket,
        connections: mpsc::Sender<io::Result<ClientConnection>>,
    ) {
        let (acceptor, limit) = (Arc::clone(&self.acceptor), Arc::clone(&self.limit.0));
        let accepts_plain = self.accepts_plain;
        self.handshakes.spawn(socket.address(), async move {
            let mut info = socket.connect_info();
            let accepted = match socket {
                AcceptedSocket::Tcp(stream) if accepts_plain && !begins_tls(&stream).await? => {
                    Err(stream)
                }
                AcceptedSocket::Tcp(stream) => Ok(acceptor.accept(stream).await.ok()?),
                AcceptedSocket::Unix(stream) => Ok(acceptor.accept_local(stream).await.ok()?),
            };
            let stream = match accepted {
                Ok(accepted) => {
                    info.is_secured = true;
                    let name = accepted.certificate.and_then(|it| it.common_name());
                    info.certificate = name.map(|common_name| ClientCertificate { common_name });
                    ClientStream::Secured(accepted.stream)
                }
                Err(stream) => ClientStream::Plain(stream),
            };
            let permit = limit.acquire_owned().await.ok()?;
            let connection = ClientConnection::new(stream, info, permit);
            Some(async move {
                let _ = connections.send(Ok(connection)).await;
            })
        });
    }
}

/// Whether the first byte that the client sends is that of a TLS handshake; `None` if it sends
/// none. The byte stays to be read.
async fn begins_tls(stream: &TcpStream) -> Option<bool> {
    let mut first = [0];
    let count = stream.peek(&mut first).await.ok()?;
    (count == 1).then_some(first[0] == TLS_HANDSHAKE)
}

/// One client has one address, whether or not the listener is one for IPv6.
fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// What is known about a connection. tonic puts it into the extensions of every request.
#[derive(Clone, Debug)]
pub(crate) struct ClientConnectInfo {
    addresses: TcpConnectInfo,
    certificate: Option<ClientCertificate>,
    is_secured: bool,
}

impl ClientConnectInfo {
    fn new(stream: &TcpStream, certificate: Option<ClientCertificate>) -> Self {
        // Responses are small and clients wait for them, so they are sent at once. This fails
        // only on a closed connection, which the next read reports.
        let _ = stream.set_nodelay(true);
        Self { addresses: stream.connect_info(), certificate, is_secured: false }
    }

    /// Of a connection without a socket.
    #[cfg(feature = "counted-calls")]
    pub(crate) fn of_memory() -> Self {
        let addresses = TcpConnectInfo { local_addr: None, remote_addr: None };
        Self { addresses, certificate: None, is_secured: false }
    }

    /// Whether the connection uses TLS.
    pub(crate) fn is_secured(&self) -> bool {
        self.is_secured
    }

    /// Whether the client has a verified certificate with a name.
    pub(crate) fn has_common_name(&self) -> bool {
        self.certificate.as_ref().is_some_and(|certificate| !certificate.common_name.is_empty())
    }

    /// Replaces it in the extensions of a request with the types that services look for.
    pub(crate) fn unpack(extensions: &mut Extensions) {
        if let Some(info) = extensions.remove::<Self>() {
            extensions.insert(info.addresses);
            info.certificate.into_iter().for_each(|certificate| {
                extensions.insert(certificate);
            });
        }
    }
}

/// The bytes of a connection.
enum ClientStream {
    Plain(TcpStream),
    Unix(UnixStream),
    Secured(Box<dyn PeerStream>),
}

impl ClientStream {
    fn as_pin(&mut self) -> Pin<&mut dyn PeerStream> {
        match self {
            Self::Plain(stream) => Pin::new(stream),
            Self::Unix(stream) => Pin::new(stream),
            Self::Secured(stream) => Pin::new(&mut **stream),
        }
    }
}

/// A client's connection.
pub(crate) struct ClientConnection {
    stream: ClientStream,
    info: ClientConnectInfo,
    preface: Option<PrefaceDeadline>,
    _permit: OwnedSemaphorePermit,
}

/// The state of a connection that has sent nothing but a part of HTTP/2's preface.
struct PrefaceDeadline {
    bytes: usize,
    deadline: Pin<Box<Sleep>>,
}

impl ClientConnection {
    fn new(stream: ClientStream, info: ClientConnectInfo, permit: OwnedSemaphorePermit) -> Self {
        let deadline = Box::pin(sleep(PREFACE_TIMEOUT));
        let preface = PrefaceDeadline { bytes: 0, deadline };
        Self { stream, info, preface: Some(preface), _permit: permit }
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
        let read = stream.as_pin().poll_read(context, buffer);
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
        self.stream.as_pin().poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream.as_pin().poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            ClientStream::Plain(stream) => stream.is_write_vectored(),
            ClientStream::Unix(stream) => stream.is_write_vectored(),
            ClientStream::Secured(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_pin().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_pin().poll_shutdown(context)
    }
}

impl Connected for ClientConnection {
    type ConnectInfo = ClientConnectInfo;

    fn connect_info(&self) -> ClientConnectInfo {
        self.info.clone()
    }
}

/// The type of the record with which TLS begins.
const TLS_HANDSHAKE: u8 = 0x16;
/// What an HTTP/2 client sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// File descriptors that etcd keeps for its own use.
const FILES_RESERVED: usize = 150;
const CONNECTIONS_MIN: usize = 32;
const HANDSHAKES_MAX: usize = 1_024;
const UNIDENTIFIED_PEERS_MAX: usize = 256;
const METRICS_CONNECTIONS_MAX: usize = 64;
/// Connections that wait until they are accepted.
const BACKLOG: u32 = 4_096;

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    /// What all the listeners may open together leaves the files that the server needs.
    #[test]
    fn the_limits_of_all_listeners_leave_files_for_the_server() {
        for files in [256, 300, 1_024, 4_096, 65_536, 1 << 20] {
            let limits = FileLimits { files };
            let opened = limits.clients()
                + limits.handshakes()
                + limits.unidentified_peers()
                + 2 * limits.metrics();
            assert!(opened + FILES_RESERVED <= files, "{limits:?} {opened}");
            assert!(limits.clients() >= CONNECTIONS_MIN);
        }
    }

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
