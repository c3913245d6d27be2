//! What every call passes first: requests for gRPC services that are not gRPC are rejected,
//! malformed and passed timeouts are answered, requests must arrive in time, and gRPC's own
//! limit errors are worded as etcd words them.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::http::{HeaderMap, Request, Response, StatusCode, header};
use pin_project_lite::pin_project;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;

use crate::access::ClientIdentity;
use crate::grpc_timeout::CallTimeout;
use crate::request_body::{AwaitedBody, AwaitedRequests};
use crate::status::{ServiceError, message_too_large};

/// Lets only gRPC requests through to the paths of services. Without this, a web page could
/// write keys: a browser sends plain requests to any host without asking, but none with the
/// content type of gRPC.
#[derive(Clone)]
pub(crate) struct GrpcGuard<S> {
    inner: S,
    awaited: AwaitedRequests,
}

impl<S> GrpcGuard<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self { inner, awaited: AwaitedRequests::default() }
    }
}

impl<S> Service<Request<Body>> for GrpcGuard<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = GuardFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if !is_service_path(request.uri().path()) {
            return GuardFuture::Passed { response: self.inner.call(request) };
        }
        if !is_grpc(request.headers()) {
            return GuardFuture::Rejected { response: Some(unsupported_type(request.headers())) };
        }
        if let Some(response) = out_of_time(request.headers()) {
            return GuardFuture::Rejected { response: Some(response) };
        }
        let client = ClientIdentity::from_extensions(request.extensions());
        let has_deadline = !REQUEST_STREAMS.contains(&request.uri().path());
        let awaited = self.awaited.clone();
        let request = request.map(|body| {
            Body::new(AwaitedBody::new(body, awaited, client.peer_address, has_deadline))
        });
        GuardFuture::Passed { response: self.inner.call(request) }
    }
}

/// The response to a call whose timeout is malformed or has passed.
fn out_of_time(headers: &HeaderMap) -> Option<Response<Body>> {
    let (error, code) = match CallTimeout::of(headers) {
        CallTimeout::InFuture => return None,
        CallTimeout::Passed => (ServiceError::DeadlineExceeded, StatusCode::OK),
        CallTimeout::Malformed(error) => {
            (ServiceError::MalformedTimeout(error), StatusCode::BAD_REQUEST)
        }
    };
    let status: Status = error.into();
    let mut response = status.into_http();
    *response.status_mut() = code;
    Some(response)
}

/// Methods whose request is a stream, which may stay empty.
const REQUEST_STREAMS: [&str; 2] =
    ["/etcdserverpb.Watch/Watch", "/etcdserverpb.Lease/LeaseKeepAlive"];

/// The names of services contain a package, with a dot. Those of pages do not.
fn is_service_path(path: &str) -> bool {
    path.trim_start_matches('/').split('/').next().is_some_and(|service| service.contains('.'))
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

fn unsupported_type(headers: &HeaderMap) -> Response<Body> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let text = format!("invalid gRPC request content-type {:?}\n", kind.unwrap_or_default());
    let mut response = Response::new(Body::new(text));
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    response
}

pin_project! {
    #[project = GuardFutureState]
    pub(crate) enum GuardFuture<F> {
        Passed { #[pin] response: F },
        Rejected { response: Option<Response<Body>> },
    }
}

impl<F, E> Future for GuardFuture<F>
where
    F: Future<Output = Result<Response<Body>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            GuardFutureState::Passed { response } => {
                let response = ready!(response.poll(context))?;
                let too_large = message_too_large(response.headers());
                Poll::Ready(Ok(too_large.map_or(response, |status| status.into_http())))
            }
            GuardFutureState::Rejected { response } => {
                Poll::Ready(Ok(response.take().unwrap_or_default()))
            }
        }
    }
}
