//! The service `quorate.v1.Membership`: goals, plans, and the progress of changes.

mod convert;
mod refusal;
mod target;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use quorate::membership::{
    ChangeRefusal, EndedGoal, GoalEnd, GoalStep, MembershipEvent, PlanContext,
};
use quorate::{EntryId, Membership, NodeStatus, Refusal, RequestError, RequestRefused};
use quorate_core::status::{AwaitedMember, AwaitedReason, GoalStatus};
use quorate_proto::quorate::v1;
use quorate_proto::quorate::v1::membership_server::Membership as Service;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::access::ClientAction;
use crate::context::ServiceContext;
use crate::member_change::begin_change;
use crate::status::ServiceError;
use convert::{ended, entry, log, peer, planned, record, role, step, tolerance, view};
use refusal::refusal;
use target::{ResolvedTarget, expecting};

pub(crate) struct MembershipService {
    context: ServiceContext,
    tick: Duration,
}

impl MembershipService {
    pub(crate) fn new(context: ServiceContext, tick: Duration) -> Self {
        Self { context, tick }
    }

    fn membership(&self) -> Arc<Membership> {
        self.context.node.membership()
    }

    fn own_status(&self, status: &NodeStatus) -> v1::MemberStatus {
        let listeners = self.context.plaintext_listeners.iter();
        let plaintext_listeners = listeners.map(|(kind, url)| format!("{kind} {url}")).collect();
        let listeners = self.context.unverified_listeners();
        let unverified_listeners = listeners.map(|(kind, url)| format!("{kind} {url}")).collect();
        v1::MemberStatus { plaintext_listeners, unverified_listeners, ..own_status(status) }
    }

    fn header(&self) -> Option<v1::Header> {
        let node = &self.context.node;
        Some(v1::Header {
            cluster_id: self.context.cluster_id,
            member_id: node.id().0,
            term: node.term(),
            leader_id: node.leader().map_or(0, |leader| leader.0),
        })
    }

    /// Waits until this goal has ended and the resulting membership is settled.
    async fn goal_ended(&self, id: EntryId) -> Result<EndedGoal, ServiceError> {
        let mut watch = self.context.node.watch_membership();
        while let Some(event) = watch.next().await {
            let ended = match event {
                MembershipEvent::GoalEnded(ended) if ended.id == id => Some(ended),
                MembershipEvent::Current { membership, settled: true, .. }
                | MembershipEvent::Settled { membership, .. } => {
                    membership.ended_goals().iter().find(|ended| ended.id == id).copied()
                }
                _ => None,
            };
            if let Some(ended) = ended {
                return Ok(ended);
            }
        }
        Err(ServiceError::ServerStopped)
    }

    fn not_ready(&self, awaited: &AwaitedMember) -> v1::goal_progress::NotReady {
        let seconds = |ticks: u64| self.tick.as_secs_f64() * ticks as f64;
        let text = match awaited.reason {
            AwaitedReason::Silent { ticks } => format!("no reply for {:.1} s", seconds(ticks)),
            AwaitedReason::NoProgress { ticks, entries } => {
                let seconds = seconds(ticks);
                format!("its log has not grown for {seconds:.1} s, {entries} entries behind")
            }
            reason => reason.to_string(),
        };
        let (member_id, reason) = (awaited.id.0, awaited.reason.name().to_owned());
        v1::goal_progress::NotReady { member_id, text, reason }
    }

    fn progress(&self, goal: &GoalStatus) -> v1::GoalProgress {
        let awaited = match &goal.step {
            GoalStep::CatchUp(ids) | GoalStep::HandOver(ids) => convert::ids(ids),
            _ => Vec::new(),
        };
        let tick = u64::try_from(self.tick.as_millis()).unwrap_or(u64::MAX);
        let behind = goal.behind.iter().map(|(id, entries, rounds)| v1::goal_progress::Behind {
            member_id: id.0,
            entries: *entries,
            rounds: *rounds,
        });
        v1::GoalProgress {
            step: Some(step(&goal.step)),
            since_millis: goal.since_ticks.saturating_mul(tick),
            awaited,
            held_up: goal.held_up.as_ref().map(refusal),
            behind: behind.collect(),
            not_ready: goal.awaited.iter().map(|awaited| self.not_ready(awaited)).collect(),
        }
    }
}

#[tonic::async_trait]
impl Service for MembershipService {
    async fn set_goal(
        &self,
        request: Request<v1::SetGoalRequest>,
    ) -> Result<Response<v1::SetGoalReply>, Status> {
        self.context.admit(&request, &ClientAction::MemberChange).await?;
        let v1::SetGoalRequest { target, wait, expected } = request.into_inner();
        // Names and ids are looked up in the newest membership, which this member may not have.
        self.context.catch_up().await?;
        let resolved = ResolvedTarget::new(target, &self.membership())?;
        let (goal_id, end) = match begin_change(&self.context.node, resolved.change(expected)).await
        {
            Ok(id) if wait => (id, Some(self.goal_ended(id).await?)),
            Ok(id) => (id, None),
            Err(RequestError::Refused(RequestRefused::ByLeader(Refusal::Change(
                ChangeRefusal::AlreadyReached,
            )))) => {
                let node = &self.context.node;
                // This member may not have the leader's newest membership yet.
                let id = node.newest_membership().await.map_err(ServiceError::Request)?;
                // Reached, but perhaps not settled yet: "done" means settled.
                if wait {
                    node.wait_settled(id).await.map_err(ServiceError::Request)?;
                }
                (id, Some(EndedGoal { id, end: GoalEnd::Reached, at: id }))
            }
            Err(error) => return Err(ServiceError::Request(error).into()),
        };
        let membership = self.membership();
        Ok(Response::new(v1::SetGoalReply {
            header: self.header(),
            goal_id: Some(entry(goal_id)),
            // The goal is committed, and may not be active on this member yet.
            newcomers: resolved.joining_members(&membership),
            membership: Some(record(&membership)),
            ended: end.as_ref().map(ended),
        }))
    }

    async fn plan(
        &self,
        request: Request<v1::PlanRequest>,
    ) -> Result<Response<v1::PlanReply>, Status> {
        self.context.admit(&request, &ClientAction::MemberPlan).await?;
        let v1::PlanRequest { target, expected } = request.into_inner();
        let membership = self.membership();
        let stale = expected.is_some_and(|expected| expected != entry(membership.since()));
        if stale {
            let newest = membership.since();
            let refusal = Refusal::Change(ChangeRefusal::Stale { newest });
            return Err(ServiceError::Request(RequestError::Refused(RequestRefused::ByLeader(
                refusal,
            )))
            .into());
        }
        let resolved = ResolvedTarget::new(target, &membership)?;
        let (voters, learners) = (resolved.voters.iter(), resolved.learners.iter());
        let plan = self.context.node.plan(voters, learners).await;
        let plan = plan.map_err(ServiceError::Request)?;
        Ok(Response::new(v1::PlanReply {
            header: self.header(),
            from: Some(record(&membership)),
            steps: plan.steps.iter().map(planned).collect(),
            newcomers: resolved.joining_members(&membership),
        }))
    }

    async fn cancel(
        &self,
        request: Request<v1::CancelRequest>,
    ) -> Result<Response<v1::CancelReply>, Status> {
        self.context.admit(&request, &ClientAction::MemberChange).await?;
        let v1::CancelRequest { wait, expected } = request.into_inner();
        let change = expecting(quorate::Change::cancel(), expected);
        let id = begin_change(&self.context.node, change).await.map_err(ServiceError::Request)?;
        let end = if wait { Some(self.goal_ended(id).await?) } else { None };
        Ok(Response::new(v1::CancelReply {
            header: self.header(),
            goal_id: Some(entry(id)),
            membership: Some(record(&self.membership())),
            ended: end.as_ref().map(ended),
        }))
    }

    async fn status(
        &self,
        request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusReply>, Status> {
        self.context.admit(&request, &ClientAction::MembershipStatus).await?;
        let node = &self.context.node;
        let status = node.status().await.map_err(ServiceError::Request)?;
        let raft = &status.raft;
        // Only a leader knows the state of the others. The status does not wait for one.
        let leader_view = tokio::time::timeout(VIEW_TIMEOUT, node.view()).await;
        let leader_view = leader_view.ok().and_then(Result::ok);
        let leader_view = leader_view.filter(|_| node.leader().is_some());
        let tolerance = |view: &PlanContext| tolerance(&raft.membership, &view.caught_up);
        Ok(Response::new(v1::StatusReply {
            header: self.header(),
            membership: Some(record(&raft.membership)),
            newest_id: Some(entry(raft.newest_membership_id)),
            settled_index: raft.settled,
            settled: raft.settled >= raft.membership_id.index,
            tolerance: leader_view.as_ref().map(tolerance),
            view: leader_view.as_ref().map(view),
            progress: raft.goal.as_ref().map(|goal| self.progress(goal)),
            peers: raft.peers.iter().map(peer).collect(),
            member: Some(self.own_status(&status)),
        }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<v1::WatchReply, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let client = self.context.admit(&request, &ClientAction::MembershipStatus).await?;
        let (sender, receiver) = mpsc::channel(WATCH_REPLIES_MAX);
        let service = Self::new(self.context.clone(), self.tick);
        tokio::spawn(async move {
            let right = ClientAction::MembershipStatus.required_right();
            let mut watch = service.context.node.watch_membership();
            let access_lost = service.context.access_lost(&client, right);
            tokio::pin!(access_lost);
            loop {
                let event = tokio::select! {
                    event = watch.next() => event,
                    () = sender.closed() => return,
                    error = &mut access_lost => {
                        let _ = sender.send(Err(error.into())).await;
                        return;
                    }
                    error = service.context.server_stopped() => {
                        let _ = sender.send(Err(error.into())).await;
                        return;
                    }
                };
                let Some(event) = event else { return };
                let Some(event) = convert::event(&event) else { continue };
                let reply = v1::WatchReply { header: service.header(), event: Some(event) };
                if sender.send(Ok(reply)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

/// The status of the member that replies, as its node knows it.
fn own_status(status: &NodeStatus) -> v1::MemberStatus {
    let raft = &status.raft;
    let count = |count: usize| count as u64;
    let votes = raft
        .votes
        .iter()
        .map(|(id, granted)| v1::member_status::Vote { member_id: id.0, granted: *granted });
    let identity_rejected =
        status.identity_rejected.as_ref().map(|(by, known)| v1::member_status::IdentityRejected {
            by: by.0,
            incarnation: known.incarnation,
            joined_at: known.joined_at,
        });
    v1::MemberStatus {
        id: raft.id.0,
        role: role(raft.role).into(),
        term: raft.term,
        vote: raft.vote.map_or(0, |id| id.0),
        log: Some(log(&raft.log)),
        transfer_to: raft.transfer.map_or(0, |id| id.0),
        votes: votes.collect(),
        reads_waiting: count(raft.reads_waiting),
        open_requests: count(status.open_requests),
        saves_waiting: count(status.saves_waiting),
        incarnation: status.incarnation,
        boots: status.boots,
        identity_rejected,
        cluster_version: status.cluster_version.version,
        downgrading: status.cluster_version.downgrading,
        supported_version_min: status.supported_versions.min,
        supported_version_max: status.supported_versions.max,
        storage_version: status.storage_version,
        plaintext_listeners: Vec::new(),
        unverified_listeners: Vec::new(),
    }
}

const VIEW_TIMEOUT: Duration = Duration::from_secs(1);
/// Events queued for a slow client. When the queue is full, the client misses events and gets
/// the current membership instead.
const WATCH_REPLIES_MAX: usize = 16;
