//! What every [`Transport`] has to do, as a suite: give it a way to make transports of one
//! network, and it plays members on them.

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
use crate::runtime::{MemberKey, PeerMessage, RejectReason, Transport, lock};

/// A transport for the suite, and what a membership says about members that live on it.
pub struct Made {
    /// Not started yet.
    pub transport: Box<dyn Transport>,
    /// How others find it.
    pub info: MemberInfo,
}

impl fmt::Debug for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Made").field("info", &self.info).finish_non_exhaustive()
    }
}

/// What a transport did as it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// The names of the checks, in their order.
    pub checks: Vec<&'static str>,
}

/// What a transport did not do as it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The name of the check.
    pub check: &'static str,
    /// What went wrong.
    pub what: String,
}

impl Failure {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { check: "", what: what.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check, self.what)
    }
}

impl std::error::Error for Failure {}

/// Plays everything on transports that `make` makes, which have to reach each other.
/// Loss is forgiven, as long as what is said again gets through.
pub async fn check<F, M>(make: F) -> Result<Passed, Failure>
where
    F: Fn() -> M,
    M: Future<Output = Made>,
{
    let make: Make<'_> = &|| Box::pin(make());
    let mut checks = Vec::new();
    macro_rules! run {
        ($($check:ident),* $(,)?) => {$(
            let name = stringify!($check);
            $check(make).await.map_err(|failure| Failure { check: name, ..failure })?;
            checks.push(name);
        )*};
    }
    run!(
        what_is_sent_arrives_unaltered,
        order_is_kept,
        clusters_do_not_mix,
        unknown_peers_block_nobody,
        strangers_are_answered,
        a_busy_member_makes_others_drop,
        a_snapshot_arrives_whole,
        a_refused_snapshot_is_lost,
        who_is_not_let_in_is_not_heard,
        who_is_turned_away_is_not_heard_any_more,
        nothing_is_heard_after_the_stop,
    );
    Ok(Passed { checks })
}

type Make<'a> = &'a dyn Fn() -> Pin<Box<dyn Future<Output = Made> + 'a>>;

const CLUSTER: u64 = 0xc1;
const ONE: MemberId = MemberId(1);
const TWO: MemberId = MemberId(2);
const THREE: MemberId = MemberId(3);

/// After this long what was not heard is said again.
const AGAIN: Duration = Duration::from_millis(300);

async fn process(make: Make<'_>) -> Result<Process, Failure> {
    let Made { transport, info } = make().await;
    Process::start(transport, info).map_err(|why| Failure::new(format!("does not start: {why}")))
}

/// Two processes with a member each, which know where the other is.
struct Pair {
    here: Process,
    there: Process,
    one: FakeMember,
    two: FakeMember,
}

impl Pair {
    async fn new(make: Make<'_>, unread_max: usize) -> Result<Self, Failure> {
        let (here, there) = (process(make).await?, process(make).await?);
        let one = here.add(MemberKey { cluster: CLUSTER, member: ONE }, 11, 1024);
        let two = there.add(MemberKey { cluster: CLUSTER, member: TWO }, 22, unread_max);
        here.introduce(&one, &[(TWO, &there)]);
        there.introduce(&two, &[(ONE, &here)]);
        Ok(Self { here, there, one, two })
    }

    async fn stop(self) -> Result<(), Failure> {
        for process in [&self.here, &self.there] {
            stop(process).await?;
        }
        Ok(())
    }
}

async fn stop(process: &Process) -> Result<(), Failure> {
    let stopped = timeout(TIMEOUT, process.transport.stop()).await;
    stopped.map_err(|_| Failure::new("does not stop"))
}

/// A message by which its number can be told.
fn numbered(from: &FakeMember, to: MemberId, number: u64) -> PeerMessage {
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

/// Sends a message, again and again if need be, until something like it is heard.
async fn exchange(
    from: (&Process, &FakeMember),
    to: &mut FakeMember,
    message: &PeerMessage,
    is_it: impl Fn(&PeerMessage) -> bool,
) -> Result<PeerMessage, Failure> {
    let (process, member) = from;
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        process.transport.send(member.key, vec![message.clone()]);
        let again = Instant::now() + AGAIN;
        while let Some(heard) =
            to.hear_within(again.saturating_duration_since(Instant::now())).await
        {
            let Received::Messages(messages) = heard else { continue };
            if let Some(found) = messages.into_iter().find(|message| is_it(message)) {
                return Ok(found);
            }
        }
    }
    Err(Failure::new(format!("{} never hears from {}", to.key, member.key)))
}

async fn what_is_sent_arrives_unaltered(make: Make<'_>) -> Result<(), Failure> {
    let mut pair = Pair::new(make, 64).await?;
    let mut random = RandomValues::new(1);
    for round in 0..20 * MESSAGE_KINDS {
        // The term tells one from the other.
        let message = random.message(round % MESSAGE_KINDS);
        let mut envelope = pair.one.envelope(TWO, round + 1, message);
        envelope.joined_at = random.number();
        if round % (2 * MESSAGE_KINDS) == 9 {
            // Passed on for somebody else: in its name.
            envelope = Envelope { from: THREE, incarnation: 0, ..envelope };
        }
        let sent = PeerMessage::Raft(envelope);
        let is_it = |message: &PeerMessage| match message {
            PeerMessage::Raft(envelope) => envelope.term == round + 1,
            PeerMessage::Side { .. } => false,
        };
        let heard = exchange((&pair.here, &pair.one), &mut pair.two, &sent, is_it).await?;
        if heard != sent {
            return Err(Failure::new(format!("sent {sent:?}, heard {heard:?}")));
        }
    }
    for _ in 0..20 {
        let sent = PeerMessage::Side { from: ONE, to: TWO, bytes: random.bytes() };
        let is_it = |message: &PeerMessage| *message == sent;
        exchange((&pair.here, &pair.one), &mut pair.two, &sent, is_it).await?;
    }
    pair.stop().await
}

async fn order_is_kept(make: Make<'_>) -> Result<(), Failure> {
    let mut pair = Pair::new(make, 64).await?;
    let last = 500;
    for first in (0..last).step_by(20) {
        let messages = (first..first + 20).map(|n| numbered(&pair.one, TWO, n)).collect();
        pair.here.transport.send(pair.one.key, messages);
    }
    let (mut before, mut heard) = (None, 0);
    let deadline = Instant::now() + TIMEOUT;
    while before != Some(last) {
        if Instant::now() > deadline {
            return Err(Failure::new("the last was never heard"));
        }
        let Some(Received::Messages(messages)) = pair.two.hear_within(AGAIN).await else {
            pair.here.transport.send(pair.one.key, vec![numbered(&pair.one, TWO, last)]);
            continue;
        };
        for found in messages.iter().filter_map(number) {
            if before.is_some_and(|before| before >= found) {
                return Err(Failure::new(format!("{found} was heard after {before:?}")));
            }
            before = Some(found);
            heard += 1;
        }
    }
    if heard < 2 {
        return Err(Failure::new("all but the last were lost"));
    }
    pair.stop().await
}

async fn clusters_do_not_mix(make: Make<'_>) -> Result<(), Failure> {
    let mut pair = Pair::new(make, 64).await?;
    let other = CLUSTER + 1;
    let one = pair.here.add(MemberKey { cluster: other, member: ONE }, 33, 64);
    let mut two = pair.there.add(MemberKey { cluster: other, member: TWO }, 44, 64);
    pair.here.introduce(&one, &[(TWO, &pair.there)]);
    for round in 0..50 {
        let (even, odd) = (2 * round, 2 * round + 1);
        let sent = numbered(&pair.one, TWO, even);
        let is_it =
            |message: &PeerMessage| number(message).is_some_and(|n| n % 2 == 1 || n == even);
        let heard = exchange((&pair.here, &pair.one), &mut pair.two, &sent, is_it).await?;
        let sent_there = numbered(&one, TWO, odd);
        let is_it = |message: &PeerMessage| number(message).is_some_and(|n| n % 2 == 0 || n == odd);
        let heard_there = exchange((&pair.here, &one), &mut two, &sent_there, is_it).await?;
        if heard != sent || heard_there != sent_there {
            return Err(Failure::new("a member heard what was said in another cluster"));
        }
    }
    pair.stop().await
}

async fn unknown_peers_block_nobody(make: Make<'_>) -> Result<(), Failure> {
    let mut pair = Pair::new(make, 64).await?;
    let unknown = MemberId(99);
    let began = Instant::now();
    for round in 0..1000 {
        pair.here.transport.send(pair.one.key, vec![numbered(&pair.one, unknown, round)]);
    }
    if began.elapsed() > TIMEOUT {
        return Err(Failure::new("sending to somebody unknown waits"));
    }
    let known = numbered(&pair.one, TWO, 1);
    exchange((&pair.here, &pair.one), &mut pair.two, &known, |message| *message == known).await?;
    loop {
        if let Received::Unreachable(MemberId(99)) =
            pair.one.hear("that m99 is unreachable").await?
        {
            return pair.stop().await;
        }
    }
}

async fn strangers_are_answered(make: Make<'_>) -> Result<(), Failure> {
    let mut pair = Pair::new(make, 64).await?;
    pair.there.introduce(&pair.two, &[]);
    let question = numbered(&pair.one, TWO, 1);
    let is_it = |message: &PeerMessage| *message == question;
    exchange((&pair.here, &pair.one), &mut pair.two, &question, is_it).await?;
    let answer = numbered(&pair.two, ONE, 2);
    let is_it = |message: &PeerMessage| *message == answer;
    exchange((&pair.there, &pair.two), &mut pair.one, &answer, is_it).await?;
    pair.stop().await
}

async fn a_busy_member_makes_others_drop(make: Make<'_>) -> Result<(), Failure> {
    let mut pair = Pair::new(make, 1).await?;
    let first = numbered(&pair.one, TWO, 1);
    exchange((&pair.here, &pair.one), &mut pair.two, &first, |message| *message == first).await?;
    let command = Bytes::from(vec![7; 1 << 20]);
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let message = Message::Propose(RequestId(1), Proposal::Command(command.clone()));
        let message = PeerMessage::Raft(pair.one.envelope(TWO, 1, message));
        pair.here.transport.send(pair.one.key, vec![message]);
        if let Some(Received::Unreachable(TWO)) =
            pair.one.hear_within(Duration::from_millis(1)).await
        {
            break;
        }
        if Instant::now() > deadline {
            return Err(Failure::new("a member that reads nothing is sent ever more"));
        }
    }
    // It reads again: the way is free again.
    let last = numbered(&pair.one, TWO, 2);
    exchange((&pair.here, &pair.one), &mut pair.two, &last, |message| *message == last).await?;
    pair.stop().await
}

/// A snapshot of some size, and the same bytes at once.
fn snapshot(member: &FakeMember, seed: u64) -> (Envelope, Vec<Bytes>, Vec<u8>) {
    let mut random = RandomValues::new(seed);
    let meta: SnapshotMeta = random.snapshot_meta();
    let sizes = [1, 700_000, 3, 1 << 20, 65_536];
    let chunks: Vec<Bytes> =
        sizes.iter().map(|size| (0..*size).map(|_| random.next() as u8).collect()).collect();
    let all = chunks.concat();
    (member.envelope(TWO, 5, Message::Snapshot(meta)), chunks, all)
}

async fn a_snapshot_arrives_whole(make: Make<'_>) -> Result<(), Failure> {
    let mut pair = Pair::new(make, 64).await?;
    send_snapshot(&mut pair, 1).await?;
    send_snapshot(&mut pair, 2).await?;
    pair.stop().await
}

async fn send_snapshot(pair: &mut Pair, seed: u64) -> Result<(), Failure> {
    let (envelope, chunks, all) = snapshot(&pair.one, seed);
    pair.here.transport.send_snapshot(pair.one.key, pair.one.snapshot(envelope.clone(), chunks));
    if pair.one.reported().await? != (TWO, true) {
        return Err(Failure::new("a snapshot was lost"));
    }
    let landed = loop {
        if let Received::Snapshot(landed) = pair.two.hear("that a snapshot landed").await? {
            break landed;
        }
    };
    if *landed != envelope {
        return Err(Failure::new(format!("sent {envelope:?}, landed {landed:?}")));
    }
    let Message::Snapshot(meta) = &landed.message else {
        return Err(Failure::new("what landed is no snapshot"));
    };
    if lock(&pair.two.disk.snapshots).get(&meta.id) != Some(&all) {
        return Err(Failure::new("a snapshot landed with other bytes"));
    }
    Ok(())
}

async fn a_refused_snapshot_is_lost(make: Make<'_>) -> Result<(), Failure> {
    let mut pair = Pair::new(make, 64).await?;
    pair.two.disk.refuses.store(true, Ordering::SeqCst);
    let (envelope, chunks, _) = snapshot(&pair.one, 3);
    pair.here.transport.send_snapshot(pair.one.key, pair.one.snapshot(envelope, chunks));
    if pair.one.reported().await? != (TWO, false) {
        return Err(Failure::new("a snapshot that was refused is said to have arrived"));
    }
    pair.two.disk.refuses.store(false, Ordering::SeqCst);
    send_snapshot(&mut pair, 4).await?;
    pair.stop().await
}

/// Both say something; true when the first one was heard.
async fn is_heard(pair: &mut Pair, known: &FakeMember, round: u64) -> Result<bool, Failure> {
    pair.here.transport.send(pair.one.key, vec![numbered(&pair.one, TWO, 2 * round)]);
    let sent = numbered(known, TWO, 2 * round + 1);
    let mut heard = false;
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        pair.here.transport.send(known.key, vec![sent.clone()]);
        let again = Instant::now() + AGAIN;
        while let Some(found) =
            pair.two.hear_within(again.saturating_duration_since(Instant::now())).await
        {
            let Received::Messages(messages) = found else { continue };
            heard |= messages.iter().any(|message| message.from() == ONE);
            if messages.contains(&sent) {
                return Ok(heard);
            }
        }
    }
    Err(Failure::new("a member that is let in is not heard"))
}

async fn who_is_not_let_in_is_not_heard(make: Make<'_>) -> Result<(), Failure> {
    let mut pair = Pair::new(make, 64).await?;
    let three = pair.here.add(MemberKey { cluster: CLUSTER, member: THREE }, 33, 64);
    pair.here.introduce(&three, &[(TWO, &pair.there)]);
    write(&pair.two.local.filter).removed.push(ONE);
    for round in 0..20 {
        if is_heard(&mut pair, &three, round).await? {
            return Err(Failure::new("a member that was removed is heard"));
        }
    }
    pair.stop().await
}

async fn who_is_turned_away_is_not_heard_any_more(make: Make<'_>) -> Result<(), Failure> {
    let mut pair = Pair::new(make, 64).await?;
    let three = pair.here.add(MemberKey { cluster: CLUSTER, member: THREE }, 33, 64);
    pair.here.introduce(&three, &[(TWO, &pair.there)]);
    let first = numbered(&pair.one, TWO, 1);
    exchange((&pair.here, &pair.one), &mut pair.two, &first, |message| *message == first).await?;
    let incarnation = pair.one.incarnation;
    write(&pair.two.local.filter).rejected_disks.push((ONE, incarnation));
    pair.there.transport.reject(pair.two.key, ONE, RejectReason::NotItself);
    // What was on its way may still come.
    let deadline = Instant::now() + TIMEOUT;
    let (mut round, mut quiet) = (1, 0);
    while quiet < 10 {
        quiet = if is_heard(&mut pair, &three, round).await? { 0 } else { quiet + 1 };
        round += 1;
        if Instant::now() > deadline {
            return Err(Failure::new("a member that was turned away is heard on and on"));
        }
    }
    pair.stop().await
}

async fn nothing_is_heard_after_the_stop(make: Make<'_>) -> Result<(), Failure> {
    let mut pair = Pair::new(make, 64).await?;
    let first = numbered(&pair.one, TWO, 1);
    exchange((&pair.here, &pair.one), &mut pair.two, &first, |message| *message == first).await?;
    stop(&pair.there).await?;
    while pair.two.hear_within(Duration::ZERO).await.is_some() {}
    for round in 0..20 {
        pair.here.transport.send(pair.one.key, vec![numbered(&pair.one, TWO, round)]);
        sleep(Duration::from_millis(5)).await;
        if let Some(Received::Messages(_)) = pair.two.hear_within(Duration::ZERO).await {
            return Err(Failure::new("something was delivered after the stop"));
        }
    }
    // And with nobody there, nobody waits.
    stop(&pair.here).await
}
