//! Every method of every service asks the policy of the server first.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::http::Request;
use http_body::Body as _;
use prost::Message;
use quorate::{MemoryNetwork, MemoryStorage, Node, NodeConfig};
use quorate_kv::{
    AnyTable, AuthCommand, Command, Compact, DeleteRange, KeyRange, Kv, KvError, KvOutcome,
    PasswordHash, Permission, PermissionMode, Put, Query, ROOT, Range, TokenRequest,
};
use quorate_proto::etcdserverpb::watch_request::RequestUnion;
use quorate_proto::etcdserverpb::{WatchCreateRequest, WatchRequest, WatchResponse};
use sha2::{Digest, Sha256};
use tonic::body::Body;
use tonic::codegen::Service;

use super::*;
use crate::access::{AccessDenied, AccessPolicy, ClientAction, ClientIdentity};
use crate::client_certificate::ClientCertificate;
use crate::context::{ServiceLimits, SharedStore};
use crate::http::{HttpState, client_router};
use crate::metrics::{METHODS, ServerMetrics};
use crate::status::ServiceError;

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
    let config = NodeConfig::first(7, 1, [(1, "")]).with_tick(Duration::from_millis(5));
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

/// Methods that refuse an empty message before they make calls of other services.
const REFUSE_EMPTY: [&str; 2] =
    ["/v3electionpb.Election/Proclaim", "/v3electionpb.Election/Resign"];

#[tokio::test(flavor = "multi_thread")]
async fn every_method_asks_the_policy_first() {
    let policy = Arc::new(DenyAll::default());
    let allowed = single_member().await;
    let context = allowed.clone().with_policy(Arc::clone(&policy) as Arc<dyn AccessPolicy>);
    let mut routes = routes(&context, &ServerConfig::default()).prepare();
    let served = METHODS.iter().filter(|method| !REFUSE_EMPTY.contains(&method.path));
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
    let mut router = client_router(HttpState { context, metrics }, true);
    let pages = [
        "/health",
        "/livez",
        "/livez/serializable_read",
        "/readyz",
        "/metrics",
        "/version",
        "/debug/vars",
        "/quorate/v1/events",
    ];
    for path in pages {
        let request = Request::get(path).body(axum::body::Body::empty()).unwrap();
        let response = Service::call(&mut router, request).await.unwrap();
        assert_eq!(response.status(), 403, "{path}");
    }
    allowed.node.stop_now().await;
}

/// A member with authentication enabled, and the users `root` and `alice`, who has no roles.
async fn member_with_auth() -> ServiceContext {
    let context = single_member().await;
    let add = |name: &str| AuthCommand::UserAdd {
        name: name.into(),
        password: Some(PasswordHash::new(&b"none"[..])),
    };
    let root = AuthCommand::UserGrantRole { user: ROOT.into(), role: ROOT.into() };
    for command in [add(ROOT), add("alice"), root, AuthCommand::Enable] {
        context.run(&Command::Auth(command)).await.unwrap();
    }
    context
}

/// The status of the response to an empty message; `None` for one that is not an error.
async fn status_of(routes: &mut Routes, path: &str, name: Option<&str>) -> Option<String> {
    let mut request = empty_message(path);
    if let Some(name) = name {
        let common_name = name.to_owned();
        request.extensions_mut().insert(ClientCertificate { common_name });
    }
    let response = routes.call(request).await.unwrap();
    let status = response.headers().get("grpc-status")?.to_str().unwrap();
    let message = response.headers().get("grpc-message").map(|text| text.to_str().unwrap());
    Some(format!("{status} {}", message.unwrap_or_default().replace("%20", " ")))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_method_needs_a_user_when_authentication_is_enabled() {
    let context = member_with_auth().await;
    let mut routes = routes(&context, &ServerConfig::default()).prepare();
    let open = [
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/List",
        "/grpc.health.v1.Health/Watch",
        // Each request on the stream is checked.
        "/etcdserverpb.Watch/Watch",
        "/etcdserverpb.Lease/LeaseKeepAlive",
        "/etcdserverpb.Auth/Authenticate",
        "/etcdserverpb.Auth/AuthStatus",
        // Refused before the user matters: the message is empty.
        "/etcdserverpb.KV/Range",
        "/etcdserverpb.KV/RangeStream",
        "/etcdserverpb.KV/Put",
        "/etcdserverpb.KV/DeleteRange",
        "/v3lockpb.Lock/Unlock",
    ];
    let served = METHODS.iter().filter(|method| !REFUSE_EMPTY.contains(&method.path));
    for method in served.filter(|method| !open.contains(&method.path)) {
        let anonymous = status_of(&mut routes, method.path, None).await;
        assert_eq!(
            anonymous.as_deref(),
            Some("3 etcdserver: user name is empty"),
            "{}",
            method.path
        );
    }
    context.node.stop_now().await;
}

/// A certificate names a user, without a password.
#[tokio::test(flavor = "multi_thread")]
async fn the_common_name_of_a_certificate_is_a_user() {
    let context = member_with_auth().await;
    let mut routes = routes(&context, &ServerConfig::default()).prepare();
    let list = "/etcdserverpb.Auth/UserList";
    assert_eq!(status_of(&mut routes, list, Some("root")).await, None);
    let denied = Some("7 etcdserver: permission denied".to_owned());
    assert_eq!(status_of(&mut routes, list, Some("alice")).await, denied);
    let unknown = Some("9 etcdserver: user name not found".to_owned());
    assert_eq!(status_of(&mut routes, list, Some("unknown")).await, unknown);
    let empty = Some("3 etcdserver: user name is empty".to_owned());
    assert_eq!(status_of(&mut routes, list, Some("")).await, empty);
    // A token takes precedence, and a gateway speaks for others.
    for (header, expected) in [
        ("token", "16 etcdserver: invalid auth token"),
        ("authorization", "16 etcdserver: invalid auth token"),
        ("grpcgateway-accept", "3 etcdserver: user name is empty"),
    ] {
        let mut request = empty_message(list);
        request.headers_mut().insert(header, "x".parse().unwrap());
        request.extensions_mut().insert(ClientCertificate { common_name: "root".into() });
        let response = routes.call(request).await.unwrap();
        let (code, text) = expected.split_once(' ').unwrap();
        assert_eq!(response.headers()["grpc-status"], code, "{header}");
        assert_eq!(response.headers()["grpc-message"], text.replace(' ', "%20"), "{header}");
    }
    context.node.stop_now().await;
}

/// A client with this certificate.
fn client_named(name: &str) -> ClientIdentity {
    let mut request = tonic::Request::new(());
    request.extensions_mut().insert(ClientCertificate { common_name: name.into() });
    ClientIdentity::of(&request)
}

/// A client with this token.
fn client_with_token(token: &str) -> ClientIdentity {
    let mut request = tonic::Request::new(());
    request.metadata_mut().insert("token", token.parse().unwrap());
    ClientIdentity::of(&request)
}

/// A read that is done in steps may start over at a newer revision. It must not show what was
/// written after its user had lost the right.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_read_that_starts_over_is_checked_again() {
    let context = member_with_auth().await;
    let run = async |command: Command| context.run_as_member(command).await.unwrap().revision;
    let keys = KeyRange { key: "a".into(), range_end: "b".into() };
    let permission = Permission { mode: PermissionMode::Read, keys: keys.clone() };
    let grant = AuthCommand::RoleGrantPermission { role: "some".into(), permission };
    let role = || AuthCommand::UserGrantRole { user: "alice".into(), role: "some".into() };
    for command in [AuthCommand::RoleAdd("some".into()), grant, role()] {
        run(Command::Auth(command)).await;
    }
    let put =
        |key: String| Command::Put(Put { key: key.into(), value: "v".into(), ..Put::default() });
    // More than one step.
    let mut revision = 0;
    for number in 0..1_500 {
        revision = run(put(format!("a{number:04}"))).await;
    }
    let query = Query::Range(Range { keys, ..Range::default() });
    let alice = client_named("alice");
    for loses_right in [false, true] {
        let paused = context.reads.pause().await;
        let mut reading = pin!(kv::read(&context, &alice, query.clone()));
        let begun = tokio::time::timeout(Duration::from_millis(50), &mut reading).await;
        assert!(begun.is_err(), "the read waits for its turn");
        // Users and roles change, and the revision that is read is compacted.
        run(Command::Auth(AuthCommand::RoleAdd(format!("other-{loses_right}")))).await;
        if loses_right {
            let (user, role) = ("alice".into(), "some".into());
            run(Command::Auth(AuthCommand::UserRevokeRole { user, role })).await;
        }
        for _ in 0..2 {
            revision = run(put("a0000".into())).await;
        }
        run(Command::Compact(Compact { revision })).await;
        drop(paused);
        match reading.await {
            Ok((reply, _)) => {
                assert!(!loses_right, "it shows revision {}", reply.revision);
                let Ok(KvOutcome::Range(found)) = reply.result else { panic!() };
                assert_eq!((found.kvs.len(), reply.revision), (1_500, revision));
            }
            Err(error) => {
                assert!(loses_right, "{error:?}");
                assert!(matches!(error, ServiceError::Kv(KvError::PermissionDenied)), "{error:?}");
            }
        }
    }
    context.node.stop_now().await;
}

/// They are read beside the threads that serve requests, and other watches go on meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn memory_is_reserved_before_the_previous_pairs_of_a_large_revision_are_read() {
    let context = single_member().await;
    let run = async |command: Command| context.run_as_member(command).await.unwrap().revision;
    let put = |key: String| {
        Command::Put(Put { key: key.into(), value: vec![7; 100_000].into(), ..Put::default() })
    };
    for number in 0..20 {
        run(put(format!("k{number}"))).await;
    }
    let keys = KeyRange::all();
    let deletion = DeleteRange { keys: keys.clone(), prev_kv: false };
    let start_revision = run(Command::DeleteRange(deletion)).await;
    let paused = context.reads.pause().await;
    let create = |prev_kv| WatchCreateRequest {
        range_end: "\0".into(),
        start_revision,
        prev_kv,
        ..Default::default()
    };
    let mut stream = TestWatchStream::open(&context, create(true)).await;
    assert!(stream.next().await.created);
    let reserved = async {
        while context.responses.used() < 2_000_000 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), reserved).await.unwrap();
    let mut other = TestWatchStream::open(&context, create(false)).await;
    assert!(other.next().await.created);
    assert_eq!(other.next().await.events.len(), 20);
    let early = tokio::time::timeout(Duration::from_millis(50), stream.next()).await;
    assert!(early.is_err(), "it waits for its turn to read");
    drop(paused);
    let response = stream.next().await;
    let previous = response.events.iter().filter_map(|event| event.prev_kv.as_ref());
    assert_eq!(previous.map(|kv| kv.value.len()).sum::<usize>(), 20 * 100_000);
    context.node.stop_now().await;
}

/// The response to a call of a watch that has sent one request.
struct TestWatchStream {
    body: Body,
    received: Vec<u8>,
}

impl TestWatchStream {
    async fn open(context: &ServiceContext, create: WatchCreateRequest) -> Self {
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let message = request.encode_to_vec();
        let body = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
        let request = Request::post("/etcdserverpb.Watch/Watch")
            .header("content-type", "application/grpc")
            .body(Body::new(axum::body::Body::from(body)))
            .unwrap();
        let mut routes = routes(context, &ServerConfig::default()).prepare();
        let body = routes.call(request).await.unwrap().into_body();
        Self { body: Body::new(body), received: Vec::new() }
    }

    async fn next(&mut self) -> WatchResponse {
        loop {
            if let Some((head, rest)) = self.received.split_first_chunk::<5>() {
                let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
                if rest.len() >= length {
                    let response = WatchResponse::decode(&rest[..length]).unwrap();
                    self.received.drain(..5 + length);
                    return response;
                }
            }
            let frame = poll_fn(|context| Pin::new(&mut self.body).poll_frame(context));
            let frame = tokio::time::timeout(Duration::from_secs(20), frame).await.unwrap();
            self.received.extend_from_slice(frame.unwrap().unwrap().data_ref().unwrap());
        }
    }
}

/// While a long command is applied, a look-up of a token answers at once, or waits without its
/// thread.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_looked_up_while_a_command_holds_the_store() {
    let context = member_with_auth().await;
    let checked_at = context.store.auth_version().revision;
    let digest = Sha256::digest("the token").into();
    let request = TokenRequest { user: "alice".into(), digest, checked_at, issued_at: u64::MAX };
    context.run(&Command::Auth(AuthCommand::IssueToken(request))).await.unwrap();
    let client = client_with_token("the token");
    for is_confirmed in [true, false] {
        if !is_confirmed {
            let add = AuthCommand::RoleAdd("some".into());
            context.run_as_member(Command::Auth(add)).await.unwrap();
        }
        let (locked, wait_locked) = mpsc::channel();
        let (release, wait_released) = mpsc::channel::<()>();
        let is_held = Arc::new(AtomicBool::new(true));
        let holder = std::thread::spawn({
            let (store, is_held) = (context.store.clone(), Arc::clone(&is_held));
            move || {
                let writing = store.write();
                locked.send(()).unwrap();
                // A look-up that blocks would wait for this time.
                let _ = wait_released.recv_timeout(Duration::from_secs(20));
                is_held.store(false, Ordering::SeqCst);
                drop(writing);
            }
        });
        wait_locked.recv().unwrap();
        let mut identified = Box::pin(context.identify(&client));
        let polled = identified.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(is_held.load(Ordering::SeqCst), "the look-up has blocked its thread");
        release.send(()).unwrap();
        holder.join().unwrap();
        let identity = match polled {
            Poll::Ready(identity) => identity,
            Poll::Pending => {
                assert!(!is_confirmed);
                identified.await
            }
        };
        assert_eq!(identity.unwrap().unwrap().name, "alice");
    }
    context.node.stop_now().await;
}
