//! The start and the end of connections.

use std::time::Duration;

use quorate_http2::{ConnectionConfig, ServeError};
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use crate::application::start;
use crate::calls::wait_for_open;
use crate::frames::{
    DATA, END_STREAM, GOAWAY, HEADERS, PING, RESET, exchange, frame, headers, read_frame,
    read_kind, start_of_connection,
};

#[tokio::test]
async fn a_stopping_server_finishes_what_the_client_has_sent() {
    let (mut socket, served) = start(ConnectionConfig::default());
    let begun = headers(1, "/echo", 0);
    exchange(&mut socket, &[start_of_connection(), begun].concat()).await;
    wait_for_open(&served, 0).await;
    served.stop.send_replace(true);
    // It announces the end, and asks for a sign that the client knows.
    let first = read_kind(&mut socket, GOAWAY).await.unwrap();
    assert_eq!((&first.payload[..4], first.code()), (&[0x7f, 0xff, 0xff, 0xff][..], 0));
    let ping = read_kind(&mut socket, PING).await.unwrap();
    // A request that crossed the announcement is served.
    socket.write_all(&headers(3, "/drop", END_STREAM)).await.unwrap();
    assert_eq!(read_kind(&mut socket, HEADERS).await.unwrap().stream, 3);
    socket.write_all(&frame(PING, 1, 0, &ping.payload)).await.unwrap();
    let last = read_kind(&mut socket, GOAWAY).await.unwrap();
    assert_eq!((&last.payload[..4], last.code()), (&[0, 0, 0, 3][..], 0));
    // A later one is not, and the client knows that it may try it elsewhere.
    socket.write_all(&headers(5, "/drop", END_STREAM)).await.unwrap();
    socket.write_all(&frame(DATA, END_STREAM, 1, b"the rest")).await.unwrap();
    let data = read_kind(&mut socket, DATA).await.unwrap();
    assert_eq!((data.stream, &data.payload[..]), (1, &b"the rest"[..]));
    let mut rest = Vec::new();
    while let Some(frame) = read_frame(&mut socket).await {
        rest.push(frame);
    }
    assert!(rest.iter().all(|frame| frame.stream != 5), "{rest:?}");
    drop(socket);
    served.task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_answer_does_not_hold_up_a_stopping_server() {
    let (mut socket, served) = start(ConnectionConfig::default());
    exchange(&mut socket, &start_of_connection()).await;
    served.stop.send_replace(true);
    let began = Instant::now();
    let ended = tokio::time::timeout(Duration::from_secs(10), served.task).await;
    ended.unwrap().unwrap().unwrap();
    assert!(began.elapsed() >= Duration::from_secs(1));
    drop(socket);
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_is_asked_for_a_sign_of_life() {
    let config = ConnectionConfig::default();
    let (mut socket, served) = start(config);
    exchange(&mut socket, &start_of_connection()).await;
    let began = Instant::now();
    for _ in 0..3 {
        let ping = read_kind(&mut socket, PING).await.unwrap();
        assert_eq!(ping.flags, 0);
        socket.write_all(&frame(PING, 1, 0, &ping.payload)).await.unwrap();
    }
    assert!(began.elapsed() >= 2 * config.keep_alive_interval);
    // Now it gives none.
    read_kind(&mut socket, PING).await.unwrap();
    let ended = served.task.await.unwrap();
    assert!(matches!(ended, Err(ServeError::TimedOut)), "{ended:?}");
}

#[tokio::test]
async fn a_client_that_leaves_gets_its_replies() {
    let (mut socket, served) = start(ConnectionConfig::default());
    let bytes = [
        start_of_connection(),
        headers(1, "/size/100000", END_STREAM),
        frame(GOAWAY, 0, 0, &[0; 8]),
    ];
    socket.write_all(&bytes.concat()).await.unwrap();
    let mut received = 0;
    while let Some(frame) = read_frame(&mut socket).await {
        assert_ne!(frame.kind, RESET);
        if frame.kind == DATA {
            received += frame.payload.len();
            let increment = (frame.payload.len() as u32).to_be_bytes();
            for stream in [0, 1] {
                let update = crate::frames::frame(crate::frames::WINDOW, 0, stream, &increment);
                socket.write_all(&update).await.unwrap();
            }
        }
    }
    assert_eq!(received, 100_000);
    drop(socket);
    served.task.await.unwrap().unwrap();
}
