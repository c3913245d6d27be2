//! The responses of a stream that wait for their client, with the memory that they take.
//!
//! The queue is bounded: its sender waits (backpressure). When others need its memory and the
//! client has read nothing for a while, its content is dropped and the stream ends with an error.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_stream::Stream;
use tonic::Status;

use crate::response_budget::{DroppableResponse, ResponseMemory};
use crate::status::ServiceError;

/// A queue for this many responses.
pub(crate) fn response_queue<T: Send + 'static>(
    responses_max: usize,
) -> (ResponseSender<T>, ResponseReceiver<T>) {
    let shared = Arc::new(SharedQueue {
        state: Mutex::new(QueueState {
            waiting: VecDeque::new(),
            taken: None,
            progressed_at: Instant::now(),
            end: QueueEnd::Open,
            receiver: None,
        }),
        responses_max,
        changed: Notify::new(),
    });
    (ResponseSender(Arc::clone(&shared)), ResponseReceiver(shared))
}

struct SharedQueue<T> {
    state: Mutex<QueueState<T>>,
    responses_max: usize,
    /// There is room, or the queue is closed.
    changed: Notify,
}

struct QueueState<T> {
    waiting: VecDeque<(Result<T, Status>, Option<ResponseMemory>)>,
    /// The memory of the response that was taken last: it is being sent until the next one is
    /// taken.
    taken: Option<ResponseMemory>,
    /// When the client last took a response, or when the first one began to wait for it.
    progressed_at: Instant,
    end: QueueEnd,
    receiver: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueEnd {
    Open,
    /// No further responses will be sent.
    Finished,
    /// The content was dropped; the client is still to be told.
    Dropped,
    /// The client is gone, or knows that the stream has ended.
    Closed,
}

/// The client is gone, or the stream has ended with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

/// Sends to the client. The stream ends when it is dropped.
pub(crate) struct ResponseSender<T: Send + 'static>(Arc<SharedQueue<T>>);

/// The stream that the client reads.
pub(crate) struct ResponseReceiver<T: Send + 'static>(Arc<SharedQueue<T>>);

impl<T> SharedQueue<T> {
    fn state(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closed(&self) -> bool {
        self.state().end != QueueEnd::Open
    }
}

impl<T: Send + 'static> ResponseSender<T> {
    /// Waits until there is room.
    pub(crate) async fn send(
        &self,
        response: Result<T, Status>,
        mut memory: Option<ResponseMemory>,
    ) -> Result<(), Closed> {
        // What waits for room is dropped with the queue.
        if let Some(memory) = &mut memory {
            let queue: Weak<SharedQueue<T>> = Arc::downgrade(&self.0);
            memory.register(queue);
        }
        let mut content = Some((response, memory));
        loop {
            let changed = self.0.changed.notified();
            if self.push(&mut content, self.0.responses_max)? {
                return Ok(());
            }
            changed.await;
        }
    }

    /// Sends an error as the end of the stream, even if there is no room.
    pub(crate) fn send_last(&self, error: Status) {
        let _ = self.push(&mut Some((Err(error), None)), usize::MAX);
    }

    /// Whether there was room.
    fn push(
        &self,
        content: &mut Option<(Result<T, Status>, Option<ResponseMemory>)>,
        responses_max: usize,
    ) -> Result<bool, Closed> {
        let mut state = self.0.state();
        if state.end != QueueEnd::Open {
            return Err(Closed);
        }
        if state.waiting.len() >= responses_max {
            return Ok(false);
        }
        let Some((response, memory)) = content.take() else { return Ok(true) };
        if state.waiting.is_empty() && state.taken.is_none() {
            state.progressed_at = Instant::now();
        }
        state.waiting.push_back((response, memory));
        let receiver = state.receiver.take();
        drop(state);
        if let Some(receiver) = receiver {
            receiver.wake();
        }
        Ok(true)
    }

    /// Resolves when the client is gone or the content was dropped.
    pub(crate) async fn closed(&self) {
        loop {
            let changed = self.0.changed.notified();
            if self.0.is_closed() {
                return;
            }
            changed.await;
        }
    }
}

impl<T: Send + 'static> Drop for ResponseSender<T> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if state.end == QueueEnd::Open {
            state.end = QueueEnd::Finished;
        }
        let receiver = state.receiver.take();
        drop(state);
        if let Some(receiver) = receiver {
            receiver.wake();
        }
    }
}

impl<T: Send + 'static> Stream for ResponseReceiver<T> {
    type Item = Result<T, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = self.0.state();
        let sent = state.taken.take();
        state.progressed_at = Instant::now();
        let next = match state.waiting.pop_front() {
            Some((response, memory)) => {
                state.taken = memory;
                Poll::Ready(Some(response))
            }
            None => match state.end {
                QueueEnd::Open => {
                    state.receiver = Some(context.waker().clone());
                    Poll::Pending
                }
                QueueEnd::Dropped => {
                    state.end = QueueEnd::Closed;
                    Poll::Ready(Some(Err(ServiceError::ResponseNotRead.into())))
                }
                QueueEnd::Finished | QueueEnd::Closed => Poll::Ready(None),
            },
        };
        drop(state);
        drop(sent);
        self.0.changed.notify_waiters();
        next
    }
}

impl<T: Send + 'static> Drop for ResponseReceiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.end = QueueEnd::Closed;
        let content = (std::mem::take(&mut state.waiting), state.taken.take());
        drop(state);
        drop(content);
        self.0.changed.notify_waiters();
    }
}

impl<T: Send + 'static> DroppableResponse for SharedQueue<T> {
    fn progressed_at(&self) -> Instant {
        self.state().progressed_at
    }

    fn drop_content(&self) -> bool {
        let mut state = self.state();
        let content = (std::mem::take(&mut state.waiting), state.taken.take());
        let was_dropped = matches!(state.end, QueueEnd::Open | QueueEnd::Finished);
        if was_dropped {
            state.end = QueueEnd::Dropped;
        }
        let receiver = state.receiver.take();
        drop(state);
        drop(content);
        if let Some(receiver) = receiver {
            receiver.wake();
        }
        self.changed.notify_waiters();
        was_dropped
    }
}

impl<T> fmt::Debug for SharedQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseQueue").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::*;
    use crate::response_budget::{MemoryWait, ResponseBudget};

    const MIB: u64 = 1 << 20;

    async fn memory(budget: &Arc<ResponseBudget>, bytes: u64) -> Option<ResponseMemory> {
        Some(budget.reserve(bytes, MemoryWait::UntilFree).await.unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_counts_until_the_next_one_is_taken() {
        let budget = Arc::new(ResponseBudget::new(8 * MIB));
        let (sender, mut receiver) = response_queue(2);
        for number in 0..2 {
            sender.send(Ok(number), memory(&budget, MIB).await).await.unwrap();
        }
        let full =
            tokio::time::timeout(std::time::Duration::from_secs(1), sender.send(Ok(2), None));
        assert!(full.await.is_err());
        assert_eq!(receiver.next().await.unwrap().unwrap(), 0);
        assert_eq!(budget.used(), 2 * MIB);
        assert_eq!(receiver.next().await.unwrap().unwrap(), 1);
        assert_eq!(budget.used(), MIB);
        sender.send(Ok(3), None).await.unwrap();
        assert_eq!(receiver.next().await.unwrap().unwrap(), 3);
        assert_eq!(budget.used(), 0);
        sender.send_last(Status::ok(""));
        drop(sender);
        assert!(receiver.next().await.unwrap().is_err());
        assert!(receiver.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_unread_stream_ends_when_others_need_its_memory() {
        let budget = Arc::new(ResponseBudget::new(8 * MIB));
        let (sender, mut receiver) = response_queue(16);
        for number in 0..7 {
            sender.send(Ok(number), memory(&budget, MIB).await).await.unwrap();
        }
        let other = memory(&budget, 6 * MIB).await;
        assert_eq!((budget.used(), budget.dropped()), (6 * MIB, 1));
        sender.closed().await;
        assert_eq!(sender.send(Ok(8), None).await, Err(Closed));
        let error = receiver.next().await.unwrap().unwrap_err();
        assert_eq!(error.code(), tonic::Code::ResourceExhausted);
        assert!(receiver.next().await.is_none());
        drop(other);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn the_memory_of_a_stream_is_free_when_its_client_is_gone() {
        let budget = Arc::new(ResponseBudget::new(8 * MIB));
        let (sender, receiver) = response_queue(16);
        sender.send(Ok(1), memory(&budget, MIB).await).await.unwrap();
        drop(receiver);
        assert_eq!(budget.used(), 0);
        sender.closed().await;
        assert_eq!(sender.send(Ok(2), None).await, Err(Closed));
    }
}
