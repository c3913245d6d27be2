//! Bodies of requests: JSON from the client, gRPC for the service.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http_body::{Body as _, Frame};
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;

use super::from_json;
use super::schema::MessageId;
use crate::request_budget::{AwaitedRequest, ConnectionRequests};
use crate::status::ServiceError;

/// Reads the whole body, and converts it to a body with one message.
pub(super) async fn unary_body(
    mut body: Body,
    message: MessageId,
    bytes_max: usize,
    requests: &ConnectionRequests,
) -> Result<Body, ServiceError> {
    let read = async {
        let mut counted = requests.begin()?;
        let mut text = BytesMut::new();
        loop {
            let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
            match frame.await {
                None => return Ok(text),
                Some(Err(_)) => return Err(ServiceError::BadJson("unexpected EOF".into())),
                Some(Ok(frame)) => {
                    let data = frame.into_data().unwrap_or_default();
                    check_size(text.len() + data.len(), bytes_max)?;
                    text.extend_from_slice(&data);
                    counted.resize(text.capacity())?;
                }
            }
        }
    };
    let text = timeout(BODY_TIMEOUT, read).await.map_err(|_| ServiceError::RequestNotSent)??;
    let framed = framed(message, &text)?;
    Ok(Body::new(WholeBody::new(framed)))
}

fn check_size(bytes: usize, bytes_max: usize) -> Result<(), ServiceError> {
    if bytes <= bytes_max {
        return Ok(());
    }
    let (bytes, limit) = (bytes.to_string(), bytes_max.to_string());
    Err(ServiceError::MessageTooLarge { bytes, limit })
}

/// A message as gRPC sends it: a flag, the length, and the message.
fn framed(message: MessageId, text: &[u8]) -> Result<Bytes, ServiceError> {
    let encoded = from_json::encode(message, text).map_err(ServiceError::BadJson)?;
    let mut bytes = BytesMut::with_capacity(5 + encoded.len());
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(encoded.len()).unwrap_or(u32::MAX));
    bytes.put_slice(&encoded);
    Ok(bytes.freeze())
}

/// A body that is complete, so that its length is known.
pub(super) struct WholeBody(Option<Bytes>);

impl WholeBody {
    pub(super) fn new(bytes: Bytes) -> Self {
        Self(Some(bytes))
    }
}

impl http_body::Body for WholeBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.0.as_ref().map_or(0, Bytes::len) as u64)
    }
}

/// A stream of JSON values, each of which becomes a message as soon as it has arrived.
pub(super) struct StreamBody {
    body: Body,
    message: MessageId,
    bytes_max: usize,
    values: ValueSplitter,
    ended: bool,
    requests: ConnectionRequests,
    /// The value that has not arrived completely.
    counted: Option<AwaitedRequest>,
}

impl StreamBody {
    pub(super) fn new(
        body: Body,
        message: MessageId,
        bytes_max: usize,
        requests: ConnectionRequests,
    ) -> Self {
        let values = ValueSplitter::default();
        Self { body, message, bytes_max, values, ended: false, requests, counted: None }
    }

    fn next_message(&mut self) -> Result<Option<Bytes>, ServiceError> {
        match self.values.next()? {
            Some(text) => framed(self.message, &text).map(Some),
            None => {
                check_size(self.values.buffered(), self.bytes_max)?;
                self.count()?;
                Ok(None)
            }
        }
    }

    /// Counts what is buffered.
    fn count(&mut self) -> Result<(), ServiceError> {
        match (&mut self.counted, self.values.buffered()) {
            (counted, 0) => *counted = None,
            (Some(counted), bytes) => counted.resize(bytes)?,
            (counted, bytes) => counted.insert(self.requests.begin()?).resize(bytes)?,
        }
        Ok(())
    }
}

impl http_body::Body for StreamBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            match self.next_message() {
                Ok(Some(message)) => return Poll::Ready(Some(Ok(Frame::data(message)))),
                Ok(None) if self.ended && self.values.is_incomplete() => {
                    self.values = ValueSplitter::default();
                    let error = ServiceError::BadJson("unexpected EOF".into());
                    return Poll::Ready(Some(Err(error.into())));
                }
                Ok(None) if self.ended => return Poll::Ready(None),
                Ok(None) => {}
                Err(error) => {
                    self.values = ValueSplitter::default();
                    self.ended = true;
                    return Poll::Ready(Some(Err(error.into())));
                }
            }
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => {
                    self.values.push(&frame.into_data().unwrap_or_default());
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => self.ended = true,
            }
        }
    }
}

/// Splits a stream of JSON objects where one ends. What is between them is whitespace.
#[derive(Debug, Default)]
struct ValueSplitter {
    bytes: BytesMut,
    /// How much of the bytes was looked at.
    scanned: usize,
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl ValueSplitter {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn buffered(&self) -> usize {
        self.bytes.len()
    }

    /// Whether a value has begun.
    fn is_incomplete(&self) -> bool {
        self.bytes.iter().any(|byte| !byte.is_ascii_whitespace())
    }

    /// The next whole object.
    fn next(&mut self) -> Result<Option<Bytes>, ServiceError> {
        while let Some(byte) = self.bytes.get(self.scanned).copied() {
            self.scanned += 1;
            if self.in_string {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'{' | b'[' if self.depth > 0 || byte == b'{' => self.depth += 1,
                b'}' | b']' if self.depth > 0 => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        let value = self.bytes.split_to(self.scanned).freeze();
                        self.scanned = 0;
                        return Ok(Some(value));
                    }
                }
                b'"' if self.depth > 0 => self.in_string = true,
                _ if self.depth > 0 => {}
                byte if byte.is_ascii_whitespace() => {}
                byte => {
                    let text = format!(
                        "invalid character {:?} looking for beginning of value",
                        char::from(byte)
                    );
                    return Err(ServiceError::BadJson(text));
                }
            }
        }
        if self.depth == 0 {
            // Only whitespace.
            self.bytes.clear();
            self.scanned = 0;
        }
        Ok(None)
    }
}

/// How long a client may take to send the body of a request.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::future::Future;

    use tokio_stream::StreamExt;

    use super::*;
    use crate::request_budget::AwaitedRequests;

    #[test]
    fn values_are_split_wherever_the_stream_is_cut() {
        let values = [
            r#"{"a":"}{\"","b":[{}]}"#,
            r#"{}"#,
            r#"{"create_request":{"key":"Zm9v"}}"#,
            r#"{"x":"\\"}"#,
        ];
        let stream = values.join(" \n");
        for size in 1..stream.len() {
            let mut splitter = ValueSplitter::default();
            let mut found = Vec::new();
            for piece in stream.as_bytes().chunks(size) {
                splitter.push(piece);
                while let Some(value) = splitter.next().unwrap() {
                    found.push(String::from_utf8(value.to_vec()).unwrap().trim().to_owned());
                }
            }
            assert_eq!(found, values, "in pieces of {size}");
            assert!(!splitter.is_incomplete());
        }
    }

    #[test]
    fn what_is_no_object_is_refused_at_once() {
        for text in ["abc", "5", "[{}]", "\"text\"", "}", "{}x"] {
            let mut splitter = ValueSplitter::default();
            splitter.push(text.as_bytes());
            let mut refused = false;
            while let Some(next) = splitter.next().transpose() {
                refused |= next.is_err();
                if refused {
                    break;
                }
            }
            assert!(refused, "{text}");
        }
    }

    /// A body that never ends, with this text.
    fn unfinished(text: &'static str) -> Body {
        let first = tokio_stream::once(Ok::<_, Status>(Frame::data(Bytes::from(text))));
        let frames = first.chain(tokio_stream::pending());
        Body::new(http_body_util::StreamBody::new(frames))
    }

    #[tokio::test]
    async fn what_has_arrived_of_a_request_is_counted_and_limited() {
        let call = crate::gateway::paths::find("kv/put").unwrap();
        let message = call.schema.request;
        let requests = AwaitedRequests::new(100);
        let of_client = requests.of(None);
        let mut stream =
            StreamBody::new(unfinished("{} {\"key\":"), message, 99, of_client.clone());
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(Pin::new(&mut stream).poll_frame(&mut context).is_ready());
        assert!(Pin::new(&mut stream).poll_frame(&mut context).is_pending());
        assert_eq!(requests.bytes(), 8);
        let body = unfinished("{\"key\":");
        let mut whole = Box::pin(unary_body(body, message, 99, &of_client));
        assert!(whole.as_mut().poll(&mut context).is_pending());
        assert!(requests.bytes() >= 15);
        drop((stream, whole));
        assert_eq!(requests.bytes(), 0);
        let small = AwaitedRequests::new(4).of(None);
        let refused = unary_body(unfinished("{\"key\":"), message, 99, &small).await;
        assert!(matches!(refused, Err(ServiceError::RequestMemoryUsedUp { .. })));
    }
}
