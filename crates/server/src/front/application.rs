//! What is behind one HTTP/2 connection.

use std::convert::Infallible;
use std::sync::Arc;

use axum::http::{HeaderMap, Method, header};
use quorate_http2::{
    Application, IncomingBody, MessageCall, MessageRequest, RequestHead, ResponseFuture,
};
use tokio::time::{Instant, timeout};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Extensions, Request, Response};

use super::unary::{KvMethod, UnaryCalls};
use crate::connections::ClientConnectInfo;
use crate::context::Caller;
use crate::grpc_guard::is_grpc;
use crate::grpc_timeout::{duration_of, timeout_of};
use crate::metrics::client_version;
use crate::status::ServiceError;

pub(super) struct ClientApplication<S> {
    router: S,
    unary: Option<UnaryCalls>,
    info: ClientConnectInfo,
}

impl<S> ClientApplication<S> {
    pub(super) fn new(router: S, unary: Option<UnaryCalls>, info: ClientConnectInfo) -> Self {
        Self { router, unary, info }
    }

    fn notes<'a>(&self, head: &'a RequestHead) -> Option<&'a HeadNotes> {
        head.notes(|head| {
            let mut extensions = Extensions::new();
            extensions.insert(self.info.clone());
            ClientConnectInfo::unpack(&mut extensions);
            HeadNotes {
                method: kv_method(head),
                caller: Caller::from_parts(&head.headers, &extensions),
                client_version: client_version(&head.headers).into(),
            }
        })
    }
}

/// What all calls with one head have in common.
pub(super) struct HeadNotes {
    /// `None` if they are not served as complete messages.
    method: Option<KvMethod>,
    pub(super) caller: Caller,
    pub(super) client_version: Arc<str>,
}

fn kv_method(head: &RequestHead) -> Option<KvMethod> {
    let is_plain = head.method == Method::POST
        && is_grpc(&head.headers)
        && is_absent_or(&head.headers, "grpc-encoding", "identity")
        // Two timeouts, or one that is malformed.
        && !head.headers.contains_key("grpc-timeout")
        && head.uri.query().is_none();
    let has_type = head.headers.get(header::CONTENT_TYPE).is_some_and(|kind| {
        ["application/grpc", "application/grpc+proto"].iter().any(|known| kind == known)
    });
    if !is_plain || !has_type {
        return None;
    }
    KvMethod::of_path(head.uri.path())
}

fn is_absent_or(headers: &HeaderMap, name: &str, expected: &str) -> bool {
    headers.get(name).is_none_or(|value| value == expected)
}

impl<S> Application for ClientApplication<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Body = Body;

    fn takes_messages(&self, head: &RequestHead) -> bool {
        self.unary.is_some() && self.notes(head).is_some_and(|notes| notes.method.is_some())
    }

    fn serve_message(&self, request: MessageRequest<'_>) -> Option<MessageCall<Body>> {
        let notes = self.notes(request.head)?;
        let deadline = match request.timeout {
            None => None,
            // A malformed one, and one that has passed, are answered elsewhere.
            Some(timeout) => Some(Instant::now().checked_add(duration_of(timeout)?)?),
        };
        let reply = self.unary.as_ref()?.serve(notes.method?, notes, request.body)?;
        Some(MessageCall { reply, deadline })
    }

    fn serve(&self, request: Request<IncomingBody>) -> ResponseFuture<Body> {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(self.info.clone());
        let time = is_grpc(request.headers()).then(|| timeout_of(request.headers())).flatten();
        let mut router = self.router.clone();
        let response = router.call(request);
        let Some(time) = time else {
            return Box::pin(async move { served(response.await) });
        };
        Box::pin(async move {
            match timeout(time, response).await {
                Ok(response) => served(response),
                Err(_) => deadline_exceeded(),
            }
        })
    }

    fn deadline_passed(&self) -> Response<Body> {
        deadline_exceeded()
    }
}

fn served(response: Result<Response<Body>, Infallible>) -> Response<Body> {
    match response {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

fn deadline_exceeded() -> Response<Body> {
    let status: Status = ServiceError::DeadlineExceeded.into();
    status.into_http()
}
