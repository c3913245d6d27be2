//! etcd's service Cluster: adds, removes, updates and promotes one member at a time.
//!
//! The checks are in etcd's order and use etcd's texts. `member_change` then makes the change
//! in safe steps. Where etcd refuses a change because members are down, this service refuses
//! only a change after which the live voters are no quorum, and sends the numbers.

use std::sync::Arc;

use quorate::{MemberId, Membership};
use quorate_core::membership::quorum_size;
use quorate_proto::etcdserverpb::cluster_server::Cluster;
use quorate_proto::etcdserverpb::{
    Member, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse,
    MemberPromoteRequest, MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse,
    MemberUpdateRequest, MemberUpdateResponse,
};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use crate::access::ClientAction;
use crate::context::ServiceContext;
use crate::member_change::{MemberChange, MemberUpdate, TargetMembership, fresh_id};
use crate::member_details::{MemberDetails, parse_peer_urls};
use crate::metrics::ServiceCounters;
use crate::status::ServiceError;
use crate::url::Url;

pub(crate) struct ClusterService {
    context: ServiceContext,
    max_learners: usize,
}

impl ClusterService {
    pub(crate) fn new(context: ServiceContext, max_learners: usize) -> Self {
        Self { context, max_learners }
    }

    fn membership(&self) -> Arc<Membership> {
        self.context.node.membership()
    }

    /// The newest membership. A member that is cut off from the leader must not say that a member
    /// does not exist because it was added meanwhile.
    async fn newest_membership(&self) -> Result<Arc<Membership>, ServiceError> {
        self.context.catch_up().await?;
        Ok(self.membership())
    }

    async fn run(&self, change: MemberChange) -> Result<(), ServiceError> {
        let timeline = &self.context.overview.timeline;
        timeline.proposed(change.description());
        let done = change.run(&self.context.node).await;
        if let Err(error) = &done {
            timeline.refused(error.to_string());
        }
        Ok(done?)
    }

    fn members(&self) -> Vec<Member> {
        let membership = self.membership();
        membership.members().iter().map(|id| member_message(&membership, id)).collect()
    }

    /// Refuses a target of which too few voters are live and caught up to be a quorum.
    async fn check_quorum(&self, target: &TargetMembership) -> Result<(), ServiceError> {
        let view = self.context.node.view().await?;
        let voters = target.voters.len();
        let quorum = quorum_size(voters);
        let live = target.voters.iter().filter(|id| view.caught_up.contains(*id)).count();
        if live >= quorum {
            return Ok(());
        }
        Err(ServiceError::UnhealthyCluster { voters, quorum, live })
    }

    fn check_learners(&self, membership: &Membership) -> Result<(), ServiceError> {
        let started = |id: &MemberId| MemberDetails::of(membership, *id).has_started();
        let (started, limit) =
            (membership.learners().iter().filter(started).count(), self.max_learners);
        match started < limit {
            true => Ok(()),
            false => Err(ServiceError::TooManyLearners { started, limit }),
        }
    }
}

#[tonic::async_trait]
impl Cluster for ClusterService {
    async fn member_add(
        &self,
        request: Request<MemberAddRequest>,
    ) -> Result<Response<MemberAddResponse>, Status> {
        self.context.admit(&request, &ClientAction::MemberChange).await?;
        let name = name_of(request.metadata());
        let MemberAddRequest { peer_urls, is_learner } = request.into_inner();
        let urls = parse_peer_urls(&peer_urls)?;
        let membership = self.newest_membership().await?;
        check_unused(&membership, &urls, None)?;
        if is_learner {
            self.check_learners(&membership)?;
        }
        let id = fresh_id(&urls, &membership);
        let info = MemberDetails::expected(&name, &urls).in_zone(bytes::Bytes::new());
        let change = match is_learner {
            true => MemberChange::AddLearner(id, info),
            false => MemberChange::AddVoter(id, info),
        };
        self.run(change).await?;
        let member = member_message(&self.membership(), id);
        let (header, members) = (Some(self.context.header(0)), self.members());
        Ok(Response::new(MemberAddResponse { header, member: Some(member), members }))
    }

    async fn member_remove(
        &self,
        request: Request<MemberRemoveRequest>,
    ) -> Result<Response<MemberRemoveResponse>, Status> {
        self.context.admit(&request, &ClientAction::MemberChange).await?;
        let id = MemberId(request.into_inner().id);
        let membership = self.newest_membership().await?;
        let target = TargetMembership::of(&membership);
        let expected = target.voters.contains(id) || target.learners.contains(id);
        if !membership.contains(id) && !expected {
            return Err(ServiceError::MemberNotFound.into());
        }
        let after = target.without(id);
        if after.voters.is_empty() {
            return Err(ServiceError::NoVotersLeft.into());
        }
        if membership.is_voter(id) {
            self.check_quorum(&after).await?;
        }
        self.run(MemberChange::Remove(id)).await?;
        let (header, members) = (Some(self.context.header(0)), self.members());
        Ok(Response::new(MemberRemoveResponse { header, members }))
    }

    async fn member_update(
        &self,
        request: Request<MemberUpdateRequest>,
    ) -> Result<Response<MemberUpdateResponse>, Status> {
        self.context.admit(&request, &ClientAction::MemberChange).await?;
        let MemberUpdateRequest { id, peer_urls } = request.into_inner();
        let (id, urls) = (MemberId(id), parse_peer_urls(&peer_urls)?);
        let membership = self.newest_membership().await?;
        if !membership.contains(id) {
            return Err(ServiceError::MemberNotFound.into());
        }
        check_unused(&membership, &urls, Some(id))?;
        let update = MemberUpdate::PeerUrls(urls.iter().map(Url::to_string).collect());
        self.run(MemberChange::Update(id, update)).await?;
        let (header, members) = (Some(self.context.header(0)), self.members());
        Ok(Response::new(MemberUpdateResponse { header, members }))
    }

    async fn member_list(
        &self,
        request: Request<MemberListRequest>,
    ) -> Result<Response<MemberListResponse>, Status> {
        self.context.admit(&request, &ClientAction::MemberList).await?;
        if request.into_inner().linearizable {
            self.context.catch_up().await?;
        }
        let (header, members) = (Some(self.context.header(0)), self.members());
        Ok(Response::new(MemberListResponse { header, members }))
    }

    async fn member_promote(
        &self,
        request: Request<MemberPromoteRequest>,
    ) -> Result<Response<MemberPromoteResponse>, Status> {
        self.context.admit(&request, &ClientAction::MemberChange).await?;
        let promoted = self.promote(MemberId(request.into_inner().id)).await;
        let counters = &self.context.counters;
        ServiceCounters::increment(match promoted {
            Ok(()) => &counters.promoted,
            Err(_) => &counters.not_promoted,
        });
        promoted?;
        let (header, members) = (Some(self.context.header(0)), self.members());
        Ok(Response::new(MemberPromoteResponse { header, members }))
    }
}

impl ClusterService {
    async fn promote(&self, id: MemberId) -> Result<(), ServiceError> {
        let membership = self.newest_membership().await?;
        if !membership.contains(id) {
            return Err(ServiceError::MemberNotFound);
        }
        if !membership.is_learner(id) {
            return Err(ServiceError::NotALearner);
        }
        let view = self.context.node.view().await?;
        if !view.caught_up.contains(id) {
            let started = MemberDetails::of(&membership, id).has_started();
            let reason = match started {
                true => "the learner has started and has not caught up yet",
                false => "the learner has not started yet",
            };
            return Err(ServiceError::LearnerNotInSync { reason });
        }
        self.check_quorum(&TargetMembership::of(&membership).with_voter(id)).await?;
        self.run(MemberChange::Promote(id)).await
    }
}

/// A member as etcd's clients see it. Voters of a joint membership are voters, and so are
/// learners that were added as voters and have yet to catch up.
fn member_message(membership: &Membership, id: MemberId) -> Member {
    let details = MemberDetails::of(membership, id);
    // etcd's clients take a member without a name for one that has not started.
    let name = if details.has_started() { details.name } else { String::new() };
    let MemberDetails { peer_urls, client_urls, .. } = details;
    let to_vote = membership.goal().is_some_and(|goal| goal.voters.contains(id));
    let is_learner = membership.is_learner(id) && !to_vote;
    Member { id: id.0, name, peer_urls, client_urls, is_learner }
}

/// The name that the new member will have. etcd's request does not contain it, so only our own
/// clients send it; for others the name is known when the member has started.
fn name_of(metadata: &MetadataMap) -> String {
    let bytes = metadata.get_bin(MEMBER_NAME).and_then(|name| name.to_bytes().ok());
    let bytes = bytes.filter(|name| name.len() <= NAME_BYTES_MAX);
    bytes.and_then(|name| String::from_utf8(name.to_vec()).ok()).unwrap_or_default()
}

/// The metadata key of the name of a new member.
const MEMBER_NAME: &str = "quorate-member-name-bin";
const NAME_BYTES_MAX: usize = 1024;

fn check_unused(
    membership: &Membership,
    urls: &[Url],
    except: Option<MemberId>,
) -> Result<(), ServiceError> {
    let target = TargetMembership::of(membership);
    let members = membership.members();
    let all = members.iter().chain(target.voters.iter()).chain(target.learners.iter());
    let used = all.filter(|id| Some(*id) != except).any(|id| {
        MemberDetails::of(membership, id)
            .peer_urls
            .iter()
            .any(|used| Url::parse(used).is_ok_and(|used| urls.contains(&used)))
    });
    if used { Err(ServiceError::PeerUrlsExist) } else { Ok(()) }
}
