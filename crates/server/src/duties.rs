//! What a server does without being asked: says who it is, sets the quota, forgets old
//! revisions, and gives learners their vote where it was told to.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use quorate_kv::{Command, Compact, Quota};
use tokio::time::Instant;

use crate::config::{AutoCompaction, Config};
use crate::context::Context;
use crate::member_info::Info;
use crate::members::{Wish, fulfil};
use crate::url::Url;

/// All of them, until the member ends.
pub(crate) async fn run(context: Context, config: Config) {
    let ended = async {
        context.node.ended().await;
    };
    tokio::select! {
        () = ended => {}
        () = all(&context, &config) => {}
    }
}

async fn all(context: &Context, config: &Config) {
    let publish = publish(context, config);
    let quota = set_quota(context, config.quota_backend_bytes);
    let compact = async {
        match config.auto_compaction {
            Some(AutoCompaction::Periodic(period)) => compact_by_time(context, period).await,
            Some(AutoCompaction::Revision(kept)) => compact_by_revision(context, kept).await,
            None => {}
        }
    };
    let promote = async {
        if config.auto_promote {
            promote_all(context).await;
        }
    };
    tokio::join!(publish, quota, compact, promote);
}

/// Tells the cluster the own name and where clients find this member, once it is in.
async fn publish(context: &Context, config: &Config) {
    let node = &context.node;
    let client_urls: Vec<String> =
        config.advertise_client_urls.iter().map(Url::to_string).collect();
    loop {
        let membership = node.membership();
        if membership.contains(node.id()) {
            let known = Info::of(&membership, node.id());
            let own = Info {
                name: config.name.clone(),
                client_urls: client_urls.clone(),
                ..known.clone()
            };
            if own == known {
                return;
            }
            let zone = membership.info(node.id()).map(|info| info.zone.clone());
            let wish = Wish::Describe(node.id(), own.in_zone(zone.unwrap_or_else(Bytes::new)));
            // While somebody waits for a goal it is not set anew, even if nothing changes.
            if membership.goal().is_none() && fulfil(node, &wish).await.is_ok() {
                tracing::info!(name = config.name, "published the name and the client URLs");
                continue;
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// The quota is part of the data, so that all refuse the same; whoever leads sets its own.
async fn set_quota(context: &Context, given: u64) {
    let bytes = if given == 0 { QUOTA_DEFAULT } else { given };
    loop {
        wait_to_lead(context).await;
        if context.store.read().quota().bytes != bytes {
            let quota = Quota { bytes, member: context.node.id().0 };
            let _ = context.run(&Command::SetQuota(quota)).await;
        }
        tokio::time::sleep(LOOK_OFTEN).await;
    }
}

/// Revisions as they were seen at a time; a new leader begins to look anew.
async fn compact_by_time(context: &Context, period: Duration) {
    let every = (period / 10).clamp(Duration::from_secs(1), Duration::from_secs(3600));
    let mut seen: VecDeque<(Instant, i64)> = VecDeque::new();
    loop {
        tokio::time::sleep(every).await;
        if !context.node.is_leader() {
            seen.clear();
            continue;
        }
        seen.push_back((Instant::now(), context.store.read().revision()));
        let mut due = None;
        while seen.front().is_some_and(|(at, _)| at.elapsed() >= period) {
            due = seen.pop_front();
        }
        if let Some((_, revision)) = due {
            compact(context, revision).await;
        }
    }
}

async fn compact_by_revision(context: &Context, kept: i64) {
    loop {
        tokio::time::sleep(REVISION_EVERY).await;
        let now = context.store.read().revision();
        if context.node.is_leader() {
            compact(context, now - kept).await;
        }
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

/// Gives every learner that nobody wants as such its vote, once it can vote without harm.
async fn promote_all(context: &Context) {
    let node = &context.node;
    loop {
        wait_to_lead(context).await;
        let membership = node.membership();
        if membership.goal().is_none()
            && let Ok(view) = node.view().await
        {
            let ready = membership.learners().iter().find(|id| view.caught_up.contains(*id));
            if let Some(id) = ready
                && fulfil(node, &Wish::Promote(id)).await.is_ok()
            {
                tracing::info!(member_id = format!("{:x}", id.0), "promoted a learner");
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

async fn wait_to_lead(context: &Context) {
    let own = context.node.id();
    let mut leader = context.node.watch_leader();
    if leader.wait_for(|leader| *leader == Some(own)).await.is_err() {
        // The member has ended, and so does this.
        std::future::pending::<()>().await;
    }
}

const LOOK_AGAIN: Duration = Duration::from_millis(500);
const LOOK_OFTEN: Duration = Duration::from_secs(2);
const REVISION_EVERY: Duration = Duration::from_secs(300);
/// As etcd's.
const QUOTA_DEFAULT: u64 = 2 << 30;
