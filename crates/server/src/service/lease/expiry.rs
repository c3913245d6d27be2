//! What a leader does for leases without being asked: it ends those whose time is over,
//! notes what is left of long ones, and answers the other members.

use std::time::Duration;

use quorate::LeaderQuery;
use quorate_kv::{Command, KvError};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, info, warn};

use super::lessor::{Ask, encode_told};
use crate::context::Context;

/// Run as a task beside the services; it ends with the node.
pub(crate) struct Expiry {
    context: Context,
    /// Answers, revocations and notes under way.
    under_way: JoinSet<()>,
    /// The term in which this member has begun to find out what it has to count.
    beginning: Option<u64>,
}

impl Expiry {
    pub(crate) fn new(context: Context) -> Self {
        Self { context, under_way: JoinSet::new(), beginning: None }
    }

    pub(crate) async fn run(mut self) {
        let node = self.context.node.clone();
        let Some(mut queries) = node.leader_queries() else {
            warn!("somebody else answers for leases already");
            return;
        };
        let mut leader = node.watch_leader();
        let mut clock = interval(LOOK_EVERY);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = node.wait_stopped();
        tokio::pin!(ended);
        loop {
            let room = self.under_way.len() < UNDER_WAY_MAX;
            tokio::select! {
                _ = &mut ended => break,
                Some(query) = queries.recv(), if room => self.answer(query),
                Some(_) = self.under_way.join_next(), if !self.under_way.is_empty() => {}
                _ = clock.tick() => self.look(),
                changed = leader.changed() => match changed {
                    Ok(()) => self.look(),
                    Err(_) => break,
                },
            }
        }
        self.context.lessor.end(&self.context.store);
    }

    fn look(&mut self) {
        let Context { node, lessor, store, .. } = &self.context;
        let counted = lessor.term();
        if !node.is_leader() {
            self.beginning = None;
            if counted.is_some() {
                info!("counts the time of leases no more");
                lessor.end(store);
            }
            return;
        }
        let term = node.term();
        if counted == Some(term) {
            self.beginning = None;
            self.revoke_ended(term);
            self.note_rest(term);
        } else if self.beginning != Some(term) {
            self.beginning = Some(term);
            let context = self.context.clone();
            self.under_way.spawn(begin(context, term));
        }
    }

    fn answer(&mut self, query: LeaderQuery) {
        // Nobody of this version asks anything else; unanswered, it is asked again elsewhere.
        let Some(ask) = Ask::decode(query.payload().clone()) else { return };
        let context = self.context.clone();
        self.under_way.spawn(async move {
            if let Some(told) = context.lessor.answer(&context, ask).await {
                query.reply(encode_told(told));
            }
        });
    }

    fn revoke_ended(&mut self, term: u64) {
        let room = UNDER_WAY_MAX.saturating_sub(self.under_way.len()).min(REVOKED_AT_ONCE);
        for id in self.context.lessor.ended(&self.context, room) {
            let context = self.context.clone();
            self.under_way.spawn(revoke(context, term, id));
        }
    }

    fn note_rest(&mut self, term: u64) {
        let due = self.context.lessor.checkpoints_due(&self.context);
        if due.is_empty() {
            return;
        }
        let context = self.context.clone();
        self.under_way.spawn(async move {
            if let Err(why) = context.run_in(term, &Command::LeaseCheckpoint(due)).await {
                debug!(%why, "what is left of leases was not noted; it will be later");
            }
        });
    }
}

/// What earlier leaders noted has to have run here first: what is left of a lease would
/// otherwise be too little.
async fn begin(context: Context, term: u64) {
    while context.catch_up().await.is_err() {
        if !leads(&context, term) {
            return;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    if leads(&context, term) {
        info!(term, "counts the time of leases");
        context.lessor.begin(&context, term);
    }
}

/// By this leader or not at all: a later one may have given the lease more time. What this
/// one logs stands before anything that a later one decides.
async fn revoke(context: Context, term: u64, id: i64) {
    match context.run_in(term, &Command::LeaseRevoke(id)).await {
        Ok(_) => debug!(id, "lease ended"),
        Err(why) if why.message() == KvError::LeaseNotFound.text() => {}
        Err(why) => {
            debug!(id, %why, "lease not ended; it will be later");
            return;
        }
    }
    context.lessor.forget(&context, id);
}

fn leads(context: &Context, term: u64) -> bool {
    context.node.is_leader() && context.node.term() == term
}

const LOOK_EVERY: Duration = Duration::from_millis(200);
const UNDER_WAY_MAX: usize = 2_048;
/// Revocations begun in one look: some thousands in a second, as in etcd.
const REVOKED_AT_ONCE: usize = 200;
