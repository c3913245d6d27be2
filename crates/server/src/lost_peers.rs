//! How many members lack what they confirmed, as every member shows it in its metrics. Only the
//! leader knows: the others ask it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;

use crate::context::ServiceContext;

/// The query to the leader. Queries about leases begin with other numbers.
pub(crate) const LOST_PEERS_QUERY: &[u8] = &[3];

/// The leader's answer.
pub(crate) fn answer(context: &ServiceContext) -> Bytes {
    Bytes::copy_from_slice(&context.node.metrics().peers_lost.to_le_bytes())
}

/// The number for the metrics of this member.
pub(crate) fn lost_peers(context: &ServiceContext) -> u64 {
    if context.node.is_leader() {
        return context.node.metrics().peers_lost;
    }
    context.counters.peers_lost.load(Ordering::Relaxed)
}

/// Asks the leader again and again. Without an answer the last number stays.
pub(crate) async fn run(context: &ServiceContext) {
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        if context.node.is_leader() {
            continue;
        }
        let answer = context.node.ask_leader(Bytes::from_static(LOST_PEERS_QUERY)).await;
        let number = answer.ok().and_then(|answer| answer[..].try_into().ok());
        if let Some(number) = number {
            context.counters.peers_lost.store(u64::from_le_bytes(number), Ordering::Relaxed);
        }
    }
}

const POLL_INTERVAL: Duration = Duration::from_secs(2);
