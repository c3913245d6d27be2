//! A file for the rows that exceed the memory for rows.
//!
//! A block of rows that is closed never changes its bytes. While they take more memory than allowed, a
//! thread writes the bytes of the oldest blocks to the file and frees their memory. The file is
//! an extension of memory: it has no name, and a crash loses it. It is synced all the same, every few MiB, before
//! memory is freed: the rows of a write that fails are still in memory then, and the syncs of the log, which
//! share the file system, never wait for much. Checksums of its contents stay in memory, so damaged and lost
//! writes are detected.
//!
//! The file takes no space while little of the disk is free: the log and snapshots need it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::thread;
use std::time::Duration;

use bytes::Bytes;

use super::file_space::{Extent, FileSpace, joined};

/// A file without a name that takes the oldest rows of tables in memory. Clones are handles to the
/// same file.
#[derive(Clone)]
pub struct RowFile(Arc<WriterHandle>);

/// Called when writing to a [`RowFile`] begins to fail, and with `Ok` when the rows no longer exceed their
/// memory.
pub type RowFileReport = Box<dyn Fn(Result<(), &io::Error>) + Send + Sync>;

/// How much memory and disk the rows of a [`RowFile`]'s tables take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RowFileUsage {
    /// The bytes of rows in memory that may be moved to the file.
    pub memory_bytes: u64,
    /// How many of them may stay there.
    pub memory_bytes_max: u64,
    /// The bytes of rows in the file.
    pub file_bytes: u64,
    /// Attempts to write that failed, or that would have left too little of the disk free.
    pub failures: u64,
    /// Reads that failed: the disk failed, or the rows are damaged.
    pub read_failures: u64,
}

/// Ends the thread when the last table and the last handle are dropped.
struct WriterHandle(Arc<RowFileState>);

/// What the tables and the thread share. The bytes of blocks refer to it too.
struct RowFileState {
    storage: Box<dyn RowStorage>,
    memory_bytes_max: u64,
    retry_pause: Duration,
    report: RowFileReport,
    /// Only the thread changes it without the lock of `work`, so that the thread misses no change while it
    /// decides whether to wait.
    memory_bytes: AtomicU64,
    /// Of these, what is written and not synced.
    written_bytes: AtomicU64,
    file_bytes: AtomicU64,
    failures: AtomicU64,
    read_failures: AtomicU64,
    work: Mutex<Work>,
    /// There may be work for the thread.
    wake: Condvar,
    /// The thread has no work, or waits after a failure.
    rested: Condvar,
}

#[derive(Default)]
struct Work {
    /// Bytes in memory, in the order in which they are moved to the file.
    waiting: BTreeMap<MoveOrder, Weak<ClosedBytes>>,
    /// How many bytes were added.
    added: u64,
    /// Parts of the file that are no longer used.
    freed: Vec<Extent>,
    /// The rows exceeded their memory, and are moved until they are somewhat below it.
    is_moving: bool,
    is_busy: bool,
    /// A write failed, and the rows exceed their memory since then.
    is_failing: bool,
    stopping: bool,
}

/// What the thread does next.
enum Job {
    Write(MoveOrder, Weak<ClosedBytes>),
    /// Of what is written. There are no rows left to move.
    Sync,
}

/// What the thread has in progress.
#[derive(Default)]
struct Mover {
    space: FileSpace,
    /// Whether the file system takes unused parts of the file back, so that to use them again takes space of
    /// the disk, as growing does.
    returns_space: bool,
    /// Parts of the file that are unused, in order, and not returned to the file system yet.
    freed: Vec<Extent>,
    /// Bytes that are written to the file. They stay in memory until it is synced.
    written: Vec<WrittenBytes>,
}

struct WrittenBytes {
    closed: Arc<ClosedBytes>,
    extent: Extent,
    checksums: Box<[u32]>,
}

/// Which bytes are moved first: the age of their rows, then a number that no others have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MoveOrder {
    age: u64,
    number: u64,
}

/// The bytes of a closed block: in memory until they are moved to the file. A block and the views
/// of it share them.
pub(super) struct ClosedBytes {
    state: RwLock<BytesState>,
    length: usize,
    order: MoveOrder,
    file: Arc<RowFileState>,
}

/// A part of a block's bytes.
pub(super) enum ClosedPart {
    /// All of them, which are in memory anyway.
    Memory(Bytes),
    /// These were read from the file, and where they start.
    File(usize, Bytes),
}

enum BytesState {
    Memory(Bytes),
    /// In the file, with the checksum of each chunk.
    File(Extent, Box<[u32]>),
}

/// Reading a row reads the chunks that it touches. Their checksums take a 256th of the memory that the rows would.
const CHUNK_BYTES: usize = 1 << 10;
/// The pause after a failed write.
const RETRY_PAUSE: Duration = Duration::from_secs(10);
/// The file is synced after this many bytes.
const SYNC_BYTES: u64 = 4 << 20;
/// The pause after a sync, unless the thread is far behind.
const SYNC_PAUSE: Duration = Duration::from_millis(20);
/// At most this many unused parts of the file are returned before the next rows are written.
const FREES_AT_ONCE: usize = 16;
/// This much of the disk stays free for the log, besides the size of a snapshot of all rows.
const FREE_BYTES_MIN: u64 = 256 << 20;

/// A file, or in tests one that fails.
pub(super) trait RowStorage: Send + Sync {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
    /// How much of the disk is free.
    fn free_bytes(&self) -> io::Result<u64>;
    /// Returns the space to the file system, and whether that was done.
    fn free(&self, extent: Extent) -> bool;
    fn set_end(&self, end: u64);
}

impl RowStorage for File {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(into, offset)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let disk = rustix::fs::fstatvfs(self)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// Without it the space is still used for other rows.
    #[cfg(target_os = "linux")]
    fn free(&self, extent: Extent) -> bool {
        use rustix::fs::{FallocateFlags, fallocate};
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(self, flags, extent.start, extent.length).is_ok()
    }

    #[cfg(not(target_os = "linux"))]
    fn free(&self, _extent: Extent) -> bool {
        false
    }

    fn set_end(&self, end: u64) {
        let _ = self.set_len(end);
    }
}

impl RowFile {
    /// Creates the file at this path and removes its name: its space is free when the process ends.
    /// A file with this name is replaced. From then on tables with the file keep up to `memory_bytes_max`
    /// bytes of closed blocks in memory, all of them together.
    pub fn create(path: &Path, memory_bytes_max: u64, report: RowFileReport) -> io::Result<Self> {
        remove_if_exists(path)?;
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(path)?;
        remove_if_exists(path)?;
        Self::start(Box::new(file), memory_bytes_max, RETRY_PAUSE, report)
    }

    pub(super) fn start(
        storage: Box<dyn RowStorage>,
        memory_bytes_max: u64,
        retry_pause: Duration,
        report: RowFileReport,
    ) -> io::Result<Self> {
        let state = Arc::new(RowFileState {
            storage,
            memory_bytes_max,
            retry_pause,
            report,
            memory_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            file_bytes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            read_failures: AtomicU64::new(0),
            work: Mutex::default(),
            wake: Condvar::new(),
            rested: Condvar::new(),
        });
        let shared = Arc::clone(&state);
        // It moves bytes and decides nothing, so the machine stays deterministic.
        thread::Builder::new().name("row-file".into()).spawn(move || shared.run())?;
        Ok(Self(Arc::new(WriterHandle(state))))
    }

    /// How much memory and disk the rows take.
    #[must_use]
    pub fn usage(&self) -> RowFileUsage {
        let state = &*self.0.0;
        RowFileUsage {
            memory_bytes: state.memory_bytes.load(Ordering::Relaxed),
            memory_bytes_max: state.memory_bytes_max,
            file_bytes: state.file_bytes.load(Ordering::Relaxed),
            failures: state.failures.load(Ordering::Relaxed),
            read_failures: state.read_failures.load(Ordering::Relaxed),
        }
    }

    /// Whether there are rows in the file.
    pub(super) fn is_used(&self) -> bool {
        self.0.0.file_bytes.load(Ordering::Relaxed) > 0
    }

    /// Waits until the rows that exceed the memory are in the file and unused space is free, or
    /// writing fails. For tests.
    pub fn wait_until_written(&self) {
        let state = &*self.0.0;
        let is_working =
            |work: &mut Work| !work.is_failing && (work.is_busy || state.update_work(work));
        drop(state.rested.wait_while(state.work(), is_working));
    }

    /// The bytes of a closed block. `age` is that of the block whose rows they were before; without
    /// one, their rows are the newest.
    pub(super) fn add(&self, bytes: Bytes, age: Option<u64>) -> Arc<ClosedBytes> {
        self.0.0.add(bytes, age)
    }
}

fn remove_if_exists(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl fmt::Debug for RowFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowFile").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

impl Drop for WriterHandle {
    /// Does not wait for the thread: a disk that hangs would stop its caller too.
    fn drop(&mut self) {
        self.0.work().stopping = true;
        self.0.wake.notify_one();
    }
}

impl RowFileState {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(self: &Arc<Self>, bytes: Bytes, age: Option<u64>) -> Arc<ClosedBytes> {
        let (length, file) = (bytes.len(), Arc::clone(self));
        let mut work = self.work();
        work.added += 1;
        let order = MoveOrder { age: age.unwrap_or(work.added), number: work.added };
        let state = RwLock::new(BytesState::Memory(bytes));
        let closed = Arc::new(ClosedBytes { state, length, order, file });
        work.waiting.insert(order, Arc::downgrade(&closed));
        let before = self.memory_bytes.fetch_add(length as u64, Ordering::Relaxed);
        if before + length as u64 > self.memory_bytes_max {
            self.wake.notify_one();
        }
        closed
    }

    /// Whether there is work. Rows are moved until an eighth of their memory is free, so that the file is
    /// synced after many of them.
    fn update_work(&self, work: &mut Work) -> bool {
        let bytes = self.memory_bytes.load(Ordering::Relaxed);
        let bytes = bytes.saturating_sub(self.written_bytes.load(Ordering::Relaxed));
        let max = self.memory_bytes_max;
        let spare = SYNC_BYTES.min(max / 8);
        let exceeds = bytes > max || work.is_moving && bytes > max - spare;
        work.is_moving = exceeds && !work.waiting.is_empty();
        work.is_moving || !work.freed.is_empty()
    }

    /// Waits for work. `None` when the thread has to end.
    fn next_job(&self, mover: &Mover) -> Option<Job> {
        let mut work = self.work();
        loop {
            if work.stopping {
                return None;
            }
            // Evaluated once in each turn.
            let has_work = self.update_work(&mut work) || work.is_failing;
            if has_work || !mover.freed.is_empty() || !mover.written.is_empty() {
                break;
            }
            work.is_busy = false;
            self.rested.notify_all();
            work = self.wake.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
        work.is_busy = true;
        let oldest = if work.is_moving { work.waiting.pop_first() } else { None };
        Some(oldest.map_or(Job::Sync, |(order, oldest)| Job::Write(order, oldest)))
    }

    fn run(&self) {
        let mut mover = Mover::default();
        while let Some(job) = self.next_job(&mover) {
            self.free_some(&mut mover);
            let moved = match job {
                Job::Write(order, block) => self.write(&mut mover, order, &block),
                Job::Sync => self.sync(&mut mover).inspect(|()| self.set_failing(None)),
            };
            if let Err(error) = moved {
                // Those before it may not have failed.
                let _ = self.sync(&mut mover);
                self.set_failing(Some(&error));
                // Unused parts may be the space that is missing.
                while self.free_some(&mut mover) {}
                self.pause(self.retry_pause);
            }
        }
        self.rested.notify_all();
    }

    /// Returns unused parts of the file to the file system, the last ones first: without the parts at its end,
    /// the file is shorter. Whether there are more.
    fn free_some(&self, mover: &mut Mover) -> bool {
        if mover.freed.is_empty() {
            let freed = std::mem::take(&mut self.work().freed);
            mover.freed = joined(freed);
        }
        for _ in 0..FREES_AT_ONCE {
            let Some(extent) = mover.freed.pop() else { break };
            self.free(mover, extent);
        }
        let work = self.work();
        let has_more = !mover.freed.is_empty() || !work.freed.is_empty();
        has_more && !work.stopping
    }

    fn free(&self, mover: &mut Mover, extent: Extent) {
        match mover.space.free(extent) {
            Some(end) => self.storage.set_end(end),
            None => mover.returns_space |= self.storage.free(extent),
        }
    }

    /// Writes bytes to the file, and syncs it after many of them. If it fails, they wait again.
    fn write(
        &self,
        mover: &mut Mover,
        order: MoveOrder,
        block: &Weak<ClosedBytes>,
    ) -> io::Result<()> {
        // It was removed in the meantime otherwise.
        let Some(closed) = block.upgrade() else { return Ok(()) };
        let bytes = match &*closed.state() {
            BytesState::Memory(bytes) => bytes.clone(),
            BytesState::File(..) => return Ok(()),
        };
        let written = self.allocate(mover, bytes.len() as u64).and_then(|extent| {
            let written = self.storage.write(extent.start, &bytes);
            written.inspect_err(|_| self.free(mover, extent)).map(|()| extent)
        });
        let extent = match written {
            Ok(extent) => extent,
            Err(error) => {
                self.work().waiting.insert(order, Arc::downgrade(&closed));
                return Err(error);
            }
        };
        let checksums = bytes.chunks(CHUNK_BYTES).map(crc32c::crc32c).collect();
        mover.written.push(WrittenBytes { closed, extent, checksums });
        let before = self.written_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if before + (bytes.len() as u64) < SYNC_BYTES { Ok(()) } else { self.sync(mover) }
    }

    /// A part of the file that was unused, or at its end, if the disk has room for it.
    fn allocate(&self, mover: &mut Mover, bytes: u64) -> io::Result<Extent> {
        if mover.returns_space || mover.space.needs_growth(bytes) {
            let rows =
                self.memory_bytes.load(Ordering::Relaxed) + self.file_bytes.load(Ordering::Relaxed);
            let needed = FREE_BYTES_MIN + rows;
            if self.storage.free_bytes()? < needed {
                let text = format!(
                    "less than {} MiB of the disk are free, which the log and snapshots need",
                    needed >> 20
                );
                return Err(io::Error::new(io::ErrorKind::StorageFull, text));
            }
        }
        Ok(mover.space.allocate(bytes))
    }

    /// Makes sure that what is written can be read, and frees its memory.
    fn sync(&self, mover: &mut Mover) -> io::Result<()> {
        if mover.written.is_empty() {
            return Ok(());
        }
        let synced = self.storage.sync();
        for WrittenBytes { closed, extent, checksums } in std::mem::take(&mut mover.written) {
            let bytes = closed.length as u64;
            self.written_bytes.fetch_sub(bytes, Ordering::Relaxed);
            if synced.is_ok() {
                self.memory_bytes.fetch_sub(bytes, Ordering::Relaxed);
                self.file_bytes.fetch_add(bytes, Ordering::Relaxed);
                let mut state = closed.state.write().unwrap_or_else(PoisonError::into_inner);
                *state = BytesState::File(extent, checksums);
            } else {
                self.free(mover, extent);
                self.work().waiting.insert(closed.order, Arc::downgrade(&closed));
            }
        }
        if synced.is_ok() {
            let memory_bytes = self.memory_bytes.load(Ordering::Relaxed);
            // A state that is loaded at once would exceed the memory by much.
            if memory_bytes < 2 * self.memory_bytes_max {
                self.pause(SYNC_PAUSE);
            }
        }
        synced
    }

    fn set_failing(&self, error: Option<&io::Error>) {
        if error.is_some() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        let was_failing = std::mem::replace(&mut self.work().is_failing, error.is_some());
        self.rested.notify_all();
        if was_failing != error.is_some() {
            (self.report)(error.map_or(Ok(()), Err));
        }
    }

    /// Leaves the disk to others.
    fn pause(&self, time: Duration) {
        let work = self.work();
        let is_paused = |work: &mut Work| !work.stopping;
        drop(self.wake.wait_timeout_while(work, time, is_paused));
    }
}

impl ClosedBytes {
    fn state(&self) -> RwLockReadGuard<'_, BytesState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn is_in_file(&self) -> bool {
        matches!(&*self.state(), BytesState::File(..))
    }

    pub(super) fn age(&self) -> u64 {
        self.order.age
    }

    /// The bytes of the same rows after they were written again.
    pub(super) fn rewritten(&self, bytes: Bytes) -> Arc<Self> {
        self.file.add(bytes, Some(self.age()))
    }

    /// Bytes that contain this range. Damaged bytes are [`io::ErrorKind::InvalidData`].
    pub(super) fn read(&self, range: Range<usize>) -> io::Result<ClosedPart> {
        match &*self.state() {
            BytesState::Memory(bytes) => Ok(ClosedPart::Memory(bytes.clone())),
            // They stay in the file, so the lock delays no writer.
            BytesState::File(extent, checksums) => {
                let read = self.read_file(*extent, checksums, range);
                read.inspect_err(|_| _ = self.file.read_failures.fetch_add(1, Ordering::Relaxed))
            }
        }
    }

    fn read_file(
        &self,
        extent: Extent,
        checksums: &[u32],
        range: Range<usize>,
    ) -> io::Result<ClosedPart> {
        let first = range.start / CHUNK_BYTES;
        let start = first * CHUNK_BYTES;
        let end = range.end.next_multiple_of(CHUNK_BYTES).min(self.length);
        let mut bytes = vec![0; end.saturating_sub(start)];
        self.file.storage.read(extent.start + start as u64, &mut bytes)?;
        let expected = checksums.iter().skip(first).copied();
        if !bytes.chunks(CHUNK_BYTES).map(crc32c::crc32c).zip(expected).all(|(a, b)| a == b) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "rows are damaged"));
        }
        Ok(ClosedPart::File(start, bytes.into()))
    }
}

impl fmt::Debug for ClosedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClosedBytes")
            .field("length", &self.length)
            .field("is_in_file", &self.is_in_file())
            .finish_non_exhaustive()
    }
}

impl Drop for ClosedBytes {
    fn drop(&mut self) {
        let length = self.length as u64;
        match self.state.get_mut().unwrap_or_else(PoisonError::into_inner) {
            BytesState::Memory(_) => {
                let mut work = self.file.work();
                self.file.memory_bytes.fetch_sub(length, Ordering::Relaxed);
                work.waiting.remove(&self.order);
            }
            BytesState::File(extent, _) => {
                self.file.file_bytes.fetch_sub(length, Ordering::Relaxed);
                self.file.work().freed.push(*extent);
                self.file.wake.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise the thread could decide to sync because of the one number, and to wait because of the next.
    #[test]
    fn memory_is_not_freed_while_the_thread_decides_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let file = RowFile::create(&directory.path().join("rows"), 1 << 20, Box::new(|_| {}));
        let file = file.unwrap();
        let closed = file.add(vec![7; 100].into(), None);
        let work = file.0.0.work();
        let dropping = thread::Builder::new().spawn(move || drop(closed)).unwrap();
        thread::sleep(Duration::from_millis(50));
        assert_eq!(file.usage().memory_bytes, 100);
        drop(work);
        dropping.join().unwrap();
        assert_eq!(file.usage().memory_bytes, 0);
    }
}
