//! Group commit without consensus: what the disk alone allows.
//!
//! The same proposers as for the complete node. One thread writes all queued operations to a file
//! and syncs it, while two more threads do the same with other files. An operation is complete
//! when two of the three files are durable.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Operations a second.
pub(crate) async fn rate(
    directory: &Path,
    proposers: usize,
    size: usize,
    length: Duration,
) -> io::Result<f64> {
    let files: io::Result<Vec<RawLog>> =
        (0..3).map(|number| RawLog::new(directory, number)).collect();
    let (requests, gathered) = channel();
    let bytes = size + ENTRY_BYTES;
    let disk = thread::spawn(move || commit_in_groups(files?, &gathered, bytes));
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..proposers {
        let (requests, stop, done) = (requests.clone(), Arc::clone(&stop), Arc::clone(&done));
        tasks.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let (reply, durable) = oneshot::channel();
                if requests.send(reply).is_err() || durable.await.is_err() {
                    return;
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    tokio::time::sleep(length).await;
    stop.store(true, Ordering::Relaxed);
    while tasks.join_next().await.is_some() {}
    let took = began.elapsed();
    drop(requests);
    disk.join().map_err(|_| io::Error::other("the disk thread panicked"))??;
    Ok(done.load(Ordering::Relaxed) as f64 / took.as_secs_f64())
}

fn commit_in_groups(
    mut logs: Vec<RawLog>,
    gathered: &Receiver<oneshot::Sender<()>>,
    bytes: usize,
) -> io::Result<()> {
    let mut own = logs.pop().ok_or_else(|| io::Error::other("no log"))?;
    let (synced, others_synced) = channel();
    let mut others: Vec<Sender<usize>> = Vec::new();
    for mut log in logs {
        let (batches, batch) = channel();
        let synced = synced.clone();
        others.push(batches);
        thread::spawn(move || -> io::Result<()> {
            for (number, count) in (1u64..).zip(batch) {
                log.write(count * bytes)?;
                let _ = synced.send(number);
            }
            Ok(())
        });
    }
    drop(synced);
    let (mut number, mut newest) = (0, 0);
    while let Ok(first) = gathered.recv() {
        let batch: Vec<_> = std::iter::once(first).chain(gathered.try_iter()).collect();
        number += 1;
        for other in &others {
            let _ = other.send(batch.len());
        }
        own.write(batch.len() * bytes)?;
        while newest < number {
            let synced = others_synced.recv().map_err(|_| io::Error::other("a log failed"))?;
            newest = newest.max(synced);
        }
        for reply in batch {
            let _ = reply.send(());
        }
    }
    Ok(())
}

/// A preallocated file that is overwritten cyclically.
struct RawLog {
    path: PathBuf,
    file: File,
    at: u64,
    zeros: Vec<u8>,
}

impl RawLog {
    fn new(directory: &Path, number: u32) -> io::Result<Self> {
        let path = directory.join(format!("raw-{number}"));
        let file = File::create(&path)?;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, FILE_BYTES)?;
        Ok(Self { path, file, at: 0, zeros: Vec::new() })
    }

    fn write(&mut self, bytes: usize) -> io::Result<()> {
        if self.zeros.len() < bytes {
            self.zeros.resize(bytes, 7);
        }
        if self.at + bytes as u64 > FILE_BYTES {
            self.at = 0;
        }
        self.file.write_all_at(&self.zeros[..bytes], self.at)?;
        self.file.sync_data()?;
        self.at += bytes as u64;
        Ok(())
    }
}

impl Drop for RawLog {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The approximate overhead of an entry in the log.
const ENTRY_BYTES: usize = 48;
const FILE_BYTES: u64 = 64 << 20;
