//! Every method of every service asks the policy of the server first.

use std::sync::{Arc, Mutex};

use axum::http::Request;
use quorate::{MemoryNetwork, MemoryStorage, Node, NodeConfig};
use quorate_kv::{AnyTable, Kv};
use tonic::body::Body;
use tonic::codegen::Service;

use super::*;
use crate::access::{AccessDenied, AccessPolicy, ClientAction, ClientIdentity};
use crate::context::{ServiceLimits, SharedStore};
use crate::http::{HttpState, client_router};
use crate::metrics::{METHODS, ServerMetrics};

/// Denies everything and remembers what it denied.
#[derive(Default)]
struct DenyAll {
    denied: Mutex<Vec<String>>,
}

impl AccessPolicy for DenyAll {
    fn check(&self, _: &ClientIdentity, action: &ClientAction<'_>) -> Result<(), AccessDenied> {
        self.denied.lock().unwrap().push(format!("{action:?}"));
        Err(AccessDenied::PermissionDenied)
    }
}

async fn single_member() -> ServiceContext {
    let store = SharedStore::new(Kv::open(AnyTable::default()).unwrap());
    let config = NodeConfig::first(7, 1, [(1, "")]).with_tick(std::time::Duration::from_millis(5));
    let (storage, network) = (MemoryStorage::new(), MemoryNetwork::new());
    let node = Node::start(config, storage, store.clone(), network.transport()).await.unwrap();
    node.watch_leader().wait_for(Option::is_some).await.unwrap();
    ServiceContext::new(node, store, 7, ServiceLimits::default())
}

/// An empty message of any type, as gRPC frames it.
fn empty_message(path: &str) -> Request<Body> {
    let body = axum::body::Body::from(vec![0_u8; 5]);
    let request = Request::post(path).header("content-type", "application/grpc");
    request.body(Body::new(body)).unwrap()
}

/// Services whose methods all answer Unimplemented.
const UNSUPPORTED: [&str; 3] = ["etcdserverpb.Auth", "v3electionpb.Election", "v3lockpb.Lock"];

#[tokio::test(flavor = "multi_thread")]
async fn every_method_asks_the_policy_first() {
    let policy = Arc::new(DenyAll::default());
    let allowed = single_member().await;
    let context = allowed.clone().with_policy(Arc::clone(&policy) as Arc<dyn AccessPolicy>);
    let mut routes = routes(&context, &ServerConfig::default()).prepare();
    let served = METHODS.iter().filter(|method| !UNSUPPORTED.contains(&method.service()));
    let mut count = 0;
    for method in served {
        let response = routes.call(empty_message(method.path)).await.unwrap();
        let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap());
        assert_eq!(header("grpc-status"), Some("7"), "{}", method.path);
        assert_eq!(header("grpc-message"), Some("etcdserver:%20permission%20denied"));
        count += 1;
    }
    assert_eq!(policy.denied.lock().unwrap().len(), count, "each method asks once");
    allowed.node.stop_now().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_http_page_asks_the_policy_first() {
    let allowed = single_member().await;
    let context = allowed.clone().with_policy(Arc::new(DenyAll::default()));
    let metrics = Arc::new(ServerMetrics::new(false));
    let mut router = client_router(HttpState { context, metrics });
    let pages =
        ["/health", "/livez", "/livez/serializable_read", "/readyz", "/metrics", "/version"];
    for path in pages {
        let request = Request::get(path).body(axum::body::Body::empty()).unwrap();
        let response = Service::call(&mut router, request).await.unwrap();
        assert_eq!(response.status(), 403, "{path}");
    }
    allowed.node.stop_now().await;
}
