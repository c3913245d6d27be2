//! One limit for the memory of all frames that arrive on the peer port.
//!
//! A frame that is longer than a read buffer takes from the budget as its bytes arrive, and
//! gives them back when the member has processed it. Frames that fit into a read buffer need
//! nothing, so heartbeats and votes pass whatever others send. When the budget is used up, the
//! frame that has been incomplete for longest ends with its connection: a peer that makes
//! progress completes its frame long before, and one that stalls cannot keep others out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::runtime::lock;

pub(crate) struct PortBudget {
    limit: usize,
    state: Mutex<BudgetState>,
    freed: Notify,
}

#[derive(Default)]
struct BudgetState {
    used: usize,
    /// The number of the newest frame.
    newest: u64,
    /// Frames that are incomplete, oldest first.
    incomplete: BTreeMap<u64, Arc<Notify>>,
}

/// The budget is used up by frames that members have yet to process, or by this frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OverBudget;

impl PortBudget {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, state: Mutex::default(), freed: Notify::new() })
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn used(&self) -> usize {
        lock(&self.state).used
    }

    /// A frame begins to arrive.
    pub(crate) fn begin_frame(self: &Arc<Self>) -> FrameBytes {
        let mut state = lock(&self.state);
        state.newest += 1;
        let (number, evicted) = (state.newest, Arc::new(Notify::new()));
        state.incomplete.insert(number, Arc::clone(&evicted));
        FrameBytes { budget: Arc::clone(self), number, bytes: 0, evicted }
    }

    /// Takes the bytes, or ends the oldest incomplete frame to make room.
    fn take(&self, bytes: usize, own: u64) -> Result<bool, OverBudget> {
        let mut state = lock(&self.state);
        if state.used + bytes <= self.limit {
            state.used += bytes;
            return Ok(true);
        }
        match state.incomplete.first_key_value() {
            Some((oldest, _)) if *oldest == own && state.incomplete.len() > 1 => Err(OverBudget),
            Some((oldest, evicted)) if *oldest != own => {
                evicted.notify_one();
                Ok(false)
            }
            _ => Ok(false),
        }
    }
}

/// The bytes of one frame that count.
pub(crate) struct FrameBytes {
    budget: Arc<PortBudget>,
    number: u64,
    bytes: usize,
    evicted: Arc<Notify>,
}

impl FrameBytes {
    /// Takes as many bytes more as are missing to this many. Waits until they are free.
    pub(crate) async fn grow_to(
        &mut self,
        bytes: usize,
        limit: Duration,
    ) -> Result<(), OverBudget> {
        let more = bytes.saturating_sub(self.bytes);
        if more == 0 {
            return Ok(());
        }
        let taken = async {
            loop {
                let freed = self.budget.freed.notified();
                let mut freed = std::pin::pin!(freed);
                freed.as_mut().enable();
                if self.budget.take(more, self.number)? {
                    return Ok(());
                }
                tokio::select! {
                    () = freed => {}
                    () = self.evicted.notified() => return Err(OverBudget),
                }
            }
        };
        timeout(limit, taken).await.map_err(|_| OverBudget)??;
        self.bytes += more;
        Ok(())
    }

    /// Resolves when other frames need the room of this one.
    pub(crate) async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// The frame is complete: it only waits to be processed.
    pub(crate) fn complete(&self) {
        lock(&self.budget.state).incomplete.remove(&self.number);
    }
}

impl Drop for FrameBytes {
    fn drop(&mut self) {
        let mut state = lock(&self.budget.state);
        state.incomplete.remove(&self.number);
        state.used = state.used.saturating_sub(self.bytes);
        drop(state);
        self.budget.freed.notify_waiters();
    }
}

impl std::fmt::Debug for FrameBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FrameBytes({})", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn the_oldest_incomplete_frame_gives_way() {
        let budget = PortBudget::new(100);
        let mut stalled = budget.begin_frame();
        stalled.grow_to(60, LONG).await.unwrap();
        let mut next = budget.begin_frame();
        next.grow_to(40, LONG).await.unwrap();
        assert_eq!(budget.used(), 100);
        let waits = tokio::spawn(async move { next.grow_to(80, LONG).await.map(|()| next) });
        stalled.evicted().await;
        drop(stalled);
        let next = waits.await.unwrap().unwrap();
        assert_eq!(budget.used(), 80);
        drop(next);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn complete_frames_are_waited_for_and_never_evicted() {
        let budget = PortBudget::new(100);
        let mut delivered = budget.begin_frame();
        delivered.grow_to(100, LONG).await.unwrap();
        delivered.complete();
        let mut next = budget.begin_frame();
        assert_eq!(next.grow_to(1, Duration::from_secs(1)).await, Err(OverBudget));
        let waits = tokio::spawn(async move { next.grow_to(1, LONG).await });
        tokio::task::yield_now().await;
        drop(delivered);
        waits.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_frame_itself_does_not_wait_for_younger_ones() {
        let budget = PortBudget::new(100);
        let (mut oldest, mut younger) = (budget.begin_frame(), budget.begin_frame());
        oldest.grow_to(50, LONG).await.unwrap();
        younger.grow_to(50, LONG).await.unwrap();
        assert_eq!(oldest.grow_to(51, LONG).await, Err(OverBudget));
    }
}
