//! Makes a snapshot that arrives durable while it arrives, on another thread. If all of it were left
//! to the last sync, the disk would be idle during the transfer, and the transfer during the sync.

use tokio::task::{JoinHandle, spawn_blocking};

use super::disk_use::DiskUses;
use super::storage::{SnapshotSync, StorageError};

pub(crate) struct EarlySync {
    /// Not while a sync is in progress, nor after one has failed.
    sync: Option<SnapshotSync>,
    running: Option<JoinHandle<SyncResult>>,
    /// The bytes that were there when the last sync began.
    covered: u64,
    disk_uses: DiskUses,
}

type SyncResult = Result<SnapshotSync, StorageError>;

impl EarlySync {
    pub(crate) fn new(sync: Option<SnapshotSync>, disk_uses: DiskUses) -> Self {
        Self { sync, running: None, covered: 0, disk_uses }
    }

    /// This many bytes were added so far. Begins a sync if it is worth it and none is in progress.
    /// Fails if an earlier one has failed.
    pub(crate) async fn on_added(&mut self, bytes: u64) -> Result<(), StorageError> {
        if bytes - self.covered < SYNCED_AT_ONCE {
            return Ok(());
        }
        if self.running.as_ref().is_some_and(JoinHandle::is_finished) {
            self.finish().await?;
        }
        if let Some(mut sync) = self.sync.take() {
            self.covered = bytes;
            // A member that stops waits for it.
            let user = self.disk_uses.begin_use();
            self.running = Some(spawn_blocking(move || {
                let synced = sync();
                drop(user);
                synced.map(|()| sync)
            }));
        }
        Ok(())
    }

    /// Waits for the sync in progress. A disk reports a failure once, so it must not be lost.
    pub(crate) async fn finish(&mut self) -> Result<(), StorageError> {
        if let Some(running) = &mut self.running {
            let synced = running.await;
            self.running = None;
            self.sync = Some(synced??);
        }
        Ok(())
    }
}

/// Enough that few syncs are needed, and little is left to the last one.
const SYNCED_AT_ONCE: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Every sync reports that it has begun, and ends with the result that it is sent.
    fn controlled() -> (SnapshotSync, Receiver<()>, Sender<Result<(), &'static str>>) {
        let ((begun, began), (end, ends)) = (channel(), channel());
        let sync = move || {
            begun.send(())?;
            Ok(ends.recv()??)
        };
        (Box::new(sync), began, end)
    }

    #[tokio::test]
    async fn one_sync_runs_at_a_time_and_covers_what_was_added() {
        let (sync, began, end) = controlled();
        let mut early = EarlySync::new(Some(sync), DiskUses::new());
        early.on_added(SYNCED_AT_ONCE - 1).await.unwrap();
        assert!(early.running.is_none());
        early.on_added(SYNCED_AT_ONCE).await.unwrap();
        began.recv().unwrap();
        // It is in progress: the transfer does not wait for it.
        early.on_added(9 * SYNCED_AT_ONCE).await.unwrap();
        assert_eq!(early.covered, SYNCED_AT_ONCE);
        end.send(Ok(())).unwrap();
        early.finish().await.unwrap();
        early.on_added(9 * SYNCED_AT_ONCE).await.unwrap();
        began.recv().unwrap();
        assert_eq!(early.covered, 9 * SYNCED_AT_ONCE);
        end.send(Ok(())).unwrap();
        early.finish().await.unwrap();
    }

    #[tokio::test]
    async fn a_failure_is_reported() {
        let (sync, _began, end) = controlled();
        let mut early = EarlySync::new(Some(sync), DiskUses::new());
        end.send(Err("the disk is full")).unwrap();
        early.on_added(SYNCED_AT_ONCE).await.unwrap();
        let failure = early.finish().await.unwrap_err();
        assert_eq!(failure.to_string(), "the disk is full");
    }

    #[tokio::test]
    async fn a_storage_without_a_disk_syncs_nothing() {
        let mut early = EarlySync::new(None, DiskUses::new());
        early.on_added(9 * SYNCED_AT_ONCE).await.unwrap();
        early.finish().await.unwrap();
    }
}
