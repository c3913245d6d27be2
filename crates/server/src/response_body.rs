//! Bodies of large responses: encoded piece by piece while they are sent, so that a response
//! holds no memory beside the keys and values that it consists of.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::vec::IntoIter;

use axum::http::HeaderMap;
use bytes::{BufMut, Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use prost::Message;
use quorate_proto::etcdserverpb::RangeResponse;
use quorate_proto::mvccpb::KeyValue;
use tokio::time::Instant;
use tonic::codegen::http::HeaderValue;
use tonic::{Request, Response, Status};

use crate::response_budget::{DroppableResponse, MemoryWait, ResponseBudget, ResponseMemory};
use crate::status::ServiceError;

/// In the extensions of a request: a [`ResponseBody`] in the extensions of the response takes
/// the place of its body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamedResponses;

/// The body of a response with one message, and its trailers.
#[derive(Clone)]
pub(crate) struct ResponseBody(Arc<SharedBody>);

struct SharedBody(Mutex<BodyState>);

struct BodyState {
    /// None when it is sent, or dropped because its client did not read it.
    content: Option<BodyContent>,
    progressed_at: Instant,
    was_dropped: bool,
    /// The memory of the content.
    memory: Option<ResponseMemory>,
}

/// What is still to be sent, in this order.
struct BodyContent {
    start: Option<Bytes>,
    kvs: IntoIter<KeyValue>,
    /// The rest of the pair that is being sent.
    value: Bytes,
    end: Option<Bytes>,
}

impl ResponseBody {
    /// The message of a range.
    pub(crate) fn range(
        mut response: RangeResponse,
        memory: ResponseMemory,
    ) -> Result<Self, ServiceError> {
        let kvs = std::mem::take(&mut response.kvs);
        let pairs: usize = kvs.iter().map(|kv| pair_length(kv.encoded_len())).sum();
        // In protobuf the fields may be in any order, and parts of a message may be
        // concatenated: here the header, the pairs, then the rest.
        let header = RangeResponse { header: response.header.take(), ..RangeResponse::default() };
        let end = response.encode_to_vec();
        let length = message_length(header.encoded_len() + pairs + end.len())?;
        let mut start = BytesMut::with_capacity(5 + header.encoded_len());
        put_prefix(&mut start, length);
        start.put_slice(&header.encode_to_vec());
        let content = BodyContent {
            start: Some(start.freeze()),
            kvs: kvs.into_iter(),
            value: Bytes::new(),
            end: Some(end.into()),
        };
        Ok(Self::new(content, memory))
    }

    /// Any message.
    pub(crate) fn message(
        message: &impl Message,
        memory: ResponseMemory,
    ) -> Result<Self, ServiceError> {
        let length = message_length(message.encoded_len())?;
        let mut start = BytesMut::with_capacity(5);
        put_prefix(&mut start, length);
        let content = BodyContent {
            start: Some(start.freeze()),
            kvs: Vec::new().into_iter(),
            value: message.encode_to_vec().into(),
            end: None,
        };
        Ok(Self::new(content, memory))
    }

    fn new(content: BodyContent, mut memory: ResponseMemory) -> Self {
        Self(Arc::new_cyclic(|weak: &Weak<SharedBody>| {
            memory.register(weak.clone());
            SharedBody(Mutex::new(BodyState {
                content: Some(content),
                progressed_at: Instant::now(),
                was_dropped: false,
                memory: Some(memory),
            }))
        }))
    }
}

/// Smaller responses are not counted while they are sent: they take as little as their streams.
pub(crate) const STREAMED_BYTES_MIN: u64 = 4 << 10;

/// Whether the caller puts the body of a response in its place: see [`StreamedResponses`].
pub(crate) fn can_stream<T>(request: &Request<T>) -> bool {
    request.extensions().get::<StreamedResponses>().is_some()
}

/// A response with this body.
pub(crate) fn streamed<T: Default>(body: ResponseBody) -> Response<T> {
    let mut response = Response::new(T::default());
    response.extensions_mut().insert(body);
    response
}

/// A response that was read without a reservation. Its memory counts from now on, until it is sent.
pub(crate) async fn send_counted<T: Message + Default>(
    budget: &Arc<ResponseBudget>,
    response: T,
    is_streamed: bool,
) -> Result<Response<T>, Status> {
    let bytes = response.encoded_len() as u64;
    if !is_streamed || bytes < STREAMED_BYTES_MIN {
        return Ok(Response::new(response));
    }
    let memory = budget.reserve(bytes, MemoryWait::ForSomeTime).await?;
    Ok(streamed(ResponseBody::message(&response, memory)?))
}

/// gRPC has four bytes for the length of a message.
fn message_length(bytes: usize) -> Result<u32, ServiceError> {
    u32::try_from(bytes).map_err(|_| ServiceError::ResponseTooLarge { bytes })
}

fn put_prefix(out: &mut BytesMut, length: u32) {
    out.put_u8(0);
    out.put_u32(length);
}

/// The length of a field with a pair of this length.
fn pair_length(length: usize) -> usize {
    1 + prost_length(length) + length
}

/// The length of a number in protobuf.
fn prost_length(mut number: usize) -> usize {
    let mut length = 1;
    while number >= 0x80 {
        number >>= 7;
        length += 1;
    }
    length
}

impl BodyContent {
    /// The next piece; empty at the end.
    fn next_piece(&mut self) -> Bytes {
        if let Some(start) = self.start.take() {
            return start;
        }
        if !self.value.is_empty() {
            return self.value.split_to(self.value.len().min(PIECE_BYTES));
        }
        let mut piece = BytesMut::new();
        while piece.len() < PIECE_BYTES
            && let Some(kv) = self.kvs.next()
        {
            piece.reserve(pair_length(kv.encoded_len()).min(PIECE_BYTES));
            piece.put_u8(KVS_FIELD);
            let length = kv.encoded_len();
            put_varint(&mut piece, length);
            if length <= PIECE_BYTES {
                // Encoding fails only without space, which a buffer always has.
                let _ = kv.encode(&mut piece);
                continue;
            }
            // A large value is sent as it is in the store, without a copy.
            let (value, rest) = split_value(kv);
            piece.put_slice(&rest.encode_to_vec());
            piece.put_u8(VALUE_FIELD);
            put_varint(&mut piece, value.len());
            self.value = value;
            break;
        }
        if piece.is_empty() {
            return self.end.take().unwrap_or_default();
        }
        piece.freeze()
    }
}

fn split_value(mut kv: KeyValue) -> (Bytes, KeyValue) {
    (std::mem::take(&mut kv.value), kv)
}

fn put_varint(out: &mut BytesMut, mut number: usize) {
    while number >= 0x80 {
        out.put_u8((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.put_u8(number as u8);
}

/// `kvs` of a range response: field 2, a message.
const KVS_FIELD: u8 = 2 << 3 | 2;
/// `value` of a pair: field 5, bytes.
const VALUE_FIELD: u8 = 5 << 3 | 2;
/// The size of the pieces in which a response is sent.
const PIECE_BYTES: usize = 64 << 10;

impl SharedBody {
    fn state(&self) -> MutexGuard<'_, BodyState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SharedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").finish_non_exhaustive()
    }
}

impl DroppableResponse for SharedBody {
    fn progressed_at(&self) -> Instant {
        self.state().progressed_at
    }

    fn drop_content(&self) -> bool {
        let mut state = self.state();
        let content = state.content.take();
        let was_dropped = content.is_some();
        state.was_dropped |= was_dropped;
        let memory = state.memory.take();
        drop(state);
        drop((content, memory));
        was_dropped
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut state = self.0.state();
        state.progressed_at = Instant::now();
        if state.was_dropped {
            return Poll::Ready(Some(Err(ServiceError::ResponseNotRead.into())));
        }
        let Some(content) = &mut state.content else { return Poll::Ready(None) };
        let piece = content.next_piece();
        if !piece.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let sent = (state.content.take(), state.memory.take());
        drop(state);
        drop(sent);
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        let state = self.0.state();
        state.content.is_none() && !state.was_dropped
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use quorate_proto::etcdserverpb::ResponseHeader;

    use super::*;

    fn kv(key: &str, value_bytes: usize) -> KeyValue {
        KeyValue {
            key: key.to_owned().into(),
            value: vec![b'v'; value_bytes].into(),
            create_revision: 7,
            mod_revision: 300,
            version: 2,
            lease: 99,
        }
    }

    /// All data of a body, and the size of its largest piece.
    fn read_all(body: &mut ResponseBody) -> (Vec<u8>, usize) {
        let (mut bytes, mut largest) = (Vec::new(), 0);
        let mut context = Context::from_waker(std::task::Waker::noop());
        while let Poll::Ready(Some(frame)) = Pin::new(&mut *body).poll_frame(&mut context) {
            match frame.unwrap().into_data() {
                Ok(data) => {
                    largest = largest.max(data.len());
                    bytes.extend_from_slice(&data);
                }
                Err(frame) => {
                    assert_eq!(frame.into_trailers().unwrap()["grpc-status"], "0");
                }
            }
        }
        assert!(body.is_end_stream());
        (bytes, largest)
    }

    #[tokio::test]
    async fn a_range_in_pieces_equals_the_whole_message() {
        let budget = Arc::new(ResponseBudget::new(64 << 20));
        let sizes = [0, 1, 127, 128, 70_000, 5, 200_000, 65_536, 65_535, 0];
        let some = |count: usize| sizes.iter().take(count).map(|size| kv("key", *size)).collect();
        let header = Some(ResponseHeader { cluster_id: 1, revision: 5, ..Default::default() });
        for count in 0..=sizes.len() {
            let response = RangeResponse { header, kvs: some(count), more: true, count: 12 };
            let memory = budget.reserve(1 << 20, MemoryWait::ForSomeTime).await.unwrap();
            let mut body = ResponseBody::range(response.clone(), memory).unwrap();
            let (bytes, largest) = read_all(&mut body);
            assert!(largest <= 2 * PIECE_BYTES, "{largest}");
            assert_eq!(budget.used(), 0);
            let length = u32::from_be_bytes(bytes[1..5].try_into().unwrap());
            assert_eq!(bytes.len(), 5 + length as usize);
            assert_eq!(RangeResponse::decode(&bytes[5..]).unwrap(), response);

            let memory = budget.reserve(1 << 20, MemoryWait::ForSomeTime).await.unwrap();
            let mut body = ResponseBody::message(&response, memory).unwrap();
            assert_eq!(RangeResponse::decode(&read_all(&mut body).0[5..]).unwrap(), response);
        }
    }

    #[tokio::test]
    async fn a_dropped_response_ends_with_an_error() {
        let budget = Arc::new(ResponseBudget::new(64 << 20));
        let response = RangeResponse { kvs: vec![kv("key", 1 << 20)], ..Default::default() };
        let memory = budget.reserve(1 << 20, MemoryWait::ForSomeTime).await.unwrap();
        let mut body = ResponseBody::range(response, memory).unwrap();
        body.0.drop_content();
        assert_eq!(budget.used(), 0);
        let mut context = Context::from_waker(std::task::Waker::noop());
        let Poll::Ready(Some(Err(status))) = Pin::new(&mut body).poll_frame(&mut context) else {
            panic!("a dropped response was sent");
        };
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    }
}
