//! Which requests a port serves: all, or with `--listen-client-http-urls` gRPC on some ports and
//! everything else on others.

use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::http::{Request, Response, StatusCode};
use pin_project_lite::pin_project;
use tonic::body::Body;
use tonic::codegen::Service;

use crate::grpc_guard::is_grpc;

/// The requests that a port serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKinds {
    All,
    Grpc,
    Http,
}

/// Refuses requests of other kinds, as etcd does it.
#[derive(Clone)]
pub(crate) struct OnlyKinds<S> {
    inner: S,
    kinds: RequestKinds,
}

impl<S> OnlyKinds<S> {
    pub(crate) fn new(inner: S, kinds: RequestKinds) -> Self {
        Self { inner, kinds }
    }
}

impl<S: Service<Request<Body>, Response = Response<Body>>> Service<Request<Body>> for OnlyKinds<S> {
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = KindFuture<S::Future, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (code, text) = match (self.kinds, is_grpc(request.headers())) {
            (RequestKinds::All, _) | (RequestKinds::Grpc, true) | (RequestKinds::Http, false) => {
                return KindFuture::Served { response: self.inner.call(request) };
            }
            (RequestKinds::Grpc, false) => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "this port serves gRPC only\n")
            }
            // A client of gRPC would take a text for a message. It reports the code as
            // Unimplemented.
            (RequestKinds::Http, true) => (StatusCode::NOT_FOUND, ""),
        };
        let body = if text.is_empty() { Body::empty() } else { Body::new(text.to_owned()) };
        let mut response = Response::new(body);
        *response.status_mut() = code;
        KindFuture::Refused { response: ready(Ok(response)) }
    }
}

pin_project! {
    #[project = KindFutureState]
    pub(crate) enum KindFuture<F, E> {
        Served { #[pin] response: F },
        Refused { response: Ready<Result<Response<Body>, E>> },
    }
}

impl<F: Future<Output = Result<Response<Body>, E>>, E> Future for KindFuture<F, E> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            KindFutureState::Served { response } => response.poll(context),
            KindFutureState::Refused { response } => Pin::new(response).poll(context),
        }
    }
}
