//! One budget for the memory of responses that their clients have yet to read.
//!
//! A response reserves its size before it is read from the store, and holds it until it is sent.
//! When the budget is used up, further responses wait. A client that does not read keeps others
//! waiting, so a response without progress is dropped when its memory is needed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::status::ServiceError;

/// The budget of a server.
#[derive(Debug)]
pub(crate) struct ResponseBudget {
    /// Responses above [`SMALL_BYTES_MAX`].
    large: MemoryPool,
    /// All others have their own part, so that they never wait for large ones.
    small: MemoryPool,
    limit: u64,
    used: AtomicU64,
    refused: AtomicU64,
    dropped: AtomicU64,
    /// Responses that are being sent, by number.
    sending: Mutex<BTreeMap<u64, Weak<dyn DroppableResponse>>>,
    next_number: AtomicU64,
}

#[derive(Debug)]
struct MemoryPool {
    /// In units of [`UNIT_BYTES`].
    free: Arc<Semaphore>,
    units: u32,
}

/// A response that is being sent.
pub(crate) trait DroppableResponse: Send + Sync + std::fmt::Debug {
    /// When its client last read a part of it, or when it was made.
    fn progressed_at(&self) -> Instant;

    /// Frees its memory. Its client gets an error.
    fn drop_content(&self);
}

/// Memory of a response. Free again when this is dropped.
#[derive(Debug)]
pub(crate) struct ResponseMemory {
    budget: Arc<ResponseBudget>,
    bytes: u64,
    _permit: OwnedSemaphorePermit,
    /// In `ResponseBudget::sending`.
    number: Option<u64>,
}

impl Drop for ResponseMemory {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
        if let Some(number) = self.number {
            self.budget.sending().remove(&number);
        }
    }
}

impl ResponseBudget {
    pub(crate) fn new(limit: u64) -> Self {
        let small = limit / SMALL_SHARE;
        Self {
            large: MemoryPool::new(limit - small),
            small: MemoryPool::new(small),
            limit,
            used: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            sending: Mutex::default(),
            next_number: AtomicU64::new(0),
        }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// The bytes of all responses that are being read or sent.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Responses that waited for memory in vain.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Responses that were dropped because their clients did not read them.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Reserves memory for a response of this size, and waits for it if there is none. A
    /// response that is larger than the whole budget is served when no other one is.
    pub(crate) async fn reserve(
        self: &Arc<Self>,
        bytes: u64,
    ) -> Result<ResponseMemory, ServiceError> {
        let pool = if bytes <= SMALL_BYTES_MAX { &self.small } else { &self.large };
        let units = pool.units_of(bytes);
        let permit = match Arc::clone(&pool.free).try_acquire_many_owned(units) {
            Ok(permit) => permit,
            Err(_) => self.wait(pool, units).await?,
        };
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Ok(ResponseMemory { budget: Arc::clone(self), bytes, _permit: permit, number: None })
    }

    async fn wait(
        &self,
        pool: &MemoryPool,
        units: u32,
    ) -> Result<OwnedSemaphorePermit, ServiceError> {
        let began = Instant::now();
        let mut permit = std::pin::pin!(Arc::clone(&pool.free).acquire_many_owned(units));
        while began.elapsed() < WAIT_MAX {
            if let Ok(permit) = timeout_at(Instant::now() + CHECK_INTERVAL, &mut permit).await {
                return permit.map_err(|_| ServiceError::ServerStopped);
            }
            self.drop_stalled();
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        Err(ServiceError::ResponseMemoryUsedUp { limit: self.limit })
    }

    /// Drops responses that their clients have stopped to read.
    fn drop_stalled(&self) {
        let sending: Vec<_> = self.sending().values().filter_map(Weak::upgrade).collect();
        for response in sending {
            if response.progressed_at().elapsed() >= STALLED_AFTER {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                response.drop_content();
            }
        }
    }

    fn sending(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Weak<dyn DroppableResponse>>> {
        self.sending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResponseMemory {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// From now on the response may be dropped if its client does not read it. The number has
    /// to be given back with the memory.
    pub(crate) fn register(&mut self, response: Weak<dyn DroppableResponse>) {
        let number = self.budget.next_number.fetch_add(1, Ordering::Relaxed);
        self.budget.sending().insert(number, response);
        self.number = Some(number);
    }
}

impl MemoryPool {
    fn new(bytes: u64) -> Self {
        let units = u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX).max(1);
        Self { free: Arc::new(Semaphore::new(units as usize)), units }
    }

    fn units_of(&self, bytes: u64) -> u32 {
        u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).min(self.units)
    }
}

const UNIT_BYTES: u64 = 1 << 10;
const SMALL_BYTES_MAX: u64 = 64 << 10;
/// One part in so many is for small responses.
const SMALL_SHARE: u64 = 8;
/// How long a response waits for memory.
const WAIT_MAX: Duration = Duration::from_secs(15);
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// A response whose client has read nothing of it for so long may be dropped.
const STALLED_AFTER: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct TestResponse {
        progressed_at: Instant,
        memory: Mutex<Option<ResponseMemory>>,
    }

    impl DroppableResponse for TestResponse {
        fn progressed_at(&self) -> Instant {
            self.progressed_at
        }

        fn drop_content(&self) {
            self.memory.lock().unwrap().take();
        }
    }

    fn send(mut memory: ResponseMemory) -> Arc<TestResponse> {
        Arc::new_cyclic(|weak: &Weak<TestResponse>| {
            memory.register(weak.clone());
            TestResponse { progressed_at: Instant::now(), memory: Mutex::new(Some(memory)) }
        })
    }

    const MIB: u64 = 1 << 20;

    #[tokio::test(start_paused = true)]
    async fn large_responses_wait_and_small_ones_do_not() {
        let budget = Arc::new(ResponseBudget::new(8 * MIB));
        let first = budget.reserve(5 * MIB).await.unwrap();
        assert_eq!(budget.used(), 5 * MIB);
        let began = Instant::now();
        let small = budget.reserve(10).await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        let waiting = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move { budget.reserve(100 * MIB).await.map(|memory| memory.bytes) }
        });
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!waiting.is_finished());
        drop((first, small));
        // More than the budget: it is alone now.
        assert_eq!(waiting.await.unwrap().unwrap(), 100 * MIB);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_is_refused_while_others_make_progress() {
        let budget = Arc::new(ResponseBudget::new(8 * MIB));
        let _first = budget.reserve(7 * MIB).await.unwrap();
        let refused = budget.reserve(MIB).await.unwrap_err();
        assert!(matches!(refused, ServiceError::ResponseMemoryUsedUp { .. }));
        assert_eq!((budget.refused(), budget.used()), (1, 7 * MIB));
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_is_not_read_is_dropped_for_others() {
        let budget = Arc::new(ResponseBudget::new(8 * MIB));
        let unread = send(budget.reserve(7 * MIB).await.unwrap());
        let _other = budget.reserve(MIB).await.unwrap();
        assert!(unread.memory.lock().unwrap().is_none());
        assert_eq!((budget.dropped(), budget.used()), (1, MIB));
        assert!(budget.sending().is_empty());
    }
}
