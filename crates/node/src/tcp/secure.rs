//! What stands between TCP and the frames: a place for TLS.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Bytes both ways.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection in the making.
pub type Securing<'a> = Pin<Box<dyn Future<Output = io::Result<Box<dyn Stream>>> + Send + 'a>>;

/// Makes a connection of ours out of one of TCP. Both have to be done within
/// [`TcpConfig::handshake_timeout`](crate::TcpConfig::handshake_timeout).
pub trait Secure: Send + Sync + 'static {
    /// This process dialled, to this `host:port`.
    fn dial<'a>(&'a self, stream: TcpStream, address: &'a str) -> Securing<'a>;

    /// Somebody dialled.
    fn accept(&self, stream: TcpStream) -> Securing<'_>;
}

/// Nothing in between: for networks that nobody else is on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Secure for Plain {
    fn dial<'a>(&'a self, stream: TcpStream, _address: &'a str) -> Securing<'a> {
        Box::pin(async { Ok(Box::new(stream) as Box<dyn Stream>) })
    }

    fn accept(&self, stream: TcpStream) -> Securing<'_> {
        Box::pin(async { Ok(Box::new(stream) as Box<dyn Stream>) })
    }
}

impl fmt::Debug for dyn Secure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secure")
    }
}
