//! A queue between many producers and one task that takes everything at once.

use super::sync::{Mutex, Notify, lock};

/// Unbounded, so that no producer ever waits: it holds at most one item for each thing in
/// progress, and how many may be in progress is bounded where they begin.
pub(crate) struct BatchQueue<T> {
    /// None when it is closed.
    items: Mutex<Option<Vec<T>>>,
    ready: Notify,
}

impl<T> BatchQueue<T> {
    pub(crate) fn new() -> Self {
        Self { items: Mutex::new(Some(Vec::new())), ready: Notify::new() }
    }

    /// Queues an item. After [`BatchQueue::close`] the item is dropped.
    pub(crate) fn push(&self, item: T) {
        let mut items = lock(&self.items);
        let Some(list) = items.as_mut() else { return };
        list.push(item);
        // The consumer takes everything at once, so only the first item has to wake it.
        let is_first = list.len() == 1;
        drop(items);
        if is_first {
            self.ready.notify_one();
        }
    }

    /// Puts items back that were taken out and have to be processed before all others.
    pub(crate) fn push_front(&self, mut first: Vec<T>) {
        let mut items = lock(&self.items);
        let Some(list) = items.as_mut() else { return };
        first.append(list);
        *list = first;
        drop(items);
        self.ready.notify_one();
    }

    /// Takes everything that is queued; what `batch` held before is dropped.
    pub(crate) fn take_all(&self, batch: &mut Vec<T>) {
        batch.clear();
        if let Some(list) = lock(&self.items).as_mut() {
            std::mem::swap(list, batch);
        }
    }

    /// Drops what is queued, and everything that is pushed later.
    pub(crate) fn close(&self) {
        // Outside the lock: dropping an item may push another one.
        let list = lock(&self.items).take();
        drop(list);
    }

    /// Waits until there may be an item. One consumer at a time; cancelling the wait loses
    /// no item.
    pub(crate) async fn ready(&self) {
        self.ready.notified().await;
    }
}
