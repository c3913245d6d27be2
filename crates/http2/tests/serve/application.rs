//! The application behind the connections of these tests.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use quorate_http2::{
    Application, ConnectionConfig, IncomingBody, MessageCall, MessageReply, MessageRequest,
    RequestHead, ResponseFuture, ServeError, serve,
};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, duplex};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// `/message…` is served as a complete message, if it is one: its reply is the message.
/// `/slow` and `/message/slow` never end. `/echo` sends the request back while it arrives.
/// `/size/N` has a body of N bytes and trailers. `/drop` answers without reading. `/busy` has always
/// something to do, and never ends.
#[derive(Clone, Default)]
pub(crate) struct TestApplication {
    /// Calls in progress.
    pub(crate) open: Arc<AtomicUsize>,
    /// Calls served as complete messages.
    pub(crate) messages: Arc<AtomicUsize>,
}

struct OpenCall(Arc<AtomicUsize>);

impl OpenCall {
    fn new(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(open))
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(crate) enum TestBody {
    Empty,
    Echo(IncomingBody),
    Size { left: usize, has_trailers: bool },
}

impl Body for TestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Echo(body) => {
                Pin::new(body).poll_frame(context).map(|frame| frame.and_then(Result::ok).map(Ok))
            }
            Self::Size { left: 0, has_trailers: true } => {
                *self = Self::Empty;
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", "0".parse().unwrap());
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
            Self::Size { left, .. } => {
                let piece = (*left).min(50_000);
                *left -= piece;
                Poll::Ready(Some(Ok(Frame::data(vec![b'x'; piece].into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Empty)
    }
}

impl Application for TestApplication {
    type Body = TestBody;

    fn takes_messages(&self, head: &RequestHead) -> bool {
        head.uri.path().starts_with("/message")
    }

    fn serve_message(&self, request: MessageRequest<'_>) -> Option<MessageCall<TestBody>> {
        let path = request.head.uri.path();
        if request.body.starts_with(b"unusual") {
            return None;
        }
        let deadline = request.timeout.map(|timeout| {
            let millis = timeout.to_str().unwrap().trim_end_matches('m').parse().unwrap();
            Instant::now() + Duration::from_millis(millis)
        });
        let (message, is_slow) = (request.body.to_vec(), path == "/message/slow");
        let call = OpenCall::new(&self.open);
        self.messages.fetch_add(1, Ordering::SeqCst);
        let reply = Box::pin(async move {
            let _call = call;
            if is_slow {
                std::future::pending::<()>().await;
            }
            tokio::task::yield_now().await;
            MessageReply::Message(message)
        });
        Some(MessageCall { reply, deadline })
    }

    fn serve(&self, request: Request<IncomingBody>) -> ResponseFuture<TestBody> {
        let call = OpenCall::new(&self.open);
        Box::pin(async move {
            let _call = call;
            let path = request.uri().path().to_owned();
            let mut response = Response::new(TestBody::Empty);
            match path.as_str() {
                "/busy" => loop {
                    tokio::task::consume_budget().await;
                },
                "/slow" => std::future::pending::<()>().await,
                "/echo" => *response.body_mut() = TestBody::Echo(request.into_body()),
                "/drop" => {}
                "/count" => {
                    let bytes = request.into_body().collect().await.map(|it| it.to_bytes().len());
                    let count = bytes.map_or("aborted".to_owned(), |count| count.to_string());
                    response.headers_mut().insert("count", count.parse().unwrap());
                }
                path if path.starts_with("/message") => {
                    *response.body_mut() = TestBody::Echo(request.into_body());
                }
                path => match path.strip_prefix("/size/").and_then(|size| size.parse().ok()) {
                    Some(left) => {
                        *response.body_mut() = TestBody::Size { left, has_trailers: true };
                    }
                    None => *response.status_mut() = StatusCode::NOT_FOUND,
                },
            }
            response
        })
    }

    fn deadline_passed(&self) -> Response<TestBody> {
        let mut response = Response::new(TestBody::Empty);
        response.headers_mut().insert("grpc-status", "4".parse().unwrap());
        response
    }
}

/// A connection that is being served.
pub(crate) struct Served {
    pub(crate) application: TestApplication,
    pub(crate) stop: watch::Sender<bool>,
    pub(crate) task: JoinHandle<Result<(), ServeError>>,
}

pub(crate) fn serve_on<S>(socket: S, config: ConnectionConfig) -> Served
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let application = TestApplication::default();
    let (stop, mut stopped) = watch::channel(false);
    let served = application.clone();
    let task = tokio::spawn(async move {
        let stopped = async move {
            let _ = stopped.wait_for(|stop| *stop).await;
        };
        serve(socket, Vec::new(), served, config, stopped).await
    });
    Served { application, stop, task }
}

/// The client's end of a connection that is being served.
pub(crate) fn start(config: ConnectionConfig) -> (DuplexStream, Served) {
    let (client, server) = duplex(1 << 20);
    (client, serve_on(server, config))
}
