//! A compaction deletes its rows with the commands that follow it, a few with each. Where no
//! commands follow, the leader proposes empty ones.

use std::time::Duration;

use quorate_kv::Command;
use tokio::time::{MissedTickBehavior, interval};

use crate::context::ServiceContext;

/// Runs as a task beside the services until the node ends.
pub(crate) async fn finish_compactions(context: ServiceContext) {
    tokio::select! {
        _ = context.node.wait_stopped() => {}
        () = finish_all(&context) => {}
    }
}

async fn finish_all(context: &ServiceContext) {
    let mut clock = interval(POLL_INTERVAL);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        while context.node.is_leader() && context.store.read_when_free().await.is_compacting() {
            // One at a time, so that clients' commands come first.
            if context.run(&Command::Noop).await.is_err() {
                break;
            }
        }
    }
}

const POLL_INTERVAL: Duration = Duration::from_millis(500);
