//! etcd's Cluster service: members come, go and get votes, one at a time.
//!
//! Checks stand in etcd's order and end in etcd's texts; what is asked for is carried out by
//! `members`, on the safe way. Where etcd refuses because members are down, this refuses
//! only what could not be carried, and says the arithmetic.

use quorate::{MemberId, Membership};
use quorate_core::membership::quorum_size;
use quorate_proto::etcdserverpb::cluster_server::Cluster;
use quorate_proto::etcdserverpb::{
    Member, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse,
    MemberPromoteRequest, MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse,
    MemberUpdateRequest, MemberUpdateResponse,
};
use tonic::{Request, Response, Status};

use crate::context::{Context, Needs};
use crate::errors::failed;
use crate::member_errors::{
    bad_urls, member_not_found, not_a_learner, not_enough_started, not_in_sync, too_many_learners,
    unhealthy, urls_exist,
};
use crate::member_info::Info;
use crate::members::{News, Target, Wish, fresh_id, fulfil};
use crate::metrics::Tally;
use crate::url::Url;

pub(crate) struct ClusterService {
    context: Context,
    max_learners: usize,
}

impl ClusterService {
    pub(crate) fn new(context: Context, max_learners: usize) -> Self {
        Self { context, max_learners }
    }

    fn membership(&self) -> std::sync::Arc<Membership> {
        self.context.node.membership()
    }

    async fn fulfil(&self, wish: Wish) -> Result<(), Status> {
        fulfil(&self.context.node, &wish).await.map_err(|why| failed(&why))
    }

    fn members(&self) -> Vec<Member> {
        let membership = self.membership();
        membership.members().iter().map(|id| shown(&membership, id)).collect()
    }

    /// Whether so many of these voters are live and caught up that they can decide.
    async fn check_carried(&self, target: &Target) -> Result<(), Status> {
        let view = self.context.node.view().await.map_err(|why| failed(&why))?;
        let (voters, quorum) = (target.voters.len(), quorum_size(target.voters.len()));
        let live = target.voters.iter().filter(|id| view.caught_up.contains(*id)).count();
        if live >= quorum {
            return Ok(());
        }
        let reason =
            format!("afterwards: {voters} voters, quorum {quorum}, live and caught up {live}");
        Err(unhealthy(&reason))
    }

    fn check_learners(&self, membership: &Membership) -> Result<(), Status> {
        let started = |id: &MemberId| Info::of(membership, *id).has_started();
        let count = membership.learners().iter().filter(started).count();
        if count < self.max_learners {
            return Ok(());
        }
        let limit = self.max_learners;
        Err(too_many_learners(&format!("{count} learners have started, the limit is {limit}")))
    }
}

#[tonic::async_trait]
impl Cluster for ClusterService {
    async fn member_add(
        &self,
        request: Request<MemberAddRequest>,
    ) -> Result<Response<MemberAddResponse>, Status> {
        self.context.admit(&request, Needs::Voter)?;
        let MemberAddRequest { peer_urls, is_learner } = request.into_inner();
        let urls = parse(&peer_urls)?;
        let membership = self.membership();
        check_unused(&membership, &urls, None)?;
        if is_learner {
            self.check_learners(&membership)?;
        }
        let id = fresh_id(&urls, &membership);
        let info = Info::expected("", &urls).in_zone(bytes::Bytes::new());
        let wish = match is_learner {
            true => Wish::AddLearner(id, info),
            false => Wish::AddVoter(id, info),
        };
        self.fulfil(wish).await?;
        let member = shown(&self.membership(), id);
        let (header, members) = (Some(self.context.header(0)), self.members());
        Ok(Response::new(MemberAddResponse { header, member: Some(member), members }))
    }

    async fn member_remove(
        &self,
        request: Request<MemberRemoveRequest>,
    ) -> Result<Response<MemberRemoveResponse>, Status> {
        self.context.admit(&request, Needs::Voter)?;
        let id = MemberId(request.into_inner().id);
        let membership = self.membership();
        let target = Target::of(&membership);
        let expected = target.voters.contains(id) || target.learners.contains(id);
        if !membership.contains(id) && !expected {
            return Err(member_not_found());
        }
        let after = target.without(id);
        if after.voters.is_empty() {
            return Err(not_enough_started("no voters would be left"));
        }
        if membership.is_voter(id) {
            self.check_carried(&after).await?;
        }
        self.fulfil(Wish::Remove(id)).await?;
        let (header, members) = (Some(self.context.header(0)), self.members());
        Ok(Response::new(MemberRemoveResponse { header, members }))
    }

    async fn member_update(
        &self,
        request: Request<MemberUpdateRequest>,
    ) -> Result<Response<MemberUpdateResponse>, Status> {
        self.context.admit(&request, Needs::Voter)?;
        let MemberUpdateRequest { id, peer_urls } = request.into_inner();
        let (id, urls) = (MemberId(id), parse(&peer_urls)?);
        let membership = self.membership();
        if !membership.contains(id) {
            return Err(member_not_found());
        }
        check_unused(&membership, &urls, Some(id))?;
        let news = News::PeerUrls(urls.iter().map(Url::to_string).collect());
        self.fulfil(Wish::Describe(id, news)).await?;
        let (header, members) = (Some(self.context.header(0)), self.members());
        Ok(Response::new(MemberUpdateResponse { header, members }))
    }

    async fn member_list(
        &self,
        request: Request<MemberListRequest>,
    ) -> Result<Response<MemberListResponse>, Status> {
        self.context.admit(&request, Needs::Voter)?;
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
        self.context.admit(&request, Needs::Voter)?;
        let promoted = self.promote(MemberId(request.into_inner().id)).await;
        let tally = &self.context.tally;
        Tally::one(if promoted.is_ok() { &tally.promoted } else { &tally.not_promoted });
        promoted?;
        let (header, members) = (Some(self.context.header(0)), self.members());
        Ok(Response::new(MemberPromoteResponse { header, members }))
    }
}

impl ClusterService {
    async fn promote(&self, id: MemberId) -> Result<(), Status> {
        let membership = self.membership();
        if !membership.contains(id) {
            return Err(member_not_found());
        }
        if !membership.is_learner(id) {
            return Err(not_a_learner());
        }
        let view = self.context.node.view().await.map_err(|why| failed(&why))?;
        if !view.caught_up.contains(id) {
            let started = Info::of(&membership, id).has_started();
            return Err(not_in_sync(match started {
                true => "it has started, and has not caught up yet",
                false => "it has not said yet that it has started",
            }));
        }
        self.check_carried(&Target::of(&membership).with_voter(id)).await?;
        self.fulfil(Wish::Promote(id)).await
    }
}

/// As etcd's clients see a member: voters of a joint are voters, and so are those who were
/// added as such and have yet to catch up.
fn shown(membership: &Membership, id: MemberId) -> Member {
    let info = Info::of(membership, id);
    // Without a name it is unstarted, to etcd's clients.
    let name = if info.has_started() { info.name } else { String::new() };
    let Info { peer_urls, client_urls, .. } = info;
    let to_vote = membership.goal().is_some_and(|goal| goal.voters.contains(id));
    let is_learner = membership.is_learner(id) && !to_vote;
    Member { id: id.0, name, peer_urls, client_urls, is_learner }
}

fn parse(urls: &[String]) -> Result<Vec<Url>, Status> {
    if urls.is_empty() {
        return Err(bad_urls());
    }
    urls.iter().map(|url| Url::parse(url).map_err(|_| bad_urls())).collect()
}

fn check_unused(
    membership: &Membership,
    urls: &[Url],
    except: Option<MemberId>,
) -> Result<(), Status> {
    let target = Target::of(membership);
    let members = membership.members();
    let everybody = members.iter().chain(target.voters.iter()).chain(target.learners.iter());
    let used = everybody.filter(|id| Some(*id) != except).any(|id| {
        Info::of(membership, id)
            .peer_urls
            .iter()
            .any(|used| Url::parse(used).is_ok_and(|used| urls.contains(&used)))
    });
    if used { Err(urls_exist()) } else { Ok(()) }
}
