//! Reads the state of a cluster's members again and again, and writes it to its column.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_proto::etcdserverpb as etcd;
use tokio::task::{JoinHandle, JoinSet};

use super::column::{Column, DisplayedMajority, DisplayedMember, DisplayedRole};
use super::load::DemoLoad;
use crate::client::{self, Connection};
use crate::client_tls::ClientTls;
use crate::tolerance::VoterCount;

const REQUEST_TIMEOUT: Duration = Duration::from_millis(200);

/// Observes until it is dropped.
pub(super) struct ColumnObserver(JoinHandle<()>);

/// The reply of one member.
struct MemberReply {
    name: String,
    reply: Option<(Connection, etcd::StatusResponse)>,
}

impl ColumnObserver {
    pub(super) fn start(
        column: Arc<Column>,
        load: Arc<DemoLoad>,
        addresses: Vec<(String, String)>,
        interval: Duration,
    ) -> Self {
        Self(tokio::spawn(observe(column, load, addresses, interval)))
    }
}

impl Drop for ColumnObserver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn observe(
    column: Arc<Column>,
    load: Arc<DemoLoad>,
    addresses: Vec<(String, String)>,
    interval: Duration,
) {
    let mut previous = Instant::now();
    loop {
        tokio::time::sleep(interval).await;
        let replies = query_all(&addresses, load.tls()).await;
        let majorities = majorities(&replies).await;
        let (recent, failed) = load.take_recent();
        // The interval includes the time of the queries.
        let since = std::mem::replace(&mut previous, Instant::now()).elapsed();
        column.add_rate(recent.total() as f64 / since.as_secs_f64());
        column.update(|state| {
            state.members = displayed(&replies);
            if let Some(majorities) = majorities {
                state.majorities = majorities;
            }
            state.p99 = recent.per_mille(990);
            state.gap = load.longest_gap();
            state.failed = failed;
        });
        column.print_progress();
    }
}

/// All at the same time: with one query after the other, the last member would look the most
/// advanced.
async fn query_all(addresses: &[(String, String)], tls: &ClientTls) -> Vec<MemberReply> {
    let mut queries = JoinSet::new();
    for (name, address) in addresses.iter().cloned() {
        let tls = tls.clone();
        queries.spawn(async move { MemberReply { name, reply: query(&address, &tls).await } });
    }
    let mut replies = queries.join_all().await;
    replies.sort_by(|one, other| one.name.cmp(&other.name));
    replies
}

async fn query(address: &str, tls: &ClientTls) -> Option<(Connection, etcd::StatusResponse)> {
    let connection = client::open(address, tls, REQUEST_TIMEOUT, REQUEST_TIMEOUT).await.ok()?;
    let status = connection.status().await.ok()?;
    Some((connection, status))
}

/// The majorities as the leader knows them, or as another member does without a leader.
async fn majorities(replies: &[MemberReply]) -> Option<Vec<DisplayedMajority>> {
    let mut known = replies.iter().filter_map(|member| member.reply.as_ref());
    let leader = known.clone().find(|(_, status)| role(status) == DisplayedRole::Leader);
    let (connection, _) = leader.or_else(|| known.next())?;
    if let Ok(status) = connection.membership_status().await {
        let record = status.membership?;
        let name = |id: &u64| {
            let member = record.members.iter().find(|member| member.id == *id);
            member.map(|member| member.name.clone()).unwrap_or_else(|| format!("{id:x}"))
        };
        let majorities = record.majorities.iter().map(|majority| DisplayedMajority {
            voters: sorted(majority.voters.iter().map(name)),
            quorum: majority.quorum as usize,
        });
        return Some(majorities.collect());
    }
    // etcd has one majority, of all voters.
    let members = connection.stale_members().await.ok()?;
    let voters = members.into_iter().filter(|member| !member.is_learner);
    let voters = sorted(voters.map(|member| member.name));
    let count = voters.len() as u64;
    let quorum = VoterCount { voters: count, live: count }.quorum() as usize;
    Some(vec![DisplayedMajority { voters, quorum }])
}

fn sorted(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

fn displayed(replies: &[MemberReply]) -> Vec<DisplayedMember> {
    let statuses = replies.iter().filter_map(|member| member.reply.as_ref());
    let furthest = statuses.map(|(_, status)| status.raft_index).max().unwrap_or(0);
    let member = |member: &MemberReply| match &member.reply {
        None => DisplayedMember { name: member.name.clone(), role: DisplayedRole::Down, behind: 0 },
        Some((_, status)) => DisplayedMember {
            name: member.name.clone(),
            role: role(status),
            behind: furthest.saturating_sub(status.raft_applied_index),
        },
    };
    replies.iter().map(member).collect()
}

fn role(status: &etcd::StatusResponse) -> DisplayedRole {
    let own_id = status.header.as_ref().map(|header| header.member_id);
    if status.is_learner {
        DisplayedRole::Learner
    } else if status.leader == 0 {
        DisplayedRole::NoLeader
    } else if own_id == Some(status.leader) {
        DisplayedRole::Leader
    } else {
        DisplayedRole::Follower
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leader_is_the_one_that_names_itself() {
        let status = |id, leader, is_learner| etcd::StatusResponse {
            header: Some(etcd::ResponseHeader { member_id: id, ..Default::default() }),
            leader,
            is_learner,
            ..Default::default()
        };
        assert_eq!(role(&status(1, 1, false)), DisplayedRole::Leader);
        assert_eq!(role(&status(2, 1, false)), DisplayedRole::Follower);
        assert_eq!(role(&status(2, 0, false)), DisplayedRole::NoLeader);
        assert_eq!(role(&status(2, 1, true)), DisplayedRole::Learner);
    }
}
