//! The lock of a shared machine. Threads that serve many clients wait for it without blocking:
//! a command may hold it for as long as a deletion of many keys takes.

use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::{
    Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};
use std::task::{Context, Poll, Waker};

pub(crate) struct SharedLock<T> {
    content: RwLock<T>,
    /// Readers to wake when a writer is done.
    waiting: Mutex<Vec<Waker>>,
}

impl<T> SharedLock<T> {
    pub(crate) fn new(content: T) -> Self {
        Self { content: RwLock::new(content), waiting: Mutex::default() }
    }

    /// Blocks while there is a writer.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.content.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn read_when_free(&self) -> ReadWhenFree<'_, T> {
        ReadWhenFree(self)
    }

    fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        match self.content.try_read() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn write(&self) -> WriteGuard<'_, T> {
        let guard = self.content.write().unwrap_or_else(PoisonError::into_inner);
        WriteGuard { guard: Some(guard), lock: self }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The future of [`SharedKv::read_when_free`](crate::SharedKv::read_when_free).
#[must_use = "a future does nothing until it is polled"]
pub struct ReadWhenFree<'a, T>(&'a SharedLock<T>);

impl<'a, T> Future for ReadWhenFree<'a, T> {
    type Output = RwLockReadGuard<'a, T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let lock = self.0;
        if let Some(guard) = lock.try_read() {
            return Poll::Ready(guard);
        }
        lock.waiting().push(context.waker().clone());
        // A writer that was done before this waker was added did not wake it.
        lock.try_read().map_or(Poll::Pending, Poll::Ready)
    }
}

/// The machine for writing. Wakes the readers that wait when it is dropped.
pub struct WriteGuard<'a, T> {
    /// None only while it is dropped.
    guard: Option<RwLockWriteGuard<'a, T>>,
    lock: &'a SharedLock<T>,
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;

    #[expect(clippy::unreachable, reason = "the guard is taken only when it is dropped")]
    fn deref(&self) -> &T {
        self.guard.as_deref().unwrap_or_else(|| unreachable!())
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    #[expect(clippy::unreachable, reason = "the guard is taken only when it is dropped")]
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_deref_mut().unwrap_or_else(|| unreachable!())
    }
}

impl<T> Drop for WriteGuard<'_, T> {
    fn drop(&mut self) {
        // Readers that are woken before the lock is free would never be woken again.
        drop(self.guard.take());
        let waiting = std::mem::take(&mut *self.lock.waiting());
        waiting.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_reader_waits_without_blocking_and_is_woken_when_the_lock_is_free() {
        let lock = SharedLock::new(1);
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut context = Context::from_waker(&waker);
        let mut first = lock.read_when_free();
        let Poll::Ready(guard) = Pin::new(&mut first).poll(&mut context) else { panic!() };
        drop(guard);

        let mut writer = lock.write();
        *writer += 1;
        let mut readers = [lock.read_when_free(), lock.read_when_free()];
        for reader in &mut readers {
            assert!(Pin::new(reader).poll(&mut context).is_pending());
        }
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
        drop(writer);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 2);
        let guards = readers.each_mut().map(|reader| Pin::new(reader).poll(&mut context));
        for guard in guards {
            let Poll::Ready(guard) = guard else { panic!() };
            assert_eq!(*guard, 2);
        }
        drop(lock.write());
        assert_eq!(wakes.0.load(Ordering::Relaxed), 2);
    }
}
