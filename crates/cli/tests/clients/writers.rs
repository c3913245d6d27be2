//! Clients that write continuously, one through each member, and record the results.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quorate_proto::etcdserverpb::PutRequest;
use quorate_proto::etcdserverpb::kv_client::KvClient;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::support::TEST_TIMEOUT;

/// One writer for each endpoint. It writes its own keys in order, and repeats each write until
/// it is acknowledged.
pub(crate) struct Writers {
    tasks: BTreeMap<String, Writer>,
}

struct Writer {
    state: Arc<WriterState>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct WriterState {
    stop: AtomicBool,
    /// Its member is being removed: a write may fail, which ends the writer.
    may_fail: AtomicBool,
    log: Mutex<WriterLog>,
}

/// The results of one writer.
#[derive(Clone, Default)]
pub(crate) struct WriterLog {
    /// Acknowledged keys with their values.
    pub(crate) written: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Failed attempts.
    pub(crate) failures: Vec<String>,
    /// The longest duration of one write, including failed attempts.
    pub(crate) longest: Duration,
}

impl Writers {
    pub(crate) fn new() -> Self {
        Self { tasks: BTreeMap::new() }
    }

    /// Starts another writer, through this endpoint.
    pub(crate) fn start(&mut self, endpoint: &str) {
        let state = Arc::new(WriterState::default());
        let number = self.tasks.len();
        let channel = Endpoint::from_shared(endpoint.to_owned()).unwrap().connect_lazy();
        let task = tokio::spawn(write_all(number, KvClient::new(channel), Arc::clone(&state)));
        self.tasks.insert(endpoint.to_owned(), Writer { state, task });
    }

    pub(crate) fn may_fail(&self, endpoint: &str) {
        self.tasks[endpoint].state.may_fail.store(true, Ordering::SeqCst);
    }

    /// Waits until every writer whose member stays has made this many more writes.
    pub(crate) async fn written_more(&self, count: usize) {
        for writer in self.tasks.values().filter(|one| !one.state.may_fail.load(Ordering::SeqCst)) {
            let before = writer.state.log().written.len();
            let started = Instant::now();
            while writer.state.log().written.len() < before + count {
                assert!(started.elapsed() < TEST_TIMEOUT, "timed out: a writer makes no progress");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    /// Stops all writers. Returns the results for each endpoint.
    pub(crate) async fn stop(self) -> BTreeMap<String, WriterLog> {
        let mut all = BTreeMap::new();
        for (endpoint, Writer { state, task }) in self.tasks {
            state.stop.store(true, Ordering::SeqCst);
            task.await.unwrap();
            all.insert(endpoint, state.log());
        }
        all
    }
}

impl WriterState {
    fn log(&self) -> WriterLog {
        self.log.lock().unwrap().clone()
    }
}

async fn write_all(number: usize, mut client: KvClient<Channel>, state: Arc<WriterState>) {
    for count in 0.. {
        let key = format!("w{number}/{count:08}").into_bytes();
        let value = format!("value {count} of {number}").into_bytes();
        let started = Instant::now();
        while let Err(status) = put(&mut client, &key, &value).await {
            let (code, text) = (status.code(), status.message());
            let after = started.elapsed();
            let text = format!("key {count} after {after:?}: {code:?} {text}");
            state.log.lock().unwrap().failures.push(text);
            if state.may_fail.load(Ordering::SeqCst) {
                return;
            }
            assert!(after < TEST_TIMEOUT, "{code:?} {}", status.message());
        }
        let mut log = state.log.lock().unwrap();
        log.longest = log.longest.max(started.elapsed());
        log.written.insert(key, value);
        if state.stop.load(Ordering::SeqCst) {
            return;
        }
    }
}

/// Idempotent: a repeated put writes the same value.
async fn put(client: &mut KvClient<Channel>, key: &[u8], value: &[u8]) -> Result<(), Status> {
    let (key, value) = (key.to_vec().into(), value.to_vec().into());
    client.put(PutRequest { key, value, ..Default::default() }).await.map(|_| ())
}
