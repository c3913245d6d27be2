//! Unary calls of KV whose message has arrived: decoded, served and encoded without the types of
//! general HTTP. What they do is in `service::kv`; every other call, and every unusual one, is
//! served by the router.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use bytes::Bytes;
use prost::Message;
use quorate_http2::MessageReply;
use quorate_proto::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest, TxnRequest};
use tonic::body::Body;
use tonic::codegen::http::Response;
use tonic::{Code, Status};

use super::application::HeadNotes;
#[cfg(feature = "counted-calls")]
use crate::context::ServiceContext;
use crate::metrics::{ActiveCall, CallCounters, MethodIndex, method_of};
use crate::response_body::ResponseBody;
use crate::response_budget::ResponseMemory;
use crate::service::kv::{KvCallReply, KvService};
use crate::status::ServiceError;

/// A method of KV, and its number for the counters.
#[derive(Clone, Copy, Debug)]
pub(super) struct KvMethod {
    kind: KvKind,
    index: MethodIndex,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KvKind {
    Range,
    Put,
    DeleteRange,
    Txn,
}

impl KvMethod {
    pub(super) fn of_path(path: &str) -> Option<Self> {
        let kind = match path.strip_prefix("/etcdserverpb.KV/")? {
            "Range" => KvKind::Range,
            "Put" => KvKind::Put,
            "DeleteRange" => KvKind::DeleteRange,
            "Txn" => KvKind::Txn,
            _ => return None,
        };
        Some(Self { kind, index: method_of(path)? })
    }
}

/// Serves complete calls of KV.
#[derive(Clone)]
pub(crate) struct UnaryCalls {
    service: Arc<KvService>,
    counters: Arc<CallCounters>,
    message_bytes_max: usize,
}

type ReplyFuture = Pin<Box<dyn Future<Output = MessageReply<Body>> + Send>>;

impl UnaryCalls {
    pub(crate) fn new(
        service: KvService,
        counters: Arc<CallCounters>,
        message_bytes_max: usize,
    ) -> Self {
        Self { service: Arc::new(service), counters, message_bytes_max }
    }

    #[cfg(feature = "counted-calls")]
    pub(super) fn context(&self) -> &ServiceContext {
        self.service.context()
    }

    /// `None` if the body is not one plain message that can be decoded.
    pub(super) fn serve(
        &self,
        method: KvMethod,
        notes: &HeadNotes,
        body: &Bytes,
    ) -> Option<ReplyFuture> {
        let message = self.message(body)?;
        let service = Arc::clone(&self.service);
        let caller = notes.caller.clone();
        let start = || self.counters.start_unary(method.index, &notes.client_version);
        Some(match method.kind {
            KvKind::Range => {
                let request = RangeRequest::decode(message).ok()?;
                let call = start();
                Box::pin(async move {
                    let found = service.find_range(caller, request).await;
                    answer(call, found, |reply: KvCallReply<_, _>| {
                        ResponseBody::range(reply.response, reply.memory)
                    })
                })
            }
            KvKind::Put => {
                let request = PutRequest::decode(message).ok()?;
                let call = start();
                Box::pin(async move {
                    answer(call, service.run_put(caller, request).await, large_message)
                })
            }
            KvKind::DeleteRange => {
                let request = DeleteRangeRequest::decode(message).ok()?;
                let call = start();
                Box::pin(async move {
                    answer(call, service.run_deletion(caller, request).await, large_message)
                })
            }
            KvKind::Txn => {
                let request = TxnRequest::decode(message).ok()?;
                let call = start();
                Box::pin(async move {
                    answer(call, service.run_txn(caller, request).await, large_message)
                })
            }
        })
    }

    /// The content of a body with one message that is not compressed.
    fn message(&self, body: &Bytes) -> Option<Bytes> {
        let (prefix, message) = body.split_first_chunk::<PREFIX_BYTES>()?;
        let [compressed, length @ ..] = *prefix;
        let is_whole = u32::from_be_bytes(length) as usize == message.len();
        let is_plain = compressed == 0 && is_whole && message.len() <= self.message_bytes_max;
        is_plain.then(|| body.slice(PREFIX_BYTES..))
    }
}

fn large_message<T: Message + Default>(
    reply: KvCallReply<T, ResponseMemory>,
) -> Result<ResponseBody, ServiceError> {
    ResponseBody::message(&reply.response, reply.memory)
}

/// The reply to a call: encoded at once, or while it is sent if it is large.
fn answer<T: Message + Default>(
    call: ActiveCall,
    result: Result<KvCallReply<T>, ServiceError>,
    to_body: impl FnOnce(KvCallReply<T, ResponseMemory>) -> Result<ResponseBody, ServiceError>,
) -> MessageReply<Body> {
    let replied = result.and_then(|reply| {
        let bytes = reply.memory.as_ref().map_or(0, ResponseMemory::bytes);
        match reply.into_large(true) {
            Ok(large) => to_body(large).map(large_response),
            Err(response) => Ok(MessageReply::Message(encode(&response, bytes))),
        }
    });
    match replied {
        Ok(reply) => {
            call.end_unary(Code::Ok);
            reply
        }
        Err(error) => {
            let status: Status = error.into();
            call.end_unary(status.code());
            MessageReply::Response(status.into_http())
        }
    }
}

fn large_response(body: ResponseBody) -> MessageReply<Body> {
    let mut response = Response::new(Body::new(body));
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    MessageReply::Response(response)
}

/// `bytes` is about what the keys and values of the response take.
fn encode(response: &impl Message, bytes: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(SMALL_RESPONSE_BYTES + bytes as usize);
    out.extend_from_slice(&[0; PREFIX_BYTES]);
    // Encoding fails only without space, which a vector always has.
    let _ = response.encode(&mut out);
    // It is below `STREAMED_BYTES_MIN`, or has no values.
    let length = (out.len() - PREFIX_BYTES) as u32;
    out[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
    out
}

/// A response without keys and values, and what else one with few of them has.
const SMALL_RESPONSE_BYTES: usize = 64;
/// A flag and the length of the message.
const PREFIX_BYTES: usize = 5;
