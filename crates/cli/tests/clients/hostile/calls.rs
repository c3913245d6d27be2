//! Calls that are HTTP, but not what gRPC or etcd's API allows.

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, Request};
use quorate_proto::etcdserverpb::kv_client::KvClient;
use quorate_proto::etcdserverpb::request_op::Request as Op;
use quorate_proto::etcdserverpb::{PutRequest, RequestOp, TxnRequest};
use tokio::time::timeout;
use tonic::{Code, Status};

use super::server::Server;
use crate::common::PATIENCE;

const RANGE: &str = "/etcdserverpb.KV/Range";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";

struct Call {
    name: &'static str,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    wanted: Wanted,
}

enum Wanted {
    /// gRPC's code, and words of the text.
    Status(Code, &'static str),
    Http(u16),
    /// No answer but a reset.
    Reset,
}

use Wanted::{Http, Reset, Status as Refused};

fn call(name: &'static str, path: &str, body: Vec<u8>, wanted: Wanted) -> Call {
    let headers = vec![("content-type", "application/grpc".to_owned())];
    Call { name, path: path.to_owned(), headers, body, wanted }
}

/// A message as gRPC frames it, which may lie about its length.
fn message(flag: u8, length: u32, bytes: &[u8]) -> Vec<u8> {
    [&[flag][..], &length.to_be_bytes(), bytes].concat()
}

fn whole(bytes: &[u8]) -> Vec<u8> {
    message(0, bytes.len() as u32, bytes)
}

/// Makes each, and gives how many there were.
pub(crate) async fn make_all(server: &Server, surprises: &mut Vec<String>) -> usize {
    let cases: Vec<Call> = broken_messages().into_iter().chain(broken_requests()).collect();
    for case in &cases {
        let before = server.holds();
        surprises.extend(make(server, case).await);
        server.is_unharmed(case.name, before, GROWN_KIB_MAX).await;
    }
    cases.len() + ask_too_much(server).await
}

fn broken_messages() -> Vec<Call> {
    use Code::{Internal, ResourceExhausted, Unimplemented};
    // A member's URL in no encoding at all.
    let not_text = whole(&[10, 2, 0xff, 0xfe]);
    let mut deep = Vec::new();
    for _ in 0..200 {
        // A transaction within an operation within a transaction.
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
        call("compressed by nothing", RANGE, message(1, 2, &[10, 0]), Refused(Internal, "")),
        call("an unknown flag", RANGE, message(7, 0, &[]), Refused(Internal, "")),
        call("no protobuf", RANGE, whole(&[0xff; 20]), Refused(Internal, "")),
        call("a field of 2^60 bytes", RANGE, whole(&FIELD_OF_2_60), Refused(Internal, "")),
        call("a group without end", RANGE, whole(&[0x0b, 0x0b]), Refused(Internal, "")),
        call("no text", "/etcdserverpb.Cluster/MemberAdd", not_text, Refused(Internal, "")),
        call("200 transactions deep", "/etcdserverpb.KV/Txn", whole(&deep), Refused(Internal, "")),
        call("no such call", "/etcdserverpb.KV/Nothing", whole(&[]), Refused(Unimplemented, "")),
        call("no such service", "/a.B/C", whole(&[]), Refused(Unimplemented, "")),
        call("a watch of nonsense", WATCH, whole(&[0xff; 9]), Refused(Internal, "")),
        call("a lease of nonsense", KEEP_ALIVE, whole(&[0xff; 9]), Refused(Internal, "")),
    ]
}

/// A field of bytes.
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

fn broken_requests() -> Vec<Call> {
    use Code::Unimplemented;
    let good = || whole(&[10, 1, b'k']);
    let with = |name, headers: &[(&'static str, &str)], wanted| {
        let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Call { headers, ..call(name, RANGE, good(), wanted) }
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
            "gzip, which is not spoken",
            &[grpc, ("grpc-encoding", "gzip")],
            Refused(Unimplemented, "gzip"),
        ),
        with("a time of nonsense", &[grpc, ("grpc-timeout", "soon")], Refused(Code::Ok, "")),
        call("a long name", &format!("/{long}/{long}"), good(), Refused(Unimplemented, "")),
        Call { headers: many, ..call("64 KiB of headers", RANGE, good(), Reset) },
    ]
}

/// What was not as wanted.
async fn make(server: &Server, case: &Call) -> Option<String> {
    let answer = timeout(PATIENCE, send(server, case)).await.expect(case.name);
    let expected = match (&case.wanted, &answer) {
        (Refused(code, text), Ok(Answer { status: Some(status), .. })) => {
            status.code() == *code && status.message().contains(text)
        }
        (Http(code), Ok(answer)) => answer.http == *code,
        (Reset, Ok(answer)) => answer.http == 431,
        (Reset, Err(_)) => true,
        _ => false,
    };
    (!expected).then(|| format!("{}: {answer:?}", case.name))
}

#[derive(Debug)]
struct Answer {
    http: u16,
    status: Option<Status>,
}

async fn send(server: &Server, case: &Call) -> Result<Answer, h2::Error> {
    let stream = server.connect().await;
    let (client, connection) = h2::client::handshake(stream).await?;
    let driven = tokio::spawn(connection);
    let mut request = Request::post(format!("http://m{}", case.path)).header("te", "trailers");
    for (name, value) in &case.headers {
        request = request.header(*name, value);
    }
    let mut client = client.ready().await?;
    let (response, mut body) = client.send_request(request.body(()).unwrap(), false)?;
    // It may have been refused before.
    let _ = body.send_data(Bytes::from(case.body.clone()), true);
    let (head, mut rest) = response.await?.into_parts();
    while let Some(part) = rest.data().await {
        part?;
    }
    let trailers = rest.trailers().await?.unwrap_or_default();
    driven.abort();
    let status = status(&head.headers).or_else(|| status(&trailers));
    Ok(Answer { http: head.status.as_u16(), status })
}

fn status(headers: &HeaderMap) -> Option<Status> {
    Status::from_header_map(headers)
}

/// Well-formed, but more than is allowed: etcd's words.
async fn ask_too_much(server: &Server) -> usize {
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
    let before = server.holds();
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
    server.is_unharmed("too much", before, GROWN_KIB_MAX).await;
    4
}

const GROWN_KIB_MAX: u64 = 48 << 10;
