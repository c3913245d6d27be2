//! Peers that make a member buffer what they send: what is buffered has one limit.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::service::{Service, TIMEOUT, resident_bytes};
use super::wire::*;
use super::{After, open, read_to_end};

const MIB: usize = 1 << 20;

/// The first bytes of a frame of 60 MiB, without its end.
fn endless_message(sent: usize) -> Vec<u8> {
    let mut begun = frame(MESSAGE, 1, &number(1, 1), &[]);
    begun[12..16].copy_from_slice(&(60 * MIB as u32).to_le_bytes());
    // The checksum is read last.
    begun.resize(24 + sent, 7);
    begun
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_sends_no_long_frame_before_it_is_introduced() {
    let service = Service::start().await;
    for after in [After::Connecting, After::Hello] {
        let before = service.count(0, "frame_oversized");
        let mut stream = open(&service, after).await;
        if after == After::Connecting {
            stream.write_all(MAGIC).await.unwrap();
        }
        // Its end never comes: only the header can tell.
        stream.write_all(&endless_message(0)[..24]).await.unwrap();
        read_to_end(&mut stream, "long frame").await;
        service.wait_count(0, "frame_oversized", before + 1, "long frame").await;
    }
    service.keeps_serving("long frames of strangers").await;
    service.stop().await;
}

/// Writes until it is done or the other side has closed.
async fn push(mut stream: TcpStream, bytes: Vec<u8>) -> TcpStream {
    let _ = timeout(TIMEOUT, stream.write_all(&bytes)).await;
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn introduced_peers_share_one_budget_and_do_not_block_others() {
    let service = Service::start().await;
    let limit = service.count(0, "buffered_bytes_limit");
    assert_eq!(limit, super::service::BUFFERED_BYTES_MAX as u64);
    let before = resident_bytes();
    let mut peers = Vec::new();
    for _ in 0..20 {
        let stream = open(&service, After::Welcome).await;
        peers.push(tokio::spawn(push(stream, endless_message(24 * MIB))));
    }
    let deadline = Instant::now() + TIMEOUT;
    while service.count(0, "frame_over_budget") < 10 {
        assert!(Instant::now() < deadline, "no frame is ended");
        assert!(service.count(0, "buffered_bytes") <= limit);
        sleep(Duration::from_millis(5)).await;
    }
    service.keeps_serving("many long frames").await;
    // The senders are in this process as well, and have 24 MiB each.
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < limit * 2 + 20 * 30 * MIB as u64, "{grown} bytes more than before");
    peers.iter().for_each(tokio::task::JoinHandle::abort);
    drop(peers);
    let deadline = Instant::now() + TIMEOUT;
    while service.count(0, "buffered_bytes") > 0 {
        assert!(Instant::now() < deadline, "the budget is not given back");
        sleep(Duration::from_millis(5)).await;
    }
    service.keeps_serving("after long frames").await;
    service.stop().await;
}
