//! Encryption and authentication of connections: the place for TLS.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A bidirectional byte stream.
pub trait PeerStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> PeerStream for T {}

/// A connection that is being secured.
pub type SecurityFuture<'a> =
    Pin<Box<dyn Future<Output = io::Result<Box<dyn PeerStream>>> + Send + 'a>>;

/// Wraps a TCP connection, for example with TLS. Both methods have to finish within
/// [`TcpConfig::handshake_timeout`](crate::TcpConfig::handshake_timeout).
pub trait ConnectionSecurity: Send + Sync + 'static {
    /// Secures a connection that this process opened to this `host:port`.
    fn dial<'a>(&'a self, stream: TcpStream, address: &'a str) -> SecurityFuture<'a>;

    /// Secures a connection that a peer opened.
    fn accept(&self, stream: TcpStream) -> SecurityFuture<'_>;
}

/// No encryption and no authentication: only for private networks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plaintext;

impl ConnectionSecurity for Plaintext {
    fn dial<'a>(&'a self, stream: TcpStream, _address: &'a str) -> SecurityFuture<'a> {
        Box::pin(async { Ok(Box::new(stream) as Box<dyn PeerStream>) })
    }

    fn accept(&self, stream: TcpStream) -> SecurityFuture<'_> {
        Box::pin(async { Ok(Box::new(stream) as Box<dyn PeerStream>) })
    }
}

impl fmt::Debug for dyn ConnectionSecurity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("dyn ConnectionSecurity")
    }
}
