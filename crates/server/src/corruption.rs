//! Compares the data of this member with the leader's: before it serves, periodically, and after
//! compactions. A difference raises the alarm CORRUPT, which refuses writes on every member.
//!
//! In etcd the leader asks the members; here each member asks the leader, with the same queries
//! that are used for leases. The member that differs from its leader names itself in the alarm.

use std::fmt;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate_kv::{Alarm, AlarmKind, Command, HashOutcome, KvError, KvOutcome};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use crate::config::CorruptionChecks;
use crate::context::{ServiceContext, SharedStore};
use crate::service::maintenance::hash_kv;
use crate::status::ServiceError;

/// A hash of this member that the leader does not have at the same revisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataMismatch {
    pub revision: i64,
    pub compact_revision: i64,
    pub own: u32,
    pub leader: u32,
}

impl fmt::Display for DataMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { revision, compact_revision, own, leader } = self;
        write!(
            f,
            "the data of this member differs from the leader's: at revision {revision}, compacted \
             at {compact_revision}, its hash is {own:08x} and the leader's {leader:08x}; remove \
             this member, and add it again with an empty data directory"
        )
    }
}

/// Compares once, before this member serves. Without a leader in time, or on the leader itself,
/// there is nothing to compare with.
pub(crate) async fn check_initially(context: &ServiceContext) -> Result<(), DataMismatch> {
    let mut last = None;
    // The leader may change, and a compaction may be known to only one of them.
    let compared = async {
        loop {
            match catch_up_and_compare(context).await {
                Ok(compared) => return compared,
                Err(error) => last = Some(error.code_and_text().1),
            }
            sleep(RETRY_INTERVAL).await;
        }
    };
    match timeout(INITIAL_TIMEOUT, compared).await {
        Ok(Some(mismatch)) => return Err(mismatch),
        Ok(None) => tracing::info!("compared the data with the leader's: no difference"),
        Err(_) => {
            let error = last.unwrap_or_else(|| "no leader in time".into());
            tracing::warn!(%error, "the data was not compared with the leader's");
        }
    }
    Ok(())
}

async fn catch_up_and_compare(
    context: &ServiceContext,
) -> Result<Option<DataMismatch>, ServiceError> {
    context.node.barrier().await.map_err(ServiceError::Request)?;
    compare(context, 0).await
}

/// Runs the checks that are repeated. Ends if there are none.
pub(crate) async fn run(context: &ServiceContext, checks: CorruptionChecks) {
    let periodic = async {
        if checks.interval.is_zero() {
            return;
        }
        loop {
            sleep(checks.interval).await;
            check(context, 0).await;
        }
    };
    let compactions = async {
        if !checks.compact_hash {
            return;
        }
        let mut checked = 0;
        loop {
            sleep(checks.compact_hash_interval).await;
            let compacted = context.store.read_when_free().await.compact_revision();
            if compacted > checked && check(context, compacted).await {
                checked = compacted;
            }
        }
    };
    tokio::join!(periodic, compactions);
}

/// Compares at this revision (0 for the current one), and raises the alarm if the data differs.
/// False if it could not be compared.
async fn check(context: &ServiceContext, revision: i64) -> bool {
    let mismatch = match compare(context, revision).await {
        Ok(Some(mismatch)) => mismatch,
        Ok(None) => return true,
        Err(error) => {
            let error = error.code_and_text().1;
            tracing::debug!(error, "the data was not compared with the leader's");
            return false;
        }
    };
    tracing::error!("{mismatch}");
    let alarm = Alarm { kind: AlarmKind::Corrupt, member: context.node.id().0 };
    if context.store.read_when_free().await.alarms().contains(&alarm) {
        return true;
    }
    context.run_as_member(Command::AlarmActivate(alarm)).await.is_ok()
}

/// The difference from the leader at this revision, if both have it.
async fn compare(
    context: &ServiceContext,
    revision: i64,
) -> Result<Option<DataMismatch>, ServiceError> {
    if context.node.is_leader() {
        return Ok(None);
    }
    let own = hash_at(context.store.clone(), revision).await?;
    let HashOutcome { hash_revision, compact_revision, hash } = own;
    let answer = context.node.ask_leader(encode_query(hash_revision)).await?;
    let Some(leader) = decode_answer(answer) else { return Err(ServiceError::UnexpectedReply) };
    // A compaction of which only one of them knows changes the hash.
    if leader.compact_revision != compact_revision || leader.hash_revision != hash_revision {
        return Err(ServiceError::Kv(KvError::Compacted));
    }
    let mismatch =
        DataMismatch { revision: hash_revision, compact_revision, own: hash, leader: leader.hash };
    Ok((leader.hash != hash).then_some(mismatch))
}

async fn hash_at(store: SharedStore, revision: i64) -> Result<HashOutcome, ServiceError> {
    let reply = spawn_blocking(move || hash_kv(&store, revision)).await;
    match reply.map_err(ServiceError::Task)??.result {
        Ok(KvOutcome::Hash(outcome)) => Ok(outcome),
        Ok(_) => Err(ServiceError::UnexpectedReply),
        Err(error) => Err(ServiceError::Kv(error)),
    }
}

/// The revision that a query to the leader is about, if it is one about hashes.
pub(crate) fn decode_query(payload: &[u8]) -> Option<i64> {
    let (kind, mut revision) = payload.split_first()?;
    (*kind == HASH_QUERY && revision.len() == 8).then(|| revision.get_i64_le())
}

/// The leader's answer; none if it does not have the revision, or no longer.
pub(crate) async fn answer(context: &ServiceContext, revision: i64) -> Option<Bytes> {
    hash_at(context.store.clone(), revision).await.ok().map(encode_answer)
}

fn encode_query(revision: i64) -> Bytes {
    let mut bytes = BytesMut::with_capacity(9);
    bytes.put_u8(HASH_QUERY);
    bytes.put_i64_le(revision);
    bytes.freeze()
}

fn encode_answer(outcome: HashOutcome) -> Bytes {
    let mut bytes = BytesMut::with_capacity(20);
    bytes.put_u32_le(outcome.hash);
    bytes.put_i64_le(outcome.compact_revision);
    bytes.put_i64_le(outcome.hash_revision);
    bytes.freeze()
}

fn decode_answer(mut bytes: Bytes) -> Option<HashOutcome> {
    let hash = bytes.try_get_u32_le().ok()?;
    let compact_revision = bytes.try_get_i64_le().ok()?;
    let hash_revision = bytes.try_get_i64_le().ok()?;
    bytes.is_empty().then_some(HashOutcome { hash, compact_revision, hash_revision })
}

/// Other queries to the leader begin with other numbers.
const HASH_QUERY: u8 = 4;
/// How long a starting member waits for a leader to compare with.
const INITIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// The time before another try to compare.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_and_answers_round_trip() {
        assert_eq!(decode_query(&encode_query(7)), Some(7));
        assert_eq!(decode_query(&encode_query(7)[..8]), None);
        assert_eq!(decode_query(&[3]), None);
        let outcome = HashOutcome { hash: 1, compact_revision: -1, hash_revision: 3 };
        assert_eq!(decode_answer(encode_answer(outcome)), Some(outcome));
        assert_eq!(decode_answer(Bytes::from_static(&[0; 19])), None);
    }
}
