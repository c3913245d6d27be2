//! The client's side of a connection, for unary gRPC calls only, without a socket.
//!
//! Made for load generators, which must cost less than the servers that they measure: one owner
//! per connection starts calls, writes [`UnaryConnection::output`] to its socket, and passes what
//! it reads to [`UnaryConnection::receive`]. There are no tasks, channels or locks. Heads of
//! requests are a few bytes after the first call, as those of other clients; heads of replies are
//! decoded once and then recognized by their bytes.
//!
//! What a server can make the client hold or do is bounded. Whatever is not HTTP/2 ends the
//! connection with an error.

mod connection;
mod reply_head;
mod request_head;
#[cfg(test)]
mod tests;

pub use connection::{CallEnd, CallId, REPLY_BYTES_MAX, UnaryConnection};
pub use request_head::CallTarget;
