//! One budget for the memory of responses that their clients have yet to read.
//!
//! A response reserves its size before it is read from the store, and holds it until it is sent.
//! When the budget is used up, further responses wait. A client that does not read keeps others
//! waiting, so a response without progress is dropped when its memory is needed. A response that
//! is larger than the budget is refused at once.

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

    /// Frees its memory. Its client gets an error. Whether there was anything to free.
    fn drop_content(&self) -> bool;
}

/// Memory of a response. Free again when this is dropped.
#[derive(Debug)]
pub(crate) struct ResponseMemory {
    budget: Arc<ResponseBudget>,
    bytes: u64,
    permit: OwnedSemaphorePermit,
    is_large: bool,
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

    /// Responses that waited for memory in vain, or were larger than the budget.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Responses that were dropped because their clients did not read them.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// No response may be larger than the memory for large ones.
    fn check_limit(&self, bytes: u64) -> Result<(), ServiceError> {
        let limit = u64::from(self.large.units) * UNIT_BYTES;
        if bytes <= limit.max(SMALL_BYTES_MAX) {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        Err(ServiceError::ResponseAboveLimit { bytes, limit })
    }

    /// Reserves memory for a response of this size, and waits for it if there is none.
    pub(crate) async fn reserve(
        self: &Arc<Self>,
        bytes: u64,
        wait: MemoryWait,
    ) -> Result<ResponseMemory, ServiceError> {
        self.check_limit(bytes)?;
        let is_large = bytes > SMALL_BYTES_MAX;
        let permit = self.acquire(bytes, is_large, wait).await?;
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Ok(ResponseMemory { budget: Arc::clone(self), bytes, permit, is_large, number: None })
    }

    async fn acquire(
        &self,
        bytes: u64,
        is_large: bool,
        wait: MemoryWait,
    ) -> Result<OwnedSemaphorePermit, ServiceError> {
        let pool = if is_large { &self.large } else { &self.small };
        let units = pool.units_of(bytes);
        match Arc::clone(&pool.free).try_acquire_many_owned(units) {
            Ok(permit) => Ok(permit),
            Err(_) => Box::pin(self.wait(pool, units, wait)).await,
        }
    }

    async fn wait(
        &self,
        pool: &MemoryPool,
        units: u32,
        wait: MemoryWait,
    ) -> Result<OwnedSemaphorePermit, ServiceError> {
        let began = Instant::now();
        let mut permit = std::pin::pin!(Arc::clone(&pool.free).acquire_many_owned(units));
        while wait == MemoryWait::UntilFree || began.elapsed() < WAIT_MAX {
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
            if response.progressed_at().elapsed() >= STALLED_AFTER && response.drop_content() {
                self.dropped.fetch_add(1, Ordering::Relaxed);
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

    /// Makes it as large as the response has become.
    pub(crate) async fn resize(
        &mut self,
        bytes: u64,
        wait: MemoryWait,
    ) -> Result<(), ServiceError> {
        if bytes <= self.bytes {
            let units = self.budget.large.units_of(bytes) as usize;
            let surplus = self.permit.num_permits().saturating_sub(units);
            drop(self.permit.split(surplus));
            self.budget.used.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
            self.bytes = bytes;
            return Ok(());
        }
        self.budget.check_limit(bytes)?;
        let more = bytes - self.bytes;
        if !self.is_large && bytes > SMALL_BYTES_MAX {
            self.permit = self.budget.acquire(bytes, true, wait).await?;
            self.is_large = true;
        } else {
            self.permit.merge(self.budget.acquire(more, self.is_large, wait).await?);
        }
        self.budget.used.fetch_add(more, Ordering::Relaxed);
        self.bytes = bytes;
        Ok(())
    }

    /// From now on the response may be dropped if its client does not read it. The number has
    /// to be given back with the memory.
    pub(crate) fn register(&mut self, response: Weak<dyn DroppableResponse>) {
        let number = self.budget.next_number.fetch_add(1, Ordering::Relaxed);
        self.budget.sending().insert(number, response);
        self.number = Some(number);
    }
}

/// How long a response waits for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryWait {
    /// Then it is refused.
    ForSomeTime,
    /// What is to be sent stays in the store meanwhile.
    UntilFree,
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
pub(crate) const SMALL_BYTES_MAX: u64 = 64 << 10;
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

        fn drop_content(&self) -> bool {
            self.memory.lock().unwrap().take().is_some()
        }
    }

    fn send(mut memory: ResponseMemory) -> Arc<TestResponse> {
        Arc::new_cyclic(|weak: &Weak<TestResponse>| {
            memory.register(weak.clone());
            TestResponse { progressed_at: Instant::now(), memory: Mutex::new(Some(memory)) }
        })
    }

    const MIB: u64 = 1 << 20;
    const WAIT: MemoryWait = MemoryWait::ForSomeTime;

    #[tokio::test(start_paused = true)]
    async fn large_responses_wait_and_small_ones_do_not() {
        let budget = Arc::new(ResponseBudget::new(8 * MIB));
        let first = budget.reserve(5 * MIB, WAIT).await.unwrap();
        assert_eq!(budget.used(), 5 * MIB);
        let began = Instant::now();
        let small = budget.reserve(10, WAIT).await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        let waiting = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move { budget.reserve(3 * MIB, WAIT).await.map(|memory| memory.bytes) }
        });
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!waiting.is_finished());
        drop((first, small));
        assert_eq!(waiting.await.unwrap().unwrap(), 3 * MIB);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_above_the_budget_is_refused_at_once() {
        let budget = Arc::new(ResponseBudget::new(8 * MIB));
        let began = Instant::now();
        let refused = budget.reserve(7 * MIB + 1, MemoryWait::UntilFree).await.unwrap_err();
        assert!(matches!(refused, ServiceError::ResponseAboveLimit { .. }), "{refused:?}");
        assert_eq!((began.elapsed(), budget.refused()), (Duration::ZERO, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn memory_follows_the_size_of_the_response() {
        let budget = Arc::new(ResponseBudget::new(8 * MIB));
        let mut memory = budget.reserve(SMALL_BYTES_MAX, WAIT).await.unwrap();
        memory.resize(100, WAIT).await.unwrap();
        assert_eq!(budget.used(), 100);
        memory.resize(6 * MIB, WAIT).await.unwrap();
        assert_eq!(budget.used(), 6 * MIB);
        assert!(budget.reserve(2 * MIB, WAIT).await.is_err());
        drop(memory);
        assert_eq!(budget.used(), 0);
        drop(budget.reserve(7 * MIB, WAIT).await.unwrap());
        let mut all = budget.reserve(0, WAIT).await.unwrap();
        assert!(all.resize(8 * MIB, WAIT).await.is_err());
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_is_refused_while_others_make_progress() {
        let budget = Arc::new(ResponseBudget::new(8 * MIB));
        let _first = budget.reserve(7 * MIB, WAIT).await.unwrap();
        let refused = budget.reserve(MIB, WAIT).await.unwrap_err();
        assert!(matches!(refused, ServiceError::ResponseMemoryUsedUp { .. }));
        assert_eq!((budget.refused(), budget.used()), (1, 7 * MIB));
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_is_not_read_is_dropped_for_others() {
        let budget = Arc::new(ResponseBudget::new(8 * MIB));
        let unread = send(budget.reserve(7 * MIB, WAIT).await.unwrap());
        let _other = budget.reserve(MIB, WAIT).await.unwrap();
        assert!(unread.memory.lock().unwrap().is_none());
        assert_eq!((budget.dropped(), budget.used()), (1, MIB));
        assert!(budget.sending().is_empty());
    }
}
