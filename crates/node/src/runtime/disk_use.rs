//! Counts what uses a member's disk beside its thread: snapshots that are sent, received or
//! written. All of them have to release the disk before the member can start again on it.

use super::sync::{Arc, Mutex, Notify, lock};

/// The uses of one member's disk.
#[derive(Clone)]
pub(crate) struct DiskUses {
    shared: Arc<UseCount>,
}

struct UseCount {
    state: Mutex<UseState>,
    released: Notify,
}

struct UseState {
    is_cancelled: bool,
    users: usize,
}

/// One use, until it is dropped.
pub(crate) struct DiskUse {
    shared: Arc<UseCount>,
}

impl DiskUses {
    pub(crate) fn new() -> Self {
        let state = Mutex::new(UseState { is_cancelled: false, users: 0 });
        Self { shared: Arc::new(UseCount { state, released: Notify::new() }) }
    }

    /// Begins a use. Check [`DiskUse::is_cancelled`] before the disk is used, and between the
    /// parts of a long use.
    pub(crate) fn begin_use(&self) -> DiskUse {
        lock(&self.shared.state).users += 1;
        DiskUse { shared: Arc::clone(&self.shared) }
    }

    /// Cancels all uses, and waits until they have ended. One caller at a time. Put a timeout
    /// around it: a use may hang on its disk.
    pub(crate) async fn cancel(&self) {
        lock(&self.shared.state).is_cancelled = true;
        while lock(&self.shared.state).users > 0 {
            self.shared.released.notified().await;
        }
    }
}

impl DiskUse {
    /// The member has stopped: end this use.
    pub(crate) fn is_cancelled(&self) -> bool {
        lock(&self.shared.state).is_cancelled
    }
}

impl Drop for DiskUse {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        state.users -= 1;
        let is_last = state.users == 0;
        drop(state);
        if is_last {
            self.shared.released.notify_one();
        }
    }
}
