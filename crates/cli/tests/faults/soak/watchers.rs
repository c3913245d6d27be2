//! Watches of the keys of one round, which continue at other members when a stream ends.

use tokio::task::JoinHandle;

use crate::client::{FaultClient, retry_until_ok, wait_for};
use crate::watches::{EventLog, follow, watch};

pub(crate) struct Watchers {
    /// The keys: from the first one up to, but not including, the second one.
    keys: (Vec<u8>, Vec<u8>),
    /// The revision of their first event, or a lower one.
    from: i64,
    logs: Vec<(EventLog, JoinHandle<()>)>,
}

/// A key of the round whose event comes after all others.
pub(crate) const LAST_KEY: &str = "last";

impl Watchers {
    /// One watcher begins at each of the members.
    pub(crate) fn start(prefix: &str, from: i64, clients: &[FaultClient]) -> Self {
        let mut end = prefix.as_bytes().to_vec();
        *end.last_mut().unwrap() += 1;
        let keys = (prefix.as_bytes().to_vec(), end);
        let mut watchers = Self { keys, from, logs: Vec::new() };
        for first in 0..clients.len() {
            let mut clients = clients.to_vec();
            clients.rotate_left(first);
            watchers.add(clients);
        }
        watchers
    }

    fn add(&mut self, clients: Vec<FaultClient>) {
        let log = EventLog::default();
        let (keys, from, events) = (self.keys.clone(), self.from, log.clone());
        let task = tokio::spawn(async move {
            for client in clients.iter().cycle() {
                let revision = events.next_revision().unwrap_or(from);
                if let Ok(mut stream) = watch(client, keys.clone(), revision).await {
                    follow(&mut stream, &events).await;
                }
                tokio::time::sleep(super::PAUSE).await;
            }
        });
        self.logs.push((log, task));
    }

    /// Waits until all have the last event, and checks that each has every event once, in order:
    /// the same as a watcher that starts now. Returns the events.
    pub(crate) async fn check(
        mut self,
        prefix: &str,
        clients: &[FaultClient],
    ) -> Vec<(i64, String, String)> {
        let last = format!("{prefix}{LAST_KEY}");
        let put = async || clients[0].put(&last, "value").await;
        retry_until_ok("the last event", put).await;
        // A watch cannot end without an error or a canceled response, so none was lost before.
        self.add(clients.to_vec());
        for (log, task) in &self.logs {
            let complete = async || {
                assert!(!task.is_finished(), "a watcher failed");
                log.events().iter().any(|(_, key, _)| *key == last).then_some(())
            };
            wait_for("a watcher has received all events", complete).await;
        }
        self.logs.iter().for_each(|(_, task)| task.abort());
        let (reference, _) = self.logs.pop().unwrap();
        let until = |events: Vec<(i64, String, String)>| {
            let position = events.iter().position(|(_, key, _)| *key == last).unwrap();
            events[..=position].to_vec()
        };
        let reference = until(reference.events());
        let rises = |pair: &[(i64, String, String)]| pair[0].0 < pair[1].0;
        assert!(reference.windows(2).all(rises), "events out of order or duplicated");
        for (log, _) in &self.logs {
            assert_eq!(until(log.events()), reference, "a watcher has other events");
        }
        reference
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        self.logs.iter().for_each(|(_, task)| task.abort());
    }
}
