//! Calls of an independent client.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use quorate_http2::ConnectionConfig;
use tokio::io::DuplexStream;
use tokio::time::timeout;

use crate::application::{Served, start};

pub(crate) async fn connect(socket: DuplexStream) -> SendRequest<Bytes> {
    // This client gives up when many small frames wait for its tasks, unless the window is large.
    let mut builder = Builder::new();
    builder.initial_connection_window_size(5 << 20);
    let (client, connection) = builder.handshake(socket).await.unwrap();
    tokio::spawn(connection);
    client.ready().await.unwrap()
}

fn request(path: &str) -> Request<()> {
    Request::builder()
        .method(Method::POST)
        .uri(format!("http://test{path}"))
        .header("content-type", "application/grpc")
        .body(())
        .unwrap()
}

/// Makes a call with this body, and reads its response.
async fn call(
    client: &SendRequest<Bytes>,
    path: &str,
    body: Bytes,
) -> Result<(Response<Bytes>, Option<HeaderMap>), h2::Error> {
    let mut client = client.clone().ready().await?;
    let (response, mut sender) = client.send_request(request(path), false)?;
    // A short body is sent together with the headers.
    let mut body = body;
    let is_short = body.len() <= 16_384;
    if is_short {
        sender.send_data(std::mem::take(&mut body), true)?;
    }
    let sending = tokio::spawn(async move {
        if is_short {
            return;
        }
        sender.reserve_capacity(body.len());
        while !body.is_empty() {
            let Some(Ok(capacity)) = std::future::poll_fn(|cx| sender.poll_capacity(cx)).await
            else {
                return;
            };
            let piece = body.split_to(capacity.min(body.len()));
            sender.send_data(piece, false).unwrap();
        }
        let _ = sender.send_data(Bytes::new(), true);
    });
    let response = response.await?;
    let (parts, mut stream) = response.into_parts();
    let mut received = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data?;
        stream.flow_control().release_capacity(data.len())?;
        received.extend_from_slice(&data);
    }
    let trailers = stream.trailers().await?;
    sending.abort();
    Ok((Response::from_parts(parts, received.into()), trailers))
}

async fn client_and_server(config: ConnectionConfig) -> (SendRequest<Bytes>, Served) {
    let (socket, served) = start(config);
    (connect(socket).await, served)
}

#[tokio::test]
async fn complete_messages_get_their_replies() {
    let (client, served) = client_and_server(ConnectionConfig::default()).await;
    for size in [0, 1, 5_000, 16_384] {
        let message = Bytes::from(vec![b'm'; size]);
        let (response, trailers) = call(&client, "/message", message.clone()).await.unwrap();
        assert_eq!((response.status(), response.body()), (StatusCode::OK, &message), "{size}");
        assert_eq!(response.headers()["content-type"], "application/grpc");
        assert_eq!(trailers.unwrap()["grpc-status"], "0");
    }
    assert_eq!(served.application.messages.load(Ordering::SeqCst), 4);
    // Those that the application does not want, or that are longer than a frame, arrive as well.
    for message in [Bytes::from_static(b"unusual"), vec![b'm'; 100_000].into()] {
        let (response, _) = call(&client, "/message", message.clone()).await.unwrap();
        assert_eq!(response.body(), &message);
    }
    assert_eq!(served.application.messages.load(Ordering::SeqCst), 4);
    assert_eq!(served.application.open.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn large_bodies_pass_small_windows_in_both_directions() {
    for (stream_window, connection_window) in
        [(65_535, 65_535), (1_000, 100_000), (1 << 20, 1 << 20)]
    {
        let config = ConnectionConfig { stream_window, connection_window, ..Default::default() };
        let (client, _served) = client_and_server(config).await;
        let body: Bytes = (0..3_000_000u32).map(|number| number as u8).collect::<Vec<_>>().into();
        let calls = (0..4).map(|_| {
            let (client, body) = (client.clone(), body.clone());
            tokio::spawn(async move { call(&client, "/echo", body).await.unwrap().0 })
        });
        let calls: Vec<_> = calls.collect();
        for one in calls {
            let response = timeout(Duration::from_secs(60), one).await.unwrap().unwrap();
            assert!(response.body() == &body, "the body has changed");
        }
        let (response, trailers) = call(&client, "/size/5000000", Bytes::new()).await.unwrap();
        assert_eq!((response.body().len(), trailers.unwrap().len()), (5_000_000, 1));
    }
}

#[tokio::test]
async fn replies_wait_for_the_window_of_the_client() {
    let (socket, _served) = start(ConnectionConfig::default());
    let mut builder = Builder::new();
    builder.initial_window_size(10).initial_connection_window_size(65_535);
    let (client, connection) = builder.handshake(socket).await.unwrap();
    tokio::spawn(connection);
    let client: SendRequest<Bytes> = client.ready().await.unwrap();
    let message = Bytes::from(vec![b'm'; 1_000]);
    let (response, trailers) = call(&client, "/message", message.clone()).await.unwrap();
    assert_eq!(response.body(), &message);
    assert_eq!(trailers.unwrap()["grpc-status"], "0");
}

#[tokio::test]
async fn thousands_of_calls_run_at_once() {
    let (client, served) = client_and_server(ConnectionConfig::default()).await;
    let calls: Vec<_> = (0..3_000)
        .map(|number| {
            let client = client.clone();
            let path = if number % 3 == 0 { "/echo" } else { "/message" };
            let body = Bytes::from(format!("message {number}"));
            tokio::spawn(async move {
                let (response, _) = call(&client, path, body.clone()).await.unwrap();
                assert_eq!(response.body(), &body);
            })
        })
        .collect();
    for one in calls {
        one.await.unwrap();
    }
    assert_eq!(served.application.open.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_response_without_reading_the_request_ends_the_call() {
    let (client, _served) = client_and_server(ConnectionConfig::default()).await;
    for path in ["/drop", "/none"] {
        let (response, _) = call(&client, path, vec![0; 1_000_000].into()).await.unwrap();
        let expected = if path == "/drop" { StatusCode::OK } else { StatusCode::NOT_FOUND };
        assert_eq!(response.status(), expected);
    }
    // What was sent of the others has not used up the window of the connection.
    for _ in 0..40 {
        call(&client, "/drop", vec![0; 1_000_000].into()).await.unwrap();
    }
    let (response, _) = call(&client, "/count", vec![0; 2_000_000].into()).await.unwrap();
    assert_eq!(response.headers()["count"], "2000000");
}

#[tokio::test]
async fn a_call_that_its_client_resets_is_dropped() {
    let (client, served) = client_and_server(ConnectionConfig::default()).await;
    for path in ["/slow", "/message/slow", "/echo"] {
        let mut ready = client.clone().ready().await.unwrap();
        let (response, mut sender) = ready.send_request(request(path), false).unwrap();
        let ends = path != "/echo";
        sender.send_data(Bytes::from_static(b"message"), ends).unwrap();
        if ends {
            wait_for_open(&served, 1).await;
        }
        sender.send_reset(h2::Reason::CANCEL);
        drop(response);
        wait_for_open(&served, 0).await;
    }
}

pub(crate) async fn wait_for_open(served: &Served, count: usize) {
    let reached = async {
        while served.application.open.load(Ordering::SeqCst) != count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(30), reached).await.expect("calls in progress");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_late_ends_with_the_deadline() {
    let (client, served) = client_and_server(ConnectionConfig::default()).await;
    let mut ready = client.clone().ready().await.unwrap();
    let mut late = request("/message/slow");
    late.headers_mut().insert("grpc-timeout", "300m".parse().unwrap());
    let (response, mut sender) = ready.send_request(late, false).unwrap();
    sender.send_data(Bytes::from_static(b"message"), true).unwrap();
    let began = tokio::time::Instant::now();
    let response = response.await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "4");
    let took = began.elapsed();
    assert!((300..400).contains(&took.as_millis()), "{took:?}");
    assert_eq!(served.application.open.load(Ordering::SeqCst), 0);
}

/// It uses all of the time that the connection's task gets at once.
#[tokio::test]
async fn deadlines_pass_beside_a_call_that_is_always_busy() {
    let (client, served) = client_and_server(ConnectionConfig::default()).await;
    let (_busy, _) = client.clone().send_request(request("/busy"), true).unwrap();
    wait_for_open(&served, 1).await;
    let mut late = request("/message/slow");
    late.headers_mut().insert("grpc-timeout", "50m".parse().unwrap());
    let (response, mut sender) = client.clone().send_request(late, false).unwrap();
    sender.send_data(Bytes::from_static(b"message"), true).unwrap();
    let response = timeout(Duration::from_secs(10), response).await.expect("the deadline").unwrap();
    assert_eq!(response.headers()["grpc-status"], "4");
}
