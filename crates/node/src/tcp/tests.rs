use std::hint::black_box;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use quorate_core::message::{Append, Heartbeat, HeartbeatReply, Proposal};
use quorate_core::{Entry, EntryId, Payload, RequestId, Stalled};

use super::frame::{Frame, FrameBatch, FrameKind, FrameReadError, take_frame};
use super::message::MalformedMessage;
use super::*;
use crate::testkit::random_values::{MESSAGE_KINDS, RandomValues};

const FROM: MemberId = MemberId(1);
const TO: MemberId = MemberId(2);
const INCARNATION: u64 = 77;
const MAX: usize = 64 << 20;

fn pair() -> Introduction {
    let from = MemberKey { cluster: 9, member: FROM };
    Introduction { from, incarnation: INCARNATION, to: TO }
}

fn envelope(message: Message) -> Envelope {
    Envelope { from: FROM, to: TO, term: 4, incarnation: INCARNATION, joined_at: 3, message }
}

fn encode(envelope: &Envelope) -> Vec<u8> {
    let head = MessageHead::new(envelope, FROM, INCARNATION).unwrap();
    let body = body_of(&envelope.message).unwrap();
    let mut batch = FrameBatch::default();
    batch.push_with_body(FrameKind::Message, 5, &head, body.as_ref());
    batch.to_bytes()
}

fn take(bytes: &[u8]) -> Result<Option<Frame>, FrameReadError> {
    take_frame(&mut BytesMut::from(bytes), MAX)
}

fn decode(head: &[u8], body: Bytes) -> Result<Envelope, MalformedMessage> {
    decode_all(head, body).map(|mut envelopes| envelopes.remove(0))
}

fn decode_all(head: &[u8], body: Bytes) -> Result<Vec<Envelope>, MalformedMessage> {
    let mut envelopes = Vec::new();
    MessageHead::decode(head, body, FROM, INCARNATION, TO, |envelope| envelopes.push(envelope))?;
    Ok(envelopes)
}

#[test]
fn every_message_survives_encoding_and_decoding() {
    let mut random = RandomValues::new(1);
    for round in 0..200 * MESSAGE_KINDS {
        let sent = envelope(random.message(round % MESSAGE_KINDS));
        let mut bytes = BytesMut::from(&encode(&sent)[..]);
        let frame = take_frame(&mut bytes, MAX).unwrap().unwrap();
        assert_eq!((frame.kind, frame.channel, bytes.len()), (FrameKind::Message, 5, 0));
        assert_eq!(decode(&frame.head, frame.body), Ok(sent));
    }
    let meta = random.snapshot_meta();
    let sent = envelope(Message::Snapshot(meta));
    let frame = take(&encode(&sent)).unwrap().unwrap();
    assert_eq!(decode(&frame.head, frame.body), Ok(sent));
}

/// One of each kind, not too long.
fn short_messages() -> Vec<Envelope> {
    let mut random = RandomValues::new(2);
    let mut short = |kind| loop {
        let envelope = envelope(random.message(kind));
        let has_entries = |append: &Append| !append.entries.is_empty();
        let fits = encode(&envelope).len() < 1500;
        if fits && !matches!(&envelope.message, Message::Append(append) if !has_entries(append)) {
            return envelope;
        }
    };
    (0..MESSAGE_KINDS).map(&mut short).collect()
}

#[test]
fn truncated_and_corrupted_frames_are_rejected() {
    let mut flips = 0;
    for envelope in short_messages() {
        let whole = encode(&envelope);
        for end in 0..whole.len() {
            assert!(matches!(take(&whole[..end]), Ok(None)), "{end} of {}", whole.len());
        }
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            // A longer one is waited for.
            let taken = take(&flipped);
            assert!(matches!(taken, Ok(None) | Err(_)), "bit {bit} of {envelope:?}: {taken:?}");
            flips += 1;
        }
    }
    assert!(flips > 8 * 24 * MESSAGE_KINDS as usize);
}

/// A head with very many numbers would take several times its bytes when it is decoded.
#[test]
fn a_long_head_of_a_message_is_refused_before_it_arrives() {
    let head_bytes = |bytes: u32, kind: FrameKind| {
        let mut header = [0; 24];
        header[0] = kind as u8;
        header[8..12].copy_from_slice(&bytes.to_le_bytes());
        take(&header)
    };
    assert!(matches!(head_bytes(64 << 10, FrameKind::Message), Ok(None)));
    for kind in [FrameKind::Message, FrameKind::SideMessage] {
        let refused = head_bytes((64 << 10) + 1, kind);
        assert!(matches!(refused, Err(FrameReadError::Oversized)), "{refused:?}");
    }
    assert!(matches!(head_bytes(1 << 20, FrameKind::HostedMembers), Ok(None)));
}

/// As above, but with checksums that fit: what a hostile peer can send.
#[test]
fn altered_contents_with_a_valid_checksum_never_panic() {
    let (mut decoded, mut refused) = (0, 0);
    let mut check = |head: &[u8], body: Bytes| match decode(head, body) {
        Ok(envelope) => {
            let frame = take(&encode(&envelope)).unwrap().unwrap();
            assert_eq!(decode(&frame.head, frame.body), Ok(envelope));
            decoded += 1;
        }
        Err(MalformedMessage) => refused += 1,
    };
    for envelope in short_messages() {
        let Frame { head, body, .. } = take(&encode(&envelope)).unwrap().unwrap();
        for end in 0..head.len() {
            check(&head[..end], body.clone());
        }
        for end in 0..body.len() {
            check(&head, body.slice(..end));
        }
        for bit in 0..head.len() * 8 {
            let mut flipped = head.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            check(&flipped, body.clone());
        }
        for bit in 0..body.len() * 8 {
            let mut flipped = body.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            check(&head, flipped.into());
        }
    }
    assert!(decoded > 1000 && refused > 1000, "{decoded} {refused}");
}

#[test]
fn only_a_request_may_be_forwarded_for_another_member() {
    let passed_on = |message| Envelope { from: MemberId(8), incarnation: 0, ..envelope(message) };
    let request = passed_on(Message::Propose(RequestId(1), Proposal::Command("x".into())));
    let frame = take(&encode(&request)).unwrap().unwrap();
    assert_eq!(decode(&frame.head, frame.body), Ok(request.clone()));
    let with_disk = Envelope { incarnation: 5, ..request };
    assert!(MessageHead::new(&with_disk, FROM, INCARNATION).is_err());
    let mut random = RandomValues::new(3);
    for kind in (0..MESSAGE_KINDS).filter(|kind| *kind != 9) {
        assert!(MessageHead::new(&passed_on(random.message(kind)), FROM, INCARNATION).is_err());
    }
}

#[test]
fn entries_that_are_not_consecutive_are_not_sent() {
    let entries: Entries =
        [Entry::command(1, 4, "a"), Entry::command(1, 6, "b")].into_iter().collect();
    assert!(encode_entries(&entries).is_err());
}

#[test]
fn the_frame_layout_does_not_change() {
    let heartbeat = Heartbeat { commit: 300, round: 1, sent_at: 0, settled: 2 };
    let bytes = encode(&envelope(Message::Heartbeat(heartbeat)));
    let head = [8, 4, 16, 3, 0xb2, 1, 7, 8, 0xac, 2, 16, 1, 32, 2];
    let header = [16, 0, 0, 0, 5, 0, 0, 0, 14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let checksum = crc32c::crc32c(&[&header[..], &head].concat()).to_le_bytes();
    assert_eq!(bytes, [&header[..], &checksum, &head].concat());
}

fn append(entries: usize) -> Message {
    let entry = |nth| Entry::command(4, 1000 + nth as u64, vec![nth as u8; 128]);
    let entries: Entries = (0..entries).map(entry).collect();
    Message::Append(Append { prev: EntryId::new(4, 999), entries, commit: 990 })
}

fn route_to(to: MemberId) -> Introduction {
    Introduction { to, ..pair() }
}

#[test]
fn entries_for_several_peers_are_encoded_once_and_not_copied_when_decoded() {
    let message = append(64);
    let Message::Append(Append { entries, .. }) = &message else { unreachable!() };
    let mut bodies = SharedBodies::default();
    let one = bodies.body(entries).unwrap();
    let other = bodies.body(&entries.clone()).unwrap();
    assert_eq!((bodies.made, one.bytes.as_ptr()), (1, other.bytes.as_ptr()));
    let another: Entries = entries.iter().cloned().collect();
    bodies.body(&another).unwrap();
    assert_eq!(bodies.made, 2);

    let frame = take(&encode(&envelope(message))).unwrap().unwrap();
    let within = frame.body.as_ptr_range();
    let decoded = decode(&frame.head, frame.body).unwrap();
    let Message::Append(Append { entries, .. }) = decoded.message else { unreachable!() };
    assert_eq!(entries.len(), 64);
    for entry in entries.iter() {
        let Payload::Command(command) = &entry.payload else { unreachable!() };
        assert!(within.contains(&command.as_ptr()));
    }
}

mod queues {
    use super::super::send_queue::{PushResult, RefusalLogLevel, SendQueue};
    use super::*;

    fn config() -> TcpConfig {
        let mut config = TcpConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
        config.queue_frames_max = 100;
        config.queue_bytes_max = 1 << 20;
        config.offline_frames_max = 10;
        config
    }

    fn online() -> SendQueue {
        let mut queue = SendQueue::default();
        queue.online = true;
        queue
    }

    fn side_message(to: u64, bytes: usize) -> QueuedFrame {
        QueuedFrame::side_message(
            route_to(MemberId(to)),
            FrameBody::new(vec![0; bytes].into()),
            Instant::now(),
        )
    }

    fn push(queue: &mut SendQueue, queued: QueuedFrame) -> PushResult {
        queue.push(queued, &config())
    }

    fn is_taken(pushed: &PushResult) -> bool {
        pushed.dropped.is_none()
    }

    #[tokio::test(start_paused = true)]
    async fn one_pair_uses_at_most_half_of_the_queue() {
        let mut queue = online();
        let taken = (0..100).filter(|_| is_taken(&push(&mut queue, side_message(2, 10)))).count();
        assert_eq!(taken, 50);
        let taken = (0..100).filter(|_| is_taken(&push(&mut queue, side_message(3, 10)))).count();
        assert_eq!(taken, 25);
        // Frames that were taken make room.
        queue.take(usize::MAX, &mut Vec::new());
        assert!(queue.is_empty());
        assert!(is_taken(&push(&mut queue, side_message(2, 10))));
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_are_bounded_but_one_frame_always_fits() {
        let mut queue = online();
        assert!(is_taken(&push(&mut queue, side_message(2, 5 << 20))));
        assert!(!is_taken(&push(&mut queue, side_message(3, 10))));
        queue.take(usize::MAX, &mut Vec::new());
        let taken =
            (0..100).filter(|_| is_taken(&push(&mut queue, side_message(2, 100_000)))).count();
        assert_eq!(taken, 5);
        assert!((500_000..=1 << 20).contains(&queue.bytes()), "{}", queue.bytes());
        // So are those that wait for a connection.
        let mut queue = SendQueue::default();
        for _ in 0..100 {
            push(&mut queue, side_message(2, 300_000));
            assert!(queue.bytes() <= 1 << 20, "{}", queue.bytes());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn while_disconnected_the_newest_frames_are_kept_and_stale_ones_dropped() {
        let mut queue = SendQueue::default();
        for number in 0..25 {
            push(&mut queue, side_message(2, 10 + number));
        }
        let mut kept = Vec::new();
        queue.take(usize::MAX, &mut kept);
        assert_eq!(kept.len(), 10);
        assert_eq!(kept[0].bytes(), side_message(2, 10 + 15).bytes());
        push(&mut queue, side_message(2, 1));
        tokio::time::advance(Duration::from_secs(1)).await;
        push(&mut queue, side_message(2, 1));
        assert_eq!(queue.drop_stale(Duration::from_millis(500)), 1);
        assert!(!queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_pair_backs_off_and_other_pairs_do_not() {
        let mut config = config();
        config.refused_min = Duration::from_secs(1);
        let mut queue = online();
        let refused = route_to(MemberId(2));
        let (removed, other_disk) = (RejectReason::Removed.code(), RejectReason::OtherDisk.code());
        assert_eq!(queue.on_refused(refused, removed, &config), RefusalLogLevel::Lasting);
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            let almost = Duration::from_secs(seconds) - Duration::from_millis(1);
            tokio::time::advance(almost).await;
            assert!(!is_taken(&push(&mut queue, side_message(2, 1))));
            assert!(is_taken(&push(&mut queue, side_message(3, 1))));
            tokio::time::advance(Duration::from_millis(2)).await;
            assert!(is_taken(&push(&mut queue, side_message(2, 1))));
            assert_eq!(queue.on_refused(refused, removed, &config), RefusalLogLevel::Repeated);
        }
        assert_eq!(queue.on_refused(refused, other_disk, &config), RefusalLogLevel::Lasting);
        queue.on_accepted(&refused);
        assert!(is_taken(&push(&mut queue, side_message(2, 1))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_that_may_pass_is_a_warning_only_when_it_lasts() {
        let config = config();
        let (mut queue, pair) = (online(), route_to(MemberId(2)));
        let code = RejectReason::OtherMember.code();
        assert_eq!(queue.on_refused(pair, code, &config), RefusalLogLevel::MayPass);
        assert_eq!(queue.on_refused(pair, code, &config), RefusalLogLevel::Repeated);
        tokio::time::advance(config.warn_after).await;
        assert_eq!(queue.on_refused(pair, code, &config), RefusalLogLevel::Lasting);
        assert_eq!(queue.on_refused(pair, code, &config), RefusalLogLevel::Repeated);
        // The backoff stays short: the member may start any time.
        tokio::time::advance(5 * config.refused_min).await;
        assert!(is_taken(&push(&mut queue, side_message(2, 1))));
    }

    #[tokio::test(start_paused = true)]
    async fn an_unknown_reason_of_a_later_version_is_lasting() {
        let config = config();
        let (mut queue, pair) = (online(), route_to(MemberId(2)));
        for code in [0, 5, 4_000_000_000] {
            assert_eq!(RejectReason::from_code(code), None);
            assert_eq!(queue.on_refused(pair, code, &config), RefusalLogLevel::Lasting);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn unreachable_is_reported_at_the_configured_interval() {
        let mut queue = SendQueue::default();
        queue.failing = true;
        let reported = (0..10).filter(|_| push(&mut queue, side_message(2, 1)).report).count();
        assert_eq!(reported, 1);
        tokio::time::advance(Duration::from_millis(100)).await;
        assert!(push(&mut queue, side_message(2, 1)).report);
    }
}

/// Run with `--release -- --ignored --nocapture`.
#[test]
#[ignore = "measures"]
fn cost_of_an_append_to_two_peers() {
    for entries in [1, 64, 1000] {
        let rounds = 200_000 / entries.max(10);
        let message = append(entries);
        let (mut batch, mut bytes) = (FrameBatch::default(), Vec::new());
        let began = Instant::now();
        for _ in 0..rounds {
            let mut bodies = SharedBodies::default();
            for to in [MemberId(2), MemberId(3)] {
                batch.clear();
                let envelope = Envelope { to, ..envelope(message.clone()) };
                let route_pair = route_to(to);
                let queued = prepare(route_pair, envelope, &mut bodies);
                queued.push_to(&mut batch, 5);
                black_box(&batch);
            }
        }
        let encoded = began.elapsed() / rounds as u32;
        bytes.extend(batch.to_bytes());
        let began = Instant::now();
        for _ in 0..rounds {
            let mut buffer = BytesMut::from(&bytes[..]);
            let frame = take_frame(&mut buffer, MAX).unwrap().unwrap();
            black_box(decode(&frame.head, frame.body).unwrap());
        }
        let decoded = began.elapsed() / rounds as u32;
        let each = |all: Duration| all.as_nanos() as f64 / entries as f64;
        println!(
            "{entries} entries of 128 bytes: encode for 2 peers {encoded:?} ({:.1} ns/entry), \
             decode {decoded:?} ({:.1} ns/entry)",
            each(encoded),
            each(decoded),
        );
    }
    let reply = envelope(Message::HeartbeatReply(HeartbeatReply {
        commit: 9,
        round: 0,
        sent_at: 7,
        applied: 8,
        stalled: Stalled { disk: true, machine: false },
    }));
    let began = Instant::now();
    let mut batch = FrameBatch::default();
    for _ in 0..100_000 {
        batch.clear();
        prepare(pair(), reply.clone(), &mut SharedBodies::default()).push_to(&mut batch, 5);
        let frame = take(&batch.to_bytes()).unwrap().unwrap();
        black_box(decode(&frame.head, frame.body).unwrap());
    }
    println!("heartbeat reply there and back {:?}", began.elapsed() / 100_000);
}

fn prepare(pair: Introduction, envelope: Envelope, bodies: &mut SharedBodies) -> QueuedFrame {
    queued(pair, &[PeerMessage::Raft(envelope)], bodies, Instant::now())
        .unwrap_or_else(|_| panic!("unsendable"))
}
