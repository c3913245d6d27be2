//! What a server does without being asked: says who it is, sets the quota, forgets old
//! revisions, and gives learners their vote where it was told to.

use std::time::Duration;

use quorate_kv::{Command, Quota};

use crate::compaction;
use crate::config::Config;
use crate::context::Context;
use crate::member_info::Info;
use crate::members::{News, Wish, fulfil};
use crate::url::Url;

/// All of them, until the member ends.
pub(crate) async fn run(context: Context, config: Config) {
    let ended = async {
        context.node.wait_stopped().await;
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
        if let Some(mode) = config.auto_compaction {
            compaction::run(context, mode).await;
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
            if known.name == config.name && known.client_urls == client_urls {
                return;
            }
            let (name, client_urls) = (config.name.clone(), client_urls.clone());
            let wish = Wish::Describe(node.id(), News::Itself { name, client_urls });
            if fulfil(node, &wish).await.is_ok() {
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
/// As etcd's.
const QUOTA_DEFAULT: u64 = 2 << 30;
