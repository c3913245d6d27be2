//! Encryption and authentication of connections: the hook for TLS (`quorate::tls`) and the like.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;

use quorate_core::membership::MemberInfo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A bidirectional byte stream.
pub trait PeerStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> PeerStream for T {}

/// A connection that is being secured.
pub type SecurityFuture<'a> =
    Pin<Box<dyn Future<Output = io::Result<Box<dyn PeerStream>>> + Send + 'a>>;

/// A connection of a peer that is being secured.
pub type AcceptFuture<'a> = Pin<Box<dyn Future<Output = io::Result<SecuredPeer>> + Send + 'a>>;

/// A connection that a peer opened.
pub struct SecuredPeer {
    /// What the two sides say to each other.
    pub stream: Box<dyn PeerStream>,
    /// Which members the peer may speak for; none: for all.
    pub identity: Option<Box<dyn PeerIdentity>>,
}

impl SecuredPeer {
    /// A peer that may speak for every member.
    pub fn any(stream: impl PeerStream + 'static) -> Self {
        Self { stream: Box::new(stream), identity: None }
    }
}

impl fmt::Debug for SecuredPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecuredPeer").finish_non_exhaustive()
    }
}

/// Who the other side of a connection has proved to be.
pub trait PeerIdentity: Send + Sync {
    /// Whether it may speak for the member with this info, which is reached at this address.
    fn is_member(&self, info: &MemberInfo, address: Option<&str>) -> bool;
}

/// Wraps a TCP connection, for example with TLS. Both methods have to finish within
/// [`TcpConfig::handshake_timeout`](crate::TcpConfig::handshake_timeout).
pub trait ConnectionSecurity: Send + Sync + 'static {
    /// The `host:port` to connect to for this address. By default it is the whole address; an
    /// implementation may use addresses that also say how to secure the connection.
    fn host_and_port<'a>(&self, address: &'a str) -> &'a str {
        address
    }

    /// Secures a connection that this process opened to this address.
    fn dial<'a>(&'a self, stream: TcpStream, address: &'a str) -> SecurityFuture<'a>;

    /// Secures a connection that a peer opened.
    fn accept(&self, stream: TcpStream) -> AcceptFuture<'_>;
}

/// No encryption and no authentication: only for private networks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plaintext;

impl ConnectionSecurity for Plaintext {
    fn dial<'a>(&'a self, stream: TcpStream, _address: &'a str) -> SecurityFuture<'a> {
        Box::pin(async { Ok(Box::new(stream) as Box<dyn PeerStream>) })
    }

    fn accept(&self, stream: TcpStream) -> AcceptFuture<'_> {
        Box::pin(async { Ok(SecuredPeer::any(stream)) })
    }
}

impl fmt::Debug for dyn ConnectionSecurity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("dyn ConnectionSecurity")
    }
}
