//! A plain HTTP client: one connection for each request.

#![allow(dead_code, reason = "each test uses what it needs")]

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

pub(crate) struct HttpResponse {
    pub(crate) code: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl HttpResponse {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// Sends a request with these further header lines.
pub(crate) async fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &[u8],
) -> HttpResponse {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let host =
        if headers.iter().any(|line| line.starts_with("Host:")) { "" } else { "Host: x\r\n" };
    let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let head = format!(
        "{method} {path} HTTP/1.1\r\n{host}Connection: close\r\nContent-Length: {}\r\n{lines}\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // A server that refuses a body may close the connection before it has read all of it.
    let _ = stream.write_all(body).await;
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    parse(&bytes)
}

pub(crate) async fn post(address: SocketAddr, path: &str, body: &str) -> HttpResponse {
    send(address, "POST", path, &[], body.as_bytes()).await
}

fn parse(bytes: &[u8]) -> HttpResponse {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    let is_chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    let body = if is_chunked { without_chunks(body) } else { body.to_owned() };
    HttpResponse { code, head: head.to_owned(), body }
}

fn without_chunks(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        whole.push_str(&rest[..length]);
        body = rest[length..].trim_start_matches("\r\n");
        if length == 0 {
            break;
        }
    }
    whole
}

/// A request whose body is sent piece by piece, and whose response is read line by line.
pub(crate) struct HttpStream {
    requests: OwnedWriteHalf,
    responses: BufReader<OwnedReadHalf>,
}

impl HttpStream {
    pub(crate) async fn open(address: SocketAddr, path: &str) -> Self {
        let (responses, mut requests) = TcpStream::connect(address).await.unwrap().into_split();
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
        requests.write_all(head.as_bytes()).await.unwrap();
        Self { requests, responses: BufReader::new(responses) }
    }

    pub(crate) async fn send(&mut self, text: &str) {
        let chunk = format!("{:x}\r\n{text}\r\n", text.len());
        self.requests.write_all(chunk.as_bytes()).await.unwrap();
    }

    /// The next line that is JSON; the head and the lengths of chunks are skipped.
    pub(crate) async fn next(&mut self) -> Value {
        loop {
            let mut line = String::new();
            let read = self.responses.read_line(&mut line);
            let length = tokio::time::timeout(crate::support::TEST_TIMEOUT, read).await;
            assert_ne!(length.unwrap().unwrap(), 0, "the stream has ended");
            if line.starts_with('{') {
                return serde_json::from_str(&line).unwrap();
            }
        }
    }
}
