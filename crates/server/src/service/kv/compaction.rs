//! What compactions leave to later commands is done by the leader where none come.

use std::time::Duration;

use quorate_kv::Command;
use tokio::time::{MissedTickBehavior, interval};

use crate::context::Context;

/// Run as a task beside the services; it ends with the node.
pub(crate) async fn finish_compactions(context: Context) {
    tokio::select! {
        _ = context.node.wait_stopped() => {}
        () = finish_all(&context) => {}
    }
}

async fn finish_all(context: &Context) {
    let mut clock = interval(LOOK_EVERY);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        while context.node.is_leader() && context.store.read().is_compacting() {
            // One after the other: clients come first.
            if context.run(&Command::Noop).await.is_err() {
                break;
            }
        }
    }
}

const LOOK_EVERY: Duration = Duration::from_millis(500);
