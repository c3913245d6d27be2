//! Calls of a client without a socket, for counting the instructions of a call (`crates/bench`). Not part of
//! the public API.
//!
//! The requests are the bytes of an HTTP/2 client, and everything behind them is that of a server with one
//! member, on the thread of the caller: only its log, which is in memory, has a thread of its own.

use std::fmt::Debug;
use std::time::Duration;

use bytes::{BufMut, Bytes};
use prost::Message;
use quorate::{MemoryNetwork, MemoryStorage, Node, NodeConfig};
use quorate_http2::{ConnectionConfig, PREFACE};
use quorate_kv::{AnyTable, Kv};
use quorate_proto::etcdserverpb::{
    Compare, PutRequest, RangeRequest, RequestOp, TxnRequest, compare, request_op,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::runtime::{Builder, Runtime};
use tonic::service::Routes;

use super::application::ClientApplication;
use super::unary::UnaryCalls;
use crate::connections::ClientConnectInfo;
use crate::context::{ServiceContext, ServiceLimits, SharedStore};
use crate::metrics::CallCounters;
use crate::service::kv::KvService;
use crate::service::{kv_service, message_bytes_max};

/// The call that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedCall {
    Put,
    SerializableGet,
    /// Compares a revision, reads and writes.
    Txn,
}

/// A server and a client that has written all keys.
pub struct CountedFront {
    runtime: Runtime,
    client: CountedClient,
}

impl CountedFront {
    /// Starts the server, and writes this many keys with values of this size.
    pub fn start(call: CountedCall, keys: u64, value_bytes: usize) -> Self {
        let runtime = must("build a runtime", Builder::new_current_thread().enable_all().build());
        let calls = runtime.block_on(start_member());
        let connect = |call: CountedCall| {
            let requests = (0..keys).map(|number| call.request(number, keys, value_bytes));
            CountedClient::new(runtime.block_on(connect(calls.clone())), call, requests.collect())
        };
        let mut writer = connect(CountedCall::Put);
        runtime.block_on(writer.run(keys));
        let client = connect(call);
        Self { runtime, client }
    }

    /// Makes this many calls, each of which succeeds.
    pub fn run(&mut self, calls: u64) {
        self.runtime.block_on(self.client.run(calls));
    }
}

impl CountedCall {
    fn path(self) -> &'static str {
        match self {
            Self::Put => "/etcdserverpb.KV/Put",
            Self::SerializableGet => "/etcdserverpb.KV/Range",
            Self::Txn => "/etcdserverpb.KV/Txn",
        }
    }

    fn request(self, number: u64, keys: u64, value_bytes: usize) -> Vec<u8> {
        // A fixed order that is not that of the keys.
        let key = Bytes::from(format!("bench/{:012}", number.wrapping_mul(7_919) % keys));
        let value = Bytes::from(vec![number as u8; value_bytes]);
        let put = PutRequest { key: key.clone(), value, ..Default::default() };
        let get = RangeRequest { key: key.clone(), serializable: true, ..Default::default() };
        match self {
            Self::Put => put.encode_to_vec(),
            Self::SerializableGet => get.encode_to_vec(),
            Self::Txn => {
                let compare = Compare {
                    result: compare::CompareResult::NotEqual.into(),
                    target: compare::CompareTarget::Mod.into(),
                    key,
                    target_union: Some(compare::TargetUnion::ModRevision(1)),
                    ..Default::default()
                };
                let operation = |request| RequestOp { request: Some(request) };
                let get = RangeRequest { serializable: false, ..get };
                let success = vec![
                    operation(request_op::Request::RequestRange(get)),
                    operation(request_op::Request::RequestPut(put)),
                ];
                TxnRequest { compare: vec![compare], success, failure: Vec::new() }.encode_to_vec()
            }
        }
    }
}

/// A member without peers, and what serves its clients.
async fn start_member() -> UnaryCalls {
    let store = SharedStore::new(must("open a store", Kv::open(AnyTable::default())));
    // Ticks depend on the time, and are not part of a call.
    let config = NodeConfig::first(7, 1, [(1, "")]).with_tick(Duration::from_secs(600));
    let (storage, network) = (MemoryStorage::new(), MemoryNetwork::new());
    let node = Node::start(config, storage, store.clone(), network.transport()).await;
    let node = must("start a member", node);
    node.campaign();
    must("elect a leader", node.watch_leader().wait_for(Option::is_some).await);
    let context = ServiceContext::new(node, store, 7, ServiceLimits::default());
    let bytes_max = message_bytes_max(&context);
    UnaryCalls::new(KvService::new(context), CallCounters::new(false), bytes_max)
}

/// A new connection.
async fn connect(calls: UnaryCalls) -> DuplexStream {
    let (client, server) = duplex(1 << 20);
    let router = Routes::new(kv_service(calls.context())).prepare();
    let info = ClientConnectInfo::of_memory();
    let application = ClientApplication::new(router, Some(calls), info);
    let config = ConnectionConfig::default();
    let served =
        quorate_http2::serve(server, Vec::new(), application, config, std::future::pending());
    tokio::spawn(tokio::task::unconstrained(async move { must("serve", served.await) }));
    client
}

/// Sends prepared requests, and counts the responses.
struct CountedClient {
    stream: DuplexStream,
    /// The frames of one request for each key, without the id of its stream.
    requests: Vec<Vec<u8>>,
    /// What is sent before the first request.
    opening: Vec<u8>,
    first: Vec<u8>,
    next: u64,
    output: Vec<u8>,
    received: Vec<u8>,
}

impl CountedClient {
    fn new(stream: DuplexStream, call: CountedCall, messages: Vec<Vec<u8>>) -> Self {
        let mut opening = PREFACE.to_vec();
        let settings = [[0, setting::INITIAL_WINDOW_SIZE].as_slice(), &WINDOW_BYTES.to_be_bytes()];
        put_frame(&mut opening, kind::SETTINGS, 0, &settings.concat());
        put_frame(&mut opening, kind::WINDOW_UPDATE, 0, &WINDOW_BYTES.to_be_bytes());
        let first = messages.first().map(|message| request(&first_block(call.path()), message));
        let requests = messages.iter().map(|message| request(NEXT_BLOCK, message)).collect();
        let first = first.unwrap_or_default();
        let (output, received) = (Vec::new(), Vec::new());
        Self { stream, requests, opening, first, next: 0, output, received }
    }

    /// Makes this many calls, some at a time.
    async fn run(&mut self, calls: u64) {
        let end = self.next + calls;
        while self.next < end {
            let count = (end - self.next).min(CALLS_AT_ONCE);
            self.output.append(&mut self.opening);
            for number in self.next..self.next + count {
                self.add_request(number);
            }
            self.next += count;
            must("send", self.stream.write_all(&self.output).await);
            self.output.clear();
            let mut left = count;
            while left > 0 {
                let read = must("receive", self.stream.read_buf(&mut self.received).await);
                assert!(read > 0, "the server has closed the connection");
                left -= self.take_responses();
            }
        }
    }

    fn add_request(&mut self, number: u64) {
        let start = self.output.len();
        let request = if number == 0 {
            &self.first
        } else {
            &self.requests[(number % self.requests.len() as u64) as usize]
        };
        self.output.extend_from_slice(request);
        let stream = (number as u32 * 2 + 1).to_be_bytes();
        let frames = &mut self.output[start..];
        let head_bytes = HEAD_BYTES + usize::from(frames[2]);
        for head in [0, head_bytes] {
            frames[head + 5..head + HEAD_BYTES].copy_from_slice(&stream);
        }
    }

    /// Removes all complete frames, and returns how many responses end with them.
    fn take_responses(&mut self) -> u64 {
        let mut ended = 0;
        let mut rest = &self.received[..];
        while let Some((head, after)) = rest.split_first_chunk::<HEAD_BYTES>() {
            let [a, b, c, frame_kind, flags, ..] = *head;
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            let Some((payload, next)) = after.split_at_checked(length) else { break };
            assert!(frame_kind != kind::RST_STREAM && frame_kind != kind::GOAWAY, "{payload:?}");
            if frame_kind == kind::HEADERS && flags & END_STREAM != 0 {
                assert!(payload.ends_with(GRPC_OK), "{payload:?}");
                ended += 1;
            }
            rest = next;
        }
        let used = self.received.len() - rest.len();
        self.received.drain(..used);
        ended
    }
}

/// HEADERS and DATA of a call.
fn request(block: &[u8], message: &[u8]) -> Vec<u8> {
    let mut frames = Vec::new();
    put_frame(&mut frames, kind::HEADERS, END_HEADERS, block);
    let mut body = vec![0];
    body.put_u32(message.len() as u32);
    body.extend_from_slice(message);
    put_frame(&mut frames, kind::DATA, END_STREAM, &body);
    frames
}

fn put_frame(out: &mut Vec<u8>, kind: u8, flags: u8, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags, 0, 0, 0, 0]);
    out.extend_from_slice(payload);
}

/// The headers of the first call of a connection, as clients of gRPC send them. All that are not in HPACK's
/// static table are added to the dynamic one.
fn first_block(path: &str) -> Vec<u8> {
    let mut block = vec![METHOD_POST, SCHEME_HTTP];
    let mut add = |name: &[u8], value: &str| {
        block.extend_from_slice(name);
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    };
    add(&[0x40 | 4], path);
    add(&[0x40 | 1], "127.0.0.1:2379");
    add(&[0x40 | 31], "application/grpc");
    add(&[0x40 | 58], "grpc-go/1.71.1");
    add(b"\x40\x02te", "trailers");
    block
}

const METHOD_POST: u8 = 0x83;
const SCHEME_HTTP: u8 = 0x86;
/// The headers of the following calls: the same, by their numbers in the tables.
const NEXT_BLOCK: &[u8] =
    &[METHOD_POST, SCHEME_HTTP, 0x80 | 66, 0x80 | 65, 0x80 | 64, 0x80 | 63, 0x80 | 62];

/// Frames (RFC 9113, section 6).
mod kind {
    pub(super) const DATA: u8 = 0;
    pub(super) const HEADERS: u8 = 1;
    pub(super) const RST_STREAM: u8 = 3;
    pub(super) const SETTINGS: u8 = 4;
    pub(super) const GOAWAY: u8 = 7;
    pub(super) const WINDOW_UPDATE: u8 = 8;
}

mod setting {
    pub(super) const INITIAL_WINDOW_SIZE: u8 = 4;
}

const HEAD_BYTES: usize = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
/// Enough for all responses of a run.
const WINDOW_BYTES: u32 = 1 << 30;
/// The trailer `grpc-status: 0`.
const GRPC_OK: &[u8] = b"\x0bgrpc-status\x010";
const CALLS_AT_ONCE: u64 = 64;

/// There is nothing to count if anything fails.
fn must<T, E: Debug>(what: &str, result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("cannot {what}: {error:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_succeeds_as_often_as_asked() {
        for call in [CountedCall::Put, CountedCall::SerializableGet, CountedCall::Txn] {
            let mut front = CountedFront::start(call, 100, 16);
            front.run(7);
            front.run(250);
            assert_eq!(front.client.next, 257);
            assert!(front.client.received.is_empty());
        }
    }
}
