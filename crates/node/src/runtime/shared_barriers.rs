//! Barriers of many callers in one request. Callers share the next barrier until the member takes it
//! out of its mailbox: from then on it is confirmed by the leader, so it covers everything that they may
//! have seen. The cost of a request does not depend on the number of its callers.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use quorate_core::Index;
use tokio::runtime::Handle;

use super::node::Node;
use super::sync::lock;
use crate::outcome::{OutcomeUnknown, RequestError};

type BarrierResult = Result<Index, RequestError>;

/// The barriers of one member. One is in progress at a time.
#[derive(Default)]
pub(crate) struct SharedBarriers(Mutex<BarrierState>);

#[derive(Default)]
struct BarrierState {
    is_in_progress: bool,
    /// Callers whose barrier the member has not begun, apart from the one that sends it.
    waiting: Option<Arc<BarrierGroup>>,
    /// How many callers that are, with the one that sends it.
    waiting_callers: usize,
    /// Callers whose barrier the member has begun.
    begun: Vec<Arc<BarrierGroup>>,
    /// How many barriers the member has begun.
    begun_count: u64,
}

impl SharedBarriers {
    /// The member begins a barrier for all who wait. Returns how many these are.
    pub(crate) fn begin(&self) -> usize {
        let mut state = lock(&self.0);
        let group = state.waiting.take();
        state.begun.extend(group);
        state.begun_count += 1;
        std::mem::take(&mut state.waiting_callers)
    }
}

/// Callers that share a barrier.
#[derive(Default)]
struct BarrierGroup(Mutex<GroupState>);

#[derive(Default)]
struct GroupState {
    result: Option<BarrierResult>,
    callers: Vec<Waker>,
}

impl BarrierGroup {
    async fn wait(&self) -> BarrierResult {
        let mut place: Option<usize> = None;
        poll_fn(|context| {
            let mut state = lock(&self.0);
            if let Some(result) = &state.result {
                return Poll::Ready(result.clone());
            }
            let waker = context.waker();
            match place {
                Some(place) => state.callers[place].clone_from(waker),
                None => {
                    place = Some(state.callers.len());
                    state.callers.push(waker.clone());
                }
            }
            Poll::Pending
        })
        .await
    }

    fn complete(&self, result: BarrierResult) {
        let mut state = lock(&self.0);
        state.result = Some(result);
        let callers = std::mem::take(&mut state.callers);
        drop(state);
        callers.into_iter().for_each(Waker::wake);
    }
}

/// Waits for a barrier that begins after this call.
pub(crate) async fn wait(node: &Node) -> BarrierResult {
    let group = {
        let mut state = lock(&node.barriers().0);
        state.waiting_callers += 1;
        if !std::mem::replace(&mut state.is_in_progress, true) {
            None
        } else {
            Some(Arc::clone(state.waiting.get_or_insert_default()))
        }
    };
    match group {
        Some(group) => group.wait().await,
        None => BarrierTurn { node: node.clone(), was_polled: true }.send().await,
    }
}

/// A barrier in progress. When it ends, or its only caller does, those that came meanwhile send
/// the next one.
struct BarrierTurn {
    node: Node,
    /// False for a task that has not run. If it is dropped then, its runtime is shutting down.
    was_polled: bool,
}

impl BarrierTurn {
    async fn send(self) -> BarrierResult {
        let begun_before = lock(&self.node.barriers().0).begun_count;
        let result = self.node.send_barrier().await;
        let groups = {
            let mut state = lock(&self.node.barriers().0);
            let mut groups = std::mem::take(&mut state.begun);
            if state.begun_count == begun_before {
                // The member has ended.
                groups.extend(state.waiting.take());
            }
            groups
        };
        for group in groups {
            group.complete(result.clone());
        }
        result
    }
}

impl Drop for BarrierTurn {
    fn drop(&mut self) {
        let runtime = Handle::try_current().ok().filter(|_| self.was_polled);
        let mut state = lock(&self.node.barriers().0);
        // If the caller that sent the barrier went away, others may wait for it: the next one, which
        // begins later, covers them too.
        let others_wait = state.waiting.is_some() || !state.begun.is_empty();
        state.is_in_progress = others_wait && runtime.is_some();
        if let (true, Some(runtime)) = (others_wait, &runtime) {
            drop(state);
            let mut turn = Self { node: self.node.clone(), was_polled: false };
            runtime.spawn(async move {
                turn.was_polled = true;
                let _ = turn.send().await;
            });
            return;
        }
        state.waiting_callers = 0;
        let mut abandoned = std::mem::take(&mut state.begun);
        abandoned.extend(state.waiting.take());
        drop(state);
        for group in abandoned {
            group.complete(Err(RequestError::Unknown(OutcomeUnknown::Stopped)));
        }
    }
}
