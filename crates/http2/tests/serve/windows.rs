//! Clients that read slowly, or not at all.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use quorate_http2::ConnectionConfig;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};

use crate::application::{serve_on, start};
use crate::frames::{
    DATA, END_STREAM, GOAWAY, HEADERS, RESET, SETTINGS, exchange, frame, headers, read_kind,
    start_of_connection, window,
};

/// A socket that takes nothing until it is opened, and then everything.
struct GatedSocket {
    inner: DuplexStream,
    gate: Arc<Mutex<Gate>>,
}

#[derive(Default)]
struct Gate {
    is_open: bool,
    waiting: Option<Waker>,
}

impl AsyncRead for GatedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl AsyncWrite for GatedSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        {
            let mut gate = self.gate.lock().unwrap();
            if !gate.is_open {
                gate.waiting = Some(context.waker().clone());
                return Poll::Pending;
            }
        }
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

/// While much waits to be written, nothing is read. What arrives meanwhile is read when the socket
/// has taken everything at once.
#[tokio::test(start_paused = true)]
async fn a_client_that_reads_again_is_read_again() {
    let (mut client, inner) = duplex(4 << 20);
    let gate = Arc::new(Mutex::new(Gate::default()));
    let hour = Duration::from_secs(3_600);
    let config = ConnectionConfig { keep_alive_interval: hour, ..Default::default() };
    let _served = serve_on(GatedSocket { inner, gate: Arc::clone(&gate) }, config);
    // The stream's own window ends beyond what the server writes ahead.
    let stream_window = [&4u16.to_be_bytes()[..], &262_200u32.to_be_bytes()].concat();
    let request = [
        start_of_connection(),
        frame(SETTINGS, 0, 0, &stream_window),
        window(0, 1 << 24),
        headers(1, "/size/1000000", END_STREAM),
    ];
    client.write_all(&request.concat()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    client.write_all(&window(1, 1 << 20)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let waiting = {
        let mut gate = gate.lock().unwrap();
        gate.is_open = true;
        gate.waiting.take()
    };
    waiting.expect("the server waits for the socket").wake();
    let mut bytes = 0;
    while bytes < 1_000_000 {
        bytes += read_kind(&mut client, DATA).await.unwrap().payload.len();
    }
}

/// A client that has announced a smaller header table waits for this, and no other may refuse it.
#[tokio::test]
async fn the_first_response_says_that_no_header_table_is_used() {
    let (mut socket, _served) = start(ConnectionConfig::default());
    let no_table = frame(SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0]);
    let request = [start_of_connection(), no_table, headers(1, "/drop", END_STREAM)].concat();
    for (stream, first, request) in [(1, 0x20, request), (3, 0x88, headers(3, "/drop", END_STREAM))]
    {
        let frames = exchange(&mut socket, &request).await;
        let response = frames.iter().find(|frame| frame.kind == HEADERS).unwrap();
        assert_eq!((response.stream, response.payload[0]), (stream, first));
    }
}

/// Many clients send the end of a request in a frame of its own, after the response has been sent.
#[tokio::test]
async fn late_ends_of_requests_are_not_a_flood() {
    let (mut socket, _served) = start(ConnectionConfig::default());
    exchange(&mut socket, &start_of_connection()).await;
    for round in 0..800u32 {
        let ids = (0..32).map(|number| (round * 32 + number) * 2 + 1);
        let requests: Vec<u8> = ids.clone().flat_map(|id| headers(id, "/drop", 0)).collect();
        let frames = exchange(&mut socket, &requests).await;
        assert_eq!(frames.iter().filter(|frame| frame.kind == RESET).count(), 32);
        let ends: Vec<u8> = ids.flat_map(|id| frame(DATA, END_STREAM, id, b"late")).collect();
        let frames = exchange(&mut socket, &ends).await;
        assert!(!frames.iter().any(|frame| frame.kind == GOAWAY), "round {round}: {frames:?}");
    }
}

#[tokio::test]
async fn padding_is_returned_to_the_window_of_its_stream() {
    let (mut socket, _served) = start(ConnectionConfig::default());
    let padded = frame(DATA, 8, 1, &[&[255, b'x'][..], &[0; 255]].concat());
    let request = [start_of_connection(), headers(1, "/slow", 0)].concat();
    exchange(&mut socket, &request).await;
    for _ in 0..20 {
        let frames = exchange(&mut socket, &padded.repeat(100)).await;
        assert!(!frames.iter().any(|frame| frame.kind == RESET), "{frames:?}");
    }
}
