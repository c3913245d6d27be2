//! Background tasks of a server: publish its name and client URLs, set the quota, compact old
//! revisions, ask the leader for lost members, report to it, and where that is configured, promote learners and
//! compare the data with the leader's.

use std::time::Duration;

use quorate_kv::{Command, Quota};

use crate::auto_compaction;
use crate::config::ServerConfig;
use crate::context::ServiceContext;
use crate::corruption;
use crate::lost_peers;
use crate::member_change::{MemberChange, MemberUpdate};
use crate::member_details::MemberDetails;
use crate::overview;
use crate::url::Url;

/// Runs all of them until the member stops.
pub(crate) async fn run(context: ServiceContext, config: ServerConfig) {
    let ended = async {
        context.node.wait_stopped().await;
    };
    tokio::select! {
        () = ended => {}
        () = run_all(&context, &config) => {}
    }
}

async fn run_all(context: &ServiceContext, config: &ServerConfig) {
    let publish = publish(context, config);
    let quota = set_quota(context, config.quota_backend_bytes);
    let compact = async {
        if let Some(mode) = config.auto_compaction {
            auto_compaction::run(context, mode).await;
        }
    };
    let promote = async {
        if config.auto_promote {
            promote_learners(context).await;
        }
    };
    let compare = corruption::run(context, config.corruption_checks);
    let (lost, report) = (lost_peers::run(context), overview::run(context));
    tokio::join!(publish, quota, compact, promote, compare, lost, report);
}

/// Publishes the name and the client URLs of this member, once it is in the membership.
async fn publish(context: &ServiceContext, config: &ServerConfig) {
    let node = &context.node;
    let client_urls: Vec<String> =
        config.advertise_client_urls.iter().map(Url::to_string).collect();
    loop {
        let membership = node.membership();
        if membership.contains(node.id()) {
            let details = MemberDetails::of(&membership, node.id());
            if details.name == config.name && details.client_urls == client_urls {
                return;
            }
            let (name, client_urls) = (config.name.clone(), client_urls.clone());
            let update = MemberUpdate::Published { name, client_urls };
            if MemberChange::Update(node.id(), update).run(node).await.is_ok() {
                tracing::info!(name = config.name, "published the name and the client URLs");
                continue;
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The quota is part of the replicated data, so that all members refuse the same commands. The
/// leader sets the one of its own configuration.
async fn set_quota(context: &ServiceContext, configured: u64) {
    let bytes = if configured == 0 { QUOTA_DEFAULT } else { configured };
    loop {
        wait_for_leadership(context).await;
        if context.store.read_when_free().await.quota().bytes != bytes {
            let quota = Quota { bytes, member: context.node.id().0 };
            // A failed attempt is repeated after the interval.
            let _ = context.run(&Command::SetQuota(quota)).await;
        }
        tokio::time::sleep(QUOTA_INTERVAL).await;
    }
}

/// Promotes every learner once it has caught up, unless a goal says that it is to stay one.
async fn promote_learners(context: &ServiceContext) {
    let node = &context.node;
    loop {
        wait_for_leadership(context).await;
        let membership = node.membership();
        if membership.goal().is_none()
            && let Ok(view) = node.view().await
        {
            let ready = membership.learners().iter().find(|id| view.caught_up.contains(*id));
            if let Some(id) = ready
                && MemberChange::Promote(id).run(node).await.is_ok()
            {
                let name = MemberDetails::of(&membership, id).name;
                tracing::info!(member = %id, name, "promoted a learner");
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn wait_for_leadership(context: &ServiceContext) {
    let own = context.node.id();
    let mut leader = context.node.watch_leader();
    if leader.wait_for(|leader| *leader == Some(own)).await.is_err() {
        // The member has stopped; `run` ends this task.
        std::future::pending::<()>().await;
    }
}

const POLL_INTERVAL: Duration = Duration::from_millis(500);
const QUOTA_INTERVAL: Duration = Duration::from_secs(2);
/// As etcd's.
const QUOTA_DEFAULT: u64 = 2 << 30;
