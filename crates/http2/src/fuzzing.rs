//! What fuzz targets and tests need: a connection without a socket.

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::application::{Application, MessageCall, MessageReply, MessageRequest, ResponseFuture};
use crate::body::IncomingBody;
use crate::config::ConnectionConfig;
use crate::connection::Http2Connection;
use crate::head::RequestHead;

/// Feeds a connection with these bytes, in pieces of this length. It must neither panic nor
/// hold more memory than its windows and limits allow. Whether all frames were valid.
pub fn receive(bytes: &[u8], piece: usize) -> bool {
    let mut connection = Http2Connection::new(EchoApplication, ConnectionConfig::default());
    let mut ready = Vec::new();
    for piece in bytes.chunks(piece.max(1)) {
        let received = connection.receive(piece);
        for _ in 0..4 {
            connection.ready.take(&mut ready);
            for slot in ready.drain(..) {
                connection.poll_slot(slot);
            }
        }
        connection.unblock();
        connection.output.clear();
        if received.is_err() {
            return false;
        }
    }
    connection.shrink();
    true
}

/// Sends the bodies of requests back.
struct EchoApplication;

/// A request's body as the response's.
struct EchoBody(IncomingBody);

impl Body for EchoBody {
    type Data = Bytes;
    type Error = crate::body::RequestAborted;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.get_mut().0).poll_frame(context)
    }
}

impl Application for EchoApplication {
    type Body = EchoBody;

    fn takes_messages(&self, head: &RequestHead) -> bool {
        head.uri.path().starts_with("/message")
    }

    fn serve_message(&self, request: MessageRequest<'_>) -> Option<MessageCall<EchoBody>> {
        let message = request.body.to_vec();
        let reply = Box::pin(async move { MessageReply::Message(message) });
        (request.body.len() != 3).then_some(MessageCall { reply, deadline: None })
    }

    fn serve(&self, request: Request<IncomingBody>) -> ResponseFuture<EchoBody> {
        let mut response = Response::new(EchoBody(request.into_body()));
        *response.status_mut() = StatusCode::ACCEPTED;
        Box::pin(async move { response })
    }

    fn deadline_passed(&self) -> Response<EchoBody> {
        unreachable!("no call has a deadline")
    }
}
