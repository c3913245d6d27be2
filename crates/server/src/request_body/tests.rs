use http_body_util::{BodyExt, StreamBody};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::*;
use crate::request_budget::AwaitedRequests;

const KIB: usize = 1 << 10;

/// A body, and what its client sends.
fn body(requests: &AwaitedRequests, is_stream: bool) -> (mpsc::Sender<Vec<u8>>, AwaitedBody) {
    let (sender, receiver) = mpsc::channel(100);
    let frames = ReceiverStream::new(receiver)
        .map(|part: Vec<u8>| Ok::<_, Status>(Frame::data(part.into())));
    let body = Body::new(StreamBody::new(frames));
    let requests = requests.of(Some("127.0.0.1:1".parse().unwrap()));
    (sender, AwaitedBody::new(body, requests, is_stream, 100 * KIB))
}

fn requests() -> AwaitedRequests {
    AwaitedRequests::new(64 * KIB)
}

fn message(content: &[u8]) -> Vec<u8> {
    [&[0][..], &(content.len() as u32).to_be_bytes(), content].concat()
}

async fn next(body: &mut AwaitedBody) -> BodyFrame {
    std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await
}

async fn bytes(body: &mut AwaitedBody) -> Bytes {
    next(body).await.unwrap().unwrap().into_data().unwrap()
}

async fn refusal(body: &mut AwaitedBody) -> tonic::Code {
    next(body).await.unwrap().unwrap_err().code()
}

fn is_pending(body: &mut AwaitedBody) -> bool {
    Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop())).is_pending()
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_message_ends() {
    let requests = requests();
    let (_sender, mut silent) = body(&requests, false);
    assert_eq!(refusal(&mut silent).await, tonic::Code::DeadlineExceeded);
    // A stream of requests waits.
    let (_sender, mut stream) = body(&requests, true);
    let waited = tokio::time::timeout(10 * MESSAGE_TIMEOUT_MAX, next(&mut stream)).await;
    assert!(waited.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_message_that_was_begun_ends_without_progress() {
    for (is_stream, parts) in [(false, 1), (true, 1), (false, 3), (true, 3)] {
        let requests = requests();
        let (sender, mut body) = body(&requests, is_stream);
        let began = Instant::now();
        let parts = async {
            for part in 0..parts {
                sleep(Duration::from_secs(part * 20)).await;
                sender.send(message(&[7; 500])[..20].to_vec()).await.unwrap();
            }
            sender.closed().await;
        };
        let code = tokio::select! {
            () = parts => unreachable!("the body is not dropped"),
            code = refusal(&mut body) => code,
        };
        assert_eq!(code, tonic::Code::DeadlineExceeded);
        assert!(began.elapsed() >= MESSAGE_TIMEOUT);
        assert_eq!(requests.bytes(), 0);
    }
}

/// Progress does not keep a message open for ever.
#[tokio::test(start_paused = true)]
async fn a_message_has_a_last_moment() {
    let requests = requests();
    let (sender, mut body) = body(&requests, false);
    let slow = tokio::spawn(async move {
        sender.send(vec![0, 0, 1, 0, 0]).await.unwrap();
        while sender.send(vec![7]).await.is_ok() {
            sleep(Duration::from_secs(1)).await;
        }
    });
    let began = Instant::now();
    assert_eq!(refusal(&mut body).await, tonic::Code::DeadlineExceeded);
    assert!(began.elapsed() >= MESSAGE_TIMEOUT_MAX);
    drop(body);
    slow.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_message_without_progress_ends_early_when_memory_is_short() {
    let requests = AwaitedRequests::new(1024 * KIB);
    let (sender, mut slow) = body(&requests, false);
    sender.send(message(&[7; 50 * KIB])[..40].to_vec()).await.unwrap();
    let mut others = ["127.0.0.2:1", "127.0.0.3:1"].map(|address| {
        let mut other = requests.of(Some(address.parse().unwrap())).begin().unwrap();
        other.resize(400 * KIB).unwrap();
        other
    });
    let began = Instant::now();
    assert_eq!(refusal(&mut slow).await, tonic::Code::DeadlineExceeded);
    assert!(began.elapsed() < 2 * CHECK_INTERVAL);
    others[0].resize(500 * KIB).unwrap();
}

/// What has arrived is counted while the message is incomplete, and read when it is complete.
#[tokio::test]
async fn a_message_is_read_when_it_is_complete() {
    let requests = requests();
    let whole = message(&[7; 9 * KIB]);
    let (sender, mut body) = body(&requests, false);
    for part in whole.chunks(KIB) {
        assert!(is_pending(&mut body));
        sender.send(part.to_vec()).await.unwrap();
    }
    // It may be followed by another: that is known at the end of the body.
    assert!(is_pending(&mut body));
    assert!(requests.bytes() >= whole.len());
    drop(sender);
    assert!(!body.is_end_stream());
    assert_eq!(body.collect().await.unwrap().to_bytes(), whole);
    assert_eq!(requests.bytes(), 0);
}

#[tokio::test]
async fn messages_of_a_stream_are_read_when_each_is_complete() {
    let requests = requests();
    let (sender, mut body) = body(&requests, true);
    let sent = [message(b"first"), message(b"second"), message(&[])].concat();
    sender.send(sent[..12].to_vec()).await.unwrap();
    // The first one, and the start of the second.
    assert_eq!(bytes(&mut body).await, sent[..12]);
    assert!(is_pending(&mut body));
    sender.send(sent[12..14].to_vec()).await.unwrap();
    assert!(is_pending(&mut body));
    assert!(requests.bytes() >= 2);
    sender.send(sent[14..].to_vec()).await.unwrap();
    assert_eq!(bytes(&mut body).await, sent[12..14]);
    assert_eq!(bytes(&mut body).await, sent[14..]);
    assert!(is_pending(&mut body));
    assert_eq!(requests.bytes(), 0);
    drop(sender);
    assert!(next(&mut body).await.is_none());
}

/// The service has the error: it does not wait for what it refuses.
#[tokio::test]
async fn what_a_service_refuses_is_not_awaited() {
    let two = [message(b"first"), message(b"second")].concat();
    let above_limit = [0, 255, 255, 255, 255, 1].to_vec();
    let unknown_flag = [9, 0, 0, 0, 9].to_vec();
    for sent in [two, above_limit, unknown_flag] {
        let requests = requests();
        let (sender, mut body) = body(&requests, false);
        sender.send(sent.clone()).await.unwrap();
        assert!(body.has_arrived());
        assert_eq!(bytes(&mut body).await, sent);
        drop(sender);
        assert!(next(&mut body).await.is_none());
    }
}

#[tokio::test]
async fn memory_of_incomplete_messages_is_limited() {
    let requests = requests();
    let (sender, mut large) = body(&requests, false);
    sender.send(message(&[7; 90 * KIB])[..70 * KIB].to_vec()).await.unwrap();
    assert_eq!(refusal(&mut large).await, tonic::Code::ResourceExhausted);
    assert_eq!((requests.bytes(), requests.refused()), (0, 1));
    // Complete ones are not counted.
    let (sender, mut large) = body(&requests, false);
    sender.send(message(&[7; 90 * KIB])).await.unwrap();
    drop(sender);
    assert!(!is_pending(&mut large));
}

/// What was received before the call was awaited is read first, and once.
#[tokio::test]
async fn a_message_that_came_with_the_headers_remains_to_be_read() {
    let requests = requests();
    for text in ["message", ""] {
        let whole = Body::new(text.to_owned().map_err(|never| match never {}));
        let mut body = AwaitedBody::new(whole, requests.of(None), false, 100);
        assert!(body.has_arrived());
        assert!(!body.is_end_stream());
        assert_eq!(body.collect().await.unwrap().to_bytes(), text);
    }
    let (_sender, mut silent) = body(&requests, false);
    assert!(!silent.has_arrived());
}
