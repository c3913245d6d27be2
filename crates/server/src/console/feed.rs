//! The feed of events: `GET /quorate/v1/events`, as server-sent events.
//!
//! Each event `overview` has the reply of `quorate.v1.Membership/Overview` as JSON, with the
//! entries of the timeline that the client does not have yet. Its id is the number of the newest
//! entry; a client that comes back sends it as `Last-Event-ID`. There is one at least every second,
//! and soon after something has happened.
//!
//! A feed keeps no queue: a client that reads slowly gets fewer events, each with the present state.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{Extensions, HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use crate::access::{ClientAction, ClientIdentity};
use crate::auth::audit;
use crate::context::ServiceContext;
use crate::gateway::{error_response, overview_json};
use crate::http::HttpState;
use crate::overview::overview;
use crate::status::ServiceError;

pub(super) async fn events(
    State(state): State<HttpState>,
    extensions: Extensions,
    headers: HeaderMap,
) -> Response {
    let context = state.context;
    let client = ClientIdentity::with_token(&headers, &extensions);
    let action = ClientAction::MembershipStatus;
    audit::note_action(&client, &action);
    let allowed = match context.authorize(&client, &action) {
        Ok(()) => context.check_right(&client, action.required_right()).await,
        Err(error) => Err(error),
    };
    if let Err(error) = allowed {
        return refusal(error);
    }
    let Ok(permit) = context.overview.feeds.clone().try_acquire_owned() else {
        let text = "too many feeds are open on this member\n";
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    let known = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let _permit = permit;
        tokio::select! {
            () = send_events(&context, known.unwrap_or(0), &sender) => {}
            () = sender.closed() => {}
            error = context.access_lost(&client, action.required_right()) => {
                end(&sender, error).await;
            }
            error = context.server_stopped() => end(&sender, error).await,
        }
    });
    let body = Body::from_stream(ReceiverStream::new(receiver).map(Ok::<Bytes, Infallible>));
    let headers = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, body).into_response()
}

/// Refused as a call of the gateway is.
fn refusal(error: ServiceError) -> Response {
    let status: tonic::Status = error.into();
    let mut response = error_response(&status).map(Body::new);
    // For the audit log: the feed is no call of gRPC.
    response.extensions_mut().insert(status.code());
    response
}

/// Tells the client why there are no further events.
async fn end(sender: &mpsc::Sender<Bytes>, error: ServiceError) {
    let text = error.code_and_text().1.replace(['\r', '\n'], " ");
    let _ = sender.send(format!("event: end\ndata: {text}\n\n").into()).await;
}

/// Ends only when the client is gone.
async fn send_events(context: &ServiceContext, mut known: u64, sender: &mpsc::Sender<Bytes>) {
    let mut timeline = context.overview.timeline.watch();
    loop {
        let began = Instant::now();
        // Without an answer of the node there is nothing to show yet, and the connection stays.
        let event = match overview(context, known).await {
            Ok(reply) => {
                known = reply.timeline.last().map_or(known, |entry| entry.number);
                let json = overview_json(&reply).unwrap_or_default();
                let json = String::from_utf8_lossy(&json).into_owned();
                format!("id: {known}\nevent: overview\ndata: {json}\n\n")
            }
            Err(error) => format!(": {}\n\n", error.code_and_text().1.replace(['\r', '\n'], " ")),
        };
        if sender.send(event.into()).await.is_err() {
            return;
        }
        sleep_until(began + INTERVAL_MIN).await;
        let _ = timeout_at(began + INTERVAL_MAX, timeline.changed()).await;
    }
}

const INTERVAL_MIN: Duration = Duration::from_millis(250);
const INTERVAL_MAX: Duration = Duration::from_secs(1);
