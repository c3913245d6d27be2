//! Who uses a member's disk beside its thread: snapshots that are sent, received or written.
//! They have to release the disk before the member can start again on it.

use super::sync::{Arc, AtomicBool, AtomicUsize, Notify, Ordering};

/// Counts the uses of one member's disk.
#[derive(Clone, Default)]
pub(crate) struct DiskUses {
    count: Arc<UseCount>,
}

#[derive(Default)]
struct UseCount {
    is_cancelled: AtomicBool,
    users: AtomicUsize,
    released: Notify,
}

/// One use, until it is dropped.
pub(crate) struct DiskUse {
    count: Arc<UseCount>,
}

impl DiskUses {
    /// Begins a use. Check [`DiskUse::is_cancelled`] before the disk is used, and between
    /// its parts.
    pub(crate) fn begin_use(&self) -> DiskUse {
        self.count.users.fetch_add(1, Ordering::SeqCst);
        DiskUse { count: Arc::clone(&self.count) }
    }

    /// Cancels all uses, and waits until they have ended. One caller at a time. Put a timeout
    /// around it: a use may hang on its disk.
    pub(crate) async fn cancel(&self) {
        self.count.is_cancelled.store(true, Ordering::SeqCst);
        while self.count.users.load(Ordering::SeqCst) > 0 {
            self.count.released.notified().await;
        }
    }
}

impl DiskUse {
    /// The member has stopped: end this use.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.count.is_cancelled.load(Ordering::SeqCst)
    }
}

impl Drop for DiskUse {
    fn drop(&mut self) {
        if self.count.users.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.count.released.notify_one();
        }
    }
}
