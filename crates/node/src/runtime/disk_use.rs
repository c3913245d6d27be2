//! Whether a member is still there, for what goes on beside it: snapshots that are sent,
//! received or written hold on to its disk, and have to let go before it can start again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// A member's disk_uses.
#[derive(Clone, Default)]
pub(crate) struct DiskUses {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    over: AtomicBool,
    users: AtomicUsize,
}

/// Held by what uses a member's disk beside its thread.
pub(crate) struct DiskUse {
    shared: Arc<Shared>,
}

impl DiskUses {
    pub(crate) fn begin_use(&self) -> DiskUse {
        self.shared.users.fetch_add(1, Ordering::SeqCst);
        DiskUse { shared: Arc::clone(&self.shared) }
    }

    /// Tells all users to let go, and waits until they have; not for ever, since one may
    /// hang on its disk.
    pub(crate) async fn end(&self) {
        self.shared.over.store(true, Ordering::SeqCst);
        for _ in 0..LOOKS {
            if self.shared.users.load(Ordering::SeqCst) == 0 {
                return;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

impl DiskUse {
    /// The member has ended: let go.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.shared.over.load(Ordering::SeqCst)
    }
}

impl Drop for DiskUse {
    fn drop(&mut self) {
        self.shared.users.fetch_sub(1, Ordering::SeqCst);
    }
}

const LOOK_AGAIN: Duration = Duration::from_millis(5);
const LOOKS: u32 = 1_000;
