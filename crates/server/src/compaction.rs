//! Old revisions go by themselves: those that are older than a period, or all but so many.
//! Only the leader sees to it, and a new one begins to look anew.

use std::collections::VecDeque;
use std::time::Duration;

use quorate_kv::{Command, Compact};
use tokio::time::Instant;

use crate::config::AutoCompaction;
use crate::context::Context;

/// Looks now and then, for ever.
pub(crate) async fn run(context: &Context, mode: AutoCompaction) {
    let mut seen = Seen::default();
    loop {
        tokio::time::sleep(look_every(mode)).await;
        look(context, mode, &mut seen, Instant::now()).await;
    }
}

async fn look(context: &Context, mode: AutoCompaction, seen: &mut Seen, now: Instant) {
    if !context.node.is_leader() {
        *seen = Seen::default();
        return;
    }
    let newest = context.store.read().revision();
    let due = match mode {
        AutoCompaction::Periodic(period) => seen.due(now, newest, period),
        AutoCompaction::Revision(kept) => Some(newest - kept),
    };
    if let Some(revision) = due {
        compact(context, revision).await;
    }
}

/// Often enough that nothing is kept for much longer than it has to.
fn look_every(mode: AutoCompaction) -> Duration {
    match mode {
        AutoCompaction::Periodic(period) => (period / 10).clamp(PERIODIC_MIN, PERIODIC_MAX),
        AutoCompaction::Revision(_) => REVISION_EVERY,
    }
}

/// Revisions as they were when they were the newest.
#[derive(Default)]
struct Seen {
    revisions: VecDeque<(Instant, i64)>,
}

impl Seen {
    /// The newest revision that was seen a period ago, if any was.
    fn due(&mut self, now: Instant, newest: i64, period: Duration) -> Option<i64> {
        self.revisions.push_back((now, newest));
        let mut due = None;
        while let Some((at, revision)) = self.revisions.front()
            && now.duration_since(*at) >= period
        {
            due = Some(*revision);
            self.revisions.pop_front();
        }
        due
    }
}

async fn compact(context: &Context, revision: i64) {
    if revision <= context.store.read().compact_revision().max(0) {
        return;
    }
    match context.run(&Command::Compact(Compact { revision })).await {
        Ok(_) => tracing::info!(revision, "completed auto compaction"),
        Err(why) => tracing::warn!(revision, why = why.message(), "auto compaction failed"),
    }
}

const PERIODIC_MIN: Duration = Duration::from_secs(1);
const PERIODIC_MAX: Duration = Duration::from_secs(3600);
/// As etcd's.
const REVISION_EVERY: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use quorate::{MemoryNetwork, MemoryStorage, Node, NodeConfig};
    use quorate_kv::{AnyTable, Kv, Put};

    use super::*;
    use crate::context::{Limits, Store};

    const HOUR: Duration = Duration::from_secs(3600);

    async fn alone() -> Context {
        let store = Store::new(Kv::open(AnyTable::default()).unwrap());
        let config = NodeConfig::first(7, 1, [(1, "")]).with_tick(Duration::from_millis(5));
        let transport = MemoryNetwork::new().transport();
        let node =
            Node::start(config, MemoryStorage::new(), store.clone(), transport).await.unwrap();
        node.watch_leader().wait_for(Option::is_some).await.unwrap();
        Context::new(node, store, 7, Limits::default())
    }

    /// Writes so often; each is a revision.
    async fn write(context: &Context, times: usize) {
        for _ in 0..times {
            let put = Put { key: "x".into(), ..Put::default() };
            context.run(&Command::Put(put)).await.unwrap();
        }
    }

    /// Looks at these times, writing so often before each; says what was compacted then.
    async fn looked(mode: AutoCompaction, looks: &[(Duration, usize)]) -> Vec<i64> {
        let context = alone().await;
        let (began, mut seen) = (Instant::now(), Seen::default());
        let mut compacted = Vec::new();
        for (at, writes) in looks {
            write(&context, *writes).await;
            look(&context, mode, &mut seen, began + *at).await;
            compacted.push(context.store.read().compact_revision().max(0));
        }
        context.node.stop_now().await;
        compacted
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_older_than_the_period_goes() {
        let mode = AutoCompaction::Periodic(10 * HOUR);
        let looks = [(HOUR, 4), (5 * HOUR, 10), (10 * HOUR, 0), (11 * HOUR, 5), (14 * HOUR, 0)];
        // The first revision is 1: after 4 writes it is 5, after 14 it is 15.
        assert_eq!(looked(mode, &looks).await, [0, 0, 0, 5, 5]);
        let looks = [(HOUR, 4), (5 * HOUR, 10), (15 * HOUR, 3), (25 * HOUR, 0)];
        assert_eq!(looked(mode, &looks).await, [0, 0, 15, 18]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn all_but_so_many_revisions_go() {
        let mode = AutoCompaction::Revision(10);
        let looks = [(HOUR, 8), (HOUR, 1), (HOUR, 5), (HOUR, 0), (HOUR, 100)];
        assert_eq!(looked(mode, &looks).await, [0, 0, 5, 5, 105]);
    }

    #[test]
    fn it_looks_often_but_not_too_often() {
        let periodic = |seconds| look_every(AutoCompaction::Periodic(Duration::from_secs(seconds)));
        let seconds = [1, 600, 3600, 24 * 3600].map(|seconds| periodic(seconds).as_secs());
        assert_eq!(seconds, [1, 60, 360, 3600]);
        assert_eq!(look_every(AutoCompaction::Revision(1)), Duration::from_secs(300));
    }
}
