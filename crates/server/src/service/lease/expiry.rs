//! The leader's lease task: revokes expired leases, logs the remaining time of long ones, and
//! answers the queries of the other members.

use std::time::Duration;

use quorate::LeaderQuery;
use quorate_kv::{Command, KvError};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, info, warn};

use super::lessor::{LeaseQuery, encode_answer};
use crate::context::ServiceContext;
use crate::status::ServiceError;

/// Runs as a task beside the services until the node ends.
pub(crate) struct LeaseExpiry {
    context: ServiceContext,
    /// Answers, revocations and checkpoints in progress.
    in_progress: JoinSet<()>,
    /// The term in which this member has begun to catch up before it counts.
    starting_term: Option<u64>,
}

impl LeaseExpiry {
    pub(crate) fn new(context: ServiceContext) -> Self {
        Self { context, in_progress: JoinSet::new(), starting_term: None }
    }

    pub(crate) async fn run(mut self) {
        let node = self.context.node.clone();
        let Some(mut inquiries) = node.leader_queries() else {
            warn!("another task answers lease queries already");
            return;
        };
        let mut leader = node.watch_leader();
        let mut clock = interval(POLL_INTERVAL);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = node.wait_stopped();
        tokio::pin!(ended);
        loop {
            let has_room = self.in_progress.len() < IN_PROGRESS_MAX;
            tokio::select! {
                _ = &mut ended => break,
                Some(inquiry) = inquiries.recv(), if has_room => self.answer(inquiry),
                Some(_) = self.in_progress.join_next(), if !self.in_progress.is_empty() => {}
                _ = clock.tick() => self.poll(),
                changed = leader.changed() => match changed {
                    Ok(()) => self.poll(),
                    Err(_) => break,
                },
            }
        }
        self.context.lessor.stop(&self.context.store);
    }

    fn poll(&mut self) {
        let ServiceContext { node, lessor, store, .. } = &self.context;
        let counting_term = lessor.term();
        if !node.is_leader() {
            self.starting_term = None;
            if counting_term.is_some() {
                info!("no longer the leader: stopped lease deadlines");
                lessor.stop(store);
            }
            return;
        }
        let term = node.term();
        if counting_term == Some(term) {
            self.starting_term = None;
            self.revoke_expired(term);
            self.checkpoint(term);
        } else if self.starting_term != Some(term) {
            self.starting_term = Some(term);
            let context = self.context.clone();
            self.in_progress.spawn(start_counting(context, term));
        }
    }

    fn answer(&mut self, inquiry: LeaderQuery) {
        // Members of this version send no other queries. One that is not answered is retried.
        let Some(query) = LeaseQuery::decode(inquiry.payload().clone()) else { return };
        let context = self.context.clone();
        self.in_progress.spawn(async move {
            if let Some(answer) = context.lessor.answer(&context, query).await {
                inquiry.reply(encode_answer(answer));
            }
        });
    }

    fn revoke_expired(&mut self, term: u64) {
        let room = IN_PROGRESS_MAX.saturating_sub(self.in_progress.len()).min(REVOKED_AT_ONCE);
        for id in self.context.lessor.expired(&self.context, room) {
            let context = self.context.clone();
            self.in_progress.spawn(revoke(context, term, id));
        }
    }

    fn checkpoint(&mut self, term: u64) {
        let due = self.context.lessor.checkpoints_due(&self.context);
        if due.is_empty() {
            return;
        }
        let context = self.context.clone();
        self.in_progress.spawn(async move {
            if let Err(error) = context.run_in(term, &Command::LeaseCheckpoint(due)).await {
                debug!(?error, "lease checkpoint failed; it is repeated later");
            }
        });
    }
}

/// First applies the checkpoints of earlier leaders: without them, the remaining time of a
/// lease would be too short.
async fn start_counting(context: ServiceContext, term: u64) {
    while context.catch_up().await.is_err() {
        if !leads(&context, term) {
            return;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    if leads(&context, term) {
        info!(term, "started lease deadlines");
        context.lessor.start(&context, term);
    }
}

/// Only in this term: a later leader may have renewed the lease. The entry of this leader
/// comes before everything that a later leader decides.
async fn revoke(context: ServiceContext, term: u64, id: i64) {
    match context.run_in(term, &Command::LeaseRevoke(id)).await {
        Ok(_) => debug!(id, "lease expired"),
        Err(ServiceError::Kv(KvError::LeaseNotFound)) => {}
        Err(error) => {
            debug!(id, ?error, "an expired lease was not revoked; this is repeated later");
            return;
        }
    }
    context.lessor.forget(&context, id);
}

fn leads(context: &ServiceContext, term: u64) -> bool {
    context.node.is_leader() && context.node.term() == term
}

const POLL_INTERVAL: Duration = Duration::from_millis(200);
const IN_PROGRESS_MAX: usize = 2_048;
/// Revocations started in one poll: some thousands per second, as in etcd.
const REVOKED_AT_ONCE: usize = 200;
