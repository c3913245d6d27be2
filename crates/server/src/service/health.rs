//! gRPC's health checks: serving while a leader is known, no alarm says that data is damaged,
//! and the server is not about to stop.

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

use crate::context::Context;

pub(crate) struct HealthService {
    context: Context,
}

impl HealthService {
    pub(crate) fn new(context: Context) -> Self {
        Self { context }
    }

    fn check_now(&self) -> HealthCheckResponse {
        let corrupt = self.context.store.read().alarms();
        let corrupt = corrupt.iter().any(|alarm| alarm.kind == AlarmKind::Corrupt);
        let led = self.context.node.leader().is_some();
        let serving = led && !corrupt && !self.context.is_leaving();
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
        if !request.get_ref().service.is_empty() {
            return Err(Status::not_found("unknown service"));
        }
        Ok(Response::new(self.check_now()))
    }

    async fn list(
        &self,
        _request: Request<HealthListRequest>,
    ) -> Result<Response<HealthListResponse>, Status> {
        let statuses = [(String::new(), self.check_now())].into_iter().collect();
        Ok(Response::new(HealthListResponse { statuses }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        if !request.get_ref().service.is_empty() {
            return Err(Status::unimplemented("only the whole server is watched"));
        }
        let (sender, receiver) = mpsc::channel(1);
        let service = Self::new(self.context.clone());
        tokio::spawn(async move {
            let mut told = None;
            loop {
                let now = service.check_now();
                if told != Some(now.status) {
                    told = Some(now.status);
                    if sender.send(now).await.is_err() {
                        return;
                    }
                }
                tokio::select! {
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                    () = sender.closed() => return,
                    _ = service.context.end_of_stream(false) => {
                        let _ = sender.try_send(service.check_now());
                        return;
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver).map(Ok))))
    }
}

const LOOK_EVERY: Duration = Duration::from_millis(500);
