//! The service `quorate.v1.Membership`: goals, plans, and the progress of changes.

pub(crate) mod convert;
mod refusal;
mod status;
mod target;

use std::pin::Pin;
use std::sync::Arc;

use quorate::membership::{ChangeRefusal, EndedGoal, GoalEnd, MembershipEvent};
use quorate::{Change, EntryId, Membership, Refusal, RequestError, RequestRefused};
use quorate_proto::quorate::v1;
use quorate_proto::quorate::v1::membership_server::Membership as Service;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::access::ClientAction;
use crate::context::ServiceContext;
use crate::member_change::begin_change;
use crate::overview::overview;
use crate::status::ServiceError;
use convert::{ended, entry, planned, record};
pub(crate) use status::status_reply;
use target::{ResolvedTarget, expecting};

pub(crate) struct MembershipService {
    context: ServiceContext,
}

impl MembershipService {
    pub(crate) fn new(context: ServiceContext) -> Self {
        Self { context }
    }

    fn membership(&self) -> Arc<Membership> {
        self.context.node.membership()
    }

    fn header(&self) -> Option<v1::Header> {
        self.context.membership_header()
    }

    /// Begins a change, and notes it in the timeline.
    async fn begin(&self, change: Change, text: String) -> Result<EntryId, RequestError> {
        let timeline = &self.context.overview.timeline;
        timeline.proposed(text);
        let begun = begin_change(&self.context.node, change).await;
        if let Err(error) = &begun {
            timeline.refused(error.to_string());
        }
        begun
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
        let change = resolved.change(expected);
        let text = format!("goal: voters ({}), learners ({})", resolved.voters, resolved.learners);
        let (goal_id, end) = match self.begin(change, text).await {
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
        let change = expecting(Change::cancel(), expected);
        let id = self.begin(change, "cancel the change in progress".into()).await;
        let id = id.map_err(ServiceError::Request)?;
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
        Ok(Response::new(status_reply(&self.context).await?))
    }

    async fn overview(
        &self,
        request: Request<v1::OverviewRequest>,
    ) -> Result<Response<v1::OverviewReply>, Status> {
        self.context.admit(&request, &ClientAction::MembershipStatus).await?;
        let after = request.into_inner().timeline_after;
        Ok(Response::new(overview(&self.context, after).await?))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<v1::WatchReply, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let client = self.context.admit(&request, &ClientAction::MembershipStatus).await?;
        let (sender, receiver) = mpsc::channel(WATCH_REPLIES_MAX);
        let service = Self::new(self.context.clone());
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

/// Events queued for a slow client. When the queue is full, the client misses events and gets
/// the current membership instead.
const WATCH_REPLIES_MAX: usize = 16;
