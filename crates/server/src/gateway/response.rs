//! Bodies of responses: gRPC from the service, JSON for the client. They are converted while they
//! are sent, so that a client that does not read stops its service (backpressure), and the memory
//! of large responses stays in the budget.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Response, StatusCode};
use bytes::{Buf, Bytes};
use http_body::{Body as _, Frame};
use serde_json::json;
use tokio::time::Sleep;
use tonic::body::Body;
use tonic::{Code, Status};

use super::request::WholeBody;
use super::schema::MessageId;
use super::to_json::{JsonWriter, NotAMessage};
use crate::status::{ServiceError, status_of};

/// The response to a call that failed before it had a result.
pub(crate) fn error_response(status: &Status) -> Response<Body> {
    let (code, text) = (status.code() as i32, status.message());
    let body = json!({ "error": text, "code": code, "message": text });
    let mut response = json_response(Body::new(body.to_string()));
    *response.status_mut() = http_status(status.code());
    if status.code() == Code::Unauthenticated
        && let Ok(text) = HeaderValue::from_str(text)
    {
        response.headers_mut().insert(WWW_AUTHENTICATE, text);
    }
    response
}

/// The response of a service, as JSON.
pub(super) async fn json_of(
    response: Response<Body>,
    message: MessageId,
    is_stream: bool,
    deadline: Option<Pin<Box<Sleep>>>,
) -> Response<Body> {
    let failed = status_of(response.headers());
    if let Some(status) = &failed
        && !is_stream
    {
        return error_response(status);
    }
    let mut body = JsonBody::new(response.into_body(), message, is_stream, deadline);
    if let Some(status) = failed {
        body.end_with(&status);
    }
    // The code of a stream depends on whether it has a first result.
    let wanted = if is_stream { 1 } else { SMALL_BYTES };
    let filled = std::future::poll_fn(|context| body.poll_fill(context, wanted)).await;
    match (filled, body.failure.take()) {
        (Err(status), _) => error_response(&status),
        (Ok(()), failure) => {
            let code = failure.map_or(StatusCode::OK, http_status);
            let is_whole = body.ended;
            let json = match is_whole {
                true => Body::new(WholeBody::new(std::mem::take(&mut body.json).into())),
                false => Body::new(body),
            };
            let mut response = json_response(json);
            *response.status_mut() = code;
            response
        }
    }
}

fn json_response(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The HTTP code of a gRPC code, as etcd's gateway maps them.
fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::REQUEST_TIMEOUT),
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => {
            StatusCode::BAD_REQUEST
        }
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// A body that is converted while it is sent. A stream has one line for each message.
struct JsonBody {
    body: Body,
    message: MessageId,
    is_stream: bool,
    /// When the time of the client is over.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Bytes of the service that are not converted yet.
    received: Bytes,
    /// The part of a prefix that has arrived: a flag and the length of a message.
    prefix: Vec<u8>,
    /// The message that arrives now, and how much of it is missing.
    current: Option<(JsonWriter, usize)>,
    /// Text that is not sent yet.
    json: Vec<u8>,
    /// There was a result.
    has_result: bool,
    /// The code of an error before the first result of a stream.
    failure: Option<Code>,
    ended: bool,
}

impl JsonBody {
    fn new(
        body: Body,
        message: MessageId,
        is_stream: bool,
        deadline: Option<Pin<Box<Sleep>>>,
    ) -> Self {
        Self {
            body,
            message,
            is_stream,
            deadline,
            received: Bytes::new(),
            prefix: Vec::new(),
            current: None,
            json: Vec::new(),
            has_result: false,
            failure: None,
            ended: false,
        }
    }

    /// Converts until there are this many bytes of text, or the response has ended.
    fn poll_fill(&mut self, context: &mut Context<'_>, wanted: usize) -> Poll<Result<(), Status>> {
        while !self.ended && (self.json.len() < wanted || self.is_within_first_line()) {
            if !self.received.is_empty() {
                self.convert().map_err(|_| ServiceError::UnexpectedReply)?;
                continue;
            }
            if let Some(deadline) = &mut self.deadline
                && deadline.as_mut().poll(context).is_ready()
            {
                self.end_or_fail(&ServiceError::DeadlineExceeded.into())?;
                continue;
            }
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.received = data,
                    Err(frame) => {
                        let trailers = frame.into_trailers().unwrap_or_default();
                        match status_of(&trailers) {
                            Some(status) if status.code() != Code::Ok => {
                                self.end_or_fail(&status)?;
                            }
                            _ => self.ended = true,
                        }
                    }
                },
                Some(Err(status)) => self.end_or_fail(&status)?,
                None => self.ended = true,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Small results are sent as a whole.
    fn is_within_first_line(&self) -> bool {
        self.is_stream && self.current.is_some() && self.json.len() < PIECE_BYTES
    }

    /// Ends a stream with a line for the error. A single response that has begun cannot be ended
    /// properly: the connection is cut.
    fn end_or_fail(&mut self, status: &Status) -> Result<(), Status> {
        if !self.is_stream || self.current.is_some() {
            return Err(status.clone());
        }
        self.end_with(status);
        Ok(())
    }

    fn end_with(&mut self, status: &Status) {
        let (code, text, http) = (status.code(), status.message(), http_status(status.code()));
        if !self.has_result {
            self.failure = Some(code);
        }
        let error = json!({ "error": {
            "grpc_code": code as i32,
            "http_code": http.as_u16(),
            "message": text,
            "http_status": http.canonical_reason().unwrap_or_default(),
            "code": code as i32,
        }});
        self.json.extend_from_slice(error.to_string().as_bytes());
        self.json.push(b'\n');
        self.ended = true;
    }

    /// Converts a piece of what was received.
    fn convert(&mut self) -> Result<(), NotAMessage> {
        let Some((writer, missing)) = &mut self.current else {
            self.prefix.push(self.received.get_u8());
            if let [_, length @ ..] = &self.prefix[..]
                && let Ok(length) = <[u8; 4]>::try_from(length)
            {
                self.prefix.clear();
                let length = u32::from_be_bytes(length) as usize;
                if self.is_stream {
                    self.json.extend_from_slice(b"{\"result\":");
                }
                let writer = JsonWriter::new(self.message, &mut self.json);
                self.current = Some((writer, length));
                self.finish_message()?;
            }
            return Ok(());
        };
        let piece = self.received.split_to(PIECE_BYTES.min(*missing).min(self.received.len()));
        writer.write(&piece, &mut self.json)?;
        *missing -= piece.len();
        self.finish_message()
    }

    fn finish_message(&mut self) -> Result<(), NotAMessage> {
        let Some((writer, _)) = self.current.take_if(|(_, missing)| *missing == 0) else {
            return Ok(());
        };
        writer.finish(&mut self.json)?;
        self.has_result = true;
        if self.is_stream {
            self.json.extend_from_slice(b"}\n");
        }
        Ok(())
    }
}

impl http_body::Body for JsonBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match self.poll_fill(context, PIECE_BYTES) {
            Poll::Ready(Err(status)) => return Poll::Ready(Some(Err(status))),
            Poll::Pending if self.json.is_empty() => return Poll::Pending,
            _ => {}
        }
        if self.json.is_empty() {
            return Poll::Ready(None);
        }
        let json = std::mem::take(&mut self.json);
        Poll::Ready(Some(Ok(Frame::data(json.into()))))
    }
}

/// What is converted at a time.
const PIECE_BYTES: usize = 32 << 10;
/// Smaller responses are sent with their length.
const SMALL_BYTES: usize = 64 << 10;
