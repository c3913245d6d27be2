//! Fake members that exchange messages over real sockets.

use std::net::Ipv4Addr;
use std::time::Duration;

use bytes::Bytes;
use quorate_core::message::Proposal;
use quorate_core::{EntryId, RequestId, SnapshotMeta};
use tokio::io::BufStream;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::counters::TcpCounters;
use super::frame::{FrameBatch, FrameKind, FrameReader};
use super::handshake::HelloReply;
use super::message::EmptyHead;
use super::security::{AcceptFuture, PeerStream, SecuredPeer, SecurityFuture};
use super::*;
use crate::testkit::fake::{FakeMember, Process, Received, TIMEOUT};

const ONE: MemberId = MemberId(1);
const TWO: MemberId = MemberId(2);

fn config() -> TcpConfig {
    let mut config = TcpConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    config.reconnect_min = Duration::from_millis(5);
    config.reconnect_max = Duration::from_millis(50);
    config
}

async fn process(config: TcpConfig) -> Process {
    let transport = TcpTransport::bind(config).await.unwrap();
    let info = MemberInfo::address(transport.advertised());
    Process::start(Box::new(transport), info).unwrap()
}

fn key(cluster: u64, member: MemberId) -> MemberKey {
    MemberKey { cluster, member }
}

fn side_message(from: MemberId, to: MemberId, number: u8) -> PeerMessage {
    PeerMessage::Side { from, to, bytes: vec![number].into() }
}

/// Sends a message until it is received. Returns what else was received.
async fn exchange(
    process: &Process,
    from: &FakeMember,
    to: &mut FakeMember,
    number: u8,
) -> Vec<PeerMessage> {
    let message = side_message(from.key.member, to.key.member, number);
    let mut others = Vec::new();
    let began = Instant::now();
    while began.elapsed() < TIMEOUT {
        process.transport.send(from.key, vec![message.clone()]);
        while let Some(received) = to.receive_within(Duration::from_millis(100)).await {
            let Received::Messages(messages) = received else { continue };
            others.extend(messages);
            if others.last() == Some(&message) {
                others.retain(|other| *other != message);
                return others;
            }
        }
    }
    panic!("{} never hears from {}", to.key, from.key);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_members_of_two_processes_share_one_connection() {
    let (here, there) = (process(config()).await, process(config()).await);
    let mut members = Vec::new();
    for cluster in 1..=30 {
        let one = here.add(key(cluster, ONE), 1, 64);
        let two = there.add(key(cluster, TWO), 2, 64);
        here.introduce(&one, &[(TWO, &there)]);
        members.push((one, two));
    }
    for (one, two) in &mut members {
        exchange(&here, one, two, 1).await;
        // The other side has no address for this member, and replies nevertheless.
        exchange(&there, two, one, 2).await;
    }
    for process in [&here, &there] {
        let counts = process.transport.counts();
        assert_eq!((counts["connected"], counts["connections_identified"]), (1, 1));
    }
    here.transport.stop().await;
    there.transport.stop().await;
}

/// Commands that a member forwards.
fn proposals(count: u64) -> Vec<PeerMessage> {
    let proposal = |number| {
        let command = Proposal::Command(vec![number as u8; 64].into());
        let message = Message::Propose(RequestId(number), command);
        let (term, incarnation, joined_at) = (4, 1, 0);
        PeerMessage::Raft(Envelope { from: ONE, to: TWO, term, incarnation, joined_at, message })
    };
    (0..count).map(proposal).collect()
}

/// Commands that are forwarded together arrive in order, in few frames.
#[tokio::test(flavor = "multi_thread")]
async fn forwarded_commands_share_frames() {
    let (here, there) = (process(config()).await, process(config()).await);
    let one = here.add(key(1, ONE), 1, 1024);
    let mut two = there.add(key(1, TWO), 2, 1024);
    here.introduce(&one, &[(TWO, &there)]);
    exchange(&here, &one, &mut two, 1).await;
    let frames = |process: &Process| process.transport.counts()["frames_received"];
    let before = frames(&there);
    let sent = proposals(300);
    here.transport.send(one.key, sent.clone());
    let mut received = Vec::new();
    while received.len() < sent.len() {
        let Some(Received::Messages(messages)) = two.receive_within(TIMEOUT).await else { break };
        received.extend(messages);
    }
    assert_eq!(received, sent);
    let frames = frames(&there) - before;
    assert!(frames <= 8, "{frames} frames");
    here.transport.stop().await;
    there.transport.stop().await;
}

/// Very many messages in few bytes: they are delivered in parts, and none is lost.
#[tokio::test(flavor = "multi_thread")]
async fn messages_of_many_runs_are_delivered_in_parts() {
    let (here, there) = (process(config()).await, process(config()).await);
    let one = here.add(key(1, ONE), 1, 1024);
    let mut two = there.add(key(1, TWO), 2, 1024);
    here.introduce(&one, &[(TWO, &there)]);
    exchange(&here, &one, &mut two, 1).await;
    let reply = |number| {
        let message = Message::ProposeReply(RequestId(number), Ok(EntryId::new(4, 9 + number)));
        let (term, incarnation, joined_at) = (4, 1, 0);
        PeerMessage::Raft(Envelope { from: ONE, to: TWO, term, incarnation, joined_at, message })
    };
    let sent: Vec<_> = (0..30_000).map(reply).collect();
    here.transport.send(one.key, sent.clone());
    let mut received = Vec::new();
    while received.len() < sent.len() {
        let Some(Received::Messages(messages)) = two.receive_within(TIMEOUT).await else { break };
        assert!(messages.len() < 5_000, "{} messages at once", messages.len());
        received.extend(messages);
    }
    assert!(received == sent, "{} of {} messages", received.len(), sent.len());
    here.transport.stop().await;
    there.transport.stop().await;
}

/// A process of the second version of the peer protocol. The snapshot counts as lost at once, so that
/// the leader sends another one.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_peer_gets_no_snapshot_of_unknown_size() {
    let here = process(config()).await;
    let one = here.add(key(1, ONE), 1, 1024);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    here.transport.set_peers(one.key, vec![(TWO, MemberInfo::address(address))]);
    let envelope = one.envelope(TWO, 5, Message::Snapshot(SnapshotMeta::default()));
    here.transport.send_snapshot(one.key, one.state(envelope, vec!["state".into()]));
    let (stream, _) = timeout(TIMEOUT, listener.accept()).await.unwrap().unwrap();
    let (read, mut write) = stream.into_split();
    let mut reader = FrameReader::new(read, 1 << 20);
    while reader.take_bytes::<8>().is_none() {
        reader.fill(TIMEOUT).await.unwrap();
    }
    assert_eq!(reader.next(TIMEOUT).await.unwrap().kind, FrameKind::Hello);
    let mut batch = FrameBatch::default();
    let reply = HelloReply { version: 2, ..HelloReply::default() };
    batch.push(FrameKind::HelloReply, 0, &reply);
    batch.write_to(&mut write, TIMEOUT, &TcpCounters::default()).await.unwrap();
    assert_eq!(one.reported().await.unwrap(), (TWO, false));
    assert!(reader.next(TIMEOUT).await.is_err(), "nothing of it is sent");
    here.transport.stop().await;
}

/// A process of the first version of the peer protocol.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_peer_gets_each_message_in_a_frame_of_its_own() {
    let here = process(config()).await;
    let one = here.add(key(1, ONE), 1, 1024);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    here.transport.set_peers(one.key, vec![(TWO, MemberInfo::address(address))]);
    here.transport.send(one.key, proposals(1));
    let (stream, _) = timeout(TIMEOUT, listener.accept()).await.unwrap().unwrap();
    let (read, mut write) = stream.into_split();
    let mut reader = FrameReader::new(read, 1 << 20);
    let mut batch = FrameBatch::default();
    let mut messages = Vec::new();
    while reader.take_bytes::<8>().is_none() {
        reader.fill(TIMEOUT).await.unwrap();
    }
    while messages.len() < 301 {
        let frame = reader.next(TIMEOUT).await.unwrap();
        match frame.kind {
            FrameKind::Hello => {
                batch.push(
                    FrameKind::HelloReply,
                    0,
                    &HelloReply { version: 1, ..HelloReply::default() },
                );
            }
            FrameKind::Introduce => {
                batch.push(FrameKind::Welcome, frame.channel, &EmptyHead {});
            }
            FrameKind::Message => {
                let before = messages.len();
                let deliver = |envelope| messages.push(PeerMessage::Raft(envelope));
                MessageHead::decode(&frame.head, frame.body, ONE, 1, TWO, deliver).unwrap();
                assert_eq!(messages.len(), before + 1);
                if before == 0 {
                    // The connection is established by now.
                    here.transport.send(one.key, proposals(300));
                }
            }
            _ => {}
        }
        if !batch.is_empty() {
            batch.write_to(&mut write, TIMEOUT, &TcpCounters::default()).await.unwrap();
        }
    }
    assert_eq!(messages[1..], proposals(300));
    here.transport.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_process_is_reached_again_and_receives_nothing_stale() {
    let (here, there) = (process(config()).await, process(config()).await);
    let mut one = here.add(key(1, ONE), 1, 1024);
    let mut two = there.add(key(1, TWO), 2, 64);
    here.introduce(&one, &[(TWO, &there)]);
    there.introduce(&two, &[(ONE, &here)]);
    exchange(&here, &one, &mut two, 1).await;
    exchange(&there, &two, &mut one, 1).await;

    there.transport.stop().await;
    let mut lost = false;
    while !lost {
        lost = matches!(
            one.receive("that the connection is lost").await,
            Ok(Received::ConnectionLost)
        );
    }
    let failed = || here.transport.counts()["connect_failed"];
    let began = Instant::now();
    while failed() < 2 {
        assert!(began.elapsed() < TIMEOUT, "there is no reconnect");
        here.transport.send(one.key, vec![side_message(ONE, TWO, 7)]);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(config().stale_after + Duration::from_millis(100)).await;

    let address = std::str::from_utf8(&there.info.info).unwrap().parse().unwrap();
    let back = process(TcpConfig { listen: address, ..config() }).await;
    let mut two = back.add(key(1, TWO), 2, 64);
    let others = exchange(&here, &one, &mut two, 2).await;
    assert_eq!(others, [], "stale");
    here.transport.stop().await;
    back.transport.stop().await;
}

/// Holds back bytes that are not flushed.
struct Buffered;

impl ConnectionSecurity for Buffered {
    fn dial<'a>(&'a self, stream: TcpStream, _address: &'a str) -> SecurityFuture<'a> {
        Box::pin(async { Ok(Box::new(BufStream::new(stream)) as Box<dyn PeerStream>) })
    }

    fn accept(&self, stream: TcpStream) -> AcceptFuture<'_> {
        Box::pin(async { Ok(SecuredPeer::any(BufStream::new(stream))) })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_may_be_wrapped_by_a_security_layer() {
    let secure = || TcpConfig { security: Arc::new(Buffered), ..config() };
    let (here, there) = (process(secure()).await, process(secure()).await);
    let mut one = here.add(key(1, ONE), 1, 64);
    let mut two = there.add(key(1, TWO), 2, 64);
    here.introduce(&one, &[(TWO, &there)]);
    exchange(&here, &one, &mut two, 1).await;
    exchange(&there, &two, &mut one, 2).await;
    send_snapshot(&here, &one, &mut two, 1000).await;
    here.transport.stop().await;
    there.transport.stop().await;
}

async fn send_snapshot(process: &Process, one: &FakeMember, two: &mut FakeMember, bytes: usize) {
    let meta = SnapshotMeta::default();
    let envelope = one.envelope(TWO, 1, Message::Snapshot(meta));
    let snapshot = one.snapshot(envelope, vec![Bytes::from(vec![5; bytes])]);
    process.transport.send_snapshot(one.key, snapshot);
    assert_eq!(one.reported().await, Ok((TWO, true)));
    while !matches!(two.receive("that a snapshot landed").await, Ok(Received::Snapshot(_))) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_are_rate_limited() {
    let slow = TcpConfig { snapshot_bytes_per_second: Some(1 << 20), ..config() };
    let (here, there) = (process(slow).await, process(config()).await);
    let one = here.add(key(1, ONE), 1, 64);
    let mut two = there.add(key(1, TWO), 2, 64);
    here.introduce(&one, &[(TWO, &there)]);
    let began = Instant::now();
    send_snapshot(&here, &one, &mut two, 1 << 20).await;
    // A burst of a quarter of a second is allowed.
    assert!(began.elapsed() >= Duration::from_millis(750), "{:?}", began.elapsed());
    here.transport.stop().await;
    there.transport.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_beyond_the_limit_are_dropped() {
    let full = TcpConfig { snapshots_waiting_max: 0, ..config() };
    let (here, there) = (process(full).await, process(config()).await);
    let one = here.add(key(1, ONE), 1, 64);
    here.introduce(&one, &[(TWO, &there)]);
    let envelope = one.envelope(TWO, 1, Message::Snapshot(SnapshotMeta::default()));
    here.transport.send_snapshot(one.key, one.snapshot(envelope, Vec::new()));
    assert_eq!(one.reported().await, Ok((TWO, false)));
    assert_eq!(here.transport.counts()["snapshots_no_place"], 1);
    here.transport.stop().await;
    there.transport.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_member_frees_its_channel() {
    let (here, there) = (process(config()).await, process(config()).await);
    let stays = here.add(key(1, ONE), 1, 64);
    let goes = here.add(key(2, ONE), 1, 64);
    let mut two = there.add(key(1, TWO), 2, 64);
    let mut other = there.add(key(2, TWO), 2, 64);
    here.introduce(&stays, &[(TWO, &there)]);
    here.introduce(&goes, &[(TWO, &there)]);
    exchange(&here, &stays, &mut two, 1).await;
    exchange(&here, &goes, &mut other, 1).await;
    here.transport.remove_member(goes.key);
    while !matches!(other.receive("that its peer is gone").await.unwrap(), Received::ConnectionLost)
    {
    }
    exchange(&here, &stays, &mut two, 2).await;
    assert_eq!(here.transport.counts()["connected"], 1);
    here.transport.stop().await;
    there.transport.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_process_may_discover_the_hosted_members() {
    let there = process(config()).await;
    let _two = there.add(key(7, TWO), 2, 64);
    let _one = there.add(key(9, ONE), 3, 64);
    let asker = TcpTransport::bind(config()).await.unwrap();
    let address = std::str::from_utf8(&there.info().info).unwrap();
    let members = asker.discover(address, TIMEOUT).await.unwrap();
    let keys: Vec<MemberKey> = members.iter().map(|member| member.key).collect();
    assert_eq!(keys, [key(7, TWO), key(9, ONE)]);
    assert!(members[0].membership.membership.is_voter(TWO));
    assert_eq!(there.transport.counts()["discovery_answered"], 1);

    let unused = asker.local_address().to_string();
    drop(asker);
    let asker = TcpTransport::bind(config()).await.unwrap();
    assert!(asker.discover(&unused, TIMEOUT).await.is_err());
}
