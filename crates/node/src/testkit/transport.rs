//! A test suite for implementations of [`Transport`]: it runs fake members on transports of
//! one network.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use quorate_core::membership::MemberInfo;
use quorate_core::message::{Heartbeat, Message, Proposal};
use quorate_core::{Envelope, MemberId, RequestId, SnapshotMeta};
use tokio::time::{Instant, sleep, timeout};

use super::fake::{FakeMember, Process, Received, TIMEOUT};
use super::random_values::{MESSAGE_KINDS, RandomValues};
use crate::runtime::inbox::write;
use crate::runtime::{MemberKey, OutgoingSnapshot, PeerMessage, RejectReason, Transport, lock};

/// A transport for the suite, and the info of its members in a membership.
pub struct TransportUnderTest {
    /// Not started yet.
    pub transport: Box<dyn Transport>,
    /// How peers reach it.
    pub info: MemberInfo,
}

impl fmt::Debug for TransportUnderTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransportUnderTest").field("info", &self.info).finish_non_exhaustive()
    }
}

/// The checks that a transport passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportSuitePassed {
    /// The names of the checks, in their order.
    pub checks: Vec<&'static str>,
}

/// The check that a transport failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportSuiteFailure {
    /// The name of the check.
    pub check: &'static str,
    /// What went wrong.
    pub what: String,
}

impl TransportSuiteFailure {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { check: "", what: what.into() }
    }
}

impl fmt::Display for TransportSuiteFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check, self.what)
    }
}

impl std::error::Error for TransportSuiteFailure {}

/// Runs all checks on transports from `make`, which have to reach each other. Lost messages
/// are tolerated, as long as a retry gets through.
pub async fn check<F, M>(make: F) -> Result<TransportSuitePassed, TransportSuiteFailure>
where
    F: Fn() -> M,
    M: Future<Output = TransportUnderTest>,
{
    let make: MakeTransport<'_> = &|| Box::pin(make());
    let mut checks = Vec::new();
    macro_rules! run {
        ($($check:ident),* $(,)?) => {$(
            let name = stringify!($check);
            $check(make).await.map_err(|failure| TransportSuiteFailure { check: name, ..failure })?;
            checks.push(name);
        )*};
    }
    run!(
        messages_arrive_unaltered,
        messages_to_a_peer_keep_their_order,
        clusters_do_not_mix,
        unknown_peers_do_not_block,
        unknown_senders_get_replies,
        messages_to_a_busy_member_are_dropped,
        snapshots_arrive_complete,
        a_refused_snapshot_is_reported_as_lost,
        a_removed_member_is_not_received,
        a_rejected_member_is_no_longer_received,
        nothing_is_delivered_after_the_stop,
    );
    Ok(TransportSuitePassed { checks })
}

type MakeTransport<'a> = &'a dyn Fn() -> Pin<Box<dyn Future<Output = TransportUnderTest> + 'a>>;

const CLUSTER: u64 = 0xc1;
const ONE: MemberId = MemberId(1);
const TWO: MemberId = MemberId(2);
const THREE: MemberId = MemberId(3);

/// The interval between retries.
const RETRY_INTERVAL: Duration = Duration::from_millis(300);

async fn process(make: MakeTransport<'_>) -> Result<Process, TransportSuiteFailure> {
    let TransportUnderTest { transport, info } = make().await;
    Process::start(transport, info)
        .map_err(|why| TransportSuiteFailure::new(format!("does not start: {why}")))
}

/// Two processes with one member each, which know each other's address.
struct ProcessPair {
    here: Process,
    there: Process,
    one: FakeMember,
    two: FakeMember,
}

impl ProcessPair {
    async fn new(
        make: MakeTransport<'_>,
        unread_max: usize,
    ) -> Result<Self, TransportSuiteFailure> {
        let (here, there) = (process(make).await?, process(make).await?);
        let one = here.add(MemberKey { cluster: CLUSTER, member: ONE }, 11, 1024);
        let two = there.add(MemberKey { cluster: CLUSTER, member: TWO }, 22, unread_max);
        here.introduce(&one, &[(TWO, &there)]);
        there.introduce(&two, &[(ONE, &here)]);
        Ok(Self { here, there, one, two })
    }

    async fn stop(self) -> Result<(), TransportSuiteFailure> {
        for process in [&self.here, &self.there] {
            stop(process).await?;
        }
        Ok(())
    }
}

async fn stop(process: &Process) -> Result<(), TransportSuiteFailure> {
    let stopped = timeout(TIMEOUT, process.transport.stop()).await;
    stopped.map_err(|_| TransportSuiteFailure::new("does not stop"))
}

/// A message with a number.
fn numbered_message(from: &FakeMember, to: MemberId, number: u64) -> PeerMessage {
    let heartbeat = Heartbeat { commit: 0, round: number, sent_at: 0, settled: 0 };
    PeerMessage::Raft(from.envelope(to, 1, Message::Heartbeat(heartbeat)))
}

fn number(message: &PeerMessage) -> Option<u64> {
    match message {
        PeerMessage::Raft(Envelope { message: Message::Heartbeat(heartbeat), .. }) => {
            Some(heartbeat.round)
        }
        _ => None,
    }
}

/// Sends a message, with retries, until one that matches is received.
async fn exchange(
    from: (&Process, &FakeMember),
    to: &mut FakeMember,
    message: &PeerMessage,
    is_it: impl Fn(&PeerMessage) -> bool,
) -> Result<PeerMessage, TransportSuiteFailure> {
    let (process, member) = from;
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        process.transport.send(member.key, vec![message.clone()]);
        let retry_at = Instant::now() + RETRY_INTERVAL;
        while let Some(received) =
            to.receive_within(retry_at.saturating_duration_since(Instant::now())).await
        {
            let Received::Messages(messages) = received else { continue };
            if let Some(found) = messages.into_iter().find(|message| is_it(message)) {
                return Ok(found);
            }
        }
    }
    Err(TransportSuiteFailure::new(format!("{} never hears from {}", to.key, member.key)))
}

async fn messages_arrive_unaltered(make: MakeTransport<'_>) -> Result<(), TransportSuiteFailure> {
    let mut pair = ProcessPair::new(make, 64).await?;
    let mut random = RandomValues::new(1);
    for round in 0..20 * MESSAGE_KINDS {
        // The term identifies the message.
        let message = random.message(round % MESSAGE_KINDS);
        let mut envelope = pair.one.envelope(TWO, round + 1, message);
        envelope.joined_at = random.number();
        if round % (2 * MESSAGE_KINDS) == 9 {
            // A request that is forwarded for another member.
            envelope = Envelope { from: THREE, incarnation: 0, ..envelope };
        }
        let sent = PeerMessage::Raft(envelope);
        let is_it = |message: &PeerMessage| match message {
            PeerMessage::Raft(envelope) => envelope.term == round + 1,
            PeerMessage::Side { .. } => false,
        };
        let received = exchange((&pair.here, &pair.one), &mut pair.two, &sent, is_it).await?;
        if received != sent {
            return Err(TransportSuiteFailure::new(format!(
                "sent {sent:?}, received {received:?}"
            )));
        }
    }
    for _ in 0..20 {
        let sent = PeerMessage::Side { from: ONE, to: TWO, bytes: random.bytes() };
        let is_it = |message: &PeerMessage| *message == sent;
        exchange((&pair.here, &pair.one), &mut pair.two, &sent, is_it).await?;
    }
    pair.stop().await
}

async fn messages_to_a_peer_keep_their_order(
    make: MakeTransport<'_>,
) -> Result<(), TransportSuiteFailure> {
    let mut pair = ProcessPair::new(make, 64).await?;
    let last = 500;
    for first in (0..last).step_by(20) {
        let messages = (first..first + 20).map(|n| numbered_message(&pair.one, TWO, n)).collect();
        pair.here.transport.send(pair.one.key, messages);
    }
    let (mut before, mut received) = (None, 0);
    let deadline = Instant::now() + TIMEOUT;
    while before != Some(last) {
        if Instant::now() > deadline {
            return Err(TransportSuiteFailure::new("the last was never received"));
        }
        let Some(Received::Messages(messages)) = pair.two.receive_within(RETRY_INTERVAL).await
        else {
            pair.here.transport.send(pair.one.key, vec![numbered_message(&pair.one, TWO, last)]);
            continue;
        };
        for found in messages.iter().filter_map(number) {
            if before.is_some_and(|before| before >= found) {
                return Err(TransportSuiteFailure::new(format!(
                    "{found} was received after {before:?}"
                )));
            }
            before = Some(found);
            received += 1;
        }
    }
    if received < 2 {
        return Err(TransportSuiteFailure::new("all but the last were lost"));
    }
    pair.stop().await
}

async fn clusters_do_not_mix(make: MakeTransport<'_>) -> Result<(), TransportSuiteFailure> {
    let mut pair = ProcessPair::new(make, 64).await?;
    let other = CLUSTER + 1;
    let one = pair.here.add(MemberKey { cluster: other, member: ONE }, 33, 64);
    let mut two = pair.there.add(MemberKey { cluster: other, member: TWO }, 44, 64);
    pair.here.introduce(&one, &[(TWO, &pair.there)]);
    for round in 0..50 {
        let (even, odd) = (2 * round, 2 * round + 1);
        let sent = numbered_message(&pair.one, TWO, even);
        let is_it =
            |message: &PeerMessage| number(message).is_some_and(|n| n % 2 == 1 || n == even);
        let received = exchange((&pair.here, &pair.one), &mut pair.two, &sent, is_it).await?;
        let sent_there = numbered_message(&one, TWO, odd);
        let is_it = |message: &PeerMessage| number(message).is_some_and(|n| n % 2 == 0 || n == odd);
        let heard_there = exchange((&pair.here, &one), &mut two, &sent_there, is_it).await?;
        if received != sent || heard_there != sent_there {
            return Err(TransportSuiteFailure::new(
                "a member received a message of another cluster",
            ));
        }
    }
    pair.stop().await
}

async fn unknown_peers_do_not_block(make: MakeTransport<'_>) -> Result<(), TransportSuiteFailure> {
    let mut pair = ProcessPair::new(make, 64).await?;
    let unknown = MemberId(99);
    let began = Instant::now();
    for round in 0..1000 {
        pair.here.transport.send(pair.one.key, vec![numbered_message(&pair.one, unknown, round)]);
    }
    if began.elapsed() > TIMEOUT {
        return Err(TransportSuiteFailure::new("sending to an unknown peer blocks"));
    }
    let known = numbered_message(&pair.one, TWO, 1);
    exchange((&pair.here, &pair.one), &mut pair.two, &known, |message| *message == known).await?;
    loop {
        if let Received::Unreachable(MemberId(99)) =
            pair.one.receive("that the peer is unreachable").await?
        {
            return pair.stop().await;
        }
    }
}

async fn unknown_senders_get_replies(make: MakeTransport<'_>) -> Result<(), TransportSuiteFailure> {
    let mut pair = ProcessPair::new(make, 64).await?;
    pair.there.introduce(&pair.two, &[]);
    let question = numbered_message(&pair.one, TWO, 1);
    let is_it = |message: &PeerMessage| *message == question;
    exchange((&pair.here, &pair.one), &mut pair.two, &question, is_it).await?;
    let answer = numbered_message(&pair.two, ONE, 2);
    let is_it = |message: &PeerMessage| *message == answer;
    exchange((&pair.there, &pair.two), &mut pair.one, &answer, is_it).await?;
    pair.stop().await
}

async fn messages_to_a_busy_member_are_dropped(
    make: MakeTransport<'_>,
) -> Result<(), TransportSuiteFailure> {
    let mut pair = ProcessPair::new(make, 1).await?;
    let first = numbered_message(&pair.one, TWO, 1);
    exchange((&pair.here, &pair.one), &mut pair.two, &first, |message| *message == first).await?;
    let command = Bytes::from(vec![7; 1 << 20]);
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let message = Message::Propose(RequestId(1), Proposal::Command(command.clone()));
        let message = PeerMessage::Raft(pair.one.envelope(TWO, 1, message));
        pair.here.transport.send(pair.one.key, vec![message]);
        if let Some(Received::Unreachable(TWO)) =
            pair.one.receive_within(Duration::from_millis(1)).await
        {
            break;
        }
        if Instant::now() > deadline {
            return Err(TransportSuiteFailure::new(
                "messages to a member that reads nothing are not dropped",
            ));
        }
    }
    // It reads again: messages arrive again.
    let last = numbered_message(&pair.one, TWO, 2);
    exchange((&pair.here, &pair.one), &mut pair.two, &last, |message| *message == last).await?;
    pair.stop().await
}

/// A snapshot in chunks, and all its bytes.
fn snapshot(member: &FakeMember, seed: u64) -> (Envelope, Vec<Bytes>, Vec<u8>) {
    let mut random = RandomValues::new(seed);
    let meta: SnapshotMeta = random.snapshot_meta();
    let sizes = [1, 700_000, 3, 1 << 20, 65_536];
    let chunks: Vec<Bytes> =
        sizes.iter().map(|size| (0..*size).map(|_| random.next() as u8).collect()).collect();
    let all = chunks.concat();
    (member.envelope(TWO, 5, Message::Snapshot(meta)), chunks, all)
}

async fn snapshots_arrive_complete(make: MakeTransport<'_>) -> Result<(), TransportSuiteFailure> {
    let mut pair = ProcessPair::new(make, 64).await?;
    send_snapshot(&mut pair, 1, FakeMember::snapshot).await?;
    send_snapshot(&mut pair, 2, FakeMember::snapshot).await?;
    send_snapshot(&mut pair, 5, FakeMember::state).await?;
    pair.stop().await
}

async fn send_snapshot(
    pair: &mut ProcessPair,
    seed: u64,
    make: fn(&FakeMember, Envelope, Vec<Bytes>) -> OutgoingSnapshot,
) -> Result<(), TransportSuiteFailure> {
    let (envelope, chunks, all) = snapshot(&pair.one, seed);
    let outgoing = make(&pair.one, envelope.clone(), chunks);
    pair.here.transport.send_snapshot(pair.one.key, outgoing);
    if pair.one.reported().await? != (TWO, true) {
        return Err(TransportSuiteFailure::new("a snapshot was lost"));
    }
    let arrived = loop {
        if let Received::Snapshot(arrived) = pair.two.receive("that a snapshot arrived").await? {
            break arrived;
        }
    };
    if *arrived != envelope {
        return Err(TransportSuiteFailure::new(format!("sent {envelope:?}, arrived {arrived:?}")));
    }
    let Message::Snapshot(meta) = &arrived.message else {
        return Err(TransportSuiteFailure::new("what arrived is not a snapshot"));
    };
    if lock(&pair.two.disk.snapshots).get(&meta.id) != Some(&all) {
        return Err(TransportSuiteFailure::new("a snapshot arrived with other bytes"));
    }
    Ok(())
}

async fn a_refused_snapshot_is_reported_as_lost(
    make: MakeTransport<'_>,
) -> Result<(), TransportSuiteFailure> {
    let mut pair = ProcessPair::new(make, 64).await?;
    pair.two.disk.refuses.store(true, Ordering::SeqCst);
    let (envelope, chunks, _) = snapshot(&pair.one, 3);
    pair.here.transport.send_snapshot(pair.one.key, pair.one.snapshot(envelope, chunks));
    if pair.one.reported().await? != (TWO, false) {
        return Err(TransportSuiteFailure::new(
            "a snapshot that was refused is said to have arrived",
        ));
    }
    pair.two.disk.refuses.store(false, Ordering::SeqCst);
    send_snapshot(&mut pair, 4, FakeMember::snapshot).await?;
    pair.stop().await
}

/// Both members send; true when the message of the first one was received.
async fn is_received(
    pair: &mut ProcessPair,
    known: &FakeMember,
    round: u64,
) -> Result<bool, TransportSuiteFailure> {
    pair.here.transport.send(pair.one.key, vec![numbered_message(&pair.one, TWO, 2 * round)]);
    let sent = numbered_message(known, TWO, 2 * round + 1);
    let mut received = false;
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        pair.here.transport.send(known.key, vec![sent.clone()]);
        let retry_at = Instant::now() + RETRY_INTERVAL;
        while let Some(found) =
            pair.two.receive_within(retry_at.saturating_duration_since(Instant::now())).await
        {
            let Received::Messages(messages) = found else { continue };
            received |= messages.iter().any(|message| message.from() == ONE);
            if messages.contains(&sent) {
                return Ok(received);
            }
        }
    }
    Err(TransportSuiteFailure::new("an accepted member is not received"))
}

async fn a_removed_member_is_not_received(
    make: MakeTransport<'_>,
) -> Result<(), TransportSuiteFailure> {
    let mut pair = ProcessPair::new(make, 64).await?;
    let three = pair.here.add(MemberKey { cluster: CLUSTER, member: THREE }, 33, 64);
    pair.here.introduce(&three, &[(TWO, &pair.there)]);
    write(&pair.two.local.filter).removed.push(ONE);
    for round in 0..20 {
        if is_received(&mut pair, &three, round).await? {
            return Err(TransportSuiteFailure::new("a member that was removed is received"));
        }
    }
    pair.stop().await
}

async fn a_rejected_member_is_no_longer_received(
    make: MakeTransport<'_>,
) -> Result<(), TransportSuiteFailure> {
    let mut pair = ProcessPair::new(make, 64).await?;
    let three = pair.here.add(MemberKey { cluster: CLUSTER, member: THREE }, 33, 64);
    pair.here.introduce(&three, &[(TWO, &pair.there)]);
    let first = numbered_message(&pair.one, TWO, 1);
    exchange((&pair.here, &pair.one), &mut pair.two, &first, |message| *message == first).await?;
    let incarnation = pair.one.incarnation;
    write(&pair.two.local.filter).rejected_disks.push((ONE, incarnation));
    pair.there.transport.reject(pair.two.key, ONE, RejectReason::OtherDisk);
    // Messages in flight may still arrive.
    let deadline = Instant::now() + TIMEOUT;
    let (mut round, mut quiet) = (1, 0);
    while quiet < 10 {
        quiet = if is_received(&mut pair, &three, round).await? { 0 } else { quiet + 1 };
        round += 1;
        if Instant::now() > deadline {
            return Err(TransportSuiteFailure::new("a rejected member is still received"));
        }
    }
    pair.stop().await
}

async fn nothing_is_delivered_after_the_stop(
    make: MakeTransport<'_>,
) -> Result<(), TransportSuiteFailure> {
    let mut pair = ProcessPair::new(make, 64).await?;
    let first = numbered_message(&pair.one, TWO, 1);
    exchange((&pair.here, &pair.one), &mut pair.two, &first, |message| *message == first).await?;
    stop(&pair.there).await?;
    while pair.two.receive_within(Duration::ZERO).await.is_some() {}
    for round in 0..20 {
        pair.here.transport.send(pair.one.key, vec![numbered_message(&pair.one, TWO, round)]);
        sleep(Duration::from_millis(5)).await;
        if let Some(Received::Messages(_)) = pair.two.receive_within(Duration::ZERO).await {
            return Err(TransportSuiteFailure::new("something was delivered after the stop"));
        }
    }
    // A transport without a peer stops without delay.
    stop(&pair.here).await
}
