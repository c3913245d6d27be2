//! The synchronization types of the runtime's own concurrent structures (`arrivals`,
//! `batch_queue`, `job_queue`, `disk_use`). `crates/node/loom` compiles these files against the types of
//! loom instead, and explores their interleavings: see `scripts/loom.sh`.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

pub(crate) use tokio::sync::Notify;

/// Locks, also after a panic in another thread: no code holds these locks across anything
/// that can panic, so what they guard is consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
