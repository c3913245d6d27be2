//! Handshakes: of accepted and of opened connections.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate_core::membership::MemberInfo;
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tracing::warn;

use super::handshake_thread::{HandshakeThread, MovableStream};
use super::load::{TlsConfigError, client_config, client_files, server_config, server_files};
use super::reload::Reloading;
use super::settings::TlsSettings;
use super::subject::common_name;
use crate::runtime::lock;
use crate::tcp::{AcceptFuture, PeerIdentity, PeerStream, SecuredPeer, SecurityFuture};

/// Performs handshakes with clients.
pub struct TlsAcceptor {
    config: Reloading<rustls::ServerConfig>,
    refusals: RefusalLog,
}

/// A connection after its handshake.
pub struct AcceptedConnection {
    /// What the two sides say to each other.
    pub stream: Box<dyn PeerStream>,
    /// The client's certificate, if it has one that was verified.
    pub certificate: Option<PeerCertificate>,
}

impl AcceptedConnection {
    pub(super) fn new<S: PeerStream + 'static>(stream: tokio_rustls::server::TlsStream<S>) -> Self {
        let (_, session) = stream.get_ref();
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        let certificate = certificate.map(|der| PeerCertificate(der.clone().into_owned()));
        Self { stream: Box::new(stream), certificate }
    }
}

pub(super) type AcceptedStream = tokio_rustls::server::TlsStream<MovableStream>;

/// The verified certificate of the other side.
#[derive(Clone, PartialEq, Eq)]
pub struct PeerCertificate(CertificateDer<'static>);

impl PeerCertificate {
    /// The common name of its subject, if it has one.
    pub fn common_name(&self) -> Option<String> {
        common_name(&self.0)
    }

    /// Whether one of its subject alternative names is this host name or IP address.
    pub fn is_for_host(&self, host: &str) -> bool {
        let Ok(name) = ServerName::try_from(host) else { return false };
        ParsedCertificate::try_from(&self.0)
            .is_ok_and(|certificate| verify_server_name(&certificate, &name).is_ok())
    }
}

impl fmt::Debug for PeerCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerCertificate").field("common_name", &self.common_name()).finish()
    }
}

impl TlsAcceptor {
    /// Reads the files of these settings.
    pub fn new(settings: &TlsSettings) -> Result<Self, TlsConfigError> {
        let config = Reloading::load(settings, server_files(settings), server_config)?;
        Ok(Self { config, refusals: RefusalLog::default() })
    }

    /// Performs the handshake. A refusal is logged, at most once per second. The caller sets the
    /// timeout, and limits the number of handshakes in progress.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<AcceptedConnection> {
        self.handshake_or_log(stream).await.map(AcceptedConnection::new)
    }

    pub(super) async fn handshake_or_log(&self, stream: TcpStream) -> io::Result<AcceptedStream> {
        let client = stream.peer_addr();
        let accepted = self.handshake(stream).await;
        if let Err(error) = &accepted
            && let Some(more) = self.refusals.next()
        {
            let address = client.map(|address| address.to_string()).unwrap_or_default();
            warn!(address, %error, more, "rejected connection");
        }
        accepted
    }

    async fn handshake(&self, mut stream: TcpStream) -> io::Result<AcceptedStream> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // The first byte of every TLS connection.
        if first[0] != HANDSHAKE_RECORD {
            refuse_plaintext(&mut stream, first[0]).await;
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the client does not use TLS"));
        }
        let config = self.config.current().await;
        let acceptor = tokio_rustls::TlsAcceptor::from(config);
        match acceptor.accept(MovableStream::new(stream)).into_fallible().await {
            Ok(stream) => Ok(stream),
            Err((error, mut stream)) => {
                // The alert says why; the client has to be able to read it.
                close(&mut stream).await;
                Err(error)
            }
        }
    }
}

impl TlsAcceptor {
    /// Performs the handshake on a connection of this machine that is not TCP, such as one of a
    /// socket in a file. Refusals are not logged.
    pub async fn accept_local<S>(&self, stream: S) -> io::Result<AcceptedConnection>
    where
        S: PeerStream + 'static,
    {
        let acceptor = tokio_rustls::TlsAcceptor::from(self.config.current().await);
        acceptor.accept(stream).await.map(AcceptedConnection::new)
    }
}

impl fmt::Debug for TlsAcceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsAcceptor").finish_non_exhaustive()
    }
}

impl fmt::Debug for AcceptedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcceptedConnection")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

/// Clients of HTTP get the answer that Go's server gives.
async fn refuse_plaintext(stream: &mut TcpStream, first: u8) {
    if first.is_ascii_uppercase() {
        let _ = timeout(CLOSE_TIMEOUT, stream.write_all(PLAINTEXT_REPLY)).await;
    }
    close(stream).await;
}

const HANDSHAKE_RECORD: u8 = 22;
const PLAINTEXT_REPLY: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";

/// Closes a connection such that the other side can still read what was written: with unread
/// bytes in its buffer, the system would discard it.
async fn close(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    let _ = stream.shutdown().await;
    let mut buffer = [0; 1024];
    let drained = async {
        for _ in 0..DRAINED_READS_MAX {
            if !matches!(stream.read(&mut buffer).await, Ok(1..)) {
                break;
            }
        }
    };
    let _ = timeout(CLOSE_TIMEOUT, drained).await;
}

/// Long enough for a client on a loaded machine to read the alert: after it, a client that writes
/// first sees a broken connection instead of the reason.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
const DRAINED_READS_MAX: usize = 64;

/// Strangers must not be able to fill the log.
#[derive(Default)]
struct RefusalLog {
    last: Mutex<(Option<Instant>, u64)>,
}

impl RefusalLog {
    /// How many refusals were not logged since the last one that was; none if this one is not
    /// to be logged either.
    fn next(&self) -> Option<u64> {
        let mut last = lock(&self.last);
        if last.0.is_some_and(|at| at.elapsed() < REFUSAL_LOG_INTERVAL) {
            last.1 += 1;
            return None;
        }
        let (_, more) = std::mem::replace(&mut *last, (Some(Instant::now()), 0));
        Some(more)
    }
}

const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Performs handshakes with servers.
pub struct TlsConnector {
    config: Reloading<rustls::ClientConfig>,
}

impl TlsConnector {
    /// Reads the files of these settings.
    pub fn new(settings: &TlsSettings) -> Result<Self, TlsConfigError> {
        let config = Reloading::load(settings, client_files(settings), client_config)?;
        Ok(Self { config })
    }

    /// Performs the handshake with the server at this `host:port`. Its certificate has to be
    /// valid for the host. The caller sets the timeout.
    ///
    /// With TLS 1.3, a server that refuses this side's certificate says so only after the
    /// handshake: the first read fails.
    pub async fn connect(
        &self,
        stream: TcpStream,
        address: &str,
    ) -> io::Result<Box<dyn PeerStream>> {
        Ok(Box::new(self.handshake(stream, address).await?))
    }

    pub(super) async fn handshake(
        &self,
        stream: TcpStream,
        address: &str,
    ) -> io::Result<tokio_rustls::client::TlsStream<MovableStream>> {
        let name = server_name(address)?;
        let config = self.config.current().await;
        let connector = tokio_rustls::TlsConnector::from(config);
        connector.connect(name, MovableStream::new(stream)).await
    }
}

impl fmt::Debug for TlsConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConnector").finish_non_exhaustive()
    }
}

/// The host of a `host:port`. The interface of an IPv6 address is not part of its name.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.split_once('%').map_or(host, |(host, _)| host)
}

fn server_name(address: &str) -> io::Result<ServerName<'static>> {
    let host = host_of(address);
    ServerName::try_from(host.to_owned()).map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{host:?} is no host name"))
    })
}

/// The last moment at which the first certificate of this PEM text is valid. None if there is
/// none, or if it is malformed.
pub fn valid_until(certificate_pem: &[u8]) -> Option<std::time::SystemTime> {
    use rustls::pki_types::pem::PemObject;
    let certificate = CertificateDer::from_pem_slice(certificate_pem).ok()?;
    super::subject::valid_until(&certificate)
}

/// Mutual TLS for the connections between processes. Handshakes run on a thread of their own.
#[derive(Debug)]
pub struct TlsSecurity {
    acceptor: Arc<TlsAcceptor>,
    connector: Arc<TlsConnector>,
    handshakes: HandshakeThread,
    binds_members: bool,
}

impl TlsSecurity {
    /// Reads the files of these settings, and starts the thread. With
    /// [`TlsSettings::trusted_ca`], both sides of every connection have to have a certificate of
    /// that authority. With allowed names, the certificate of a process has to be valid for the
    /// address of every member that it speaks for; see [`TlsSettings::binds_members`].
    pub fn new(settings: &TlsSettings) -> Result<Self, TlsConfigError> {
        let acceptor = Arc::new(TlsAcceptor::new(settings)?);
        let connector = Arc::new(TlsConnector::new(settings)?);
        let handshakes = HandshakeThread::start().map_err(|error| {
            TlsConfigError::settings(format!("cannot start the thread for handshakes: {error}"))
        })?;
        Ok(Self { acceptor, connector, handshakes, binds_members: settings.binds_members() })
    }
}

impl crate::tcp::ConnectionSecurity for TlsSecurity {
    fn dial<'a>(&'a self, stream: TcpStream, address: &'a str) -> SecurityFuture<'a> {
        Box::pin(self.handshakes.connect(&self.connector, stream, address))
    }

    fn accept(&self, stream: TcpStream) -> AcceptFuture<'_> {
        Box::pin(async {
            let accepted = self.handshakes.accept(&self.acceptor, stream).await?;
            let certificate = accepted.certificate.filter(|_| self.binds_members);
            let identity = certificate.map(|one| Box::new(AddressCertificate(one)) as Box<_>);
            Ok(SecuredPeer { stream: accepted.stream, identity })
        })
    }
}

/// Speaks for the members whose address it is valid for.
struct AddressCertificate(PeerCertificate);

impl PeerIdentity for AddressCertificate {
    fn is_member(&self, _info: &MemberInfo, address: Option<&str>) -> bool {
        address.is_some_and(|address| self.0.is_for_host(host_of(address)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_names_are_hosts_without_ports() {
        for (address, expected) in [
            ("host.example:2380", "host.example"),
            ("10.0.0.1:1", "10.0.0.1"),
            ("[::1]:2380", "::1"),
            ("[fe80::a%eth0]:1", "fe80::a"),
        ] {
            let expected = ServerName::try_from(expected).unwrap();
            assert_eq!(server_name(address).unwrap(), expected, "{address}");
        }
        assert!(server_name("a b:1").is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_are_logged_once_per_second() {
        let log = RefusalLog::default();
        assert_eq!(log.next(), Some(0));
        assert_eq!((log.next(), log.next()), (None, None));
        tokio::time::advance(REFUSAL_LOG_INTERVAL).await;
        assert_eq!(log.next(), Some(2));
    }
}
