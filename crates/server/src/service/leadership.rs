//! The service `quorate.v1.Leadership`: transfers the leadership through any member.

use quorate::MemberId;
use quorate_proto::quorate::v1::leadership_server::Leadership;
use quorate_proto::quorate::v1::{TransferReply, TransferRequest};
use tonic::{Request, Response, Status};

use crate::access::ClientAction;
use crate::context::ServiceContext;
use crate::status::ServiceError;

pub(crate) struct LeadershipService {
    context: ServiceContext,
}

impl LeadershipService {
    pub(crate) fn new(context: ServiceContext) -> Self {
        Self { context }
    }
}

#[tonic::async_trait]
impl Leadership for LeadershipService {
    async fn transfer(
        &self,
        request: Request<TransferRequest>,
    ) -> Result<Response<TransferReply>, Status> {
        self.context.admit(&request, &ClientAction::MoveLeader).await?;
        let node = &self.context.node;
        let to = MemberId(request.into_inner().target_id);
        if !node.membership().is_voter(to) {
            return Err(ServiceError::BadLeaderTransferee.into());
        }
        if node.leader() != Some(to) {
            node.transfer(to).await.map_err(ServiceError::Request)?;
        }
        Ok(Response::new(TransferReply { header: self.context.membership_header() }))
    }
}
