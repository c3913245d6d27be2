//! Bodies of requests whose first message has not arrived: their number per connection and the
//! time that they may take are limited. A client that opens streams and sends nothing on them
//! would otherwise hold memory for as long as it likes.

use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;

use crate::status::ServiceError;

/// The requests without a message, by connection. Only those whose message did not arrive
/// together with the headers are counted, which are few.
#[derive(Clone, Debug, Default)]
pub(crate) struct AwaitedRequests(Arc<Mutex<HashMap<Option<SocketAddr>, usize>>>);

impl AwaitedRequests {
    fn lock(&self) -> MutexGuard<'_, HashMap<Option<SocketAddr>, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, connection: Option<SocketAddr>) -> Result<AwaitedRequest, ServiceError> {
        let mut counts = self.lock();
        let count = counts.entry(connection).or_default();
        if *count >= AWAITED_MAX {
            return Err(ServiceError::TooManyOpenRequests { limit: AWAITED_MAX });
        }
        *count += 1;
        drop(counts);
        Ok(AwaitedRequest { counts: self.clone(), connection })
    }
}

/// One of them. It is no longer counted when this is dropped.
#[derive(Debug)]
struct AwaitedRequest {
    counts: AwaitedRequests,
    connection: Option<SocketAddr>,
}

impl Drop for AwaitedRequest {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&self.connection) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.connection);
            }
        }
    }
}

/// A body that ends with an error if its first message does not arrive in time.
pub(crate) struct AwaitedBody {
    body: Body,
    requests: AwaitedRequests,
    connection: Option<SocketAddr>,
    /// A stream of requests may stay empty.
    has_deadline: bool,
    state: AwaitedState,
}

enum AwaitedState {
    New,
    Waiting { _counted: AwaitedRequest, deadline: Option<Pin<Box<Sleep>>> },
    Arrived,
}

impl AwaitedBody {
    pub(crate) fn new(
        body: Body,
        requests: AwaitedRequests,
        connection: Option<SocketAddr>,
        has_deadline: bool,
    ) -> Self {
        Self { body, requests, connection, has_deadline, state: AwaitedState::New }
    }
}

impl http_body::Body for AwaitedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if polled.is_ready() {
            self.state = AwaitedState::Arrived;
            return polled;
        }
        if matches!(self.state, AwaitedState::New) {
            let counted = match self.requests.begin(self.connection) {
                Ok(counted) => counted,
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            };
            let deadline = self.has_deadline.then(|| Box::pin(sleep(FIRST_MESSAGE_TIMEOUT)));
            self.state = AwaitedState::Waiting { _counted: counted, deadline };
        }
        if let AwaitedState::Waiting { deadline: Some(deadline), .. } = &mut self.state {
            ready!(deadline.as_mut().poll(context));
            return Poll::Ready(Some(Err(ServiceError::RequestNotSent.into())));
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// So many requests of one connection may lack their message.
const AWAITED_MAX: usize = 4_096;
const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use http_body::Body as _;

    use super::*;

    /// Nothing arrives.
    struct SilentBody;

    impl http_body::Body for SilentBody {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Pending
        }
    }

    async fn first(body: &mut AwaitedBody) -> Option<Result<Frame<Bytes>, Status>> {
        std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await
    }

    fn silent(requests: &AwaitedRequests, has_deadline: bool) -> AwaitedBody {
        AwaitedBody::new(Body::new(SilentBody), requests.clone(), None, has_deadline)
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_a_message_ends() {
        let requests = AwaitedRequests::default();
        let error = first(&mut silent(&requests, true)).await.unwrap().unwrap_err();
        assert_eq!(error.code(), tonic::Code::DeadlineExceeded);
        assert!(requests.lock().is_empty());
        // A stream of requests waits.
        let mut stream = silent(&requests, false);
        let waited = tokio::time::timeout(10 * FIRST_MESSAGE_TIMEOUT, first(&mut stream)).await;
        assert!(waited.is_err());
    }

    #[tokio::test]
    async fn their_number_is_limited_for_each_connection() {
        let requests = AwaitedRequests::default();
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut open: Vec<_> = (0..AWAITED_MAX).map(|_| silent(&requests, false)).collect();
        for body in &mut open {
            assert!(Pin::new(body).poll_frame(&mut context).is_pending());
        }
        let refused = first(&mut silent(&requests, false)).await.unwrap().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        let other = Some("127.0.0.1:1".parse().unwrap());
        let silent_body = Body::new(SilentBody);
        let mut other = AwaitedBody::new(silent_body, requests.clone(), other, false);
        assert!(Pin::new(&mut other).poll_frame(&mut context).is_pending());
        drop((open, other));
        assert!(requests.lock().is_empty());
    }
}
