//! Barriers of many callers in one request. Callers share the next barrier until the member begins it:
//! the leader confirms it after that, so it covers everything that they may have seen. The cost of a
//! request does not depend on the number of its callers.
//!
//! The member begins barriers, and the one that completes the request wakes the callers. No caller does
//! anything for another one: it may go away at any time, and its runtime may stand still.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use quorate_core::Index;

use super::arrivals::Arrivals;
use super::sync::{Arc, Mutex, Notify, lock};
use crate::outcome::{OutcomeUnknown, RequestError, RequestOutcome, RequestReply};

pub(crate) type BarrierResult = Result<Index, RequestError>;

/// The barriers of one member. One is in progress at a time.
#[derive(Default)]
pub(crate) struct SharedBarriers {
    state: Mutex<BarrierState>,
    /// Callers wait, and no barrier is in progress.
    may_begin: Notify,
    /// A barrier ended while callers waited for the next one.
    ended_while_callers_wait: Notify,
}

#[derive(Default)]
struct BarrierState {
    is_in_progress: bool,
    /// Callers whose barrier the member has not begun.
    waiting: Option<Arc<BarrierGroup>>,
    waiting_callers: usize,
    /// The member has ended.
    is_closed: bool,
}

struct JoinedBarrier {
    group: Arc<BarrierGroup>,
    /// No other barrier is in progress.
    may_begin: bool,
}

impl SharedBarriers {
    /// Waits for a barrier that begins after this call. None if the member has ended.
    pub(crate) async fn wait(&self, arrivals: &Arrivals) -> Option<BarrierResult> {
        let joined = self.join()?;
        if joined.may_begin {
            arrivals.on_request();
        }
        Some(joined.group.wait().await)
    }

    fn join(&self) -> Option<JoinedBarrier> {
        let mut state = lock(&self.state);
        if state.is_closed {
            return None;
        }
        state.waiting_callers += 1;
        let is_first = state.waiting.is_none();
        let group = Arc::clone(state.waiting.get_or_insert_default());
        let may_begin = !state.is_in_progress;
        drop(state);
        if is_first && may_begin {
            self.may_begin.notify_one();
        }
        Some(JoinedBarrier { group, may_begin })
    }

    /// Whether callers wait for the member to begin a barrier.
    pub(crate) fn are_waiting(&self) -> bool {
        let state = lock(&self.state);
        state.waiting.is_some() && !state.is_in_progress
    }

    /// How many callers the next barrier would have; none while one is in progress.
    pub(crate) fn waiting_callers(&self) -> usize {
        let state = lock(&self.state);
        if state.is_in_progress { 0 } else { state.waiting_callers }
    }

    /// Returns when callers may be waiting for the member to begin a barrier.
    pub(crate) async fn ready(&self) {
        self.may_begin.notified().await;
    }

    /// Returns when a barrier has ended and callers may be waiting for the next one.
    pub(crate) async fn ended_while_callers_wait(&self) {
        self.ended_while_callers_wait.notified().await;
    }

    /// The member begins a barrier for all who wait, unless there are none or one is in progress.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<BarrierCallers> {
        let mut state = lock(&self.state);
        if state.is_in_progress {
            return None;
        }
        let group = state.waiting.take()?;
        state.is_in_progress = true;
        let count = std::mem::take(&mut state.waiting_callers);
        Some(BarrierCallers { barriers: Arc::clone(self), group, count, result: Err(STOPPED) })
    }

    /// The member ends. No caller can join after this, and those whose barrier has not begun get this error.
    pub(crate) fn close(&self, error: RequestError) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        let group = state.waiting.take();
        drop(state);
        if let Some(group) = group {
            group.complete(Err(error));
        }
    }

    fn on_ended(&self) {
        let mut state = lock(&self.state);
        state.is_in_progress = false;
        let may_begin = state.waiting.is_some();
        drop(state);
        if may_begin {
            self.may_begin.notify_one();
            self.ended_while_callers_wait.notify_one();
        }
    }
}

/// The member's part: when it is dropped, the member has ended.
pub(crate) struct MemberBarriers(pub(crate) Arc<SharedBarriers>);

impl Drop for MemberBarriers {
    fn drop(&mut self) {
        self.0.close(STOPPED);
    }
}

/// The callers of a barrier in progress. It ends when this is dropped.
pub(crate) struct BarrierCallers {
    barriers: Arc<SharedBarriers>,
    group: Arc<BarrierGroup>,
    count: usize,
    result: BarrierResult,
}

impl BarrierCallers {
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn complete(mut self, outcome: RequestOutcome) {
        self.result = match outcome {
            Ok(RequestReply::Read { index, .. }) => Ok(index),
            Ok(_) => Err(STOPPED),
            Err(error) => Err(error),
        };
    }
}

impl Drop for BarrierCallers {
    fn drop(&mut self) {
        // First: those who come back at once wait for a barrier that may begin.
        self.barriers.on_ended();
        let result = std::mem::replace(&mut self.result, Err(STOPPED));
        self.group.complete(result);
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

    /// The first result counts.
    fn complete(&self, result: BarrierResult) {
        let mut state = lock(&self.0);
        state.result.get_or_insert(result);
        let callers = std::mem::take(&mut state.callers);
        drop(state);
        callers.into_iter().for_each(Waker::wake);
    }
}

/// The member ended without an answer.
const STOPPED: RequestError = RequestError::Unknown(OutcomeUnknown::Stopped);

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Wake};

    use tokio::task::yield_now;

    use super::*;
    use crate::outcome::RequestRefused;

    fn caller(barriers: &Arc<SharedBarriers>) -> tokio::task::JoinHandle<Option<BarrierResult>> {
        let barriers = Arc::clone(barriers);
        tokio::spawn(async move { barriers.wait(&Arrivals::new()).await })
    }

    fn read(index: Index) -> RequestOutcome {
        Ok(RequestReply::Read { index, reply: bytes::Bytes::new() })
    }

    #[tokio::test]
    async fn callers_join_until_the_member_begins() {
        let barriers = Arc::new(SharedBarriers::default());
        assert!(!barriers.are_waiting() && barriers.begin().is_none());
        let early = [caller(&barriers), caller(&barriers)];
        barriers.ready().await;
        yield_now().await;
        let first = barriers.begin().unwrap();
        assert_eq!(first.count(), 2);
        let late = caller(&barriers);
        yield_now().await;
        // One at a time.
        assert!(!barriers.are_waiting() && barriers.begin().is_none());
        first.complete(read(7));
        for caller in early {
            assert_eq!(caller.await.unwrap(), Some(Ok(7)));
        }
        barriers.ready().await;
        barriers.ended_while_callers_wait().await;
        assert!(!late.is_finished());
        barriers.begin().unwrap().complete(read(9));
        assert_eq!(late.await.unwrap(), Some(Ok(9)));
        let no_caller_waits = pin!(barriers.ended_while_callers_wait());
        assert!(no_caller_waits.poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }

    /// A caller that joins as soon as it is woken waits for a barrier that may begin.
    struct JoinsWhenWoken {
        barriers: Arc<SharedBarriers>,
        may_begin: AtomicBool,
    }

    impl Wake for JoinsWhenWoken {
        fn wake(self: Arc<Self>) {
            let may_begin = self.barriers.join().is_some_and(|joined| joined.may_begin);
            self.may_begin.store(may_begin, Ordering::Relaxed);
        }
    }

    #[test]
    fn callers_learn_the_result_when_the_next_barrier_may_begin() {
        let barriers = Arc::new(SharedBarriers::default());
        let group = barriers.join().unwrap().group;
        let caller = JoinsWhenWoken { barriers: Arc::clone(&barriers), may_begin: false.into() };
        let caller = Arc::new(caller);
        let waker = Waker::from(Arc::clone(&caller));
        let mut waits = pin!(group.wait());
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        barriers.begin().unwrap().complete(read(4));
        assert!(caller.may_begin.load(Ordering::Relaxed));
        assert_eq!(barriers.begin().unwrap().count(), 1);
    }

    #[tokio::test]
    async fn a_request_counts_only_if_its_barrier_may_begin() {
        let (barriers, arrivals) = (Arc::new(SharedBarriers::default()), Arrivals::new());
        arrivals.wait_for(arrivals.so_far(), 1);
        let mut first = pin!(barriers.wait(&arrivals));
        let mut context = Context::from_waker(Waker::noop());
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(pin!(arrivals.ready()).poll(&mut context).is_ready());
        let begun = barriers.begin().unwrap();
        arrivals.wait_for(arrivals.so_far(), 1);
        assert!(pin!(barriers.wait(&arrivals)).poll(&mut context).is_pending());
        assert!(pin!(arrivals.ready()).poll(&mut context).is_pending());
        begun.complete(read(1));
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_holds_up_nobody() {
        let barriers = Arc::new(SharedBarriers::default());
        let (gone, stays) = (caller(&barriers), caller(&barriers));
        yield_now().await;
        gone.abort();
        barriers.begin().unwrap().complete(read(3));
        assert_eq!(stays.await.unwrap(), Some(Ok(3)));
    }

    #[tokio::test]
    async fn callers_end_with_the_member() {
        let barriers = Arc::new(SharedBarriers::default());
        let member = MemberBarriers(Arc::clone(&barriers));
        let begun = caller(&barriers);
        yield_now().await;
        let in_progress = barriers.begin().unwrap();
        let waiting = caller(&barriers);
        yield_now().await;
        drop((in_progress, member));
        assert_eq!(begun.await.unwrap(), Some(Err(STOPPED)));
        assert_eq!(waiting.await.unwrap(), Some(Err(STOPPED)));
        assert_eq!(barriers.wait(&Arrivals::new()).await, None);
    }

    #[tokio::test]
    async fn callers_do_not_wait_for_a_barrier_in_progress_when_the_member_ends() {
        let barriers = Arc::new(SharedBarriers::default());
        let begun = caller(&barriers);
        yield_now().await;
        let in_progress = barriers.begin().unwrap();
        let waiting = caller(&barriers);
        yield_now().await;
        let error = RequestError::Refused(RequestRefused::NoLeader);
        barriers.close(error.clone());
        assert_eq!(waiting.await.unwrap(), Some(Err(error)));
        assert!(!begun.is_finished());
        in_progress.complete(read(5));
        assert_eq!(begun.await.unwrap(), Some(Ok(5)));
    }
}
