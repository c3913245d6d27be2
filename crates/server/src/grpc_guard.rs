//! What every call passes first: requests for gRPC services that are not gRPC are rejected,
//! malformed and passed timeouts are answered, requests must arrive in time, and gRPC's own
//! limit errors are worded as etcd words them.
//!
//! A service is called when the request is complete. Until then a call costs little more than what
//! was sent of it: the futures of the services take kilobytes each.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::http::request::Parts;
use axum::http::{HeaderMap, Request, Response, StatusCode, header};
use pin_project_lite::pin_project;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;

use crate::access::ClientIdentity;
use crate::connections::ClientConnectInfo;
use crate::grpc_timeout::CallTimeout;
use crate::request_body::AwaitedBody;
use crate::request_budget::AwaitedRequests;
use crate::status::{ServiceError, message_too_large};

/// Lets only gRPC requests through to the paths of services. Without this, a web page could
/// write keys: a browser sends plain requests to any host without asking, but none with the
/// content type of gRPC.
#[derive(Clone)]
pub(crate) struct GrpcGuard<S> {
    inner: S,
    awaited: AwaitedRequests,
    /// The largest message of KV and Watch.
    message_bytes_max: usize,
}

impl<S> GrpcGuard<S> {
    pub(crate) fn new(inner: S, awaited: AwaitedRequests, message_bytes_max: usize) -> Self {
        Self { inner, awaited, message_bytes_max }
    }

    fn awaited_body(&self, parts: &Parts, body: Body, is_stream: bool) -> AwaitedBody {
        let connection = ClientIdentity::from_extensions(&parts.extensions).peer_address;
        let path = parts.uri.path();
        let has_own_limit = OWN_LIMIT.iter().any(|service| path.starts_with(service));
        let bytes_max = if has_own_limit { self.message_bytes_max } else { MESSAGE_BYTES_DEFAULT };
        AwaitedBody::new(body, self.awaited.of(connection), is_stream, bytes_max)
    }
}

impl<S> Service<Request<Body>> for GrpcGuard<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = GuardFuture<S, S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        ClientConnectInfo::unpack(request.extensions_mut());
        if !is_service_path(request.uri().path()) {
            return GuardFuture::Passed { response: self.inner.call(request) };
        }
        if !is_grpc(request.headers()) {
            return GuardFuture::Rejected { response: Some(unsupported_type(request.headers())) };
        }
        if let Some(response) = out_of_time(request.headers()) {
            return GuardFuture::Rejected { response: Some(response) };
        }
        let is_stream = REQUEST_STREAMS.contains(&request.uri().path());
        let (parts, body) = request.into_parts();
        let mut body = self.awaited_body(&parts, body, is_stream);
        // The services of streams answer before the first message.
        if is_stream || body.has_arrived() {
            let request = Request::from_parts(parts, Body::new(body));
            return GuardFuture::Passed { response: self.inner.call(request) };
        }
        // The one that was polled for readiness is the one to call.
        let clone = self.inner.clone();
        let service = std::mem::replace(&mut self.inner, clone);
        GuardFuture::Awaited { call: Some(Box::new(AwaitedCall { service, parts, body })) }
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

/// Services whose messages may have another size than gRPC's default.
const OWN_LIMIT: [&str; 2] = ["/etcdserverpb.KV/", "/etcdserverpb.Watch/"];
const MESSAGE_BYTES_DEFAULT: usize = 4 << 20;

/// The names of services contain a package, with a dot. Those of pages do not.
fn is_service_path(path: &str) -> bool {
    path.trim_start_matches('/').split('/').next().is_some_and(|service| service.contains('.'))
}

pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
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

/// A call whose message has not arrived.
pub(crate) struct AwaitedCall<S> {
    service: S,
    parts: Parts,
    body: AwaitedBody,
}

pin_project! {
    #[project = GuardFutureState]
    pub(crate) enum GuardFuture<S, F> {
        Awaited { call: Option<Box<AwaitedCall<S>>> },
        Passed { #[pin] response: F },
        Rejected { response: Option<Response<Body>> },
    }
}

impl<S> Future for GuardFuture<S, S::Future>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    type Output = Result<Response<Body>, S::Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match self.as_mut().project() {
                GuardFutureState::Awaited { call } => {
                    if let Some(call) = call
                        && let Err(status) = ready!(call.body.poll_arrived(context))
                    {
                        return Poll::Ready(Ok(status.into_http()));
                    }
                    let passed = call.take().map(|call| {
                        let AwaitedCall { mut service, parts, body } = *call;
                        service.call(Request::from_parts(parts, Body::new(body)))
                    });
                    self.set(match passed {
                        Some(response) => Self::Passed { response },
                        None => Self::Rejected { response: None },
                    });
                }
                GuardFutureState::Passed { response } => {
                    let response = ready!(response.poll(context))?;
                    let too_large = message_too_large(response.headers());
                    return Poll::Ready(
                        Ok(too_large.map_or(response, |status| status.into_http())),
                    );
                }
                GuardFutureState::Rejected { response } => {
                    return Poll::Ready(Ok(response.take().unwrap_or_default()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{Ready, poll_fn, ready};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use http_body::Frame;
    use tokio::sync::mpsc;
    use tokio_stream::StreamExt;
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;

    /// Answers at once, and counts its calls.
    #[derive(Clone, Default)]
    struct CountingService(Arc<AtomicUsize>);

    impl Service<Request<Body>> for CountingService {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = Ready<Result<Response<Body>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            self.0.fetch_add(1, Ordering::Relaxed);
            ready(Ok(Response::default()))
        }
    }

    fn guard(service: &CountingService) -> GrpcGuard<CountingService> {
        GrpcGuard::new(service.clone(), AwaitedRequests::new(1 << 20), 1 << 10)
    }

    fn request(path: &str) -> (mpsc::Sender<Bytes>, Request<Body>) {
        let (sender, receiver) = mpsc::channel(1);
        let frames = ReceiverStream::new(receiver).map(|part| Ok::<_, Status>(Frame::data(part)));
        let body = Body::new(http_body_util::StreamBody::new(frames));
        let request = Request::post(path).header(header::CONTENT_TYPE, "application/grpc");
        (sender, request.body(body).unwrap())
    }

    #[tokio::test]
    async fn a_service_is_called_when_the_request_is_complete() {
        let service = CountingService::default();
        let mut guard = guard(&service);
        let calls = || service.0.load(Ordering::Relaxed);
        let (sender, without_message) = request("/etcdserverpb.KV/Range");
        let mut response = std::pin::pin!(guard.call(without_message));
        let polled = poll_fn(|context| Poll::Ready(response.as_mut().poll(context))).await;
        assert!(polled.is_pending());
        assert_eq!(calls(), 0);
        // A part of the message, the rest, and the end of the request.
        for part in [&[0, 0, 0][..], &[0, 1, 7]] {
            sender.send(Bytes::from_static(part)).await.unwrap();
            let polled = poll_fn(|context| Poll::Ready(response.as_mut().poll(context))).await;
            assert!(polled.is_pending());
            assert_eq!(calls(), 0);
        }
        drop(sender);
        assert_eq!(response.await.unwrap().status(), StatusCode::OK);
        assert_eq!(calls(), 1);
        // It has arrived with the headers.
        let (sender, with_message) = request("/etcdserverpb.KV/Range");
        sender.send(Bytes::from_static(&[0; 5])).await.unwrap();
        drop(sender);
        let response = guard.call(with_message);
        assert_eq!(calls(), 2);
        response.await.unwrap();
        // The service of a stream answers before the first message.
        let (_sender, stream) = request("/etcdserverpb.Watch/Watch");
        guard.call(stream).await.unwrap();
        assert_eq!(calls(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_whose_message_does_not_arrive_ends_without_its_service() {
        let service = CountingService::default();
        let mut guard = guard(&service);
        let (_sender, silent) = request("/etcdserverpb.KV/Range");
        let response = guard.call(silent).await.unwrap();
        let status = Status::from_header_map(response.headers()).unwrap();
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
        assert_eq!(service.0.load(Ordering::Relaxed), 0);
    }
}
