//! Barriers of many callers in one request: callers that come while one is in progress share the
//! next one. It is sent after they came, so it covers everything that they may have seen. The cost
//! of a request does not depend on the number of its callers.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Instant;

use quorate_core::Index;
use tokio::runtime::Handle;
use tokio::time::sleep_until;

use super::batch_pace::{BatchPace, BatchesInProgress};
use super::cpu_pressure::GatherTime;
use super::node::Node;
use super::sync::lock;
use crate::outcome::{OutcomeUnknown, RequestError};

type BarrierResult = Result<Index, RequestError>;

/// The barriers of one member.
pub(crate) struct SharedBarriers(Mutex<BarrierState>);

impl SharedBarriers {
    pub(crate) fn new(gather: GatherTime) -> Self {
        let pace = BatchPace::new(Instant::now(), gather);
        Self(Mutex::new(BarrierState { is_in_progress: false, next: None, pace }))
    }
}

struct BarrierState {
    is_in_progress: bool,
    /// Callers whose barrier has yet to be sent.
    next: Option<Arc<BarrierGroup>>,
    pace: BatchPace,
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

/// Waits for a barrier that is sent after this call.
pub(crate) async fn wait(node: &Node) -> BarrierResult {
    let group = {
        let mut state = lock(&node.barriers().0);
        if !std::mem::replace(&mut state.is_in_progress, true) {
            None
        } else {
            Some(Arc::clone(state.next.get_or_insert_default()))
        }
    };
    match group {
        Some(group) => group.wait().await,
        None => {
            let turn = BarrierTurn { node: node.clone(), stage: BarrierStage::Gathering };
            turn.send(None).await
        }
    }
}

/// A barrier in progress. When it ends, or its only caller does, those that came meanwhile send
/// the next one.
struct BarrierTurn {
    node: Node,
    stage: BarrierStage,
}

enum BarrierStage {
    /// It gathers callers.
    Gathering,
    /// It is sent for these callers; none for a caller that sends its own.
    Sent(Option<Arc<BarrierGroup>>),
}

impl BarrierTurn {
    async fn send(mut self, group: Option<Arc<BarrierGroup>>) -> BarrierResult {
        self.stage = BarrierStage::Sent(group);
        let result = self.node.send_barrier().await;
        if let BarrierStage::Sent(Some(group)) = &self.stage {
            group.complete(result.clone());
            self.stage = BarrierStage::Sent(None);
        }
        result
    }

    /// The barrier of those that came while the last one was in progress. Others join them until it
    /// is sent.
    async fn send_next(self) {
        let check = lock(&self.node.barriers().0).pace.next_check(NOTHING_IN_PROGRESS);
        if check > Instant::now() {
            sleep_until(check.into()).await;
        }
        let group = {
            let mut state = lock(&self.node.barriers().0);
            let group = state.next.take();
            let callers = group.as_ref().map_or(0, |group| lock(&group.0).callers.len());
            state.pace.begin(Instant::now(), callers);
            group
        };
        let _ = self.send(group).await;
    }
}

impl Drop for BarrierTurn {
    fn drop(&mut self) {
        let (group, may_continue) = match &mut self.stage {
            // The runtime is shutting down.
            BarrierStage::Gathering => (None, false),
            BarrierStage::Sent(group) => (group.take(), true),
        };
        let runtime = Handle::try_current().ok().filter(|_| may_continue);
        let (continues, abandoned) = {
            let mut state = lock(&self.node.barriers().0);
            let continues = state.next.is_some() && runtime.is_some();
            state.is_in_progress = continues;
            (continues, if continues { None } else { state.next.take() })
        };
        for group in group.into_iter().chain(abandoned) {
            group.complete(Err(RequestError::Unknown(OutcomeUnknown::Stopped)));
        }
        if let Some(runtime) = runtime.filter(|_| continues) {
            let turn = Self { node: self.node.clone(), stage: BarrierStage::Gathering };
            runtime.spawn(turn.send_next());
        }
    }
}

/// A barrier is sent after the one before, so nothing else is waited for.
const NOTHING_IN_PROGRESS: BatchesInProgress =
    BatchesInProgress { saves: 0, jobs: 0, is_committing: false };
