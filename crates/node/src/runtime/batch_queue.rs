//! A queue between many producers and one task that takes everything at once.

use super::sync::{Mutex, Notify, lock};

/// Unbounded, so that no producer ever waits: it holds at most one item for each thing in
/// progress, and how many may be in progress is bounded where they begin.
pub(crate) struct BatchQueue<T> {
    /// None when it is closed.
    state: Mutex<Option<BatchQueueState<T>>>,
    ready: Notify,
}

struct BatchQueueState<T> {
    items: Vec<T>,
    /// The consumer was woken, and has not taken the items yet.
    woken: bool,
    /// It also wants to be woken for items that can wait.
    waits_for_all: bool,
}

impl<T> BatchQueue<T> {
    pub(crate) fn new() -> Self {
        let state = BatchQueueState { items: Vec::new(), woken: false, waits_for_all: false };
        Self { state: Mutex::new(Some(state)), ready: Notify::new() }
    }

    /// Queues an item. After [`BatchQueue::close`] the item is dropped.
    pub(crate) fn push(&self, item: T) {
        self.change(|state| {
            state.items.push(item);
            true
        });
    }

    /// Queues an item that can wait until the consumer is woken for another reason, unless it
    /// [waits for all](BatchQueue::set_waits_for_all).
    pub(crate) fn push_without_wake(&self, item: T) {
        self.change(|state| {
            state.items.push(item);
            state.waits_for_all
        });
    }

    /// Whether the consumer waits for items of every kind; it is woken if there is one.
    pub(crate) fn set_waits_for_all(&self, waits: bool) {
        self.change(|state| {
            state.waits_for_all = waits;
            waits && !state.items.is_empty()
        });
    }

    /// Puts items back that were taken out and have to be processed before all others.
    pub(crate) fn push_front(&self, mut first: Vec<T>) {
        self.change(|state| {
            first.append(&mut state.items);
            state.items = first;
            true
        });
    }

    /// Changes the state, and wakes the consumer if the change says so. It takes everything at
    /// once, so it is woken once.
    fn change(&self, change: impl FnOnce(&mut BatchQueueState<T>) -> bool) {
        let mut locked = lock(&self.state);
        let Some(state) = locked.as_mut() else { return };
        let wakes = change(state) && !std::mem::replace(&mut state.woken, true);
        drop(locked);
        if wakes {
            self.ready.notify_one();
        }
    }

    /// Takes everything that is queued; what `batch` held before is dropped.
    pub(crate) fn take_all(&self, batch: &mut Vec<T>) {
        batch.clear();
        if let Some(state) = lock(&self.state).as_mut() {
            std::mem::swap(&mut state.items, batch);
            state.woken = false;
        }
    }

    /// Drops what is queued, and everything that is pushed later.
    pub(crate) fn close(&self) {
        // Outside the lock: dropping an item may push another one.
        let state = lock(&self.state).take();
        drop(state);
    }

    /// Waits until there may be an item. One consumer at a time; cancelling the wait loses
    /// no item.
    pub(crate) async fn ready(&self) {
        self.ready.notified().await;
    }
}
