//! Clients that put, read, swap and delete a few keys at all members, and a judge of what
//! they saw.
//!
//! What nobody knows the outcome of is recorded as such. The judge is the checker of the
//! simulator; it also has to refuse the same history with one old answer added.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use quorate_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use quorate_proto::etcdserverpb::request_op::Request;
use quorate_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, ResponseHeader, TxnRequest,
};
use quorate_sim::checkers::linearizable::{
    Call, History, Operation, STEPS_MAX, Seen, Verdict, check,
};
use tokio::task::JoinHandle;
use tonic::{Code, Status};

use crate::client::{Client, answered_within, wait_for};

pub(crate) struct Workload {
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
}

struct Shared {
    members: Mutex<Vec<Client>>,
    clock: AtomicU64,
    stop: AtomicBool,
    done: AtomicU64,
    operations: Mutex<Vec<Recorded>>,
}

#[derive(Clone)]
struct Recorded {
    operation: Operation,
    /// Of the data, as the answer shows it.
    revision: Option<i64>,
}

impl Workload {
    pub(crate) fn start(clients: u64, members: Vec<Client>) -> Self {
        let shared = Arc::new(Shared {
            members: Mutex::new(members),
            clock: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            done: AtomicU64::new(0),
            operations: Mutex::default(),
        });
        let tasks = (0..clients).map(|client| tokio::spawn(run(client, Arc::clone(&shared))));
        Self { tasks: tasks.collect(), shared }
    }

    pub(crate) fn set_members(&self, members: Vec<Client>) {
        *self.shared.members.lock().unwrap() = members;
    }

    /// Waits until so many more calls were answered.
    pub(crate) async fn go_on(&self, more: u64) {
        let done = || self.shared.done.load(Ordering::Relaxed);
        let wanted = done() + more;
        wait_for("clients go on", async || (done() >= wanted).then_some(())).await;
    }

    /// Ends all clients, and demands that one machine, doing one thing at a time, could have
    /// given their answers.
    pub(crate) async fn judge(self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        let recorded = std::mem::take(&mut *self.shared.operations.lock().unwrap());
        assert_revisions_rise(&recorded);
        let operations = recorded.into_iter().map(|one| one.operation).collect();
        let mut history = History { operations };
        assert_linearizable(&history);
        history.operations.push(old_read(&history));
        assert!(!is_linearizable(&history), "an old answer passed");
    }
}

fn assert_linearizable(history: &History) {
    match check(history, STEPS_MAX).verdict {
        Verdict::Linearizable => {}
        Verdict::Violation(violation) => panic!("{violation}"),
        Verdict::Undecided(keys) => panic!("too long to check: {keys:?}"),
    }
}

fn is_linearizable(history: &History) -> bool {
    check(history, STEPS_MAX).verdict == Verdict::Linearizable
}

/// Across all keys: who asks after another was answered sees no older revision.
fn assert_revisions_rise(recorded: &[Recorded]) {
    let mut answers: Vec<(u64, i64)> = Vec::new();
    for Recorded { operation, revision } in recorded {
        answers.extend(operation.returned.zip(*revision));
    }
    answers.sort_unstable();
    let mut newest = 0;
    let newest_by: Vec<(u64, i64)> = answers
        .into_iter()
        .map(|(at, revision)| {
            newest = revision.max(newest);
            (at, newest)
        })
        .collect();
    for Recorded { operation, revision } in recorded {
        let before = newest_by.partition_point(|(at, _)| *at < operation.called);
        let Some((_, known)) = before.checked_sub(1).map(|last| newest_by[last]) else { continue };
        let Some(revision) = *revision else { continue };
        assert!(revision >= known, "revision {known} was seen before: {operation} at {revision}");
    }
}

/// A read after everything, of a value that its own client has overwritten since.
fn old_read(history: &History) -> Operation {
    let acknowledged: Vec<&Operation> = history
        .operations
        .iter()
        .filter(|one| matches!(one.call, Call::Put(..)) && one.seen == Seen::Done)
        .collect();
    let overwritten = acknowledged.iter().find_map(|first| {
        let Call::Put(key, value) = &first.call else { return None };
        let again = |later: &&&Operation| {
            later.client == first.client
                && later.called > first.called
                && later.call.keys() == first.call.keys()
        };
        acknowledged.iter().find(again).map(|_| (key.clone(), value.clone()))
    });
    let (key, value) = overwritten.unwrap();
    Operation {
        client: u64::MAX,
        called: u64::MAX - 2,
        returned: Some(u64::MAX - 1),
        call: Call::Get(key),
        seen: Seen::Value(Some(value)),
        applied: None,
    }
}

async fn run(client: u64, shared: Arc<Shared>) {
    // What it last saw of each key: what it expects when it swaps.
    let mut known: BTreeMap<Bytes, Option<Bytes>> = BTreeMap::new();
    let mut member = client as usize;
    for number in 0.. {
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        let call = next_call(client, number, &known);
        let service = {
            let members = shared.members.lock().unwrap();
            members[member % members.len()].clone()
        };
        let answer = record(client, call, &service, &shared).await;
        // Nobody stays with one member for long, nor with one that does not answer.
        if answer.is_err() || number % CALLS_IN_A_ROW == 0 {
            member += 1;
        }
        if let Ok((key, Seen::Value(value))) = answer {
            known.insert(key, value);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn next_call(client: u64, number: u64, known: &BTreeMap<Bytes, Option<Bytes>>) -> Call {
    let key = Bytes::from(format!("key {}", (client + number / CALLS_ON_A_KEY) % KEYS));
    let new = Bytes::from(format!("{client}.{number}"));
    match number % CALLS_ON_A_KEY {
        0 | 5 => Call::Put(key, new),
        2 | 4 => {
            let expected = known.get(&key).cloned().flatten();
            Call::CompareAndSet { key, expected, new }
        }
        6 if number.is_multiple_of(3) => Call::Delete(key),
        _ => Call::Get(key),
    }
}

/// Calls, and notes what came of it.
async fn record(
    client: u64,
    call: Call,
    service: &Client,
    shared: &Shared,
) -> Result<(Bytes, Seen), ()> {
    let called = shared.clock.fetch_add(1, Ordering::SeqCst);
    let answer = ask(service, &call).await;
    let returned = shared.clock.fetch_add(1, Ordering::SeqCst);
    let key = call.keys()[0].clone();
    let (seen, returned, revision, changed) = match answer {
        Ok(answer) => {
            shared.done.fetch_add(1, Ordering::Relaxed);
            (answer.seen, Some(returned), Some(answer.revision), answer.changed)
        }
        Err(why) if is_certain(&why) => (Seen::Refused, Some(returned), None, false),
        Err(_) => (Seen::Nothing, None, None, false),
    };
    // What changed nothing comes behind what made the revision that it saw.
    let applied = revision.map(|revision| revision as u64 * 2 + u64::from(!changed));
    let answered = revision.map(|_| (key, seen.clone())).ok_or(());
    let operation = Operation { client, called, returned, call, seen, applied };
    shared.operations.lock().unwrap().push(Recorded { operation, revision });
    answered
}

/// Only what was wrong with the request itself has surely not happened.
fn is_certain(why: &Status) -> bool {
    matches!(why.code(), Code::InvalidArgument | Code::FailedPrecondition)
}

struct Answer {
    seen: Seen,
    revision: i64,
    changed: bool,
}

async fn ask(service: &Client, call: &Call) -> Result<Answer, Status> {
    let mut kv = service.kv();
    let revision = |header: Option<ResponseHeader>| header.unwrap_or_default().revision;
    match call.clone() {
        Call::Put(key, value) => {
            let request = PutRequest { key, value, ..Default::default() };
            let reply = answered_within(CALL_PATIENCE, kv.put(request)).await?;
            Ok(Answer { seen: Seen::Done, revision: revision(reply.header), changed: true })
        }
        Call::Delete(key) => {
            let request = DeleteRangeRequest { key, ..Default::default() };
            let reply = answered_within(CALL_PATIENCE, kv.delete_range(request)).await?;
            let (revision, changed) = (revision(reply.header), reply.deleted > 0);
            Ok(Answer { seen: Seen::Done, revision, changed })
        }
        Call::CompareAndSet { key, expected, new } => {
            let request = swap(key, expected, new);
            let reply = answered_within(CALL_PATIENCE, kv.txn(request)).await?;
            let (revision, changed) = (revision(reply.header), reply.succeeded);
            Ok(Answer { seen: Seen::Swapped(changed), revision, changed })
        }
        Call::Get(key) => {
            let request = RangeRequest { key, ..Default::default() };
            let reply = answered_within(CALL_PATIENCE, kv.range(request)).await?;
            let value = reply.kvs.first().map(|kv| kv.value.clone());
            let revision = revision(reply.header);
            Ok(Answer { seen: Seen::Value(value), revision, changed: false })
        }
        Call::GetSeveral(_) => Err(Status::invalid_argument("nobody asks for several")),
    }
}

fn swap(key: Bytes, expected: Option<Bytes>, value: Bytes) -> TxnRequest {
    let (target, wanted) = match expected {
        Some(value) => (CompareTarget::Value, TargetUnion::Value(value)),
        None => (CompareTarget::Version, TargetUnion::Version(0)),
    };
    let compare = Compare {
        result: CompareResult::Equal as i32,
        target: target as i32,
        key: key.clone(),
        target_union: Some(wanted),
        ..Default::default()
    };
    let put = Request::RequestPut(PutRequest { key, value, ..Default::default() });
    TxnRequest {
        compare: vec![compare],
        success: vec![RequestOp { request: Some(put) }],
        failure: Vec::new(),
    }
}

const KEYS: u64 = 4;
const CALLS_ON_A_KEY: u64 = 7;
const CALLS_IN_A_ROW: u64 = 20;
/// Who hears nothing for so long goes on with another member.
const CALL_PATIENCE: Duration = Duration::from_secs(4);

#[test]
fn a_history_with_an_old_read_is_refused() {
    let (key, one, two) = (Bytes::from("k"), Bytes::from("1"), Bytes::from("2"));
    let operation = |at: u64, call: Call, seen: Seen| Operation {
        client: at,
        called: at * 2,
        returned: Some(at * 2 + 1),
        call,
        seen,
        applied: None,
    };
    let put = |at, value: &Bytes| operation(at, Call::Put(key.clone(), value.clone()), Seen::Done);
    let read = |at, value: Option<&Bytes>| {
        operation(at, Call::Get(key.clone()), Seen::Value(value.cloned()))
    };
    let swap = |at, expected: Option<&Bytes>, done| {
        let (key, expected, new) = (key.clone(), expected.cloned(), Bytes::from("3"));
        operation(at, Call::CompareAndSet { key, expected, new }, Seen::Swapped(done))
    };
    let delete = |at| operation(at, Call::Delete(key.clone()), Seen::Done);
    let fits =
        |operations: &[Operation]| is_linearizable(&History { operations: operations.to_vec() });
    let begin = [put(0, &one), put(1, &two)];
    let then = |last: Operation| [&begin[..], &[last]].concat();
    assert!(fits(&then(read(2, Some(&two)))));
    assert!(!fits(&then(read(2, Some(&one)))));
    assert!(fits(&then(swap(2, Some(&two), true))));
    assert!(!fits(&then(swap(2, Some(&one), true))));
    assert!(!fits(&then(swap(2, Some(&two), false))));
    let deleted = [&begin[..], &[delete(2)]].concat();
    assert!(fits(&[&deleted[..], &[read(3, None)]].concat()));
    assert!(!fits(&[&deleted[..], &[read(3, Some(&two))]].concat()));
    // A write of which nobody knows what became of it explains both, but not their return.
    let mut lost = put(1, &two);
    lost.returned = None;
    lost.seen = Seen::Nothing;
    let unknown = [put(0, &one), lost];
    let seen = |values: &[&Bytes]| {
        let reads = (2..).zip(values).map(|(at, value)| read(at, Some(value)));
        fits(&unknown.iter().cloned().chain(reads).collect::<Vec<_>>())
    };
    assert!(seen(&[&one, &one]) && seen(&[&one, &two]) && seen(&[&two, &two]));
    assert!(!seen(&[&two, &one]));
}
