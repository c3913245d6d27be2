//! Clients that write all the time, through every member, and remember what they were told.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quorate_proto::etcdserverpb::PutRequest;
use quorate_proto::etcdserverpb::kv_client::KvClient;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::common::PATIENCE;

/// One writer for each endpoint: it writes its own keys, in order, each until it is done.
pub(crate) struct Writers {
    tasks: BTreeMap<String, Writer>,
}

struct Writer {
    told: Arc<Told>,
    task: JoinHandle<()>,
}

/// What a writer was told so far.
#[derive(Default)]
pub(crate) struct Told {
    stop: AtomicBool,
    /// Its member is about to go: it may be left without an answer, and then ends.
    may_fail: AtomicBool,
    seen: Mutex<Seen>,
}

#[derive(Clone, Default)]
pub(crate) struct Seen {
    /// Keys that were acknowledged, with their values.
    pub(crate) written: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What failed before it was done.
    pub(crate) failures: Vec<String>,
    /// The longest that one write took, failures included.
    pub(crate) longest: Duration,
}

impl Writers {
    pub(crate) fn new() -> Self {
        Self { tasks: BTreeMap::new() }
    }

    /// Writes through this endpoint, too, from now on.
    pub(crate) fn start(&mut self, endpoint: &str) {
        let told = Arc::new(Told::default());
        let number = self.tasks.len();
        let channel = Endpoint::from_shared(endpoint.to_owned()).unwrap().connect_lazy();
        let task = tokio::spawn(write_all(number, KvClient::new(channel), Arc::clone(&told)));
        self.tasks.insert(endpoint.to_owned(), Writer { told, task });
    }

    pub(crate) fn may_fail(&self, endpoint: &str) {
        self.tasks[endpoint].told.may_fail.store(true, Ordering::SeqCst);
    }

    /// Waits until every writer that should go on has written so many more.
    pub(crate) async fn written_more(&self, count: usize) {
        for writer in self.tasks.values().filter(|one| !one.told.may_fail.load(Ordering::SeqCst)) {
            let before = writer.told.seen().written.len();
            let began = Instant::now();
            while writer.told.seen().written.len() < before + count {
                assert!(began.elapsed() < PATIENCE, "a writer stands still");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    /// Ends all of them, and gives for each endpoint what its writer was told.
    pub(crate) async fn stop(self) -> BTreeMap<String, Seen> {
        let mut all = BTreeMap::new();
        for (endpoint, Writer { told, task }) in self.tasks {
            told.stop.store(true, Ordering::SeqCst);
            task.await.unwrap();
            all.insert(endpoint, told.seen());
        }
        all
    }
}

impl Told {
    fn seen(&self) -> Seen {
        self.seen.lock().unwrap().clone()
    }
}

async fn write_all(number: usize, mut client: KvClient<Channel>, told: Arc<Told>) {
    for count in 0.. {
        let key = format!("w{number}/{count:08}").into_bytes();
        let value = format!("value {count} of {number}").into_bytes();
        let began = Instant::now();
        while let Err(why) = put(&mut client, &key, &value).await {
            let (code, text) = (why.code(), why.message());
            let after = began.elapsed();
            let text = format!("key {count} after {after:?}: {code:?} {text}");
            told.seen.lock().unwrap().failures.push(text);
            if told.may_fail.load(Ordering::SeqCst) {
                return;
            }
            assert!(after < PATIENCE, "{code:?} {}", why.message());
        }
        let mut seen = told.seen.lock().unwrap();
        seen.longest = seen.longest.max(began.elapsed());
        seen.written.insert(key, value);
        if told.stop.load(Ordering::SeqCst) {
            return;
        }
    }
}

/// The same put again does no harm: it writes the same.
async fn put(client: &mut KvClient<Channel>, key: &[u8], value: &[u8]) -> Result<(), Status> {
    let (key, value) = (key.to_vec().into(), value.to_vec().into());
    client.put(PutRequest { key, value, ..Default::default() }).await.map(|_| ())
}
