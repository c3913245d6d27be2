//! Requests to the JSON gateway of a server, over plain HTTP/1.1.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use super::InstrumentError;

/// Calls a method of etcd's API. The error says what the server answered.
pub(super) fn call(port: u16, path: &str, body: &Value) -> Result<Value, InstrumentError> {
    let doing = format!("{path} on port {port}");
    let (status, text) = request(port, "POST", path, &body.to_string())
        .map_err(InstrumentError::when(format!("cannot call {doing}")))?;
    let reply = serde_json::from_str(&text).unwrap_or(Value::Null);
    if status == 200 {
        return Ok(reply);
    }
    let why = reply["error"].as_str().or(reply["message"].as_str()).unwrap_or(&text);
    Err(InstrumentError::new(format!("{doing}: {why}")))
}

/// Whether the server says that it is healthy.
pub(super) fn is_healthy(port: u16) -> bool {
    request(port, "GET", "/health", "").is_ok_and(|(status, _)| status == 200)
}

fn request(port: u16, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
    stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    Ok(split(&String::from_utf8_lossy(&reply)))
}

/// The status and the body of a response. A chunked body is put together.
fn split(reply: &str) -> (u16, String) {
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((reply, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    if !head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        return (status, body.to_owned());
    }
    let (mut text, mut rest) = (String::new(), body);
    while let Some((length, after)) = rest.split_once("\r\n")
        && let Ok(length @ 1..) = usize::from_str_radix(length.trim(), 16)
        && let Some(chunk) = after.get(..length)
    {
        text.push_str(chunk);
        rest = after.get(length + 2..).unwrap_or_default();
    }
    (status, text)
}

/// A change of members that waits for something takes etcd's request timeout.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_read_whole_or_in_chunks() {
        let plain = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(split(plain), (200, "{}".into()));
        let chunked = "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n";
        assert_eq!(split(chunked), (404, "abcd".into()));
        assert_eq!(split("nonsense"), (0, String::new()));
    }
}
