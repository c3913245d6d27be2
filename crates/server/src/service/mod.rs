//! The gRPC services, one module for each. Each method first calls
//! [`ServiceContext::admit`], then checks, runs and encodes.

pub(crate) mod auth;
pub(crate) mod cluster;
pub(crate) mod concurrency;
pub(crate) mod dispatch;
pub(crate) mod health;
pub(crate) mod kv;
pub(crate) mod leadership;
pub(crate) mod lease;
pub(crate) mod maintenance;
pub(crate) mod membership;
pub(crate) mod watch;

use quorate_proto::etcdserverpb::auth_server::AuthServer;
use quorate_proto::etcdserverpb::cluster_server::ClusterServer;
use quorate_proto::etcdserverpb::kv_server::KvServer;
use quorate_proto::etcdserverpb::lease_server::LeaseServer;
use quorate_proto::etcdserverpb::maintenance_server::MaintenanceServer;
use quorate_proto::etcdserverpb::watch_server::WatchServer;
use quorate_proto::grpc::health::v1::health_server::HealthServer;
use quorate_proto::quorate::v1::leadership_server::LeadershipServer;
use quorate_proto::quorate::v1::membership_server::MembershipServer;
use quorate_proto::v3electionpb::election_server::ElectionServer;
use quorate_proto::v3lockpb::lock_server::LockServer;
use tonic::service::Routes;

use crate::config::ServerConfig;
use crate::context::ServiceContext;
use concurrency::election::ElectionService;
use concurrency::lock::LockService;

/// etcd's services KV, Watch, Lease, Auth, Maintenance, Lock and Election, with their background tasks. Call it
/// within a tokio runtime, once for each node.
pub fn services(context: &ServiceContext) -> Routes {
    tokio::spawn(lease::LeaseExpiry::new(context.clone()).run());
    tokio::spawn(kv::finish_compactions(context.clone()));
    tokio::spawn(crate::auth::monitor(context.clone()));
    let bytes_max = message_bytes_max(context);
    let watch = WatchServer::new(watch::WatchService::new(context.clone()));
    let lease = LeaseServer::new(lease::LeaseService::new(context.clone()));
    let maintenance = MaintenanceServer::new(maintenance::MaintenanceService::new(context.clone()));
    Routes::new(kv_service(context))
        .add_service(watch.max_decoding_message_size(bytes_max))
        .add_service(lease)
        .add_service(AuthServer::new(auth::AuthService::new(context.clone())))
        .add_service(maintenance)
        .add_service(LockServer::new(LockService::new(context.clone())))
        .add_service(ElectionServer::new(ElectionService::new(context.clone())))
}

/// etcd's service KV.
pub(crate) fn kv_service(context: &ServiceContext) -> KvServer<kv::KvService> {
    let service = KvServer::new(kv::KvService::new(context.clone()));
    service.max_decoding_message_size(message_bytes_max(context))
}

pub(crate) fn message_bytes_max(context: &ServiceContext) -> usize {
    context.limits.request_bytes_max.saturating_add(watch::OVERHEAD_BYTES)
}

/// All gRPC services of a server.
pub(crate) fn routes(context: &ServiceContext, config: &ServerConfig) -> Routes {
    let cluster = cluster::ClusterService::new(context.clone(), config.max_learners);
    let membership = membership::MembershipService::new(context.clone());
    services(context)
        .add_service(MembershipServer::new(membership))
        .add_service(LeadershipServer::new(leadership::LeadershipService::new(context.clone())))
        .add_service(ClusterServer::new(cluster))
        .add_service(HealthServer::new(health::HealthService::new(context.clone())))
}

#[cfg(test)]
mod tests;
