//! The page `/debug/vars`, with the names of etcd's: the command line, memory, the limit of open
//! files, and the state of Raft.

use axum::extract::State;
use axum::http::{Extensions, header};
use axum::response::{IntoResponse, Response};
use quorate::{MemberId, RoleKind};
use serde_json::{Map, Value, json};

use crate::access::ClientAction;
use crate::context::ServiceContext;
use crate::http::HttpState;
use crate::metrics::{open_files_max, resident_bytes};

pub(crate) async fn debug_vars(State(state): State<HttpState>, extensions: Extensions) -> Response {
    if let Some(denied) = state.denied(&extensions, &ClientAction::Metrics) {
        return denied;
    }
    let arguments: Vec<String> =
        std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
    // Go's names. This program has no collected heap: both are the resident memory.
    let resident = resident_bytes().unwrap_or(0);
    let variables = json!({
        "cmdline": arguments,
        "file_descriptor_limit": open_files_max().unwrap_or(0),
        "memstats": { "Alloc": resident, "Sys": resident },
        "raft.status": raft_status(&state.context).await,
    });
    let kind = "application/json; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], format!("{variables:#}\n")).into_response()
}

/// As etcd prints it: ids in hexadecimal without leading zeros.
async fn raft_status(context: &ServiceContext) -> Value {
    let Ok(status) = context.node.status().await else { return Value::Null };
    let raft = status.raft;
    let id = |member: Option<MemberId>| format!("{:x}", member.map_or(0, |member| member.0));
    let progress: Map<String, Value> = raft
        .peers
        .iter()
        .map(|peer| {
            let state = format!("State{:?}", peer.flow);
            let state = state.split([' ', '(', '{']).next().unwrap_or_default().to_owned();
            let shown = json!({ "match": peer.matched, "next": peer.next, "state": state });
            (id(Some(peer.id)), shown)
        })
        .collect();
    let role = match raft.role {
        RoleKind::Follower => "StateFollower",
        RoleKind::PreCandidate => "StatePreCandidate",
        RoleKind::Candidate => "StateCandidate",
        RoleKind::Leader => "StateLeader",
    };
    json!({
        "id": id(Some(raft.id)),
        "term": raft.term,
        "vote": id(raft.vote),
        "commit": raft.log.commit,
        "lead": id(raft.leader),
        "raftState": role,
        "applied": raft.log.applied,
        "progress": progress,
        "leadtransferee": id(raft.transfer),
    })
}
