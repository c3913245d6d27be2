//! The status of a member and, from the leader, of the cluster.

use std::time::Duration;

use quorate::NodeStatus;
use quorate::membership::{GoalStep, PlanContext};
use quorate_core::status::{AwaitedMember, AwaitedReason, GoalStatus};
use quorate_proto::quorate::v1;

use super::convert::{entry, ids, log, peer, record, role, step, tolerance, view};
use super::refusal::refusal;
use crate::context::ServiceContext;
use crate::status::ServiceError;
use crate::url::Url;

pub(crate) async fn status_reply(
    context: &ServiceContext,
) -> Result<v1::StatusReply, ServiceError> {
    let node = &context.node;
    let tick = context.limits.heartbeat_interval;
    let status = node.status().await.map_err(ServiceError::Request)?;
    let raft = &status.raft;
    // Only a leader knows the state of the others. The status does not wait for one.
    let leader_view = tokio::time::timeout(VIEW_TIMEOUT, node.view()).await;
    let leader_view = leader_view.ok().and_then(Result::ok);
    let leader_view = leader_view.filter(|_| node.leader().is_some());
    let tolerance = |view: &PlanContext| tolerance(&raft.membership, &view.caught_up);
    Ok(v1::StatusReply {
        header: context.membership_header(),
        membership: Some(record(&raft.membership)),
        newest_id: Some(entry(raft.newest_membership_id)),
        settled_index: raft.settled,
        settled: raft.settled >= raft.membership_id.index,
        tolerance: leader_view.as_ref().map(tolerance),
        view: leader_view.as_ref().map(view),
        progress: raft.goal.as_ref().map(|goal| progress(goal, tick)),
        peers: raft.peers.iter().map(peer).collect(),
        member: Some(own_status(context, &status)),
    })
}

fn not_ready(awaited: &AwaitedMember, tick: Duration) -> v1::goal_progress::NotReady {
    let seconds = |ticks: u64| tick.as_secs_f64() * ticks as f64;
    let text = match awaited.reason {
        AwaitedReason::Silent { ticks } => format!("no reply for {:.1} s", seconds(ticks)),
        AwaitedReason::NoProgress { ticks, entries } => {
            let seconds = seconds(ticks);
            format!("its log has not grown for {seconds:.1} s, {entries} entries behind")
        }
        reason => reason.to_string(),
    };
    let (member_id, reason) = (awaited.id.0, awaited.reason.name().to_owned());
    v1::goal_progress::NotReady { member_id, text, reason }
}

fn progress(goal: &GoalStatus, tick: Duration) -> v1::GoalProgress {
    let awaited = match &goal.step {
        GoalStep::CatchUp(set) | GoalStep::HandOver(set) => ids(set),
        _ => Vec::new(),
    };
    let tick_millis = u64::try_from(tick.as_millis()).unwrap_or(u64::MAX);
    let behind = goal.behind.iter().map(|(id, entries, rounds)| v1::goal_progress::Behind {
        member_id: id.0,
        entries: *entries,
        rounds: *rounds,
    });
    v1::GoalProgress {
        step: Some(step(&goal.step)),
        since_millis: goal.since_ticks.saturating_mul(tick_millis),
        awaited,
        held_up: goal.held_up.as_ref().map(refusal),
        behind: behind.collect(),
        not_ready: goal.awaited.iter().map(|awaited| not_ready(awaited, tick)).collect(),
    }
}

/// The status of the member that replies, as its node knows it.
fn own_status(context: &ServiceContext, status: &NodeStatus) -> v1::MemberStatus {
    let plaintext = context.plaintext_listeners.iter();
    let shown = |(kind, url): &(&str, Url)| format!("{kind} {url}");
    let raft = &status.raft;
    let count = |count: usize| count as u64;
    let votes = raft
        .votes
        .iter()
        .map(|(id, granted)| v1::member_status::Vote { member_id: id.0, granted: *granted });
    let identity_rejected =
        status.identity_rejected.as_ref().map(|(by, known)| v1::member_status::IdentityRejected {
            by: by.0,
            incarnation: known.incarnation,
            joined_at: known.joined_at,
        });
    v1::MemberStatus {
        id: raft.id.0,
        role: role(raft.role).into(),
        term: raft.term,
        vote: raft.vote.map_or(0, |id| id.0),
        log: Some(log(&raft.log)),
        transfer_to: raft.transfer.map_or(0, |id| id.0),
        votes: votes.collect(),
        reads_waiting: count(raft.reads_waiting),
        open_requests: count(status.open_requests),
        saves_waiting: count(status.saves_waiting),
        incarnation: status.incarnation,
        boots: status.boots,
        identity_rejected,
        cluster_version: status.cluster_version.version,
        downgrading: status.cluster_version.downgrading,
        supported_version_min: status.supported_versions.min,
        supported_version_max: status.supported_versions.max,
        storage_version: status.storage_version,
        plaintext_listeners: plaintext.map(shown).collect(),
        unverified_listeners: context.unverified_listeners().map(shown).collect(),
    }
}

const VIEW_TIMEOUT: Duration = Duration::from_secs(1);
