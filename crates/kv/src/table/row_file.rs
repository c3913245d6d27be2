//! A file for the rows that exceed the memory for rows.
//!
//! A block of rows that is closed never changes its bytes. While they take more memory than allowed, a
//! thread writes the bytes of the oldest blocks to the file and frees their memory. The file is
//! an extension of memory: it has no name, it is never synced, and a crash loses it. Checksums of its contents
//! stay in memory, so damaged and lost writes are detected.

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

use super::file_space::{Extent, FileSpace};

/// A file without a name that takes the oldest rows of tables in memory. Clones are handles to the
/// same file.
#[derive(Clone)]
pub struct RowFile(Arc<WriterHandle>);

/// Called when writing to a [`RowFile`] begins to fail, and with `Ok` when it works again. Until then
/// rows stay in memory.
pub type RowFileReport = Box<dyn Fn(Result<(), &io::Error>) + Send + Sync>;

/// How much memory and disk the rows of a [`RowFile`]'s tables take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RowFileUsage {
    /// The bytes of rows in memory that may be moved to the file.
    pub memory_bytes: u64,
    /// The bytes of rows in the file.
    pub file_bytes: u64,
    /// Attempts to write that failed.
    pub failures: u64,
}

/// Ends the thread when the last table and the last handle are dropped.
struct WriterHandle(Arc<RowFileState>);

/// What the tables and the thread share. The bytes of blocks refer to it too.
struct RowFileState {
    storage: Box<dyn RowStorage>,
    memory_bytes_max: u64,
    retry_pause: Duration,
    report: RowFileReport,
    memory_bytes: AtomicU64,
    file_bytes: AtomicU64,
    failures: AtomicU64,
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
    is_busy: bool,
    is_failing: bool,
    stopping: bool,
}

/// What the thread does next.
enum Job {
    Free(Vec<Extent>),
    Write(MoveOrder, Weak<ClosedBytes>),
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

enum BytesState {
    Memory(Bytes),
    /// In the file, with the checksum of each chunk.
    File(Extent, Box<[u32]>),
}

/// Reading a row reads the chunks that it touches. Their checksums take a 256th of the memory that the rows would.
const CHUNK_BYTES: usize = 1 << 10;
/// The pause after a failed write.
const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// A file, or in tests one that fails.
pub(super) trait RowStorage: Send + Sync {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Returns the space to the file system if that can be done.
    fn free(&self, extent: Extent);
    fn set_end(&self, end: u64);
}

impl RowStorage for File {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(into, offset)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    /// Without it the space is still used for other rows.
    fn free(&self, extent: Extent) {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{FallocateFlags, fallocate};
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = fallocate(self, flags, extent.start, extent.length);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = extent;
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
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(path)?;
        fs::remove_file(path)?;
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
            file_bytes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
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
        let RowFileState { memory_bytes, file_bytes, failures, .. } = &*self.0.0;
        RowFileUsage {
            memory_bytes: memory_bytes.load(Ordering::Relaxed),
            file_bytes: file_bytes.load(Ordering::Relaxed),
            failures: failures.load(Ordering::Relaxed),
        }
    }

    /// Waits until the rows that exceed the memory are in the file and unused space is free, or
    /// writing fails. For tests.
    pub fn wait_until_written(&self) {
        let state = &*self.0.0;
        let is_working =
            |work: &mut Work| !work.is_failing && (work.is_busy || state.has_work(work));
        drop(state.rested.wait_while(state.work(), is_working));
    }

    /// The bytes of a closed block. `age` is that of the block whose rows they were before; without
    /// one, their rows are the newest.
    pub(super) fn add(&self, bytes: Bytes, age: Option<u64>) -> Arc<ClosedBytes> {
        self.0.0.add(bytes, age)
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

    fn has_work(&self, work: &Work) -> bool {
        let is_over = self.memory_bytes.load(Ordering::Relaxed) > self.memory_bytes_max;
        !work.stopping && (!work.freed.is_empty() || is_over && !work.waiting.is_empty())
    }

    /// `None` when the thread has to end.
    fn next_job(&self) -> Option<Job> {
        let mut work = self.work();
        work.is_busy = false;
        if !self.has_work(&work) {
            self.rested.notify_all();
        }
        let is_idle = |work: &mut Work| !work.stopping && !self.has_work(work);
        let mut work = self.wake.wait_while(work, is_idle).unwrap_or_else(PoisonError::into_inner);
        if work.stopping {
            return None;
        }
        work.is_busy = true;
        if !work.freed.is_empty() {
            return Some(Job::Free(std::mem::take(&mut work.freed)));
        }
        let (order, oldest) = work.waiting.pop_first()?;
        Some(Job::Write(order, oldest))
    }

    fn run(&self) {
        let mut space = FileSpace::default();
        while let Some(job) = self.next_job() {
            match job {
                Job::Free(freed) => freed.into_iter().for_each(|one| self.free(&mut space, one)),
                Job::Write(order, block) => {
                    // It was removed in the meantime otherwise.
                    let Some(closed) = block.upgrade() else { continue };
                    match self.move_to_file(&mut space, &closed) {
                        Ok(()) => self.set_failing(None),
                        Err(error) => {
                            self.set_failing(Some(&error));
                            drop(closed);
                            self.pause(order, block);
                        }
                    }
                }
            }
        }
        self.rested.notify_all();
    }

    fn free(&self, space: &mut FileSpace, extent: Extent) {
        self.storage.free(extent);
        if let Some(end) = space.free(extent) {
            self.storage.set_end(end);
        }
    }

    fn move_to_file(&self, space: &mut FileSpace, closed: &ClosedBytes) -> io::Result<()> {
        let bytes = match &*closed.state() {
            BytesState::Memory(bytes) => bytes.clone(),
            BytesState::File(..) => return Ok(()),
        };
        let checksums = bytes.chunks(CHUNK_BYTES).map(crc32c::crc32c).collect();
        let extent = space.allocate(bytes.len() as u64);
        if let Err(error) = self.storage.write(extent.start, &bytes) {
            self.free(space, extent);
            return Err(error);
        }
        self.memory_bytes.fetch_sub(bytes.len() as u64, Ordering::Relaxed);
        self.file_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let mut state = closed.state.write().unwrap_or_else(PoisonError::into_inner);
        *state = BytesState::File(extent, checksums);
        Ok(())
    }

    fn set_failing(&self, error: Option<&io::Error>) {
        if error.is_some() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        let was_failing = std::mem::replace(&mut self.work().is_failing, error.is_some());
        if was_failing != error.is_some() {
            (self.report)(error.map_or(Ok(()), Err));
        }
    }

    /// Puts a block back that could not be written, and waits.
    fn pause(&self, order: MoveOrder, block: Weak<ClosedBytes>) {
        let mut work = self.work();
        if block.strong_count() > 0 {
            work.waiting.insert(order, block);
        }
        self.rested.notify_all();
        let is_paused = |work: &mut Work| !work.stopping;
        drop(self.wake.wait_timeout_while(work, self.retry_pause, is_paused));
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

    /// Bytes that contain this range, and where they start. Damaged bytes are
    /// [`io::ErrorKind::InvalidData`].
    pub(super) fn read(&self, range: Range<usize>) -> io::Result<(usize, Bytes)> {
        match &*self.state() {
            BytesState::Memory(bytes) => Ok((0, bytes.clone())),
            // They stay in the file, so the lock delays no writer.
            BytesState::File(extent, checksums) => self.read_file(*extent, checksums, range),
        }
    }

    fn read_file(
        &self,
        extent: Extent,
        checksums: &[u32],
        range: Range<usize>,
    ) -> io::Result<(usize, Bytes)> {
        let first = range.start / CHUNK_BYTES;
        let start = first * CHUNK_BYTES;
        let end = range.end.next_multiple_of(CHUNK_BYTES).min(self.length);
        let mut bytes = vec![0; end.saturating_sub(start)];
        self.file.storage.read(extent.start + start as u64, &mut bytes)?;
        let expected = checksums.iter().skip(first).copied();
        if !bytes.chunks(CHUNK_BYTES).map(crc32c::crc32c).zip(expected).all(|(a, b)| a == b) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "rows are damaged"));
        }
        Ok((start, bytes.into()))
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
                self.file.memory_bytes.fetch_sub(length, Ordering::Relaxed);
                self.file.work().waiting.remove(&self.order);
            }
            BytesState::File(extent, _) => {
                self.file.file_bytes.fetch_sub(length, Ordering::Relaxed);
                self.file.work().freed.push(*extent);
                self.file.wake.notify_one();
            }
        }
    }
}
