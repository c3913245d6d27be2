//! What is asked over plain HTTP: health, version and metrics, on the client port beside
//! gRPC, and on ports of their own.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use quorate_kv::AlarmKind;
use serde_json::json;
use tonic::Status;

use crate::context::Context;
use crate::member_errors::unsupported;
use crate::metrics::{Measured, Tally, page};

/// What the handlers share.
#[derive(Clone)]
pub(crate) struct Shown {
    pub(crate) context: Context,
    pub(crate) measured: Arc<Measured>,
}

/// The one check that is asked for, where the path names it.
type Only = Option<Path<String>>;
type Words = Query<Vec<(String, String)>>;

/// Everything of `--listen-metrics-urls`.
pub(crate) fn metrics_router(shown: Shown) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/livez", get(livez))
        .route("/livez/{check}", get(livez))
        .route("/readyz", get(readyz))
        .route("/readyz/{check}", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(shown)
}

/// Everything of the client port that is no service of ours.
pub(crate) fn client_router(shown: Shown) -> Router {
    metrics_router(shown)
        .route("/version", get(version))
        .route("/etcdserverpb.Auth/{call}", any(no_auth))
        .route("/v3lockpb.Lock/{call}", any(no_lock))
        .route("/v3electionpb.Election/{call}", any(no_election))
        .route("/v3/{*path}", any(no_gateway))
        .fallback(nothing_here)
}

async fn health(State(shown): State<Shown>, Query(words): Words) -> Response {
    let given = |name: &str, value: &str| words.iter().any(|(n, v)| n == name && v == value);
    let serializable = given("serializable", "true");
    let reason = unhealthy(&shown.context, serializable, |name| given("exclude", name)).await;
    let tally = &shown.context.tally;
    let code = if reason.is_empty() {
        Tally::one(&tally.healthy);
        StatusCode::OK
    } else {
        Tally::one(&tally.unhealthy);
        StatusCode::SERVICE_UNAVAILABLE
    };
    let body = json!({ "health": reason.is_empty().to_string(), "reason": reason });
    (code, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// Why this member should not be asked; empty for no reason.
async fn unhealthy(
    context: &Context,
    serializable: bool,
    excluded: impl Fn(&str) -> bool,
) -> String {
    if context.is_leaving() {
        return "SERVER STOPPING".into();
    }
    let alarms = context.store.read().alarms();
    let named = alarms.iter().map(|alarm| match alarm.kind {
        AlarmKind::NoSpace => "NOSPACE",
        AlarmKind::Corrupt => "CORRUPT",
    });
    if let Some(name) = named.into_iter().find(|name| !excluded(name)) {
        return format!("ALARM {name}");
    }
    if context.node.leader().is_none() && !serializable {
        return "RAFT NO LEADER".into();
    }
    let read = if serializable { Ok(()) } else { context.catch_up().await };
    read.err().map_or_else(String::new, |why| format!("RANGE ERROR:{}", why.message()))
}

/// It runs, and its data can be looked at.
async fn livez(State(shown): State<Shown>, only: Only, Query(words): Words) -> Response {
    let _readable = shown.context.store.read().revision();
    checked(&only, &words, &[("serializable_read", true)])
}

/// Clients should be sent here.
async fn readyz(State(shown): State<Shown>, only: Only, Query(words): Words) -> Response {
    let context = &shown.context;
    let alarms = context.store.read().alarms();
    let whole = alarms.iter().all(|alarm| alarm.kind != AlarmKind::Corrupt);
    let read = !counts(&only, &words, "linearizable_read") || context.catch_up().await.is_ok();
    let checks = [
        ("data_corruption", whole),
        ("serializable_read", true),
        ("linearizable_read", read),
        ("non_learner", !context.is_learner()),
        ("not_stopping", !context.is_leaving()),
    ];
    checked(&only, &words, &checks)
}

/// Whether a check is asked for.
fn counts(only: &Only, words: &[(String, String)], name: &str) -> bool {
    let excluded = words.iter().any(|(key, value)| key == "exclude" && value == name);
    only.as_ref().is_none_or(|Path(only)| only == name) && !excluded
}

fn checked(only: &Only, words: &[(String, String)], checks: &[(&str, bool)]) -> Response {
    let known = |asked: &str| checks.iter().any(|(name, _)| *name == asked);
    if only.as_ref().is_some_and(|Path(asked)| !known(asked)) {
        return (StatusCode::NOT_FOUND, "404 page not found\n").into_response();
    }
    let counted = || checks.iter().filter(|(name, _)| counts(only, words, name));
    let good = counted().all(|(_, good)| *good);
    let mut text = String::new();
    if !good || words.iter().any(|(name, _)| name == "verbose") {
        for (name, good) in counted() {
            let line =
                if *good { format!("[+]{name} ok\n") } else { format!("[-]{name} failed\n") };
            text.push_str(&line);
        }
    }
    text.push_str(if good { "ok" } else { "not ok" });
    let code = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, text).into_response()
}

async fn version() -> Response {
    let body = json!({ "etcdserver": crate::ETCD_VERSION, "etcdcluster": cluster_version() });
    ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// The oldest version of the same features: what all members have in common.
pub(crate) fn cluster_version() -> String {
    let minor = crate::ETCD_VERSION.rsplit_once('.').map_or(crate::ETCD_VERSION, |(m, _)| m);
    format!("{minor}.0")
}

async fn metrics(State(shown): State<Shown>) -> Response {
    let text = page(&shown.context, &shown.measured).await;
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// Clients of gRPC understand a status only; all others, a code of HTTP.
async fn nothing_here(request: Request) -> Response {
    let kind = request.headers().get(header::CONTENT_TYPE).map(|kind| kind.as_bytes());
    if kind.is_some_and(|kind| kind.starts_with(b"application/grpc")) {
        let text = format!("unknown method {}", request.uri().path());
        return Status::unimplemented(text).into_http::<axum::body::Body>();
    }
    (StatusCode::NOT_FOUND, "404 page not found\n").into_response()
}

async fn no_auth() -> Response {
    unsupported("authentication").into_http::<axum::body::Body>()
}

async fn no_lock() -> Response {
    unsupported("the lock service").into_http::<axum::body::Body>()
}

async fn no_election() -> Response {
    unsupported("the election service").into_http::<axum::body::Body>()
}

async fn no_gateway() -> Response {
    let text = json!({ "error": unsupported("the JSON gateway").message(), "code": 12 });
    (StatusCode::NOT_IMPLEMENTED, text.to_string()).into_response()
}
