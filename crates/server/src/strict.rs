//! What is refused before a service is asked, and what gRPC refuses by itself: as etcd does.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::http::{HeaderMap, Request, Response, StatusCode, header};
use pin_project_lite::pin_project;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::{Code, Status};

/// Lets calls of gRPC through to services, and everything else to everything else. Without
/// this a page in somebody's browser could write keys: browsers send texts anywhere without
/// asking, but nothing that calls itself gRPC.
#[derive(Clone)]
pub(crate) struct Strict<S>(pub(crate) S);

impl<S> Service<Request<Body>> for Strict<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Answering<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if is_of_service(request.uri().path()) && !is_grpc(request.headers()) {
            return Answering::Refused { response: Some(unsupported_type(request.headers())) };
        }
        Answering::Asked { answer: self.0.call(request) }
    }
}

/// Names of services have packages; those of pages have none.
fn is_of_service(path: &str) -> bool {
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
    #[project = AnsweringState]
    pub(crate) enum Answering<F> {
        Asked { #[pin] answer: F },
        Refused { response: Option<Response<Body>> },
    }
}

impl<F, E> Future for Answering<F>
where
    F: Future<Output = Result<Response<Body>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            AnsweringState::Asked { answer } => {
                let response = ready!(answer.poll(context))?;
                Poll::Ready(Ok(too_large(response.headers()).unwrap_or(response)))
            }
            AnsweringState::Refused { response } => {
                Poll::Ready(Ok(response.take().unwrap_or_default()))
            }
        }
    }
}

/// What etcd's gRPC says where ours says that a message was too large to be read.
fn too_large(headers: &HeaderMap) -> Option<Response<Body>> {
    if headers.get("grpc-status")? != "11" {
        return None;
    }
    let status = Status::from_header_map(headers)?;
    let numbers = status.message().strip_prefix(TOO_LARGE)?;
    let mut numbers = numbers.split(|letter: char| !letter.is_ascii_digit());
    let mut number = || numbers.find(|number| !number.is_empty());
    let (found, limit) = (number()?, number()?);
    let text = format!("grpc: received message larger than max ({found} vs. {limit})");
    Some(Status::new(Code::ResourceExhausted, text).into_http())
}

const TOO_LARGE: &str = "Error, decoded message length too large: ";
