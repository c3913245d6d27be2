//! What stands between TCP and the frames: a place for TLS.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Bytes both ways.
pub trait PeerStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> PeerStream for T {}

/// A connection in the making.
pub type SecurityFuture<'a> =
    Pin<Box<dyn Future<Output = io::Result<Box<dyn PeerStream>>> + Send + 'a>>;

/// Makes a connection of ours out of one of TCP. Both have to be done within
/// [`TcpConfig::handshake_timeout`](crate::TcpConfig::handshake_timeout).
pub trait ConnectionSecurity: Send + Sync + 'static {
    /// This process dialled, to this `host:port`.
    fn dial<'a>(&'a self, stream: TcpStream, address: &'a str) -> SecurityFuture<'a>;

    /// Somebody dialled.
    fn accept(&self, stream: TcpStream) -> SecurityFuture<'_>;
}

/// EmptyHead in between: for networks that nobody else is on.
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
        f.write_str("ConnectionSecurity")
    }
}
