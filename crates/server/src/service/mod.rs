//! One file for each of etcd's services.

pub(crate) mod cluster;
pub(crate) mod desk;
pub(crate) mod health;
pub(crate) mod kv;
pub(crate) mod lease;
pub(crate) mod maintenance;
pub(crate) mod membership;
pub(crate) mod watch;

use quorate_proto::etcdserverpb::cluster_server::ClusterServer;
use quorate_proto::etcdserverpb::kv_server::KvServer;
use quorate_proto::etcdserverpb::lease_server::LeaseServer;
use quorate_proto::etcdserverpb::maintenance_server::MaintenanceServer;
use quorate_proto::etcdserverpb::watch_server::WatchServer;
use quorate_proto::grpc::health::v1::health_server::HealthServer;
use quorate_proto::quorate::v1::membership_server::MembershipServer;
use tonic::service::Routes;

use crate::config::Config;
use crate::context::Context;

/// etcd's services about keys, leases and this member, with what runs beside them. Has to be
/// called within a tokio runtime, once for a node.
pub fn services(context: &Context) -> Routes {
    tokio::spawn(lease::Expiry::new(context.clone()).run());
    tokio::spawn(kv::finish_compactions(context.clone()));
    let bytes_max = message_bytes_max(context);
    let watch = WatchServer::new(watch::WatchService::new(context.clone()));
    let lease = LeaseServer::new(lease::LeaseService::new(context.clone()));
    let maintenance = MaintenanceServer::new(maintenance::MaintenanceService::new(context.clone()));
    Routes::new(keys(context))
        .add_service(watch.max_decoding_message_size(bytes_max))
        .add_service(lease)
        .add_service(maintenance)
}

/// etcd's service KV.
pub(crate) fn keys(context: &Context) -> KvServer<kv::KvService> {
    let service = KvServer::new(kv::KvService::new(context.clone()));
    service.max_decoding_message_size(message_bytes_max(context))
}

fn message_bytes_max(context: &Context) -> usize {
    context.limits.request_bytes_max.saturating_add(watch::OVERHEAD_BYTES)
}

/// Everything that a server answers by gRPC.
pub(crate) fn routes(context: &Context, config: &Config) -> Routes {
    let cluster = cluster::ClusterService::new(context.clone(), config.max_learners);
    let tick = config.heartbeat_interval;
    let membership = membership::MembershipService::new(context.clone(), tick);
    services(context)
        .add_service(MembershipServer::new(membership))
        .add_service(ClusterServer::new(cluster))
        .add_service(HealthServer::new(health::HealthService::new(context.clone())))
}
