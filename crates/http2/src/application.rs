//! What a connection needs of the application behind it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use tokio::time::Instant;

use crate::body::IncomingBody;
use crate::head::RequestHead;

/// Serves the requests of one connection.
///
/// The futures and bodies that it returns are polled by the task of the connection: they must not
/// compute for long.
pub trait Application: Send {
    type Body: Body<Data = Bytes> + Send + Unpin;

    /// Whether requests with this head may be served by [`Application::serve_message`].
    fn takes_messages(&self, head: &RequestHead) -> bool;

    /// Serves a request whose body has arrived completely, or whose body begins with a whole message
    /// of gRPC: one that takes messages takes one. `None` if it has to be served by
    /// [`Application::serve`] after all.
    fn serve_message(&self, request: MessageRequest<'_>) -> Option<MessageCall<Self::Body>>;

    /// Serves any other request, whose body may still be on its way.
    fn serve(&self, request: Request<IncomingBody>) -> ResponseFuture<Self::Body>;

    /// The response to a message whose deadline has passed.
    fn deadline_passed(&self) -> Response<Self::Body>;
}

/// The response to come.
pub type ResponseFuture<B> = Pin<Box<dyn Future<Output = Response<B>> + Send>>;

/// A complete request.
#[derive(Debug)]
pub struct MessageRequest<'a> {
    pub head: &'a Arc<RequestHead>,
    /// `grpc-timeout`.
    pub timeout: Option<&'a HeaderValue>,
    pub body: &'a Bytes,
}

/// A call of [`Application::serve_message`] in progress.
pub struct MessageCall<B> {
    pub reply: Pin<Box<dyn Future<Output = MessageReply<B>> + Send>>,
    pub deadline: Option<Instant>,
}

/// The reply to a complete request.
pub enum MessageReply<B> {
    /// A successful gRPC response: one message with its prefix.
    Message(Vec<u8>),
    Response(Response<B>),
}
