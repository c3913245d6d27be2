//! Clients that write each key once and record the acknowledged writes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::client::{FaultClient, wait_for};

pub(crate) struct FaultWriters {
    state: Arc<WriterState>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct WriterState {
    stop: AtomicBool,
    acknowledged: Mutex<BTreeMap<String, String>>,
}

impl FaultWriters {
    /// Each writer starts at another member, and changes to the next one after an error.
    pub(crate) fn start(count: usize, clients: &[FaultClient]) -> Self {
        let state = Arc::new(WriterState::default());
        let tasks = (0..count)
            .map(|writer| {
                let mut clients = clients.to_vec();
                let first = writer % clients.len();
                clients.rotate_left(first);
                tokio::spawn(write(writer, clients, Arc::clone(&state)))
            })
            .collect();
        Self { state, tasks }
    }

    fn count(&self) -> usize {
        self.state.acknowledged.lock().unwrap().len()
    }

    /// Waits for this many more acknowledged writes.
    pub(crate) async fn wait_for_writes(&self, more: usize) {
        let expected = self.count() + more;
        wait_for("writes are acknowledged", async || (self.count() >= expected).then_some(()))
            .await;
    }

    /// Stops the writers. Returns all acknowledged writes.
    pub(crate) async fn finish(self) -> BTreeMap<String, String> {
        self.state.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        std::mem::take(&mut self.state.acknowledged.lock().unwrap())
    }
}

async fn write(writer: usize, clients: Vec<FaultClient>, state: Arc<WriterState>) {
    let mut member = 0;
    for number in 0.. {
        let (key, value) = (format!("{writer} {number}"), format!("{writer} wrote {number}"));
        loop {
            if state.stop.load(Ordering::Relaxed) {
                return;
            }
            if clients[member % clients.len()].put(&key, &value).await.is_ok() {
                break;
            }
            member += 1;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        state.acknowledged.lock().unwrap().insert(key, value);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Checks that the data contains all acknowledged writes.
pub(crate) fn assert_present(data: &BTreeMap<String, String>, written: &BTreeMap<String, String>) {
    for (key, value) in written {
        assert_eq!(data.get(key), Some(value), "acknowledged and lost: {key}");
    }
}
