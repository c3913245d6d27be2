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
    /// The kinds among the items that can wait.
    queued: QuietKinds,
    /// Those that the consumer wants to be woken for nevertheless.
    awaited: QuietKinds,
}

/// A kind of items that can wait until the consumer is woken for another reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuietKind {
    Save,
    Job,
}

/// A set of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct QuietKinds {
    pub(crate) saves: bool,
    pub(crate) jobs: bool,
}

impl QuietKinds {
    fn add(&mut self, kind: QuietKind) {
        match kind {
            QuietKind::Save => self.saves = true,
            QuietKind::Job => self.jobs = true,
        }
    }

    fn overlaps(self, other: Self) -> bool {
        self.saves && other.saves || self.jobs && other.jobs
    }
}

impl<T> BatchQueue<T> {
    pub(crate) fn new() -> Self {
        let (queued, awaited) = (QuietKinds::default(), QuietKinds::default());
        let state = BatchQueueState { items: Vec::new(), woken: false, queued, awaited };
        Self { state: Mutex::new(Some(state)), ready: Notify::new() }
    }

    /// Queues an item. After [`BatchQueue::close`] the item is dropped.
    pub(crate) fn push(&self, item: T) {
        self.change(|state| {
            state.items.push(item);
            true
        });
    }

    /// Queues an item that can wait, unless the consumer [awaits](BatchQueue::set_awaited) its kind.
    pub(crate) fn push_quietly(&self, item: T, kind: QuietKind) {
        self.change(|state| {
            state.items.push(item);
            state.queued.add(kind);
            state.queued.overlaps(state.awaited)
        });
    }

    /// From now on the consumer is woken for these kinds; also if there is one already.
    pub(crate) fn set_awaited(&self, awaited: QuietKinds) {
        self.change(|state| {
            state.awaited = awaited;
            state.queued.overlaps(awaited)
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
            state.queued = QuietKinds::default();
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
