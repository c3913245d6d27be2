//! Bodies of requests whose first message has not arrived: their number per connection and the
//! time that they may take are limited. A client that opens streams and sends nothing on them
//! would otherwise hold memory for as long as it likes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;

use crate::status::ServiceError;

/// The requests without a message, by connection and by client address. Only those whose message
/// did not arrive together with the headers are counted, which are few.
#[derive(Clone, Debug, Default)]
pub(crate) struct AwaitedRequests(Arc<Mutex<AwaitedCounts>>);

#[derive(Debug, Default)]
struct AwaitedCounts {
    connections: HashMap<Option<SocketAddr>, usize>,
    addresses: HashMap<Option<IpAddr>, usize>,
}

impl AwaitedRequests {
    fn lock(&self) -> MutexGuard<'_, AwaitedCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, connection: Option<SocketAddr>) -> Result<AwaitedRequest, ServiceError> {
        let mut counts = self.lock();
        let address = address_of(connection);
        let of_connection = counts.connections.get(&connection).copied().unwrap_or_default();
        let of_address = counts.addresses.get(&address).copied().unwrap_or_default();
        if of_connection >= AWAITED_MAX {
            return Err(ServiceError::TooManyOpenRequests { limit: AWAITED_MAX });
        }
        // Others may share the address with a client that floods: each connection has a share.
        if of_address >= AWAITED_OF_ADDRESS_MAX && of_connection >= CONNECTION_SHARE {
            return Err(ServiceError::TooManyOpenRequests { limit: AWAITED_OF_ADDRESS_MAX });
        }
        counts.connections.insert(connection, of_connection + 1);
        counts.addresses.insert(address, of_address + 1);
        drop(counts);
        Ok(AwaitedRequest { counts: self.clone(), connection })
    }
}

fn address_of(connection: Option<SocketAddr>) -> Option<IpAddr> {
    connection.map(|connection| connection.ip().to_canonical())
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
        subtract_one(&mut counts.connections, self.connection);
        subtract_one(&mut counts.addresses, address_of(self.connection));
    }
}

fn subtract_one<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: K) {
    if let Entry::Occupied(mut count) = counts.entry(key) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
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

type BodyFrame = Option<Result<Frame<Bytes>, Status>>;

enum AwaitedState {
    New,
    Waiting {
        _counted: AwaitedRequest,
        deadline: Option<Pin<Box<Sleep>>>,
    },
    /// The first frame has arrived and was not read.
    First(BodyFrame),
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

    /// Whether the first bytes are here already, which is usual: they follow the headers.
    pub(crate) fn has_arrived(&mut self) -> bool {
        // Without the first bytes, `poll_arrived` follows, with the waker of the call.
        let mut context = Context::from_waker(Waker::noop());
        match Pin::new(&mut self.body).poll_frame(&mut context) {
            Poll::Ready(first) => {
                self.state = AwaitedState::First(first);
                true
            }
            Poll::Pending => false,
        }
    }

    /// Waits for the first bytes; they remain to be read.
    pub(crate) fn poll_arrived(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        match &mut self.state {
            AwaitedState::First(_) | AwaitedState::Arrived => return Poll::Ready(Ok(())),
            AwaitedState::New | AwaitedState::Waiting { .. } => {}
        }
        if let Poll::Ready(first) = Pin::new(&mut self.body).poll_frame(context) {
            self.state = AwaitedState::First(first);
            return Poll::Ready(Ok(()));
        }
        if matches!(self.state, AwaitedState::New) {
            let counted = self.requests.begin(self.connection)?;
            let deadline = self.has_deadline.then(|| Box::pin(sleep(FIRST_MESSAGE_TIMEOUT)));
            self.state = AwaitedState::Waiting { _counted: counted, deadline };
        }
        if let AwaitedState::Waiting { deadline: Some(deadline), .. } = &mut self.state {
            ready!(deadline.as_mut().poll(context));
            return Poll::Ready(Err(ServiceError::RequestNotSent.into()));
        }
        Poll::Pending
    }
}

impl http_body::Body for AwaitedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Err(status) = ready!(self.poll_arrived(context)) {
            return Poll::Ready(Some(Err(status)));
        }
        match std::mem::replace(&mut self.state, AwaitedState::Arrived) {
            AwaitedState::First(first) => Poll::Ready(first),
            _ => Pin::new(&mut self.body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        // A first frame that was not read may be the last one of the body below.
        !matches!(self.state, AwaitedState::First(_)) && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.state {
            AwaitedState::First(_) => SizeHint::default(),
            _ => self.body.size_hint(),
        }
    }
}

/// This many requests of one connection may lack their message.
const AWAITED_MAX: usize = 4_096;
/// This many requests of one client address may lack their message.
const AWAITED_OF_ADDRESS_MAX: usize = 4 * AWAITED_MAX;
/// This many of each connection may lack their message whatever others of its address do.
const CONNECTION_SHARE: usize = 16;
const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

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
        silent_from(requests, "127.0.0.1:1", has_deadline)
    }

    fn silent_from(requests: &AwaitedRequests, from: &str, has_deadline: bool) -> AwaitedBody {
        let connection = Some(from.parse().unwrap());
        AwaitedBody::new(Body::new(SilentBody), requests.clone(), connection, has_deadline)
    }

    fn is_pending(body: &mut AwaitedBody) -> bool {
        Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    fn assert_none_counted(requests: &AwaitedRequests) {
        let counts = requests.lock();
        assert!(counts.connections.is_empty() && counts.addresses.is_empty(), "{counts:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_a_message_ends() {
        let requests = AwaitedRequests::default();
        let error = first(&mut silent(&requests, true)).await.unwrap().unwrap_err();
        assert_eq!(error.code(), tonic::Code::DeadlineExceeded);
        assert_none_counted(&requests);
        // A stream of requests waits.
        let mut stream = silent(&requests, false);
        let waited = tokio::time::timeout(10 * FIRST_MESSAGE_TIMEOUT, first(&mut stream)).await;
        assert!(waited.is_err());
    }

    #[tokio::test]
    async fn their_number_is_limited_for_each_connection_and_each_address() {
        let requests = AwaitedRequests::default();
        let mut open = Vec::new();
        for port in 1..=AWAITED_OF_ADDRESS_MAX / AWAITED_MAX {
            let connection = format!("127.0.0.1:{port}");
            for _ in 0..AWAITED_MAX {
                let mut body = silent_from(&requests, &connection, false);
                assert!(is_pending(&mut body));
                open.push(body);
            }
            let mut refused = silent_from(&requests, &connection, false);
            let error = first(&mut refused).await.unwrap().unwrap_err();
            assert_eq!(error.code(), tonic::Code::ResourceExhausted);
        }
        // Another connection, from the same address in its other notation, has its share.
        let another = || silent_from(&requests, "[::ffff:127.0.0.1]:9999", false);
        for _ in 0..CONNECTION_SHARE {
            let mut body = another();
            assert!(is_pending(&mut body));
            open.push(body);
        }
        let mut refused = another();
        let error = first(&mut refused).await.unwrap().unwrap_err();
        assert_eq!(error.code(), tonic::Code::ResourceExhausted);
        let mut other = silent_from(&requests, "127.0.0.2:1", false);
        assert!(is_pending(&mut other));
        drop((open, other));
        assert_none_counted(&requests);
    }

    /// What was received while nobody read it is read first, and once.
    #[tokio::test]
    async fn first_bytes_that_were_awaited_remain_to_be_read() {
        let requests = AwaitedRequests::default();
        let arrived = |text: &'static str| {
            let body = Body::new(text.to_owned().map_err(|never| match never {}));
            AwaitedBody::new(body, requests.clone(), None, true)
        };
        for text in ["message", ""] {
            let mut body = arrived(text);
            assert!(body.has_arrived());
            assert!(!body.is_end_stream());
            let read = body.collect().await.unwrap().to_bytes();
            assert_eq!(read, text);
        }
        assert!(!silent(&requests, true).has_arrived());
        assert_none_counted(&requests);
    }
}
