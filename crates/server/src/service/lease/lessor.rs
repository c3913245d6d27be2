//! The leader's lease deadlines with a clock, and the queries with which other members ask for
//! them. The rules are in [`quorate_kv::Lessor`]: here they meet the node.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate::{RequestError, RequestRefused};
use quorate_kv::{
    AnyTable, Kv, LeaseAnswer, LeaseInquiry, LeaseInquiryStep, LeaseQuery, LeaseWork, LessorConfig,
};
use tokio::time::Instant;

use crate::context::{ServiceContext, ServiceLimits, SharedStore};
use crate::status::ServiceError;

/// The deadlines of a leader; empty on other members.
pub(crate) struct LessorHandle {
    lessor: Mutex<quorate_kv::Lessor>,
    started: Instant,
}

impl LessorHandle {
    pub(crate) fn new(limits: &ServiceLimits) -> Self {
        let config = LessorConfig {
            grace_ms: millis(limits.lease_grace),
            checkpoint_every_ms: millis(limits.lease_checkpoint_interval),
        };
        Self { lessor: Mutex::new(quorate_kv::Lessor::new(config)), started: Instant::now() }
    }

    fn lock(&self) -> MutexGuard<'_, quorate_kv::Lessor> {
        self.lessor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// What is due, for at most this many expired leases.
    pub(super) async fn poll(&self, context: &ServiceContext, revoke_max: usize) -> LeaseWork {
        let store = &context.store;
        let kv = store.read_when_free().await;
        self.lock().poll(store, &kv, leading_term(context), self.now(), revoke_max)
    }

    pub(super) async fn start(&self, context: &ServiceContext, term: u64) {
        let kv = context.store.read_when_free().await;
        self.lock().start(&context.store, &kv, term, self.now());
    }

    pub(super) fn start_failed(&self, term: u64) {
        self.lock().start_failed(term);
    }

    pub(super) fn stop(&self, store: &SharedStore) {
        self.lock().stop(store);
    }

    pub(super) async fn forget(&self, context: &ServiceContext, id: i64) {
        let kv = context.store.read_when_free().await;
        self.lock().forget(&context.store, &kv, id, self.now());
    }

    /// The ids of all leases in the order in which they end. `None` unless this member leads.
    pub(super) fn by_end(&self, store: &SharedStore, kv: &Kv<AnyTable>) -> Option<Vec<i64>> {
        self.lock().by_end(store, kv, self.now())
    }

    /// Answers as the leader. `None` if this member is not the leader, or cannot confirm it.
    pub(super) async fn answer(
        &self,
        context: &ServiceContext,
        query: LeaseQuery,
    ) -> Option<LeaseAnswer> {
        let store = &context.store;
        let (mut inquiry, mut step) = {
            let kv = store.read_when_free().await;
            LeaseInquiry::begin(&mut self.lock(), store, &kv, query, self.now())?
        };
        loop {
            let succeeded = match step {
                LeaseInquiryStep::CatchUp => context.catch_up().await.is_ok(),
                LeaseInquiryStep::Propose(term, command) => {
                    context.run_in(term, &command).await.is_ok()
                }
                LeaseInquiryStep::Answer(answer) => return Some(answer),
                LeaseInquiryStep::NoAnswer => return None,
            };
            let kv = store.read_when_free().await;
            let (leads, now) = (leading_term(context), self.now());
            step = inquiry.proceed(&mut self.lock(), store, &kv, succeeded, leads, now);
        }
    }
}

/// The term that this member leads.
pub(super) fn leading_term(context: &ServiceContext) -> Option<u64> {
    // A leader of a later term leads, too: the term is read before and after.
    let term = context.node.term();
    (context.node.is_leader() && context.node.term() == term).then_some(term)
}

/// Asks the leader, and retries until there is one or the timeout passes.
pub(super) async fn ask_leader(
    context: &ServiceContext,
    query: LeaseQuery,
) -> Result<LeaseAnswer, ServiceError> {
    let deadline = Instant::now() + ASK_TIMEOUT;
    loop {
        let error = match context.node.ask_leader(encode_query(query)).await {
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

fn encode_query(query: LeaseQuery) -> Bytes {
    let kind = match query {
        LeaseQuery::Renew(_) => RENEW,
        LeaseQuery::TimeLeft(_) => TIME_LEFT,
    };
    let mut bytes = BytesMut::with_capacity(9);
    bytes.put_u8(kind);
    bytes.put_i64_le(query.id());
    bytes.freeze()
}

pub(super) fn decode_query(mut bytes: Bytes) -> Option<LeaseQuery> {
    let kind = bytes.try_get_u8().ok()?;
    let id = bytes.try_get_i64_le().ok()?;
    match kind {
        RENEW if bytes.is_empty() => Some(LeaseQuery::Renew(id)),
        TIME_LEFT if bytes.is_empty() => Some(LeaseQuery::TimeLeft(id)),
        _ => None,
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

const ASK_TIMEOUT: Duration = Duration::from_secs(7);
const ASK_RETRY_INTERVAL: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_and_answers_round_trip() {
        for query in [LeaseQuery::Renew(i64::MIN), LeaseQuery::TimeLeft(7)] {
            assert_eq!(decode_query(encode_query(query)), Some(query));
            assert_eq!(decode_query(encode_query(query).slice(..8)), None);
        }
        assert_eq!(decode_query(Bytes::from_static(&[9; 9])), None);
        for answer in [None, Some(0), Some(60)] {
            assert_eq!(decode_answer(encode_answer(answer)), Some(answer));
        }
        assert_eq!(decode_answer(Bytes::new()), None);
    }
}
