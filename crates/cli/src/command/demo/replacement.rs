//! Replaces one of the three members with the fourth.
//!
//! With Quorate's membership service it is one request. With a server that has only etcd's
//! calls, the demo makes each step itself.

use std::time::{Duration, Instant};

use quorate_proto::etcdserverpb as etcd;
use quorate_proto::quorate::v1 as wire;
use quorate_proto::quorate::v1::membership_event::Event;
use tonic::{Code, Status};

use super::cluster::DemoCluster;
use super::column::Column;
use crate::client::Connection;
use crate::command::member::replacement;
use crate::error::{CliError, status_text};
use crate::goal_wait::GoalWait;
use crate::member_lookup::{find, new_member};
use crate::membership_text::MemberNames;

const NEW: usize = 4;
const REPLACE_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The number of the leader, or of a follower.
pub(super) async fn choose(cluster: &DemoCluster, leader: bool) -> Result<usize, CliError> {
    let connection = cluster.connect(1).await?;
    let status = connection.status().await.map_err(|status| {
        CliError::from_status("cannot find the leader", &connection.endpoint, &status)
    })?;
    let list = connection.members().await?;
    for number in 1..=3 {
        let name = format!("m{number}");
        if (find(&list, &name)?.id == status.leader) == leader {
            return Ok(number);
        }
    }
    Err(CliError::failed("the cluster has no leader"))
}

pub(super) async fn run(
    cluster: &mut DemoCluster,
    column: &Column,
    old: usize,
    is_leader: bool,
) -> Result<(), CliError> {
    // Not through the member to remove: it may stop before it can report the end.
    let connection = cluster.connect(if old == 1 { 2 } else { 1 }).await?;
    let list = connection.members().await?;
    let old_id = find(&list, &format!("m{old}"))?.id;
    let started = Instant::now();
    let role = if is_leader { "the leader " } else { "" };
    column.log(&format!("replacing {role}m{old} with m{NEW}"));
    let new = new_member(&format!("m{NEW}={}", cluster.peer_url(NEW)))?;
    let request = wire::SetGoalRequest {
        target: Some(replacement(&list, old_id, new)),
        wait: false,
        expected: None,
    };
    let end = match connection.membership().set_goal(connection.request(request)).await {
        Ok(reply) => {
            column.operator_step(&format!("quorate member replace m{old} m{NEW}=..."));
            let goal = reply.into_inner().goal_id.unwrap_or_default();
            column.operator_step(&format!("start m{NEW}"));
            start_new_member(cluster, &connection).await?;
            wait_for_goal(cluster, column, &connection, goal).await?;
            "settled"
        }
        Err(status) if status.code() == Code::Unimplemented => {
            replace_with_etcd_calls(cluster, column, &connection, (old, old_id)).await?;
            "done"
        }
        Err(status) => {
            let context = "cannot replace the member";
            return Err(CliError::from_status(context, &connection.endpoint, &status));
        }
    };
    let took = started.elapsed().as_secs_f64();
    column.log(&format!("m{NEW} has replaced m{old}: {end} after {took:.1} s"));
    Ok(())
}

/// Starts the new member once it is in the member list, in which it looks for itself.
async fn start_new_member(
    cluster: &mut DemoCluster,
    connection: &Connection,
) -> Result<(), CliError> {
    let url = cluster.peer_url(NEW);
    let started = Instant::now();
    loop {
        let list = connection.members().await?;
        if list.iter().any(|member| member.peer_urls.contains(&url)) {
            return cluster.start_joining(NEW, &initial_cluster(&list, &url));
        }
        if started.elapsed() > REPLACE_TIMEOUT {
            return Err(CliError::failed(format!("timed out: {url} is not in the member list")));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// `--initial-cluster` of the new member, whose name is not in the list yet.
fn initial_cluster(list: &[etcd::Member], new_url: &str) -> String {
    let new_name = format!("m{NEW}");
    let pair = |member: &etcd::Member| {
        let is_new = member.peer_urls.iter().any(|url| url == new_url);
        let name = if is_new { &new_name } else { &member.name };
        member.peer_urls.iter().map(|url| format!("{name}={url}")).collect::<Vec<_>>().join(",")
    };
    list.iter().map(pair).collect::<Vec<_>>().join(",")
}

async fn wait_for_goal(
    cluster: &mut DemoCluster,
    column: &Column,
    connection: &Connection,
    goal: wire::EntryId,
) -> Result<(), CliError> {
    let wait = GoalWait { timeout: REPLACE_TIMEOUT, progress: None };
    let mut ended = std::pin::pin!(wait.run(connection, goal));
    let mut printing = std::pin::pin!(print_memberships(column, connection));
    loop {
        tokio::select! {
            biased;
            failed = &mut printing => failed?,
            ended = &mut ended => return ended.map(|_| ()),
            () = tokio::time::sleep(POLL_INTERVAL) => cluster.check_running(NEW)?,
        }
    }
}

/// Prints the active membership each time it changes. Ends only with an error.
async fn print_memberships(column: &Column, connection: &Connection) -> Result<(), CliError> {
    let failed = |status| {
        CliError::from_status("cannot watch the membership", &connection.endpoint, &status)
    };
    let stream = connection.membership().watch(wire::WatchRequest {}).await.map_err(failed)?;
    let mut stream = stream.into_inner();
    let mut names = MemberNames::default();
    while let Some(reply) = stream.message().await.map_err(failed)? {
        match reply.event.and_then(|event| event.event) {
            Some(Event::Current(now)) => names.learn(now.membership.as_ref()),
            Some(Event::Active(record)) => {
                names.learn(Some(&record));
                column.log(&format!("  active membership: {}", names.membership(&record)));
            }
            _ => {}
        }
    }
    std::future::pending().await
}

async fn replace_with_etcd_calls(
    cluster: &mut DemoCluster,
    column: &Column,
    connection: &Connection,
    (old, old_id): (usize, u64),
) -> Result<(), CliError> {
    let add = etcd::MemberAddRequest { peer_urls: vec![cluster.peer_url(NEW)], is_learner: true };
    let added = until_ready("cannot add the member", async || {
        connection.cluster().member_add(connection.request(add.clone())).await
    });
    let (added, tries) = added.await?;
    let new_id = added.into_inner().member.map_or(0, |member| member.id);
    let step = format!("etcdctl member add m{NEW} --learner --peer-urls ...");
    column.operator_step(&with_tries(step, tries));
    column.log(&format!("  m{NEW} is added as a learner"));
    column.operator_step(&format!("start m{NEW} with the printed variables"));
    start_new_member(cluster, connection).await?;
    let promote = etcd::MemberPromoteRequest { id: new_id };
    let promoted = until_ready("cannot promote the member", async || {
        connection.cluster().member_promote(connection.request(promote)).await
    });
    let (_, tries) = promoted.await?;
    let step = format!("etcdctl member promote {new_id:x}");
    column.operator_step(&with_tries(step, tries));
    column.log(&format!("  m{NEW} has caught up and is a voter"));
    let remove = etcd::MemberRemoveRequest { id: old_id };
    let removed = until_ready("cannot remove the member", async || {
        connection.cluster().member_remove(connection.request(remove)).await
    });
    let (_, tries) = removed.await?;
    let step = format!("etcdctl member remove {old_id:x}");
    column.operator_step(&with_tries(step, tries));
    column.log(&format!("  m{old} is removed"));
    Ok(())
}

/// The server refused the call until its condition held, so the operator has to repeat it.
fn with_tries(step: String, tries: u32) -> String {
    if tries > 1 { format!("{step}, repeated until accepted") } else { step }
}

/// Repeats a call that etcd refuses until its condition holds: members must have been connected
/// for some seconds, and a learner must be in sync. Quorate's servers wait by themselves.
/// Returns how many calls it took.
async fn until_ready<T>(
    context: &str,
    mut call: impl AsyncFnMut() -> Result<T, Status>,
) -> Result<(T, u32), CliError> {
    let started = Instant::now();
    let mut calls = 0;
    loop {
        calls += 1;
        match call().await {
            Ok(reply) => return Ok((reply, calls)),
            Err(status) if is_not_ready(&status) && started.elapsed() < REPLACE_TIMEOUT => {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            Err(status) => {
                return Err(CliError::failed(format!("{context}: {}", status_text(&status))));
            }
        }
    }
}

/// etcd's refusals that end by themselves.
fn is_not_ready(status: &Status) -> bool {
    let text = status.message();
    text.contains("unhealthy cluster") || text.contains("in sync with leader")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_member_has_a_name_before_it_has_started() {
        let member = |name: &str, url: &str| etcd::Member {
            name: name.to_string(),
            peer_urls: vec![url.to_string()],
            ..Default::default()
        };
        let list = [member("m1", "http://h:1"), member("", "http://h:4")];
        assert_eq!(initial_cluster(&list, "http://h:4"), "m1=http://h:1,m4=http://h:4");
    }
}
