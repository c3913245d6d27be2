//! Plain HTTP pages: health, version and metrics, on the client port beside gRPC and on the
//! ports of `--listen-metrics-urls`.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, Request, State};
use axum::http::{Extensions, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use quorate_kv::AlarmKind;
use serde_json::json;
use tonic::Status;

use crate::access::{ClientAction, ClientIdentity};
use crate::console::console_router;
use crate::context::ServiceContext;
use crate::debug_vars::debug_vars;
use crate::metrics::{ServerMetrics, ServiceCounters, page};
use crate::status::ServiceError;

/// What the handlers share.
#[derive(Clone)]
pub(crate) struct HttpState {
    pub(crate) context: ServiceContext,
    pub(crate) metrics: Arc<ServerMetrics>,
}

impl HttpState {
    /// The response to a client that may not see this page. Every page calls this first.
    pub(crate) fn denied(
        &self,
        extensions: &Extensions,
        action: &ClientAction<'_>,
    ) -> Option<Response> {
        let client = ClientIdentity::from_extensions(extensions);
        let error = self.context.authorize(&client, action).err()?;
        Some((StatusCode::FORBIDDEN, error.code_and_text().1).into_response())
    }
}

/// The one check that the path names, if it names one.
type CheckName = Option<Path<String>>;
type QueryPairs = Query<Vec<(String, String)>>;

/// The pages of `--listen-metrics-urls`.
pub(crate) fn metrics_router(state: HttpState) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/livez", get(livez))
        .route("/livez/{check}", get(livez))
        .route("/readyz", get(readyz))
        .route("/readyz/{check}", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(state)
}

/// Everything on the client port beside etcd's services and those of `quorate.v1`, with the console
/// or without.
pub(crate) fn client_router(state: HttpState, has_console: bool) -> Router {
    let own = Router::new().route("/version", get(version)).route("/debug/vars", get(debug_vars));
    let router = metrics_router(state.clone())
        .merge(own.with_state(state.clone()))
        .merge(crate::playground::router(state.clone()));
    let router = if has_console { router.merge(console_router(state)) } else { router };
    router.fallback(not_found)
}

async fn health(
    State(state): State<HttpState>,
    extensions: Extensions,
    Query(query): QueryPairs,
) -> Response {
    if let Some(denied) = state.denied(&extensions, &ClientAction::Health) {
        return denied;
    }
    let has = |name: &str, value: &str| query.iter().any(|(n, v)| n == name && v == value);
    let serializable = has("serializable", "true");
    let reason = unhealthy_reason(&state.context, serializable, |name| has("exclude", name)).await;
    let counters = &state.context.counters;
    let code = if reason.is_empty() {
        ServiceCounters::increment(&counters.healthy);
        StatusCode::OK
    } else {
        ServiceCounters::increment(&counters.unhealthy);
        StatusCode::SERVICE_UNAVAILABLE
    };
    let mut body = json!({ "health": reason.is_empty().to_string(), "reason": reason }).to_string();
    if !reason.is_empty() {
        // As etcd's.
        body.push('\n');
    }
    (code, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Why clients should not use this member; empty if it is healthy.
async fn unhealthy_reason(
    context: &ServiceContext,
    serializable: bool,
    is_excluded: impl Fn(&str) -> bool,
) -> String {
    if context.is_leaving() {
        return "SERVER STOPPING".into();
    }
    let alarms = context.store.read_when_free().await.alarms();
    let names = alarms.iter().map(|alarm| match alarm.kind {
        AlarmKind::NoSpace => "NOSPACE",
        AlarmKind::Corrupt => "CORRUPT",
    });
    if let Some(name) = names.into_iter().find(|name| !is_excluded(name)) {
        return format!("ALARM {name}");
    }
    if context.node.leader().is_none() && !serializable {
        return "RAFT NO LEADER".into();
    }
    let read = if serializable { Ok(()) } else { context.catch_up().await };
    match read {
        Ok(()) => String::new(),
        Err(error) => format!("RANGE ERROR:{}", error.code_and_text().1),
    }
}

/// The process runs, and its data can be read.
async fn livez(
    State(state): State<HttpState>,
    extensions: Extensions,
    only: CheckName,
    Query(query): QueryPairs,
) -> Response {
    if let Some(denied) = state.denied(&extensions, &ClientAction::Health) {
        return denied;
    }
    let _readable = state.context.store.read_when_free().await.revision();
    check_response(&only, &query, &[("serializable_read", Ok(()))])
}

/// Clients may be sent to this member.
async fn readyz(
    State(state): State<HttpState>,
    extensions: Extensions,
    only: CheckName,
    Query(query): QueryPairs,
) -> Response {
    if let Some(denied) = state.denied(&extensions, &ClientAction::Health) {
        return denied;
    }
    let context = &state.context;
    let alarms = context.store.read_when_free().await.alarms();
    let corrupt = alarms.iter().any(|alarm| alarm.kind == AlarmKind::Corrupt);
    let read = match is_selected(&only, &query, "linearizable_read") {
        true => context.catch_up().await.map_err(|error| error.code_and_text().1),
        false => Ok(()),
    };
    let failed_if = |fails, reason: &str| if fails { Err(reason.to_owned()) } else { Ok(()) };
    let checks = [
        ("data_corruption", failed_if(corrupt, "alarm activated: CORRUPT")),
        ("serializable_read", Ok(())),
        ("linearizable_read", read),
        ("non_learner", failed_if(context.is_learner(), "not supported for learner")),
        ("not_stopping", failed_if(context.is_leaving(), "the server is stopping")),
        // A member whose disk was rolled back does not vote, and needs an operator.
        ("log_complete", failed_if(context.node.metrics().log_lost != 0, "the log lacks entries")),
    ];
    check_response(&only, &query, &checks)
}

/// Whether the request asks for this check.
fn is_selected(only: &CheckName, query: &[(String, String)], name: &str) -> bool {
    let excluded = query.iter().any(|(key, value)| key == "exclude" && value == name);
    only.as_ref().is_none_or(|Path(only)| only == name) && !excluded
}

/// A check by its name, and why it failed.
type CheckResult = (&'static str, Result<(), String>);

/// As etcd's, with its line feeds.
fn check_response(
    only: &CheckName,
    query: &[(String, String)],
    checks: &[CheckResult],
) -> Response {
    let exists = |name: &str| checks.iter().any(|(known, _)| *known == name);
    if only.as_ref().is_some_and(|Path(name)| !exists(name)) {
        return (StatusCode::NOT_FOUND, "404 page not found\n").into_response();
    }
    let selected = || checks.iter().filter(|(name, _)| is_selected(only, query, name));
    let details: String = selected()
        .map(|(name, result)| match result {
            Ok(()) => format!("[+]{name} ok\n"),
            Err(reason) => format!("[-]{name} failed: {reason}\n"),
        })
        .collect();
    if selected().any(|(_, result)| result.is_err()) {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("{details}\n")).into_response();
    }
    let is_verbose = query.iter().any(|(name, _)| name == "verbose");
    let details = if is_verbose { details } else { String::new() };
    (StatusCode::OK, format!("{details}ok\n")).into_response()
}

async fn version(State(state): State<HttpState>, extensions: Extensions) -> Response {
    if let Some(denied) = state.denied(&extensions, &ClientAction::Version) {
        return denied;
    }
    let cluster = state.context.node.cluster_version();
    let release = state.context.limits.etcd_release;
    let mut body = json!({
        "etcdserver": release.version(),
        "etcdcluster": release.cluster_version(),
        "quoratecluster": cluster.version,
        "quorate": crate::VERSION,
    });
    if let Some(version) = release.storage_version() {
        body["storage"] = json!(version);
    }
    ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn metrics(State(state): State<HttpState>, extensions: Extensions) -> Response {
    if let Some(denied) = state.denied(&extensions, &ClientAction::Metrics) {
        return denied;
    }
    let text = page(&state.context, &state.metrics).await;
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// gRPC clients understand only a gRPC status; all others, only an HTTP code.
async fn not_found(request: Request) -> Response {
    let kind = request.headers().get(header::CONTENT_TYPE).map(|kind| kind.as_bytes());
    if kind.is_some_and(|kind| kind.starts_with(b"application/grpc")) {
        let path = request.uri().path().to_owned();
        return grpc_response(ServiceError::UnknownMethod { path });
    }
    (StatusCode::NOT_FOUND, "404 page not found\n").into_response()
}

fn grpc_response(error: ServiceError) -> Response {
    let status: Status = error.into();
    status.into_http::<axum::body::Body>()
}
