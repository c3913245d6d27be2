//! The leader's lease deadlines, and the queries with which other members ask for them.
//!
//! Deadlines are not in the log. A deposed leader that does not know it could promise time that
//! the new leader does not grant. So a leader confirms that it still leads before it says how
//! long a lease lasts.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate::{RequestError, RequestRefused};
use quorate_kv::{Command, LeaseCheckpoint, LeaseDeadlines, LeaseGrants, LeaseRenewal};
use tokio::time::Instant;

use crate::context::{ServiceContext, SharedStore};
use crate::status::ServiceError;

/// The deadlines of a leader; empty on other members.
pub(crate) struct Lessor {
    deadlines: Mutex<Option<LeaderDeadlines>>,
    started: Instant,
}

struct LeaderDeadlines {
    term: u64,
    deadlines: LeaseDeadlines,
}

/// What a member may ask the leader about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseQuery {
    /// Restart the time of the lease.
    Renew(i64),
    TimeLeft(i64),
}

/// The leader's answer: the remaining seconds. `None` for a lease that does not exist or has
/// expired.
pub(crate) type LeaseAnswer = Option<i64>;

impl Default for Lessor {
    fn default() -> Self {
        Self { deadlines: Mutex::new(None), started: Instant::now() }
    }
}

impl Lessor {
    fn lock(&self) -> MutexGuard<'_, Option<LeaderDeadlines>> {
        self.deadlines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// The term in which this member keeps deadlines, if it does.
    pub(super) fn term(&self) -> Option<u64> {
        self.lock().as_ref().map(|leader| leader.term)
    }

    /// Starts the deadlines of all leases in the store, which has applied all entries of
    /// earlier terms.
    pub(super) fn start(&self, context: &ServiceContext, term: u64) {
        // From now on the store collects grants; all earlier ones are in it.
        let _ = context.store.take_grants();
        let limits = &context.limits;
        let grace = millis(limits.lease_grace);
        let checkpoint_interval = millis(limits.lease_checkpoint_interval);
        let kv = context.store.read();
        let deadlines = LeaseDeadlines::new(kv.leases(), self.now(), grace, checkpoint_interval);
        drop(kv);
        *self.lock() = Some(LeaderDeadlines { term, deadlines });
    }

    pub(super) fn stop(&self, store: &SharedStore) {
        *self.lock() = None;
        store.stop_tracking_grants();
    }

    /// Leases whose deadline has passed.
    pub(super) fn expired(&self, context: &ServiceContext, count_max: usize) -> Vec<i64> {
        let now = self.now();
        self.with(context, |deadlines| deadlines.expired(now, count_max)).unwrap_or_default()
    }

    pub(super) fn checkpoints_due(&self, context: &ServiceContext) -> Vec<LeaseCheckpoint> {
        let now = self.now();
        let due = self.with(context, |deadlines| deadlines.checkpoints_due(now, CHECKPOINTS_MAX));
        due.unwrap_or_default()
    }

    /// Removes the deadline of a lease that no longer exists. If it was granted again
    /// meanwhile, its deadline stays.
    pub(super) fn forget(&self, context: &ServiceContext, id: i64) {
        self.with(context, |deadlines| {
            if context.store.read().lease(id).is_none() {
                deadlines.remove(id);
            }
        });
    }

    /// Adds the leases granted meanwhile, then calls `act` on the deadlines.
    fn with<R>(
        &self,
        context: &ServiceContext,
        act: impl FnOnce(&mut LeaseDeadlines) -> R,
    ) -> Option<R> {
        let now = self.now();
        let mut leader = self.lock();
        let deadlines = &mut leader.as_mut()?.deadlines;
        match context.store.take_grants() {
            LeaseGrants::Granted(grants) => {
                for (id, ttl) in grants {
                    deadlines.grant(id, ttl, now);
                }
            }
            LeaseGrants::NotTracked | LeaseGrants::Overflowed => {
                let kv = context.store.read();
                for (id, lease) in kv.leases() {
                    if deadlines.seconds_left(id, now).is_none() {
                        deadlines.grant(id, lease.ttl, now);
                    }
                }
            }
        }
        Some(act(deadlines))
    }

    /// Answers as the leader. `None` if this member is not the leader, or cannot confirm it.
    pub(super) async fn answer(
        &self,
        context: &ServiceContext,
        query: LeaseQuery,
    ) -> Option<LeaseAnswer> {
        let term = self.term()?;
        let mut answer = self.look_up(context, term, query).await?;
        if answer.is_none() {
            // The requester may have seen a grant that this member has not applied yet.
            context.catch_up().await.ok()?;
            answer = self.look_up(context, term, query).await?;
        }
        context.catch_up().await.ok()?;
        // The requester may have seen a revocation that this member had not applied before.
        let (LeaseQuery::Renew(id) | LeaseQuery::TimeLeft(id)) = query;
        if context.store.read().lease(id).is_none() {
            self.forget(context, id);
            answer = None;
        }
        let leads = context.node.is_leader() && context.node.term() == term;
        (leads && self.term() == Some(term)).then_some(answer)
    }

    async fn look_up(
        &self,
        context: &ServiceContext,
        term: u64,
        query: LeaseQuery,
    ) -> Option<LeaseAnswer> {
        let (LeaseQuery::Renew(id) | LeaseQuery::TimeLeft(id)) = query;
        if context.store.read().lease(id).is_none() {
            self.forget(context, id);
            return Some(None);
        }
        let now = self.now();
        match query {
            LeaseQuery::TimeLeft(_) => {
                let left = self.with(context, |deadlines| deadlines.seconds_left(id, now))?;
                Some(left.filter(|left| *left >= 0))
            }
            LeaseQuery::Renew(_) => {
                let renewed = self.with(context, |deadlines| deadlines.renew(id, now))?;
                let Some(LeaseRenewal { ttl, clear }) = renewed else { return Some(None) };
                let Some(clear) = clear else { return Some(Some(ttl)) };
                let cleared = context.run_in(term, &Command::LeaseCheckpoint(vec![clear])).await;
                if cleared.is_err() {
                    // The deadlines assume that the checkpoint was cleared: build them again
                    // from the store.
                    *self.lock() = None;
                    return None;
                }
                Some(Some(ttl))
            }
        }
    }
}

/// Asks the leader, and retries until there is one or the timeout passes.
pub(super) async fn ask_leader(
    context: &ServiceContext,
    query: LeaseQuery,
) -> Result<LeaseAnswer, ServiceError> {
    let deadline = Instant::now() + ASK_TIMEOUT;
    loop {
        let error = match context.node.ask_leader(query.encode()).await {
            Ok(answer) => match decode_answer(answer) {
                Some(answer) => return Ok(answer),
                None => RequestError::Refused(RequestRefused::NoLeader),
            },
            Err(error) => error,
        };
        if !error.is_retryable() || Instant::now() >= deadline {
            return Err(error.into());
        }
        tokio::time::sleep(ASK_RETRY_INTERVAL).await;
    }
}

const RENEW: u8 = 1;
const TIME_LEFT: u8 = 2;

impl LeaseQuery {
    fn encode(self) -> Bytes {
        let (kind, id) = match self {
            Self::Renew(id) => (RENEW, id),
            Self::TimeLeft(id) => (TIME_LEFT, id),
        };
        let mut bytes = BytesMut::with_capacity(9);
        bytes.put_u8(kind);
        bytes.put_i64_le(id);
        bytes.freeze()
    }

    pub(super) fn decode(mut bytes: Bytes) -> Option<Self> {
        let kind = bytes.try_get_u8().ok()?;
        let id = bytes.try_get_i64_le().ok()?;
        match kind {
            RENEW if bytes.is_empty() => Some(Self::Renew(id)),
            TIME_LEFT if bytes.is_empty() => Some(Self::TimeLeft(id)),
            _ => None,
        }
    }
}

/// A lease that does not exist is encoded as -1 seconds.
pub(super) fn encode_answer(answer: LeaseAnswer) -> Bytes {
    Bytes::copy_from_slice(&answer.unwrap_or(-1).to_le_bytes())
}

fn decode_answer(mut bytes: Bytes) -> Option<LeaseAnswer> {
    let seconds = bytes.try_get_i64_le().ok()?;
    bytes.is_empty().then_some((seconds >= 0).then_some(seconds))
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis() as u64
}

/// Checkpoints in one command.
const CHECKPOINTS_MAX: usize = 1_000;
const ASK_TIMEOUT: Duration = Duration::from_secs(7);
const ASK_RETRY_INTERVAL: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use quorate::{MemoryNetwork, MemoryStorage, Node, NodeConfig};
    use quorate_kv::{AnyTable, Kv, LeaseGrant};

    use super::*;
    use crate::context::ServiceLimits;

    /// Otherwise the lease would never expire.
    #[tokio::test]
    async fn a_lease_that_was_granted_again_keeps_its_deadline() {
        let store = SharedStore::new(Kv::open(AnyTable::default()).unwrap());
        let config = NodeConfig::first(1, 1, [(1, "")]).with_tick(Duration::from_millis(10));
        let (storage, network) = (MemoryStorage::new(), MemoryNetwork::new());
        let node = Node::start(config, storage, store.clone(), network.transport()).await.unwrap();
        let context = ServiceContext::new(node.clone(), store, 1, ServiceLimits::default());
        let lessor = &context.lessor;
        let has_deadline =
            || lessor.with(&context, |deadlines| deadlines.seconds_left(7, 0).is_some()).unwrap();
        context.catch_up().await.unwrap();
        lessor.start(&context, node.term());
        let grant = Command::LeaseGrant(LeaseGrant { id: 7, ttl: 60 });
        context.run(&grant).await.unwrap();
        lessor.forget(&context, 7);
        assert!(has_deadline());
        context.run(&Command::LeaseRevoke(7)).await.unwrap();
        lessor.forget(&context, 7);
        assert!(!has_deadline());
        node.stop_now().await;
    }

    #[test]
    fn queries_and_answers_round_trip() {
        for query in [LeaseQuery::Renew(i64::MIN), LeaseQuery::TimeLeft(7)] {
            assert_eq!(LeaseQuery::decode(query.encode()), Some(query));
            assert_eq!(LeaseQuery::decode(query.encode().slice(..8)), None);
        }
        assert_eq!(LeaseQuery::decode(Bytes::from_static(&[9; 9])), None);
        for answer in [None, Some(0), Some(60)] {
            assert_eq!(decode_answer(encode_answer(answer)), Some(answer));
        }
        assert_eq!(decode_answer(Bytes::new()), None);
    }
}
