//! HTTP/1 requests and other text at the client port.

use std::net::SocketAddr;

use crate::{Report, exchange};

/// The name of the case, what is sent, and the status line, or `-` where the connection is closed
/// without one.
const TABLE: [(&str, &str, &str); ENTRIES] = [
    ("other text", "hello\r\n\r\n", "HTTP/1.1 400"),
    ("a plain line", "quit\n", "HTTP/1.1 400"),
    ("no method", " / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 400"),
    ("an unknown version", "GET / HTTP/9.9\r\nHost: x\r\n\r\n", "HTTP/1.1 400"),
    ("a bad header name", "GET / HTTP/1.1\r\nHo st: x\r\n\r\n", "HTTP/1.1 400"),
    ("a zero byte in a header", "GET / HTTP/1.1\r\nHost: \0\r\n\r\n", "HTTP/1.1 400"),
    (
        "two lengths",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "HTTP/1.1 400",
    ),
    (
        "a negative length",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 400",
    ),
    (
        "a length of 20 digits",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "HTTP/1.1 400",
    ),
    (
        "an unknown transfer coding",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
        "HTTP/1.1 400",
    ),
    (
        "a missing page",
        "GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 404",
    ),
    (
        "a path of dots",
        "GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 415",
    ),
    (
        "a proxy request",
        "GET http://other/ HTTP/1.1\r\nHost: other\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 404",
    ),
    (
        "a tunnel",
        "CONNECT other:443 HTTP/1.1\r\nHost: other\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 404",
    ),
    (
        "deletion of a page",
        "DELETE /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 405",
    ),
    (
        "gRPC without its type",
        "POST /etcdserverpb.KV/Put HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 415",
    ),
    (
        "a form of a web page",
        "POST /etcdserverpb.KV/Put HTTP/1.1\r\nHost: x\r\nOrigin: http://other\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 415",
    ),
    ("silence", "", "-"),
    ("half of a request", "GET /health HTTP/1.1\r\nHost: x\r\n", "-"),
];

const ENTRIES: usize = 19;
/// The entries, and headers without end.
pub(crate) const CASES: usize = ENTRIES + 1;

pub(crate) async fn run(address: SocketAddr, report: &mut Report) {
    let cases = TABLE.map(|(name, request, expected)| {
        let reply = tokio::spawn(async move { exchange(address, request.as_bytes()).await });
        (name, expected, reply)
    });
    for (name, expected, reply) in cases {
        let reply = reply.await.unwrap().map(|reply| String::from_utf8_lossy(&reply).into_owned());
        let is_right = reply.as_ref().is_some_and(|reply| match expected {
            "-" => reply.is_empty(),
            line => reply.starts_with(line),
        });
        report.case(name, is_right, reply);
    }
    long_headers(address, report).await;
}

/// Headers without an end are refused, not collected.
async fn long_headers(address: SocketAddr, report: &mut Report) {
    let mut request = b"GET /health HTTP/1.1\r\nHost: x\r\n".to_vec();
    for number in 0..200_000 {
        request.extend_from_slice(format!("name{number}: value\r\n").as_bytes());
    }
    // What is still being sent when the server closes may reset the connection before the reply.
    let reply = exchange(address, &request).await;
    let text = reply.as_ref().map(|reply| String::from_utf8_lossy(reply).into_owned());
    let is_right = text.as_ref().is_some_and(|t| t.is_empty() || t.starts_with("HTTP/1.1 431"));
    report.case("headers without end", is_right, text);
}
