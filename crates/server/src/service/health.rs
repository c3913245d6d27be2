//! gRPC's health service. A server is serving while a leader is known, no alarm reports corrupt
//! data, and no shutdown has begun.

use std::pin::Pin;
use std::time::Duration;

use quorate_kv::AlarmKind;
use quorate_proto::grpc::health::v1::health_check_response::ServingStatus;
use quorate_proto::grpc::health::v1::health_server::Health;
use quorate_proto::grpc::health::v1::{
    HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use crate::access::ClientAction;
use crate::context::ServiceContext;
use crate::status::ServiceError;

pub(crate) struct HealthService {
    context: ServiceContext,
}

impl HealthService {
    pub(crate) fn new(context: ServiceContext) -> Self {
        Self { context }
    }

    async fn check_now(&self) -> HealthCheckResponse {
        let alarms = self.context.store.read_when_free().await.alarms();
        let corrupt = alarms.iter().any(|alarm| alarm.kind == AlarmKind::Corrupt);
        let has_leader = self.context.node.leader().is_some();
        let serving = has_leader && !corrupt && !self.context.is_leaving();
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        HealthCheckResponse { status: status.into() }
    }
}

#[tonic::async_trait]
impl Health for HealthService {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        self.context.admit(&request, &ClientAction::Health).await?;
        if !request.get_ref().service.is_empty() {
            return Err(ServiceError::UnknownHealthService.into());
        }
        Ok(Response::new(self.check_now().await))
    }

    async fn list(
        &self,
        request: Request<HealthListRequest>,
    ) -> Result<Response<HealthListResponse>, Status> {
        self.context.admit(&request, &ClientAction::Health).await?;
        let statuses = [(String::new(), self.check_now().await)].into_iter().collect();
        Ok(Response::new(HealthListResponse { statuses }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        self.context.admit(&request, &ClientAction::Health).await?;
        if !request.get_ref().service.is_empty() {
            return Err(ServiceError::HealthWatchOfOneService.into());
        }
        let (sender, receiver) = mpsc::channel(1);
        let service = Self::new(self.context.clone());
        tokio::spawn(async move {
            let mut sent = None;
            loop {
                let now = service.check_now().await;
                if sent != Some(now.status) {
                    sent = Some(now.status);
                    if sender.send(now).await.is_err() {
                        return;
                    }
                }
                tokio::select! {
                    () = tokio::time::sleep(POLL_INTERVAL) => {}
                    () = sender.closed() => return,
                    _ = service.context.server_stopped() => {
                        let _ = sender.try_send(service.check_now().await);
                        return;
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver).map(Ok))))
    }
}

const POLL_INTERVAL: Duration = Duration::from_millis(500);
