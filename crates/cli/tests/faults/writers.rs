//! Clients that write each key once, and remember what was acknowledged.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::client::{Client, wait_for};

pub(crate) struct Writers {
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    acknowledged: Mutex<BTreeMap<String, String>>,
}

impl Writers {
    /// Each begins at another member, and goes on to the next one when it is not served.
    pub(crate) fn start(count: usize, clients: &[Client]) -> Self {
        let shared = Arc::new(Shared::default());
        let tasks = (0..count)
            .map(|writer| {
                let mut clients = clients.to_vec();
                let first = writer % clients.len();
                clients.rotate_left(first);
                tokio::spawn(write(writer, clients, Arc::clone(&shared)))
            })
            .collect();
        Self { shared, tasks }
    }

    fn count(&self) -> usize {
        self.shared.acknowledged.lock().unwrap().len()
    }

    /// Waits until so many more writes were acknowledged.
    pub(crate) async fn go_on(&self, more: usize) {
        let wanted = self.count() + more;
        wait_for("writers go on", async || (self.count() >= wanted).then_some(())).await;
    }

    /// Ends them; every write that was acknowledged.
    pub(crate) async fn finish(self) -> BTreeMap<String, String> {
        self.shared.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        std::mem::take(&mut self.shared.acknowledged.lock().unwrap())
    }
}

async fn write(writer: usize, clients: Vec<Client>, shared: Arc<Shared>) {
    let mut member = 0;
    for number in 0.. {
        let (key, value) = (format!("{writer} {number}"), format!("{writer} wrote {number}"));
        loop {
            if shared.stop.load(Ordering::Relaxed) {
                return;
            }
            if clients[member % clients.len()].put(&key, &value).await.is_ok() {
                break;
            }
            member += 1;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        shared.acknowledged.lock().unwrap().insert(key, value);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Demands that everything is there that was acknowledged.
pub(crate) fn assert_kept(data: &BTreeMap<String, String>, written: &BTreeMap<String, String>) {
    for (key, value) in written {
        assert_eq!(data.get(key), Some(value), "acknowledged and lost: {key}");
    }
}
