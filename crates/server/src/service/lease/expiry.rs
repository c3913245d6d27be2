//! The leader's lease task: revokes expired leases, logs the remaining time of long ones, and
//! answers the queries of the other members.

use std::time::Duration;

use quorate::LeaderQuery;
use quorate_kv::{Command, CommandIssuer, KvError, LeaseCheckpoint, LeaseQuery, LeaseWork};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, info, warn};

use super::lessor::{decode_query, encode_answer, leading_term};
use crate::context::ServiceContext;
use crate::corruption;
use crate::lost_peers::{self, LOST_PEERS_QUERY};
use crate::metrics::ServiceCounters;
use crate::overview;
use crate::status::ServiceError;

/// Runs as a task beside the services until the node ends.
pub(crate) struct LeaseExpiry {
    context: ServiceContext,
    /// Answers, revocations and checkpoints in progress.
    in_progress: JoinSet<()>,
}

impl LeaseExpiry {
    pub(crate) fn new(context: ServiceContext) -> Self {
        Self { context, in_progress: JoinSet::new() }
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
                _ = clock.tick() => self.poll().await,
                changed = leader.changed() => match changed {
                    Ok(()) => self.poll().await,
                    Err(_) => break,
                },
            }
        }
        self.context.lessor.stop(&self.context.store);
    }

    async fn poll(&mut self) {
        let room = IN_PROGRESS_MAX.saturating_sub(self.in_progress.len()).min(REVOKED_AT_ONCE);
        match self.context.lessor.poll(&self.context, room).await {
            LeaseWork::Nothing => {}
            LeaseWork::Stopped => info!("no longer the leader: stopped lease deadlines"),
            LeaseWork::CatchUp { term } => {
                let context = self.context.clone();
                self.in_progress.spawn(start_counting(context, term));
            }
            LeaseWork::Propose { term, revoke: expired, checkpoints } => {
                for id in expired {
                    let context = self.context.clone();
                    self.in_progress.spawn(revoke(context, term, id));
                }
                self.checkpoint(term, checkpoints);
            }
        }
    }

    fn answer(&mut self, inquiry: LeaderQuery) {
        if inquiry.payload()[..] == *LOST_PEERS_QUERY {
            return inquiry.reply(lost_peers::answer(&self.context));
        }
        if let Some(revision) = corruption::decode_query(inquiry.payload()) {
            let context = self.context.clone();
            self.in_progress.spawn(async move {
                if let Some(answer) = corruption::answer(&context, revision).await {
                    inquiry.reply(answer);
                }
            });
            return;
        }
        if let Some(report) = overview::decode_query(inquiry.payload()) {
            let context = self.context.clone();
            self.in_progress.spawn(async move {
                if let Some(answer) = overview::answer(&context, report).await {
                    inquiry.reply(answer);
                }
            });
            return;
        }
        // Members of this version send no other queries. One that is not answered is retried.
        let Some(query) = decode_query(inquiry.payload().clone()) else { return };
        let context = self.context.clone();
        self.in_progress.spawn(async move {
            if let Some(answer) = context.lessor.answer(&context, query).await {
                if let (LeaseQuery::Renew(_), Some(_)) = (query, answer) {
                    ServiceCounters::increment(&context.counters.leases_renewed);
                }
                inquiry.reply(encode_answer(answer));
            }
        });
    }

    fn checkpoint(&mut self, term: u64, due: Vec<LeaseCheckpoint>) {
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
    let caught_up = context.catch_up().await.is_ok();
    if caught_up && leading_term(&context) == Some(term) {
        info!(term, "started lease deadlines");
        context.lessor.start(&context, term).await;
    } else {
        context.lessor.start_failed(term);
    }
}

/// Only in this term: a later leader may have renewed the lease. The entry of this leader
/// comes before everything that a later leader decides.
async fn revoke(context: ServiceContext, term: u64, id: i64) {
    let command = Command::LeaseRevoke(id).issued_by(CommandIssuer::Member);
    match context.run_in(term, &command).await {
        Ok(_) => {
            ServiceCounters::increment(&context.counters.leases_expired);
            debug!(id, "lease expired");
        }
        Err(ServiceError::Kv(KvError::LeaseNotFound)) => {}
        Err(error) => {
            debug!(id, ?error, "an expired lease was not revoked; this is repeated later");
            return;
        }
    }
    context.lessor.forget(&context, id).await;
}

const POLL_INTERVAL: Duration = Duration::from_millis(200);
const IN_PROGRESS_MAX: usize = 2_048;
/// Revocations started in one poll: some thousands per second, as in etcd.
const REVOKED_AT_ONCE: usize = 200;
