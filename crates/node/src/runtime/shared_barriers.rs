//! Barriers of many callers in one request: callers that come while one is in progress share the
//! next one. It is sent after they came, so it covers everything that they may have seen. The cost
//! of a request does not depend on the number of its callers.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use quorate_core::Index;
use tokio::runtime::Handle;

use super::node::Node;
use super::sync::lock;
use crate::outcome::{OutcomeUnknown, RequestError};

type BarrierResult = Result<Index, RequestError>;

/// The barriers of one member.
#[derive(Default)]
pub(crate) struct SharedBarriers(Mutex<BarrierState>);

#[derive(Default)]
struct BarrierState {
    is_in_progress: bool,
    /// Callers whose barrier has yet to be sent.
    next: Option<Arc<BarrierGroup>>,
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
        None => BarrierTurn { node: node.clone(), group: None }.send().await,
    }
}

/// A barrier in progress. When it ends, or its only caller does, those that came meanwhile send
/// the next one.
struct BarrierTurn {
    node: Node,
    /// Who shares it; none for a caller that sends its own.
    group: Option<Arc<BarrierGroup>>,
}

impl BarrierTurn {
    async fn send(mut self) -> BarrierResult {
        let result = self.node.send_barrier().await;
        if let Some(group) = self.group.take() {
            group.complete(result.clone());
        }
        result
    }
}

impl Drop for BarrierTurn {
    fn drop(&mut self) {
        let stopped = || Err(RequestError::Unknown(OutcomeUnknown::Stopped));
        if let Some(group) = self.group.take() {
            group.complete(stopped());
        }
        let runtime = Handle::try_current();
        let next = {
            let mut state = lock(&self.node.barriers().0);
            let next = state.next.take();
            state.is_in_progress = next.is_some() && runtime.is_ok();
            next
        };
        let Some(group) = next else { return };
        match runtime {
            Ok(runtime) => {
                let turn = Self { node: self.node.clone(), group: Some(group) };
                runtime.spawn(turn.send());
            }
            Err(_) => group.complete(stopped()),
        }
    }
}
