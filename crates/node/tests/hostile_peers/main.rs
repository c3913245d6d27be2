//! Any peer may connect and send anything: it is disconnected and counted, and the members
//! keep serving.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod forged;
mod memory;
mod service;
mod wire;

use std::time::Duration;

use quorate_core::{MemberId, Membership, SnapshotMeta};
use quorate_storage::codec::Codec;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use service::{CLUSTER, Service, TIMEOUT};
use wire::*;

/// How far a hostile peer gets before it misbehaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum After {
    Connecting,
    /// It sent a hello and got a reply.
    Hello,
    /// It introduced itself as member 3 and was accepted.
    Welcome,
    /// The same on a connection for a snapshot.
    SnapshotWelcome,
}

struct Case {
    name: &'static str,
    after: After,
    bytes: Vec<u8>,
    /// It closes its side after that; else it waits.
    ends: bool,
    counted: &'static str,
}

fn case(name: &'static str, after: After, bytes: Vec<u8>, counted: &'static str) -> Case {
    Case { name, after, bytes, ends: false, counted }
}

fn greetings() -> Vec<Case> {
    use After::{Connecting, Hello};
    let mut damaged = hello(1, 1, 0);
    *damaged.last_mut().unwrap() ^= 1;
    let cut = hello(1, 1, 0)[..20].to_vec();
    let late = hello(1, 1, 0)[..31].to_vec();
    let other_magic = [b"quorata\n".to_vec(), hello(1, 1, 0)[8..].to_vec()].concat();
    let first = |bytes: Vec<u8>| [MAGIC.to_vec(), bytes].concat();
    let long = first(frame(HELLO, 0, &bytes(3, &[b'a'; 3000]), &[]));
    vec![
        case("http", Connecting, b"GET / HTTP/1.1\r\n\r\n".to_vec(), "handshake_bad_magic"),
        case("another magic", Connecting, other_magic, "handshake_bad_magic"),
        case("zeros", Connecting, vec![0; 4096], "handshake_bad_magic"),
        case("endless hello", Connecting, first(vec![0xff; 24]), "frame_oversized"),
        case("damaged hello", Connecting, damaged, "frame_bad_checksum"),
        case("no hello", Connecting, first(frame(KEEP_ALIVE, 0, &[], &[])), "frame_unexpected"),
        case("unknown kind", Connecting, first(frame(99, 0, &[], &[])), "frame_unknown_kind"),
        case(
            "hello of nonsense",
            Connecting,
            first(frame(HELLO, 0, &[0xff], &[])),
            "frame_malformed",
        ),
        case("hello with a body", Connecting, first(frame(HELLO, 0, &[], &[1])), "frame_malformed"),
        case("long address", Connecting, long, "frame_malformed"),
        case("unknown purpose", Connecting, hello(1, 1, 7), "frame_malformed"),
        case("versions upside down", Connecting, hello(2, 1, 0), "frame_malformed"),
        case("later versions only", Connecting, hello(4, 9, 0), "handshake_wrong_version"),
        Case { ends: true, ..case("half a hello", Connecting, cut, "frame_truncated") },
        case("silence", Connecting, vec![], "handshake_timeout"),
        case("a hello that stops", Connecting, late, "handshake_timeout"),
        case("hello and silence", Hello, vec![], "handshake_timeout"),
        case("message before introduction", Hello, heartbeat(1), "frame_unknown_channel"),
        case(
            "introduction of nonsense",
            Hello,
            frame(INTRODUCE, 1, &[0xff], &[]),
            "frame_malformed",
        ),
        case("channel 0", Hello, introduce(0, CLUSTER, 3, 1), "frame_channel_reused"),
        case("foreign cluster", Hello, introduce(1, CLUSTER + 1, 3, 1), "rejected_foreign_cluster"),
        case("another member", Hello, introduce(1, CLUSTER, 3, 9), "rejected_other_member"),
    ]
}

fn messages() -> Vec<Case> {
    use After::Welcome;
    let mut flipped = frame(MESSAGE, 1, &number(1, 1), b"body");
    *flipped.last_mut().unwrap() ^= 1;
    let mut reserved = frame(KEEP_ALIVE, 0, &[], &[]);
    reserved[2] = 1;
    let checksum = crc32c::crc32c(&reserved[..20]).to_le_bytes();
    reserved[20..24].copy_from_slice(&checksum);
    let mut endless = frame(MESSAGE, 1, &[], &[]);
    endless[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    let append = |body: &[u8]| frame(MESSAGE, 1, &[number(1, 1), bytes(20, &[])].concat(), body);
    let many = append(&[vec![0; 8], vec![0xff; 4], vec![0; 64]].concat());
    let forged = [number(1, 1), number(3, 2), bytes(19, &number(1, 1))].concat();
    let cut = heartbeat(1)[..30].to_vec();
    let channels = (2..=9).flat_map(|channel| introduce(channel, CLUSTER, 3, 1)).collect();
    let refusal = [number(1, 1), bytes(29, &bytes(4, &[31, 0, 0, 0, 0]))].concat();
    vec![
        case("unknown channel", Welcome, heartbeat(2), "frame_unknown_channel"),
        case("introduced again", Welcome, introduce(1, CLUSTER, 3, 1), "frame_channel_reused"),
        case("too many channels", Welcome, channels, "too_many_channels"),
        case("hello again", Welcome, hello(1, 1, 0)[8..].to_vec(), "frame_unexpected"),
        case("an answer", Welcome, frame(WELCOME, 1, &[], &[]), "frame_unexpected"),
        case("endless frame", Welcome, endless, "frame_oversized"),
        case("flipped bit", Welcome, flipped, "frame_bad_checksum"),
        case("unknown frame", Welcome, frame(200, 1, &[], &[]), "frame_unknown_kind"),
        case("reserved bytes", Welcome, reserved, "frame_malformed"),
        case("message of nonsense", Welcome, frame(MESSAGE, 1, &[0xff], &[]), "frame_malformed"),
        case("empty message", Welcome, frame(MESSAGE, 1, &[], &[]), "frame_malformed"),
        case("2^32 entries", Welcome, many, "frame_malformed"),
        case("half an entry", Welcome, append(&[1; 9]), "frame_malformed"),
        case("a vote in another name", Welcome, frame(MESSAGE, 1, &forged, &[]), "frame_malformed"),
        case("unknown refusal", Welcome, frame(MESSAGE, 1, &refusal, &[]), "frame_malformed"),
        case(
            "2^32 replies",
            Welcome,
            message(1, ACCEPTED, &number(2, 1 << 31), &[]),
            "frame_malformed",
        ),
        case(
            "a run of one",
            Welcome,
            message(1, PROPOSALS, &bytes(2, &[3]), b"abc"),
            "frame_malformed",
        ),
        case(
            "a run beyond its body",
            Welcome,
            message(1, PROPOSALS, &bytes(2, &[2, 2]), b"abc"),
            "frame_malformed",
        ),
        case(
            "a long head",
            Welcome,
            message(1, PROPOSALS, &bytes(2, &[0; 70_000]), &[]),
            "frame_oversized",
        ),
        case("a snapshot here", Welcome, frame(SNAPSHOT_BEGIN, 1, &[], &[]), "frame_unexpected"),
        Case { ends: true, ..case("half a message", Welcome, cut, "frame_truncated") },
        case("welcome and silence", Welcome, vec![], "silent"),
    ]
}

fn snapshots() -> Vec<Case> {
    use After::SnapshotWelcome;
    let membership = Membership::new([1, 2, 3].map(MemberId), []).into();
    let meta = SnapshotMeta { membership, ..SnapshotMeta::default() }.to_bytes();
    let begin = |size| {
        let head = [number(1, 1), number(4, size), bytes(24, &meta)].concat();
        frame(SNAPSHOT_BEGIN, 1, &head, &[])
    };
    let chunk = |data: &[u8], running| frame(SNAPSHOT_CHUNK, 1, &fixed32(1, running), data);
    let sum = crc32c::crc32c(b"data");
    let end = |size, chunks| {
        frame(SNAPSHOT_END, 1, &[number(1, size), number(2, chunks), fixed32(3, sum)].concat(), &[])
    };
    let no_snapshot = frame(SNAPSHOT_BEGIN, 1, &heartbeat(1)[24..], &[]);
    let with = |size, rest: Vec<Vec<u8>>| [vec![begin(size)], rest].concat().concat();
    let of_unknown_size = |rest: Vec<Vec<u8>>| {
        let head = [number(1, 1), number(5, 1), bytes(24, &meta)].concat();
        [vec![frame(SNAPSHOT_BEGIN, 1, &head, &[])], rest].concat().concat()
    };
    let malformed = "frame_malformed";
    vec![
        case("no snapshot", SnapshotWelcome, no_snapshot, malformed),
        case("message instead", SnapshotWelcome, heartbeat(1), "frame_unexpected"),
        case(
            "other channel",
            SnapshotWelcome,
            frame(SNAPSHOT_BEGIN, 2, &[], &[]),
            "frame_unknown_channel",
        ),
        case("wrong sum", SnapshotWelcome, with(9, vec![chunk(b"data", sum ^ 1)]), malformed),
        case(
            "chunk twice",
            SnapshotWelcome,
            with(9, vec![chunk(b"data", sum), chunk(b"data", sum)]),
            malformed,
        ),
        case("more than announced", SnapshotWelcome, with(3, vec![chunk(b"data", sum)]), malformed),
        case(
            "less than announced",
            SnapshotWelcome,
            with(9, vec![chunk(b"data", sum), end(4, 1)]),
            malformed,
        ),
        case(
            "wrong end",
            SnapshotWelcome,
            with(4, vec![chunk(b"data", sum), end(4, 2)]),
            malformed,
        ),
        case(
            "wrong end of unknown size",
            SnapshotWelcome,
            of_unknown_size(vec![chunk(b"data", sum), end(5, 1)]),
            malformed,
        ),
        case("no end", SnapshotWelcome, of_unknown_size(vec![chunk(b"data", sum)]), "silent"),
        case("empty chunk", SnapshotWelcome, with(4, vec![chunk(b"", 0)]), malformed),
        case("message amid", SnapshotWelcome, with(4, vec![heartbeat(1)]), "frame_unexpected"),
        Case {
            ends: true,
            ..case(
                "half a snapshot",
                SnapshotWelcome,
                with(9, vec![chunk(b"data", sum), vec![1]]),
                "frame_truncated",
            )
        },
        case("snapshot that stops", SnapshotWelcome, with(9, vec![chunk(b"data", sum)]), "silent"),
    ]
}

async fn open(service: &Service, after: After) -> TcpStream {
    let mut stream = TcpStream::connect(service.address(0)).await.unwrap();
    if after == After::Connecting {
        return stream;
    }
    let purpose = u64::from(after == After::SnapshotWelcome);
    // A later version talks to this one.
    stream.write_all(&hello(1, 9, purpose)).await.unwrap();
    let reply = read_frame(&mut stream).await;
    assert_eq!((reply[0], &reply[24..26]), (HELLO_REPLY, &[0x08, 3][..]));
    if after != After::Hello {
        stream.write_all(&introduce(1, CLUSTER, 3, 1)).await.unwrap();
        assert_eq!(read_frame(&mut stream).await[0], WELCOME);
    }
    stream
}

async fn read_frame(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = vec![0; 24];
    stream.read_exact(&mut bytes).await.unwrap();
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let rest = (number(8) + number(12)) as usize;
    bytes.resize(24 + rest, 0);
    stream.read_exact(&mut bytes[24..]).await.unwrap();
    bytes
}

/// Everything until the other side closes.
async fn read_to_end(stream: &mut TcpStream, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = timeout(TIMEOUT, stream.read_to_end(&mut bytes)).await;
    let _ = read.unwrap_or_else(|_| panic!("{name}: not closed"));
    bytes
}

async fn play(service: &Service, case: &Case) {
    let before = service.count(0, case.counted);
    let mut stream = open(service, case.after).await;
    let _ = stream.write_all(&case.bytes).await;
    if case.ends {
        let _ = stream.shutdown().await;
    }
    let said = read_to_end(&mut stream, case.name).await;
    service.wait_count(0, case.counted, before + 1, case.name).await;
    if case.counted.starts_with("rejected") {
        assert_eq!(said[0], REFUSED, "{}", case.name);
    }
    service.keeps_serving(case.name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_peers_are_disconnected_and_the_service_continues() {
    let service = Service::start().await;
    let mut played = 0;
    for case in greetings().iter().chain(&messages()).chain(&snapshots()) {
        play(&service, case).await;
        played += 1;
    }
    assert_eq!(played, 22 + 22 + 14);
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicated_message_is_harmless() {
    let service = Service::start().await;
    let before = service.count(0, "frames_received");
    let mut stream = open(&service, After::Welcome).await;
    for _ in 0..100 {
        stream.write_all(&heartbeat(1)).await.unwrap();
    }
    service.wait_count(0, "frames_received", before + 100, "repeated").await;
    stream.write_all(&frame(KEEP_ALIVE, 0, &[], &[])).await.unwrap();
    assert_eq!(read_frame(&mut stream).await[0], KEEP_ALIVE);
    service.keeps_serving("repeated").await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_of_one_byte_at_a_time_times_out() {
    let service = Service::start().await;
    let before = service.count(0, "handshake_timeout");
    let mut stream = TcpStream::connect(service.address(0)).await.unwrap();
    let began = Instant::now();
    for byte in hello(1, 1, 0).iter().cycle() {
        if stream.write_all(&[*byte]).await.is_err()
            || service.count(0, "handshake_timeout") > before
        {
            break;
        }
        assert!(began.elapsed() < TIMEOUT, "a slow hello has no timeout");
        sleep(Duration::from_millis(100)).await;
    }
    read_to_end(&mut stream, "slow hello").await;
    service.keeps_serving("slow hello").await;
    service.stop().await;
}

/// Many connections that send nothing: the members still reach each other.
async fn crowd(count: usize) {
    if !service::may_open_files(count as u64 + 2_000) {
        println!("skipped: crowd of {count}, the system does not allow this many open files");
        return;
    }
    let service = Service::start().await;
    let memory = service::resident_bytes();
    let gone = || service.count(0, "unidentified_evicted") + service.count(0, "handshake_timeout");
    let before = gone();
    let mut streams = Vec::new();
    for _ in 0..count {
        streams.push(TcpStream::connect(service.address(0)).await.unwrap());
        assert!(service.count(0, "connections_unidentified") <= service::UNIDENTIFIED_MAX as u64);
    }
    service.keeps_serving("in the crowd").await;
    // A member that connects now is still accepted.
    let before_member = open(&service, After::Welcome).await;
    drop(before_member);
    let deadline = Instant::now() + TIMEOUT;
    while gone() < before + count as u64 {
        assert!(Instant::now() < deadline, "only {} of {count} are gone", gone() - before);
        sleep(Duration::from_millis(20)).await;
    }
    while service.count(0, "connections_unidentified") > 0 {
        assert!(Instant::now() < deadline, "connections are still counted");
        sleep(Duration::from_millis(20)).await;
    }
    let grown = service::resident_bytes().saturating_sub(memory);
    assert!(grown < (64 << 20) + count as u64 * 8_192, "{grown} bytes more than before");
    service.keeps_serving("after the crowd").await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_idle_connections_keep_no_member_out() {
    crowd(1_000).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "opens ten thousand connections"]
async fn ten_thousand_idle_connections_keep_no_member_out() {
    crowd(10_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_member_learns_the_reason_and_backs_off() {
    let service = Service::start().await;
    // A member of another cluster with the address of this one.
    let (node, _storage) = service::stranger(&service).await;
    let count = |name: &str| node.metrics().transport[name];
    let deadline = Instant::now() + TIMEOUT;
    // The backoff grows until frames are dropped before they are sent.
    while count("rejected_by_peer") < 2 || count("dropped_refused") == 0 {
        assert!(Instant::now() < deadline, "the foreign member never learns that it is refused");
        sleep(Duration::from_millis(20)).await;
    }
    assert!(service.count(0, "rejected_foreign_cluster") >= 2);
    service.keeps_serving("a stranger").await;
    node.stop_now().await;
    service.stop().await;
}
