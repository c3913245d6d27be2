//! Broken gRPC: every method, with messages that do not decode; lengths, headers and paths that
//! are wrong.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Request;
use tokio::net::TcpStream;
use tonic::Code;

use crate::Report;

/// Every method of the services. The server does not have those of the last three yet, or
/// rejects them before it decodes them.
const METHODS: [&str; 59] = [
    "etcdserverpb.KV/Range",
    "etcdserverpb.KV/RangeStream",
    "etcdserverpb.KV/Put",
    "etcdserverpb.KV/DeleteRange",
    "etcdserverpb.KV/Txn",
    "etcdserverpb.KV/Compact",
    "etcdserverpb.Watch/Watch",
    "etcdserverpb.Lease/LeaseGrant",
    "etcdserverpb.Lease/LeaseRevoke",
    "etcdserverpb.Lease/LeaseKeepAlive",
    "etcdserverpb.Lease/LeaseTimeToLive",
    "etcdserverpb.Lease/LeaseLeases",
    "etcdserverpb.Cluster/MemberAdd",
    "etcdserverpb.Cluster/MemberRemove",
    "etcdserverpb.Cluster/MemberUpdate",
    "etcdserverpb.Cluster/MemberList",
    "etcdserverpb.Cluster/MemberPromote",
    "etcdserverpb.Maintenance/Alarm",
    "etcdserverpb.Maintenance/Status",
    "etcdserverpb.Maintenance/Defragment",
    "etcdserverpb.Maintenance/Hash",
    "etcdserverpb.Maintenance/HashKV",
    "etcdserverpb.Maintenance/Snapshot",
    "etcdserverpb.Maintenance/MoveLeader",
    "etcdserverpb.Maintenance/Downgrade",
    "grpc.health.v1.Health/Check",
    "grpc.health.v1.Health/List",
    "grpc.health.v1.Health/Watch",
    "quorate.v1.Leadership/Transfer",
    "quorate.v1.Membership/Cancel",
    "quorate.v1.Membership/Overview",
    "quorate.v1.Membership/Plan",
    "quorate.v1.Membership/SetGoal",
    "quorate.v1.Membership/Status",
    "quorate.v1.Membership/Watch",
    "etcdserverpb.Auth/AuthEnable",
    "etcdserverpb.Auth/AuthDisable",
    "etcdserverpb.Auth/AuthStatus",
    "etcdserverpb.Auth/Authenticate",
    "etcdserverpb.Auth/UserAdd",
    "etcdserverpb.Auth/UserGet",
    "etcdserverpb.Auth/UserList",
    "etcdserverpb.Auth/UserDelete",
    "etcdserverpb.Auth/UserChangePassword",
    "etcdserverpb.Auth/UserGrantRole",
    "etcdserverpb.Auth/UserRevokeRole",
    "etcdserverpb.Auth/RoleAdd",
    "etcdserverpb.Auth/RoleGet",
    "etcdserverpb.Auth/RoleList",
    "etcdserverpb.Auth/RoleDelete",
    "etcdserverpb.Auth/RoleGrantPermission",
    "etcdserverpb.Auth/RoleRevokePermission",
    "v3electionpb.Election/Campaign",
    "v3electionpb.Election/Leader",
    "v3electionpb.Election/Observe",
    "v3electionpb.Election/Proclaim",
    "v3electionpb.Election/Resign",
    "v3lockpb.Lock/Lock",
    "v3lockpb.Lock/Unlock",
];

/// Not Protocol Buffers: a name, and the bytes.
const MESSAGES: [(&str, &[u8]); 4] = [
    ("a number without end", &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
    ("a length beyond the message", &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x07, 1]),
    ("an unknown kind of field", &[0x0f, 1]),
    ("field number 0", &[0x00, 1]),
];

const HEADER_CASES: usize = 14;
const FRAME_CASES: usize = 6;
pub(crate) const CASES: usize = METHODS.len() * MESSAGES.len() + HEADER_CASES + FRAME_CASES;

/// The status of the HTTP response and that of the call, if there is one.
#[derive(Debug, PartialEq, Eq)]
struct Reply {
    http: u16,
    code: Option<Code>,
    message: String,
}

/// Makes a call with its own connection. None if there is no response.
async fn call(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> Option<Reply> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    let driver = tokio::spawn(connection);
    let mut request = Request::post(format!("http://{address}/{path}")).header("te", "trailers");
    if !headers.iter().any(|(name, _)| *name == "content-type") {
        request = request.header("content-type", "application/grpc");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let exchange = async {
        let mut sender = sender.ready().await.ok()?;
        let (response, mut sent) = sender.send_request(request.body(()).unwrap(), false).ok()?;
        // The response may come before the body is sent.
        let _ = sent.send_data(Bytes::from(body), true);
        let response = response.await.ok()?;
        let http = response.status().as_u16();
        let mut fields = response.headers().clone();
        let mut body = response.into_body();
        while let Some(Ok(data)) = body.data().await {
            let _ = body.flow_control().release_capacity(data.len());
        }
        if let Ok(Some(trailers)) = body.trailers().await {
            fields.extend(trailers);
        }
        let text = |name: &str| fields.get(name).and_then(|value| value.to_str().ok());
        let code = text("grpc-status").and_then(|code| code.parse().ok()).map(Code::from_i32);
        let message = text("grpc-message").unwrap_or_default().to_string();
        Some(Reply { http, code, message })
    };
    let reply = tokio::time::timeout(crate::CLOSE_TIMEOUT, exchange).await;
    driver.abort();
    reply.ok().flatten()
}

fn message(bytes: &[u8]) -> Vec<u8> {
    [&[0][..], &(bytes.len() as u32).to_be_bytes(), bytes].concat()
}

pub(crate) async fn run(address: SocketAddr, report: &mut Report) {
    for method in METHODS {
        let service = method.split('/').next().unwrap();
        let unsupported =
            ["etcdserverpb.Auth", "v3electionpb.Election", "v3lockpb.Lock"].contains(&service);
        for (name, bytes) in MESSAGES {
            let reply = call(address, method, &[], message(bytes)).await;
            let code = reply.as_ref().and_then(|reply| reply.code);
            let is_right =
                code == Some(Code::Internal) || (unsupported && code == Some(Code::Unimplemented));
            report.case(&format!("{method}, {name}"), is_right, reply);
        }
    }
    run_headers(address, report).await;
    run_frames(address, report).await;
}

async fn run_headers(address: SocketAddr, report: &mut Report) {
    let get = "etcdserverpb.KV/Range";
    let long = "x".repeat(60 << 10);
    let unimplemented = (200, Some(Code::Unimplemented));
    let bad_timeout = (400, Some(Code::Internal));
    type HeaderCase<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], (u16, Option<Code>));
    let table: [HeaderCase<'_>; HEADER_CASES] = [
        ("an unknown method", "etcdserverpb.KV/Nothing", &[], unimplemented),
        ("an unknown service", "etcdserverpb.Nothing/Range", &[], unimplemented),
        ("a service without a method", "etcdserverpb.KV", &[], unimplemented),
        ("a method of a method", "etcdserverpb.KV/Range/Put", &[], unimplemented),
        ("JSON", get, &[("content-type", "application/json")], (415, None)),
        ("no type", get, &[("content-type", "")], (415, None)),
        ("a timeout without a unit", get, &[("grpc-timeout", "5")], bad_timeout),
        ("a timeout of letters", get, &[("grpc-timeout", "xS")], bad_timeout),
        ("a timeout of nine digits", get, &[("grpc-timeout", "999999999S")], bad_timeout),
        ("a negative timeout", get, &[("grpc-timeout", "-1S")], bad_timeout),
        ("a timeout of zero", get, &[("grpc-timeout", "0S")], (200, Some(Code::DeadlineExceeded))),
        ("an unknown compression", get, &[("grpc-encoding", "zstd")], unimplemented),
        (
            "binary metadata that is not",
            get,
            &[("x-bin", "%%%")],
            (200, Some(Code::InvalidArgument)),
        ),
        ("headers of 60 KiB", get, &[("x-long", &long)], (431, None)),
    ];
    for (name, path, headers, expected) in table {
        // A range without a key, which is refused with InvalidArgument if it is decoded.
        let reply = call(address, path, headers, message(&[])).await;
        let is_right = reply.as_ref().is_some_and(|reply| (reply.http, reply.code) == expected);
        report.case(name, is_right, reply);
    }
}

async fn run_frames(address: SocketAddr, report: &mut Report) {
    let length = |length: u32| [&[0][..], &length.to_be_bytes(), &[0; 10]].concat();
    let table: [(&str, Vec<u8>, Code); FRAME_CASES] = [
        ("a message of 4 GiB", length(u32::MAX), Code::ResourceExhausted),
        ("a message of 3 MiB", length(3 << 20), Code::ResourceExhausted),
        ("half of a message", length(100), Code::Internal),
        ("half of a length", vec![0, 0], Code::Internal),
        ("compressed without a compression", vec![1, 0, 0, 0, 1, 0], Code::Internal),
        ("an unknown flag", vec![7, 0, 0, 0, 1, 0], Code::Internal),
    ];
    for (name, body, expected) in table {
        let reply = call(address, "etcdserverpb.KV/Put", &[], body).await;
        let is_right = reply.as_ref().is_some_and(|reply| reply.code == Some(expected));
        report.case(name, is_right, reply);
    }
}
