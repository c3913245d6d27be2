//! Members with their services over loopback, and waiting with a timeout.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quorate::{MemoryNetwork, MemoryStorage, Node, NodeConfig};
use quorate_kv::{AnyTable, Kv};
use quorate_proto::etcdserverpb::kv_client::KvClient;
use quorate_proto::etcdserverpb::lease_client::LeaseClient;
use quorate_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quorate_proto::etcdserverpb::watch_client::WatchClient;
use quorate_proto::etcdserverpb::{PutRequest, RangeRequest, RangeResponse};
use quorate_server::access::{AccessPolicy, AllowAll};
use quorate_server::{ServiceContext, ServiceLimits, SharedStore, services};
use tokio::task::JoinHandle;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};

pub(crate) const CLUSTER: u64 = 77;

pub(crate) struct ServiceMember {
    pub(crate) node: Node,
    pub(crate) store: SharedStore,
    pub(crate) context: ServiceContext,
    pub(crate) channel: Channel,
    endpoint: Endpoint,
    serving: JoinHandle<()>,
}

impl ServiceMember {
    pub(crate) async fn start(
        network: &MemoryNetwork,
        config: NodeConfig,
        limits: ServiceLimits,
    ) -> Self {
        Self::start_with(network, config, limits, Arc::new(AllowAll)).await
    }

    async fn start_with(
        network: &MemoryNetwork,
        config: NodeConfig,
        limits: ServiceLimits,
        policy: Arc<dyn AccessPolicy>,
    ) -> Self {
        let store = SharedStore::new(Kv::open(AnyTable::default()).unwrap());
        let config = config.with_tick(Duration::from_millis(20));
        let storage = MemoryStorage::new();
        let node = Node::start(config, storage, store.clone(), network.transport()).await.unwrap();
        let context = ServiceContext::new(node.clone(), store.clone(), CLUSTER, limits);
        let context = context.with_policy(policy);
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = incoming.local_addr().unwrap();
        let server = Server::builder().add_routes(services(&context));
        let serving = tokio::spawn(async move {
            server.serve_with_incoming(incoming).await.unwrap();
        });
        let endpoint = Endpoint::try_from(format!("http://{address}")).unwrap();
        let channel = endpoint.connect_lazy();
        Self { node, store, context, channel, endpoint, serving }
    }

    /// A single-member cluster, once it has a leader.
    pub(crate) async fn single(limits: ServiceLimits) -> Self {
        Self::single_with(limits, Arc::new(AllowAll)).await
    }

    pub(crate) async fn single_with(limits: ServiceLimits, policy: Arc<dyn AccessPolicy>) -> Self {
        let config = NodeConfig::first(CLUSTER, 1, [(1, "")]);
        let member = Self::start_with(&MemoryNetwork::new(), config, limits, policy).await;
        within("a leader", member.node.watch_leader().wait_for(Option::is_some)).await.unwrap();
        member
    }

    pub(crate) fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    pub(crate) fn watch(&self) -> WatchClient<Channel> {
        WatchClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    pub(crate) fn lease(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel.clone())
    }

    pub(crate) fn maintenance(&self) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(self.channel.clone())
    }

    /// A client with its own connection.
    pub(crate) fn other_maintenance(&self) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(self.endpoint.connect_lazy())
    }

    /// Writes a key, and returns the revision.
    pub(crate) async fn put(&self, key: &str, value: &str) -> i64 {
        self.put_with(key, value, 0).await
    }

    pub(crate) async fn put_with(&self, key: &str, value: &str, lease: i64) -> i64 {
        let put = PutRequest { lease, ..put(key, value) };
        let done = within("a put", self.kv().put(put)).await.unwrap().into_inner();
        done.header.unwrap().revision
    }

    pub(crate) async fn range(&self, request: RangeRequest) -> RangeResponse {
        within("a range", self.kv().range(request)).await.unwrap().into_inner()
    }

    /// The keys as text, in the order of the response.
    pub(crate) async fn keys(&self, request: RangeRequest) -> Vec<String> {
        let found = self.range(request).await;
        found.kvs.iter().map(|kv| text(&kv.key)).collect()
    }

    pub(crate) fn watchers(&self) -> usize {
        self.store.watchers()
    }

    pub(crate) async fn stop(self) {
        self.context.close();
        self.node.stop_now().await;
        self.serving.abort();
    }
}

pub(crate) fn put(key: &str, value: &str) -> PutRequest {
    let (key, value) = (key.to_owned().into(), value.to_owned().into());
    PutRequest { key, value, ..PutRequest::default() }
}

pub(crate) fn get(key: &str) -> RangeRequest {
    RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() }
}

pub(crate) fn from(key: &str, range_end: &str) -> RangeRequest {
    RangeRequest { range_end: range_end.to_owned().into(), ..get(key) }
}

pub(crate) fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Fails the test after a minute.
pub(crate) async fn within<R>(what: &str, act: impl Future<Output = R>) -> R {
    let done = tokio::time::timeout(Duration::from_secs(60), act).await;
    done.unwrap_or_else(|_| panic!("{what} took more than a minute"))
}

pub(crate) async fn wait_for(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    within(what, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}
