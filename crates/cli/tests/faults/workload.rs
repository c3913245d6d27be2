//! Clients that put, read, compare-and-set and delete a few keys through all members, and a
//! linearizability check of the recorded history.
//!
//! Operations with an unknown result are recorded as unknown. The checker is that of the
//! simulator; it must also reject the same history with one stale read added.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use quorate_proto::etcdserverpb::request_op::Request;
use quorate_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, ResponseHeader, TxnRequest,
};
use quorate_sim::checkers::linearizable::{
    Call, ClientOperation, History, STEPS_MAX, Seen, Verdict, check,
};
use tokio::task::JoinHandle;
use tonic::{Code, Status};

use crate::client::{FaultClient, wait_for, within};

pub(crate) struct Workload {
    state: Arc<WorkloadState>,
    tasks: Vec<JoinHandle<()>>,
}

struct WorkloadState {
    /// Begins all its keys.
    prefix: String,
    pause: Duration,
    clients: Mutex<Vec<FaultClient>>,
    clock: AtomicU64,
    stop: AtomicBool,
    done: AtomicU64,
    operations: Mutex<Vec<RecordedOperation>>,
    replies: Mutex<ReplyTimes>,
}

struct ReplyTimes {
    last: Instant,
    longest_gap: Duration,
}

/// A checked history.
pub(crate) struct CheckedHistory {
    pub(crate) operations: u64,
    /// Operations whose result the client does not know.
    pub(crate) unknown: u64,
    /// Whether the check found an answer within its limit of steps.
    pub(crate) decided: bool,
    /// The longest time without any reply.
    pub(crate) longest_gap: Duration,
    /// Acknowledged changes: their revision, key, and value if it was not deleted.
    pub(crate) changes: Vec<(i64, Bytes, Option<Bytes>)>,
}

#[derive(Clone)]
struct RecordedOperation {
    operation: ClientOperation,
    /// The revision in the header of the reply.
    revision: Option<i64>,
    /// Whether the reply says that it changed its key.
    changed: bool,
}

impl Workload {
    pub(crate) fn start(count: u64, service_clients: Vec<FaultClient>) -> Self {
        Self::start_on("key ", Duration::from_millis(1), count, service_clients)
    }

    /// Each of `count` clients waits for `pause` between two operations on keys with this prefix,
    /// which must be absent.
    pub(crate) fn start_on(
        prefix: &str,
        pause: Duration,
        count: u64,
        service_clients: Vec<FaultClient>,
    ) -> Self {
        let state = Arc::new(WorkloadState {
            prefix: prefix.to_string(),
            pause,
            replies: Mutex::new(ReplyTimes { last: Instant::now(), longest_gap: Duration::ZERO }),
            clients: Mutex::new(service_clients),
            clock: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            done: AtomicU64::new(0),
            operations: Mutex::default(),
        });
        let tasks = (0..count).map(|client| tokio::spawn(run(client, Arc::clone(&state))));
        Self { tasks: tasks.collect(), state }
    }

    pub(crate) fn set_clients(&self, clients: Vec<FaultClient>) {
        *self.state.clients.lock().unwrap() = clients;
    }

    /// Waits for this many more replies.
    pub(crate) async fn wait_for_calls(&self, more: u64) {
        let done = || self.state.done.load(Ordering::Relaxed);
        let expected = done() + more;
        wait_for("calls are answered", async || (done() >= expected).then_some(())).await;
    }

    /// Stops all clients and checks that the history is linearizable.
    pub(crate) async fn check_history(self) {
        let checked = self.judge_history().await;
        assert!(checked.decided, "the check takes too long");
    }

    /// Stops all clients and checks that no operation contradicts the others.
    pub(crate) async fn judge_history(self) -> CheckedHistory {
        self.state.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        let recorded = std::mem::take(&mut *self.state.operations.lock().unwrap());
        assert_revisions_rise(&recorded);
        let changes = recorded.iter().filter_map(RecordedOperation::change).collect();
        let unknown = recorded.iter().filter(|one| one.operation.returned.is_none()).count() as u64;
        let operations = recorded.into_iter().map(|one| one.operation).collect();
        let mut history = History { operations };
        let decided = match check(&history, STEPS_MAX).verdict {
            Verdict::Linearizable => true,
            Verdict::Undecided(_) => false,
            Verdict::Violation(violation) => panic!("{violation}"),
        };
        let operations = history.operations.len() as u64;
        if let Some(stale) = stale_read(&history) {
            history.operations.push(stale);
            assert!(!is_linearizable(&history), "a stale read passed the check");
        }
        let longest_gap = self.state.replies.lock().unwrap().longest_gap;
        CheckedHistory { operations, unknown, decided, longest_gap, changes }
    }
}

impl ReplyTimes {
    fn note(&mut self) {
        self.longest_gap = self.longest_gap.max(self.last.elapsed());
        self.last = Instant::now();
    }
}

impl RecordedOperation {
    fn change(&self) -> Option<(i64, Bytes, Option<Bytes>)> {
        let revision = self.revision.filter(|_| self.changed)?;
        let (key, value) = match &self.operation.call {
            Call::Put(key, value) | Call::CompareAndSet { key, new: value, .. } => {
                (key, Some(value))
            }
            Call::Delete(key) => (key, None),
            Call::Get(_) | Call::GetSeveral(_) => return None,
        };
        Some((revision, key.clone(), value.cloned()))
    }
}

fn is_linearizable(history: &History) -> bool {
    check(history, STEPS_MAX).verdict == Verdict::Linearizable
}

/// Across all keys: an operation that starts after a reply has no older revision than that.
fn assert_revisions_rise(recorded: &[RecordedOperation]) {
    let mut replies: Vec<(u64, i64)> = Vec::new();
    for RecordedOperation { operation, revision, .. } in recorded {
        replies.extend(operation.returned.zip(*revision));
    }
    replies.sort_unstable();
    let mut newest = 0;
    let newest_by: Vec<(u64, i64)> = replies
        .into_iter()
        .map(|(time, revision)| {
            newest = revision.max(newest);
            (time, newest)
        })
        .collect();
    for RecordedOperation { operation, revision, .. } in recorded {
        let before = newest_by.partition_point(|(time, _)| *time < operation.called);
        let Some((_, known)) = before.checked_sub(1).map(|last| newest_by[last]) else { continue };
        let Some(revision) = *revision else { continue };
        assert!(
            revision >= known,
            "revision {known} was returned before: {operation} at {revision}"
        );
    }
}

/// A read after all operations that returns an overwritten value, if there is one.
fn stale_read(history: &History) -> Option<ClientOperation> {
    let acknowledged: Vec<&ClientOperation> = history
        .operations
        .iter()
        .filter(|one| matches!(one.call, Call::Put(..)) && one.seen == Seen::Done)
        .collect();
    let overwritten = acknowledged.iter().find_map(|first| {
        let Call::Put(key, value) = &first.call else { return None };
        let again = |later: &&&ClientOperation| {
            later.client == first.client
                && later.called > first.called
                && later.call.keys() == first.call.keys()
        };
        acknowledged.iter().find(again).map(|_| (key.clone(), value.clone()))
    });
    overwritten.map(|(key, value)| ClientOperation {
        client: u64::MAX,
        called: u64::MAX - 2,
        returned: Some(u64::MAX - 1),
        call: Call::Get(key),
        seen: Seen::Value(Some(value)),
        applied: None,
    })
}

async fn run(client: u64, state: Arc<WorkloadState>) {
    // The last value that it read of each key, for compare-and-set.
    let mut known: BTreeMap<Bytes, Option<Bytes>> = BTreeMap::new();
    let mut member = client as usize;
    for number in 0.. {
        if state.stop.load(Ordering::Relaxed) {
            return;
        }
        let call = next_call(&state.prefix, client, number, &known);
        let service = {
            let clients = state.clients.lock().unwrap();
            clients[member % clients.len()].clone()
        };
        let reply = record(client, call, &service, &state).await;
        // Changes to another member regularly, and after an error.
        if reply.is_err() || number % CALLS_IN_A_ROW == 0 {
            member += 1;
        }
        if let Ok((key, Seen::Value(value))) = reply {
            known.insert(key, value);
        }
        tokio::time::sleep(state.pause).await;
    }
}

fn next_call(
    prefix: &str,
    client: u64,
    number: u64,
    known: &BTreeMap<Bytes, Option<Bytes>>,
) -> Call {
    let key = Bytes::from(format!("{prefix}{}", (client + number / CALLS_ON_A_KEY) % KEYS));
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

/// Makes a call and records its result.
async fn record(
    client: u64,
    call: Call,
    service: &FaultClient,
    state: &WorkloadState,
) -> Result<(Bytes, Seen), ()> {
    let called = state.clock.fetch_add(1, Ordering::SeqCst);
    let reply = send(service, &call).await;
    let returned = state.clock.fetch_add(1, Ordering::SeqCst);
    let key = call.keys()[0].clone();
    let (seen, returned, revision, changed) = match reply {
        Ok(reply) => {
            state.done.fetch_add(1, Ordering::Relaxed);
            state.replies.lock().unwrap().note();
            (reply.seen, Some(returned), Some(reply.revision), reply.changed)
        }
        Err(status) if was_refused(&status) => (Seen::Refused, Some(returned), None, false),
        Err(_) => (Seen::Nothing, None, None, false),
    };
    // An operation without a change comes after the change that created its revision.
    let applied = revision.map(|revision| revision as u64 * 2 + u64::from(!changed));
    let result = revision.map(|_| (key, seen.clone())).ok_or(());
    let operation = ClientOperation { client, called, returned, call, seen, applied };
    state.operations.lock().unwrap().push(RecordedOperation { operation, revision, changed });
    result
}

/// Only an invalid request has certainly not been executed.
fn was_refused(status: &Status) -> bool {
    matches!(status.code(), Code::InvalidArgument | Code::FailedPrecondition)
}

struct CallResult {
    seen: Seen,
    revision: i64,
    changed: bool,
}

async fn send(service: &FaultClient, call: &Call) -> Result<CallResult, Status> {
    let mut kv = service.kv();
    let revision = |header: Option<ResponseHeader>| header.unwrap_or_default().revision;
    match call.clone() {
        Call::Put(key, value) => {
            let request = PutRequest { key, value, ..Default::default() };
            let reply = within(CALL_TIMEOUT, kv.put(request)).await?;
            Ok(CallResult { seen: Seen::Done, revision: revision(reply.header), changed: true })
        }
        Call::Delete(key) => {
            let request = DeleteRangeRequest { key, ..Default::default() };
            let reply = within(CALL_TIMEOUT, kv.delete_range(request)).await?;
            let (revision, changed) = (revision(reply.header), reply.deleted > 0);
            Ok(CallResult { seen: Seen::Done, revision, changed })
        }
        Call::CompareAndSet { key, expected, new } => {
            let request = compare_and_set(key, expected, new);
            let reply = within(CALL_TIMEOUT, kv.txn(request)).await?;
            let (revision, changed) = (revision(reply.header), reply.succeeded);
            Ok(CallResult { seen: Seen::Swapped(changed), revision, changed })
        }
        Call::Get(key) => {
            let request = RangeRequest { key, ..Default::default() };
            let reply = within(CALL_TIMEOUT, kv.range(request)).await?;
            let value = reply.kvs.first().map(|kv| kv.value.clone());
            let revision = revision(reply.header);
            Ok(CallResult { seen: Seen::Value(value), revision, changed: false })
        }
        Call::GetSeveral(_) => Err(Status::invalid_argument("this workload reads single keys")),
    }
}

fn compare_and_set(key: Bytes, expected: Option<Bytes>, value: Bytes) -> TxnRequest {
    let (target, operand) = match expected {
        Some(value) => (CompareTarget::Value, TargetUnion::Value(value)),
        None => (CompareTarget::Version, TargetUnion::Version(0)),
    };
    let compare = Compare {
        result: CompareResult::Equal as i32,
        target: target as i32,
        key: key.clone(),
        target_union: Some(operand),
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
/// After this time a client continues with another member.
const CALL_TIMEOUT: Duration = Duration::from_secs(4);

#[test]
fn a_history_with_a_stale_read_is_rejected() {
    let (key, one, two) = (Bytes::from("k"), Bytes::from("1"), Bytes::from("2"));
    let operation = |time: u64, call: Call, seen: Seen| ClientOperation {
        client: time,
        called: time * 2,
        returned: Some(time * 2 + 1),
        call,
        seen,
        applied: None,
    };
    let put =
        |time, value: &Bytes| operation(time, Call::Put(key.clone(), value.clone()), Seen::Done);
    let read = |time, value: Option<&Bytes>| {
        operation(time, Call::Get(key.clone()), Seen::Value(value.cloned()))
    };
    let swap = |time, expected: Option<&Bytes>, done| {
        let (key, expected, new) = (key.clone(), expected.cloned(), Bytes::from("3"));
        operation(time, Call::CompareAndSet { key, expected, new }, Seen::Swapped(done))
    };
    let delete = |time| operation(time, Call::Delete(key.clone()), Seen::Done);
    let passes = |operations: &[ClientOperation]| {
        is_linearizable(&History { operations: operations.to_vec() })
    };
    let begin = [put(0, &one), put(1, &two)];
    let then = |last: ClientOperation| [&begin[..], &[last]].concat();
    assert!(passes(&then(read(2, Some(&two)))));
    assert!(!passes(&then(read(2, Some(&one)))));
    assert!(passes(&then(swap(2, Some(&two), true))));
    assert!(!passes(&then(swap(2, Some(&one), true))));
    assert!(!passes(&then(swap(2, Some(&two), false))));
    let deleted = [&begin[..], &[delete(2)]].concat();
    assert!(passes(&[&deleted[..], &[read(3, None)]].concat()));
    assert!(!passes(&[&deleted[..], &[read(3, Some(&two))]].concat()));
    // A write with an unknown result may take effect or not, but not be undone.
    let mut lost = put(1, &two);
    lost.returned = None;
    lost.seen = Seen::Nothing;
    let unknown = [put(0, &one), lost];
    let seen = |values: &[&Bytes]| {
        let reads = (2..).zip(values).map(|(time, value)| read(time, Some(value)));
        passes(&unknown.iter().cloned().chain(reads).collect::<Vec<_>>())
    };
    assert!(seen(&[&one, &one]) && seen(&[&one, &two]) && seen(&[&two, &two]));
    assert!(!seen(&[&two, &one]));
}
