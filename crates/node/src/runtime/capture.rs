//! Writes a snapshot of the machine to the disk, without hurry: requests use the same disk and processors.
//!
//! The file is synced piece by piece. If all of it were left to the last sync, the syncs of the log would
//! wait for it, because file systems write the new blocks of all files before the next entry of their
//! journal. And it is written with pauses that are as long as the work between them.

use std::thread;
use std::time::{Duration, Instant};

use quorate_core::SnapshotMeta;
use tokio::task::spawn_blocking;

use super::disk_thread::DiskHandle;
use super::disk_use::DiskUse;
use super::status::StopReason;
use super::storage::{SnapshotSink, StorageError};
use crate::machine::{MachineFailed, SnapshotChunks};

/// Returns the number of bytes.
pub(crate) async fn write_capture(
    disk: &DiskHandle,
    meta: SnapshotMeta,
    chunks: SnapshotChunks,
    user: DiskUse,
) -> Result<u64, StorageError> {
    let id = meta.id;
    let sink = disk.begin_snapshot(meta).await.ok_or(StopReason::Stopped)??;
    let written = spawn_blocking(move || -> Result<u64, StorageError> {
        // Ends after the sink, which removes its file when it is dropped unfinished.
        let user = user;
        let mut sink = PacedSink::new(sink);
        for chunk in chunks {
            if user.is_cancelled() {
                return Err(StopReason::Stopped.into());
            }
            let chunk = chunk.map_err(|error| MachineFailed::new(id.index, error))?;
            if let Some(pause) = sink.append(&chunk)? {
                thread::sleep(pause);
                sink.resume();
            }
        }
        sink.finish()
    });
    let bytes = written.await??;
    disk.adopt_snapshot(id).await.ok_or(StopReason::Stopped)?;
    Ok(bytes)
}

struct PacedSink {
    sink: Box<dyn SnapshotSink>,
    bytes: u64,
    synced: u64,
    /// Of the work since the last pause.
    began: Instant,
}

impl PacedSink {
    fn new(sink: Box<dyn SnapshotSink>) -> Self {
        Self { sink, bytes: 0, synced: 0, began: Instant::now() }
    }

    /// Returns how long to pause, if it is time for that.
    fn append(&mut self, chunk: &[u8]) -> Result<Option<Duration>, StorageError> {
        self.sink.append(chunk)?;
        self.bytes += chunk.len() as u64;
        if self.bytes - self.synced >= SYNCED_AT_ONCE {
            self.sink.sync()?;
            self.synced = self.bytes;
        }
        let worked = self.began.elapsed();
        Ok((worked >= WORK_MIN).then_some(worked.min(PAUSE_MAX)))
    }

    fn resume(&mut self) {
        self.began = Instant::now();
    }

    fn finish(self) -> Result<u64, StorageError> {
        self.sink.finish()?;
        Ok(self.bytes)
    }
}

const SYNCED_AT_ONCE: u64 = 4 << 20;
/// Shorter pauses would be less than a timer can tell.
const WORK_MIN: Duration = Duration::from_millis(2);
/// After a sync that hung for longer, a longer pause would help nobody.
const PAUSE_MAX: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::super::sync::lock;
    use super::*;

    /// The bytes that are synced, and those that are not.
    #[derive(Clone, Default)]
    struct CountingSink(Arc<Mutex<(u64, u64)>>);

    impl SnapshotSink for CountingSink {
        fn append(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
            lock(&self.0).1 += bytes.len() as u64;
            Ok(())
        }

        fn sync(&mut self) -> Result<(), StorageError> {
            let mut counts = lock(&self.0);
            counts.0 += std::mem::take(&mut counts.1);
            Ok(())
        }

        fn finish(self: Box<Self>) -> Result<(), StorageError> {
            Ok(())
        }
    }

    #[test]
    fn little_is_left_to_the_last_sync() {
        let counts = CountingSink::default();
        let mut sink = PacedSink::new(Box::new(counts.clone()));
        let chunk = vec![1; 64 << 10];
        for _ in 0..200 {
            sink.append(&chunk).unwrap();
            assert!(lock(&counts.0).1 < SYNCED_AT_ONCE);
        }
        assert_eq!(sink.finish().unwrap(), 200 * (64 << 10));
        assert_eq!(lock(&counts.0).0, 3 * SYNCED_AT_ONCE);
    }

    #[test]
    fn pauses_are_as_long_as_the_work_before_them() {
        let mut sink = PacedSink::new(Box::new(CountingSink::default()));
        let began = |sink: &mut PacedSink, ago: Duration| {
            sink.began = Instant::now().checked_sub(ago).unwrap();
            sink.append(b"chunk").unwrap()
        };
        let pause = began(&mut sink, 2 * WORK_MIN).unwrap();
        assert!(pause >= 2 * WORK_MIN);
        assert_eq!(began(&mut sink, 2 * PAUSE_MAX), Some(PAUSE_MAX));
        sink.resume();
        sink.began += Duration::from_secs(60);
        assert_eq!(sink.append(b"chunk").unwrap(), None);
    }
}
