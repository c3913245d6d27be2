//! Automatic compaction: revisions older than a period, or all but the newest ones. Only the
//! leader compacts; a new leader starts with an empty history.

use std::collections::VecDeque;
use std::time::Duration;

use quorate_kv::{Command, Compact};
use tokio::time::Instant;

use crate::config::AutoCompaction;
use crate::context::ServiceContext;

/// Polls indefinitely.
pub(crate) async fn run(context: &ServiceContext, mode: AutoCompaction) {
    let mut history = RevisionHistory::default();
    loop {
        tokio::time::sleep(poll_interval(mode)).await;
        poll(context, mode, &mut history, Instant::now()).await;
    }
}

async fn poll(
    context: &ServiceContext,
    mode: AutoCompaction,
    history: &mut RevisionHistory,
    now: Instant,
) {
    if !context.node.is_leader() {
        *history = RevisionHistory::default();
        return;
    }
    let newest = context.store.read_when_free().await.revision();
    let due = match mode {
        AutoCompaction::Periodic(period) => history.due(now, newest, period),
        AutoCompaction::Revision(kept) => Some(newest - kept),
    };
    if let Some(revision) = due {
        compact(context, revision).await;
    }
}

/// Short enough that no revision is kept for much longer than the period.
fn poll_interval(mode: AutoCompaction) -> Duration {
    match mode {
        AutoCompaction::Periodic(period) => {
            (period / 10).clamp(PERIODIC_INTERVAL_MIN, PERIODIC_INTERVAL_MAX)
        }
        AutoCompaction::Revision(_) => REVISION_INTERVAL,
    }
}

/// The newest revision at each poll.
#[derive(Default)]
struct RevisionHistory {
    revisions: VecDeque<(Instant, i64)>,
}

impl RevisionHistory {
    /// The newest revision of a period ago, if the history goes back that far.
    fn due(&mut self, now: Instant, newest: i64, period: Duration) -> Option<i64> {
        self.revisions.push_back((now, newest));
        let mut due = None;
        while let Some((polled_at, revision)) = self.revisions.front()
            && now.duration_since(*polled_at) >= period
        {
            due = Some(*revision);
            self.revisions.pop_front();
        }
        due
    }
}

async fn compact(context: &ServiceContext, revision: i64) {
    if revision <= context.store.read_when_free().await.compact_revision().max(0) {
        return;
    }
    match context.run_as_member(Command::Compact(Compact { revision })).await {
        Ok(_) => tracing::info!(revision, "completed auto compaction"),
        Err(error) => {
            let (_, error) = error.code_and_text();
            tracing::warn!(revision, error, "auto compaction failed");
        }
    }
}

const PERIODIC_INTERVAL_MIN: Duration = Duration::from_secs(1);
const PERIODIC_INTERVAL_MAX: Duration = Duration::from_secs(3600);
/// As etcd's.
const REVISION_INTERVAL: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use quorate::{MemoryNetwork, MemoryStorage, Node, NodeConfig};
    use quorate_kv::{AnyTable, Kv, Put};

    use super::*;
    use crate::context::{ServiceLimits, SharedStore};

    const HOUR: Duration = Duration::from_secs(3600);

    async fn single_member() -> ServiceContext {
        let store = SharedStore::new(Kv::open(AnyTable::default()).unwrap());
        let config = NodeConfig::first(7, 1, [(1, "")]).with_tick(Duration::from_millis(5));
        let transport = MemoryNetwork::new().transport();
        let node =
            Node::start(config, MemoryStorage::new(), store.clone(), transport).await.unwrap();
        node.watch_leader().wait_for(Option::is_some).await.unwrap();
        ServiceContext::new(node, store, 7, ServiceLimits::default())
    }

    /// Writes this many revisions.
    async fn write(context: &ServiceContext, times: usize) {
        for _ in 0..times {
            let put = Put { key: "x".into(), ..Put::default() };
            context.run(&Command::Put(put)).await.unwrap();
        }
    }

    /// Polls at these times, with this many writes before each. Returns the compacted revision
    /// after each poll.
    async fn compacted_at(mode: AutoCompaction, polls: &[(Duration, usize)]) -> Vec<i64> {
        let context = single_member().await;
        let (began, mut history) = (Instant::now(), RevisionHistory::default());
        let mut compacted = Vec::new();
        for (time, writes) in polls {
            write(&context, *writes).await;
            poll(&context, mode, &mut history, began + *time).await;
            compacted.push(context.store.read_when_free().await.compact_revision().max(0));
        }
        context.node.stop_now().await;
        compacted
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn revisions_older_than_the_period_are_compacted() {
        let mode = AutoCompaction::Periodic(10 * HOUR);
        let polls = [(HOUR, 4), (5 * HOUR, 10), (10 * HOUR, 0), (11 * HOUR, 5), (14 * HOUR, 0)];
        // The first revision is 1: after 4 writes it is 5, after 14 it is 15.
        assert_eq!(compacted_at(mode, &polls).await, [0, 0, 0, 5, 5]);
        let polls = [(HOUR, 4), (5 * HOUR, 10), (15 * HOUR, 3), (25 * HOUR, 0)];
        assert_eq!(compacted_at(mode, &polls).await, [0, 0, 15, 18]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn all_but_the_newest_revisions_are_compacted() {
        let mode = AutoCompaction::Revision(10);
        let polls = [(HOUR, 8), (HOUR, 1), (HOUR, 5), (HOUR, 0), (HOUR, 100)];
        assert_eq!(compacted_at(mode, &polls).await, [0, 0, 5, 5, 105]);
    }

    #[test]
    fn the_poll_interval_is_bounded() {
        let periodic =
            |seconds| poll_interval(AutoCompaction::Periodic(Duration::from_secs(seconds)));
        let seconds = [1, 600, 3600, 24 * 3600].map(|seconds| periodic(seconds).as_secs());
        assert_eq!(seconds, [1, 60, 360, 3600]);
        assert_eq!(poll_interval(AutoCompaction::Revision(1)), Duration::from_secs(300));
    }
}
