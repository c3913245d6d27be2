//! Connections to servers that limit, delay or refuse.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Parser;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpListener;

use super::*;
use crate::arguments::{Arguments, CliCommand};
use crate::gaps::Gaps;

/// Longer than any test.
const HOUR: Duration = Duration::from_secs(3_600);
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
const PING_REPLY: [u8; 17] = [0, 0, 8, 6, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn address(authority: String, dial_timeout: Duration) -> ConnectionAddress {
    ConnectionAddress { authority, tls: None, token: None, dial_timeout }
}

/// Each client sends one request, which began when the test did: the run has ended since.
async fn results_of_one_request_each(
    link: LoadLink,
    clients: u32,
    value_bytes: u32,
    timeout: Duration,
) -> BenchResult {
    let given = ["quorate", "bench", "put", "--value-bytes", &value_bytes.to_string()];
    let CliCommand::Bench(mut arguments) = Arguments::try_parse_from(given).unwrap().command else {
        panic!("not a benchmark");
    };
    arguments.client.command_timeout = timeout;
    let started = Instant::now();
    let until = started + Duration::from_nanos(1);
    let arguments = Arc::new(arguments);
    let run = Arc::new(BenchRun { arguments, started, until, gaps: Gaps::new(started) });
    let address = Arc::new(address("127.0.0.1:1".to_owned(), HOUR));
    let clients = (0..clients).map(ClosedLoopClient::new).collect();
    let mut connection = LoadConnection::new(address, link, clients, run);
    for slot in &mut connection.clients {
        slot.state = SlotState::Ready(started.into());
    }
    connection.run().await
}

/// Serves one connection. Replies when this many requests have arrived.
async fn serve(listener: TcpListener, builder: h2::server::Builder, requests: usize) {
    let (socket, _) = listener.accept().await.unwrap();
    let mut server = builder.handshake::<_, Bytes>(socket).await.unwrap();
    let all = Arc::new(tokio::sync::Barrier::new(requests));
    while let Some(Ok((request, mut respond))) = server.accept().await {
        let all = Arc::clone(&all);
        tokio::spawn(async move {
            let mut body = request.into_body();
            while body.data().await.is_some() {}
            all.wait().await;
            let mut stream = respond.send_response(http::Response::new(()), false).unwrap();
            stream.send_data(Bytes::from_static(&[0; 5]), false).unwrap();
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            stream.send_trailers(trailers).unwrap();
        });
    }
}

async fn open(builder: h2::server::Builder, requests: usize) -> LoadLink {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let authority = listener.local_addr().unwrap().to_string();
    tokio::spawn(serve(listener, builder, requests));
    LoadLink::open(&address(authority, HOUR)).await.unwrap()
}

#[tokio::test]
async fn the_first_requests_are_not_more_than_the_server_allows() {
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(8);
    let link = open(builder, 8).await;
    let result = results_of_one_request_each(link, 64, 16, HOUR).await;
    assert_eq!((result.times.total(), result.first_error()), (64, "no reply in time"));
}

/// More than may wait to be sent at once.
#[tokio::test]
async fn large_requests_are_started_when_others_were_sent() {
    let mut builder = h2::server::Builder::new();
    builder.initial_window_size(2 << 20).initial_connection_window_size(64 << 20);
    let link = open(builder, 16).await;
    let result = results_of_one_request_each(link, 16, 1_000_000, HOUR).await;
    assert_eq!((result.times.total(), result.first_error()), (16, "no reply in time"));
}

#[tokio::test]
async fn a_connection_that_is_closed_at_once_is_not_open() {
    let goaway = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let cases: [(&str, &[u8]); 3] = [
        ("closed by the server", &[]),
        ("closed by the server", &[&SETTINGS[..], &goaway].concat()),
        ("HTTP/2 error", b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    ];
    for (text, bytes) in cases {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = address(listener.local_addr().unwrap().to_string(), HOUR);
        let answer = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            socket.write_all(bytes).await.unwrap();
            socket.shutdown().await.unwrap();
            socket
        };
        let (opened, _socket) = tokio::join!(LoadLink::open(&address), answer);
        let error = opened.err().unwrap().to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[tokio::test]
async fn settings_that_do_not_come_end_the_opening() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let authority = listener.local_addr().unwrap().to_string();
    let opened = LoadLink::open(&address(authority, Duration::from_millis(10))).await;
    assert_eq!(opened.err().unwrap().kind(), io::ErrorKind::TimedOut);
}

/// A server that is always readable, for a millisecond each time, and closes after a thousand.
struct BusyServer {
    reads: usize,
    sends: BusySends,
}

enum BusySends {
    Pings,
    /// Records of TLS without content: the stream has progress, but nothing to read.
    Nothing,
    /// Pings, and a reply to the first call after this time.
    LateReply(Duration),
}

impl AsyncRead for BusyServer {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(tokio::task::coop::poll_proceed(context)).made_progress();
            self.reads += 1;
            sleep(Duration::from_millis(1));
            match self.sends {
                _ if self.reads == 1 => buffer.put_slice(&SETTINGS),
                _ if self.reads > 1_000 => {}
                BusySends::LateReply(after) if self.reads == 2 => {
                    sleep(after);
                    // The head with `:status`, an empty message, and `grpc-status`.
                    buffer.put_slice(&[0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88]);
                    buffer.put_slice(&[0, 0, 5, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
                    buffer.put_slice(&[0, 0, 15, 1, 5, 0, 0, 0, 1, 0x40, 11]);
                    buffer.put_slice(b"grpc-status\x010");
                }
                BusySends::Pings | BusySends::LateReply(_) => buffer.put_slice(&PING_REPLY),
                BusySends::Nothing => continue,
            }
            return Poll::Ready(Ok(()));
        }
    }
}

/// Everything is written at once.
impl AsyncWrite for BusyServer {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

async fn open_busy(sends: BusySends) -> LoadLink {
    let (authority, fields) = ("h:1".to_owned(), Vec::new());
    let target = CallTarget { is_tls: false, authority, fields };
    let mut link = LoadLink::new(Box::new(BusyServer { reads: 0, sends }), &target);
    link.receive_settings().await.unwrap();
    link
}

#[tokio::test]
async fn timeouts_and_pauses_end_while_the_socket_is_readable() {
    for sends in [BusySends::Pings, BusySends::Nothing] {
        let link = open_busy(sends).await;
        let timeout = Duration::from_millis(20);
        let result = results_of_one_request_each(link, 8, 16, timeout).await;
        assert_eq!(result.errors, [("request timed out".to_owned(), 8)].into());
    }
}

#[tokio::test]
async fn a_late_reply_is_a_timeout_before_the_timer_fires() {
    let timeout = Duration::from_millis(20);
    let link = open_busy(BusySends::LateReply(2 * timeout)).await;
    let result = results_of_one_request_each(link, 1, 16, timeout).await;
    assert_eq!(result.times.total(), 0);
    assert_eq!(result.errors, [("request timed out".to_owned(), 1)].into());
}
