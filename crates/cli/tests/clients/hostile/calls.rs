//! Valid HTTP calls that are invalid for gRPC or etcd's API.

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, Request};
use quorate_proto::etcdserverpb::kv_client::KvClient;
use quorate_proto::etcdserverpb::request_op::Request as Op;
use quorate_proto::etcdserverpb::{PutRequest, RequestOp, TxnRequest};
use tokio::time::timeout;
use tonic::{Code, Status};

use super::server::HostileTarget;
use crate::support::TEST_TIMEOUT;

const RANGE: &str = "/etcdserverpb.KV/Range";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";

struct CallCase {
    name: &'static str,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    expected: ExpectedResult,
}

enum ExpectedResult {
    /// The gRPC code, and a part of the message.
    Status(Code, &'static str),
    Http(u16),
    /// The stream is reset without a reply.
    Reset,
}

use ExpectedResult::{Http, Reset, Status as Refused};

fn call(name: &'static str, path: &str, body: Vec<u8>, expected: ExpectedResult) -> CallCase {
    let headers = vec![("content-type", "application/grpc".to_owned())];
    CallCase { name, path: path.to_owned(), headers, body, expected }
}

/// A gRPC message, possibly with a wrong length.
fn message(flag: u8, length: u32, bytes: &[u8]) -> Vec<u8> {
    [&[flag][..], &length.to_be_bytes(), bytes].concat()
}

fn whole(bytes: &[u8]) -> Vec<u8> {
    message(0, bytes.len() as u32, bytes)
}

/// Makes all calls. Returns their number.
pub(crate) async fn make_all(server: &HostileTarget, unexpected: &mut Vec<String>) -> usize {
    let cases: Vec<CallCase> = broken_messages().into_iter().chain(broken_requests()).collect();
    for case in &cases {
        let before = server.resources();
        unexpected.extend(make(server, case).await);
        server.assert_unharmed(case.name, before, MEMORY_GROWTH_KIB_MAX).await;
    }
    cases.len() + exceed_limits(server).await
}

fn broken_messages() -> Vec<CallCase> {
    use Code::{Internal, ResourceExhausted, Unimplemented};
    // A member URL that is not UTF-8.
    let not_text = whole(&[10, 2, 0xff, 0xfe]);
    let mut deep = Vec::new();
    for _ in 0..200 {
        // A transaction in an operation of a transaction.
        let op = [field(4, &deep)].concat();
        deep = field(2, &op);
    }
    vec![
        call("no message", RANGE, vec![], Refused(Internal, "")),
        call("half a length", RANGE, vec![0, 0, 0], Refused(Internal, "")),
        call("half a message", RANGE, message(0, 100, &[0; 10]), Refused(Internal, "")),
        call(
            "4 GiB announced",
            RANGE,
            message(0, u32::MAX, &[0; 10]),
            Refused(ResourceExhausted, "grpc: received message larger than max (4294967295 vs."),
        ),
        call(
            "compressed without an encoding",
            RANGE,
            message(1, 2, &[10, 0]),
            Refused(Internal, ""),
        ),
        call("an unknown flag", RANGE, message(7, 0, &[]), Refused(Internal, "")),
        call("invalid protobuf", RANGE, whole(&[0xff; 20]), Refused(Internal, "")),
        call("a field of 2^60 bytes", RANGE, whole(&FIELD_OF_2_60), Refused(Internal, "")),
        call("a group without end", RANGE, whole(&[0x0b, 0x0b]), Refused(Internal, "")),
        call("invalid UTF-8", "/etcdserverpb.Cluster/MemberAdd", not_text, Refused(Internal, "")),
        call("200 transactions deep", "/etcdserverpb.KV/Txn", whole(&deep), Refused(Internal, "")),
        call("no such call", "/etcdserverpb.KV/Nothing", whole(&[]), Refused(Unimplemented, "")),
        call("no such service", "/a.B/C", whole(&[]), Refused(Unimplemented, "")),
        call("an invalid watch request", WATCH, whole(&[0xff; 9]), Refused(Internal, "")),
        call("an invalid keep-alive request", KEEP_ALIVE, whole(&[0xff; 9]), Refused(Internal, "")),
    ]
}

/// A protobuf field of type bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = BytesMut::new();
    field.put_u8(number << 3 | 2);
    let mut length = bytes.len();
    while length >= 128 {
        field.put_u8((length % 128) as u8 | 128);
        length /= 128;
    }
    field.put_u8(length as u8);
    field.put_slice(bytes);
    field.to_vec()
}

const FIELD_OF_2_60: [u8; 10] = [10, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10];

fn broken_requests() -> Vec<CallCase> {
    use Code::Unimplemented;
    let good = || whole(&[10, 1, b'k']);
    let with = |name, headers: &[(&'static str, &str)], expected| {
        let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        CallCase { headers, ..call(name, RANGE, good(), expected) }
    };
    let grpc = ("content-type", "application/grpc");
    let long = "a".repeat(4096);
    let many: Vec<(&'static str, String)> = std::iter::once((grpc.0, grpc.1.to_owned()))
        .chain((0..64).map(|_| ("x", "a".repeat(1024))))
        .collect();
    vec![
        with("text", &[("content-type", "text/plain")], Http(415)),
        with("no type", &[], Http(415)),
        with(
            "gzip, which is not supported",
            &[grpc, ("grpc-encoding", "gzip")],
            Refused(Unimplemented, "gzip"),
        ),
        with(
            "an invalid timeout",
            &[grpc, ("grpc-timeout", "soon")],
            Refused(Code::Internal, "malformed grpc-timeout"),
        ),
        call("a long name", &format!("/{long}/{long}"), good(), Refused(Unimplemented, "")),
        CallCase { headers: many, ..call("64 KiB of headers", RANGE, good(), Reset) },
    ]
}

/// Describes the reply if it is not the expected one.
async fn make(server: &HostileTarget, case: &CallCase) -> Option<String> {
    let reply = timeout(TEST_TIMEOUT, send(server, case)).await.expect(case.name);
    let matches = match (&case.expected, &reply) {
        (Refused(code, text), Ok(CallReply { status: Some(status), .. })) => {
            status.code() == *code && status.message().contains(text)
        }
        (Http(code), Ok(reply)) => reply.http == *code,
        (Reset, Ok(reply)) => reply.http == 431,
        (Reset, Err(_)) => true,
        _ => false,
    };
    (!matches).then(|| format!("{}: {reply:?}", case.name))
}

#[derive(Debug)]
struct CallReply {
    http: u16,
    status: Option<Status>,
}

async fn send(server: &HostileTarget, case: &CallCase) -> Result<CallReply, h2::Error> {
    let stream = server.connect().await;
    let (client, connection) = h2::client::handshake(stream).await?;
    let driven = tokio::spawn(connection);
    let mut request = Request::post(format!("http://m{}", case.path)).header("te", "trailers");
    for (name, value) in &case.headers {
        request = request.header(*name, value);
    }
    let mut client = client.ready().await?;
    let (response, mut body) = client.send_request(request.body(()).unwrap(), false)?;
    // The server may have refused the call already.
    let _ = body.send_data(Bytes::from(case.body.clone()), true);
    let (head, mut rest) = response.await?.into_parts();
    while let Some(part) = rest.data().await {
        part?;
    }
    let trailers = rest.trailers().await?.unwrap_or_default();
    driven.abort();
    let status = status(&head.headers).or_else(|| status(&trailers));
    Ok(CallReply { http: head.status.as_u16(), status })
}

fn status(headers: &HeaderMap) -> Option<Status> {
    Status::from_header_map(headers)
}

/// Valid requests above a limit are refused with etcd's messages.
async fn exceed_limits(server: &HostileTarget) -> usize {
    let mut client = KvClient::new(server.channel().await);
    let put = |bytes: usize| PutRequest {
        key: "large".into(),
        value: vec![b'a'; bytes].into(),
        ..Default::default()
    };
    let put_of = |number: usize| RequestOp {
        request: Some(Op::RequestPut(PutRequest {
            key: format!("n{number}").into(),
            ..Default::default()
        })),
    };
    let before = server.resources();
    let limit = 3 << 19;
    client.put(put(limit - 512)).await.unwrap();
    let refused = client.put(put(limit)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(refused.message(), "etcdserver: request is too large");
    let refused = client.put(put(limit + (512 << 10))).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let text = "grpc: received message larger than max (2097164 vs. 2097152)";
    assert_eq!(refused.message(), text);
    let many = TxnRequest { success: (0..129).map(put_of).collect(), ..Default::default() };
    let refused = client.txn(many).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(refused.message(), "etcdserver: too many operations in txn request");
    let allowed = TxnRequest { success: (0..128).map(put_of).collect(), ..Default::default() };
    client.txn(allowed).await.unwrap();
    let all = TxnRequest { success: (0..100_000).map(put_of).collect(), ..Default::default() };
    assert!(client.txn(all).await.is_err());
    drop(client);
    server.assert_unharmed("requests above a limit", before, MEMORY_GROWTH_KIB_MAX).await;
    4
}

const MEMORY_GROWTH_KIB_MAX: u64 = 48 << 10;
