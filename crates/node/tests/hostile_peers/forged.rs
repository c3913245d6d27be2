//! Messages that are well formed, in the name of a member, with content that no member sends:
//! none of them stops the cluster, not even for later.

use std::time::Duration;

use quorate::driver::CommandId;
use quorate_core::{EntryId, MemberId, Membership, SnapshotMeta};
use quorate_storage::codec::Codec;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::service::{CLUSTER, Service, TIMEOUT};
use super::wire::*;
use super::{After, open, read_frame, read_to_end};

/// A connection to one member in the name of another.
async fn impersonate(service: &Service, at: usize, name: u64) -> TcpStream {
    let mut stream = TcpStream::connect(service.address(at)).await.unwrap();
    stream.write_all(&hello(1, 1, 0)).await.unwrap();
    assert_eq!(read_frame(&mut stream).await[0], HELLO_REPLY);
    stream.write_all(&introduce(1, CLUSTER, name, at as u64 + 1)).await.unwrap();
    assert_eq!(read_frame(&mut stream).await[0], WELCOME);
    stream
}

async fn wait_dropped(service: &Service, at: usize, reason: &str, count: u64) {
    let deadline = Instant::now() + TIMEOUT;
    while service.dropped(at, reason) < count {
        assert!(Instant::now() < deadline, "{reason} is not counted");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_term_is_not_believed() {
    let service = Service::start().await;
    let last = (1 << 62) - 1;
    let vote = [number(1, last - 1), number(2, last), number(3, 1)].concat();
    for at in 0..2 {
        let mut stream = impersonate(&service, at, 3).await;
        stream.write_all(&message(last, HEARTBEAT, &number(1, 1), &[])).await.unwrap();
        stream.write_all(&message(last, VOTE, &vote, &[])).await.unwrap();
        stream.write_all(&message(last, APPEND_REPLY, &number(1, 3), &[])).await.unwrap();
        wait_dropped(&service, at, "implausible_term", 3).await;
    }
    service.keeps_serving("the last term").await;
    assert!(service.node(0).status().await.unwrap().raft.term < 1 << 40);
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_junk_snapshot_in_the_leaders_name_replaces_nothing() {
    let service = Service::start().await;
    let membership = Membership::new([1, 2, 3].map(MemberId), []).into();
    let meta = SnapshotMeta { id: EntryId::new(900, 900_000), membership }.to_bytes();
    let junk = vec![7; 100_000];
    let sum = crc32c::crc32c(&junk);
    let size = junk.len() as u64;
    let head = [number(1, 1_000), number(4, size), bytes(24, &meta)].concat();
    let end = [number(1, size), number(2, 1), fixed32(3, sum)].concat();
    let frames = [
        frame(SNAPSHOT_BEGIN, 1, &head, &[]),
        frame(SNAPSHOT_CHUNK, 1, &fixed32(1, sum), &junk),
        frame(SNAPSHOT_END, 1, &end, &[]),
    ];
    let mut stream = open(&service, After::SnapshotWelcome).await;
    stream.write_all(&frames.concat()).await.unwrap();
    let replies = read_to_end(&mut stream, "junk snapshot").await;
    assert_eq!(replies[0], SNAPSHOT_REFUSED);
    assert!(service.count(0, "snapshots_refused") > 0);
    service.keeps_serving("a junk snapshot").await;
    let service = service.restart(0).await;
    service.keeps_serving("after a restart").await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_request_numbers_do_not_block_a_member() {
    let service = Service::start().await;
    for (at, other) in [(0, 1), (1, 0)] {
        let status = service.node(other).status().await.unwrap();
        let (term, member) = (status.raft.term, MemberId(other as u64 + 1));
        let forged = |start, sequence| {
            let incarnation = status.incarnation;
            let id = CommandId { member, incarnation, start, sequence, open_from: sequence };
            id.prepend_to(b"forged")
        };
        let mut stream = impersonate(&service, at, member.0).await;
        let last = u64::MAX;
        for (request, command) in [
            (last, forged(last, last)),
            (1 << 62, forged(last, last)),
            ((1 << 62) + 1, forged(status.boots, last)),
            ((1 << 62) + 2, forged(status.boots, 1 << 61)),
            ((1 << 62) + 3, forged(status.boots + 3, 1 << 61)),
        ] {
            let propose = message(term, PROPOSE, &number(1, request), &command);
            stream.write_all(&propose).await.unwrap();
        }
        stream.write_all(&frame(KEEP_ALIVE, 0, &[], &[])).await.unwrap();
        assert_eq!(read_frame(&mut stream).await[0], KEEP_ALIVE);
        service.keeps_serving("forged numbers").await;
    }
    service.stop().await;
}
