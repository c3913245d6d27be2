//! Notices changes of users and roles and tokens that expire, and tells the open streams.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use super::TokenProvider;
use crate::context::ServiceContext;

/// Runs as a task beside the services until the node ends.
pub(crate) async fn monitor(context: ServiceContext) {
    let ended = context.node.wait_stopped();
    tokio::pin!(ended);
    let mut clock = interval(POLL_INTERVAL);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen = context.store.auth_version();
    let mut swept = Instant::now();
    loop {
        tokio::select! {
            _ = &mut ended => return,
            _ = clock.tick() => {}
        }
        let version = context.store.auth_version();
        let mut changed = version != seen;
        seen = version;
        if let TokenProvider::Simple(tokens) = &context.auth.tokens {
            tokens.learn(&context.store, context.has_caught_up());
            if changed || swept.elapsed() >= SWEEP_INTERVAL {
                swept = Instant::now();
                changed |= tokens.sweep(context.store.read_when_free().await.auth());
            }
        }
        if changed {
            context.auth.changes.send_modify(|count| *count += 1);
        }
    }
}

/// Streams of users that lost a right end within a second.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
