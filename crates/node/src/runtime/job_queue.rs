//! A queue between many producers and one worker thread that takes everything at once.

use super::sync::{Condvar, Mutex, PoisonError, lock};

/// Unbounded: what is queued is bounded where the work begins.
pub(crate) struct JobQueue<T> {
    jobs: Mutex<QueuedJobs<T>>,
    filled: Condvar,
}

struct QueuedJobs<T> {
    list: Vec<T>,
    is_closed: bool,
}

impl<T> JobQueue<T> {
    pub(crate) fn new() -> Self {
        let jobs = QueuedJobs { list: Vec::new(), is_closed: false };
        Self { jobs: Mutex::new(jobs), filled: Condvar::new() }
    }

    /// Queues a job. After [`JobQueue::close`] the job is dropped.
    pub(crate) fn push(&self, job: T) {
        let mut jobs = lock(&self.jobs);
        if jobs.is_closed {
            return;
        }
        jobs.list.push(job);
        // The worker takes everything at once, so only the first job has to wake it.
        let is_first = jobs.list.len() == 1;
        drop(jobs);
        if is_first {
            self.filled.notify_one();
        }
    }

    /// No job is accepted from now on. The worker still gets those that are queued.
    pub(crate) fn close(&self) {
        lock(&self.jobs).is_closed = true;
        self.filled.notify_one();
    }

    /// Waits until there is a job, then takes all of them into `batch`, which must be empty.
    /// False when the queue is closed and empty.
    pub(crate) fn take_all(&self, batch: &mut Vec<T>) -> bool {
        let mut jobs = lock(&self.jobs);
        while jobs.list.is_empty() {
            if jobs.is_closed {
                return false;
            }
            jobs = self.filled.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::swap(&mut jobs.list, batch);
        true
    }
}
