//! Which calls of a connection can make progress. All calls are polled by the task of their
//! connection: waking one queues its slot, and wakes the task once however many are queued.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// The slots whose calls were woken.
#[derive(Debug, Default)]
pub(crate) struct ReadyQueue(Mutex<ReadyState>);

#[derive(Debug, Default)]
struct ReadyState {
    slots: Vec<usize>,
    /// The connection's task. Taken when it is woken.
    task: Option<Waker>,
}

impl ReadyQueue {
    fn lock(&self) -> MutexGuard<'_, ReadyState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the queued slots to an empty list.
    pub(crate) fn take(&self, slots: &mut Vec<usize>) {
        std::mem::swap(&mut self.lock().slots, slots);
    }

    /// From now on the first wake wakes this task. Returns false if slots are queued already.
    pub(crate) fn arm(&self, task: &Waker) -> bool {
        let mut state = self.lock();
        if !state.slots.is_empty() {
            return false;
        }
        if !state.task.as_ref().is_some_and(|known| known.will_wake(task)) {
            state.task = Some(task.clone());
        }
        true
    }

    /// Wakes do not wake the task until it is armed again.
    pub(crate) fn disarm(&self) {
        self.lock().task = None;
    }

    fn push(&self, slot: usize) {
        let mut state = self.lock();
        state.slots.push(slot);
        let task = state.task.take();
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
    }
}

/// Wakes the call in one slot. A slot keeps it from call to call: a late wake only polls the next
/// call once more.
#[derive(Debug)]
pub(crate) struct SlotWaker {
    slot: usize,
    is_queued: AtomicBool,
    queue: Arc<ReadyQueue>,
}

impl SlotWaker {
    pub(crate) fn new(slot: usize, queue: Arc<ReadyQueue>) -> Arc<Self> {
        Arc::new(Self { slot, is_queued: AtomicBool::new(false), queue })
    }

    pub(crate) fn queue(&self) {
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            self.queue.push(self.slot);
        }
    }

    /// Called before the call is polled: wakes from now on queue it again.
    pub(crate) fn begin_poll(&self) {
        // What was written before a wake that found it queued is visible from here on.
        self.is_queued.swap(false, Ordering::AcqRel);
    }
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.queue();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.queue();
    }
}
