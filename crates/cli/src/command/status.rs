//! `quorate status`: each member's role and lag, and what more the cluster bears.

use quorate_proto::etcdserverpb as etcd;
use quorate_proto::quorate::v1 as wire;
use serde_json::json;
use tokio::task::JoinSet;

use crate::arguments::{ClientArguments, StatusArguments, WriteOut};
use crate::client::{self, Connection, connect, leader_of};
use crate::failure::{Failure, said};
use crate::follow;
use crate::print::{self, Table, bytes};
use crate::tolerance::{self, Counted};
use crate::who::hex;
use crate::words::{self, Names};

/// One member, and what it said when it was asked.
struct Asked {
    member: etcd::Member,
    endpoint: String,
    answer: Result<etcd::StatusResponse, String>,
}

pub(crate) async fn run(arguments: StatusArguments) -> Result<(), Failure> {
    let connection = connect(&arguments.client).await?;
    let members = members(&connection).await?;
    let mut asked = ask_all(members, &arguments.client).await;
    // Only Quorate has this; about any other server it is counted from outside.
    let own = follow::status(&leader_of(&connection).await).await.ok();
    let mut names = Names::default();
    names.learn(own.as_ref().and_then(|own| own.membership.as_ref()));
    for one in asked.iter_mut().filter(|one| one.member.name.is_empty()) {
        one.member.name = names.known(one.member.id).unwrap_or_default();
    }
    match arguments.client.write_out {
        WriteOut::Table => show(&asked, own.as_ref(), &names),
        WriteOut::Json => print::json(&as_json(&asked, own.as_ref())),
    }
    let counted = count(&asked);
    let has_quorum = own
        .and_then(|own| own.tolerance)
        .map_or(counted.has_quorum(), |tolerance| tolerance.has_quorum);
    if has_quorum { Ok(()) } else { Err(Failure::failed(tolerance::sentence(false, 0))) }
}

/// The members; those that the asked one knows of while nobody leads. What is down is to be
/// seen then all the more.
async fn members(connection: &Connection) -> Result<Vec<etcd::Member>, Failure> {
    let status = connection.status().await.ok();
    let led = status.as_ref().is_some_and(|status| status.leader != 0);
    let found = if led { connection.members().await.ok() } else { None };
    let mut members = match found {
        Some(members) => members,
        None => connection.members_known().await?,
    };
    // One that has not said yet where clients find it may be the one that answers.
    let answers = status.and_then(|status| status.header).map(|header| header.member_id);
    let silent = |one: &&mut etcd::Member| Some(one.id) == answers && one.client_urls.is_empty();
    if let Some(member) = members.iter_mut().find(silent) {
        member.client_urls.push(connection.endpoint.clone());
    }
    Ok(members)
}

/// All at the same time: a dead member must not hold up the others.
async fn ask_all(members: Vec<etcd::Member>, arguments: &ClientArguments) -> Vec<Asked> {
    let mut asking = JoinSet::new();
    for member in members {
        let arguments = arguments.clone();
        asking.spawn(async move { ask(member, &arguments).await });
    }
    let mut asked = asking.join_all().await;
    asked.sort_by_key(|one| one.member.id);
    asked
}

async fn ask(member: etcd::Member, arguments: &ClientArguments) -> Asked {
    let mut answer = Err("has not said yet where clients find it".to_string());
    let mut endpoint = String::new();
    for url in &member.client_urls {
        endpoint.clone_from(url);
        let opened = client::open(url, arguments.dial_timeout, arguments.command_timeout).await;
        answer = match opened {
            Ok(connection) => connection.status().await.map_err(|status| said(&status)),
            Err(failure) => Err(failure.to_string()),
        };
        if answer.is_ok() {
            break;
        }
    }
    Asked { member, endpoint, answer }
}

fn role(asked: &Asked) -> &'static str {
    match &asked.answer {
        Err(_) => "unreachable",
        Ok(status) if status.leader == asked.member.id => "leader",
        Ok(status) if status.is_learner => "learner",
        Ok(status) if status.leader == 0 => "no leader",
        Ok(_) => "follower",
    }
}

/// Voters that answer and know who leads.
fn count(asked: &[Asked]) -> Counted {
    let voters = asked.iter().filter(|one| !one.member.is_learner);
    let live = |one: &&Asked| one.answer.as_ref().is_ok_and(|status| status.leader != 0);
    Counted { voters: voters.clone().count() as u64, live: voters.filter(live).count() as u64 }
}

/// How many entries each is behind the furthest. The leader knows what a member holds; from
/// outside only what it has applied is seen.
fn lag(one: &Asked, asked: &[Asked], own: Option<&wire::StatusReply>) -> Option<u64> {
    let furthest = asked.iter().filter_map(|one| one.answer.as_ref().ok());
    let furthest = furthest.map(|status| status.raft_index).max()?;
    let peers = own.map_or(&[][..], |own| &own.peers);
    let matched = peers.iter().find(|peer| peer.id == one.member.id).map(|peer| peer.matched);
    let applied = one.answer.as_ref().ok().map(|status| status.raft_applied_index);
    // Both are looked at a moment apart: what is ahead of the other is not behind.
    matched.max(applied).map(|there| furthest.saturating_sub(there))
}

fn show(asked: &[Asked], own: Option<&wire::StatusReply>, names: &Names) {
    let headings = [
        "ID",
        "NAME",
        "ROLE",
        "TERM",
        "COMMITTED",
        "LAG",
        "DB SIZE",
        "VERSION",
        "ENDPOINT",
        "TROUBLE",
    ];
    let mut table = Table::new(&headings);
    for one in asked {
        let status = one.answer.as_ref().ok();
        let known =
            |text: &dyn Fn(&etcd::StatusResponse) -> String| status.map_or(String::new(), text);
        table.row([
            hex(one.member.id),
            one.member.name.clone(),
            role(one).to_string(),
            known(&|status| status.raft_term.to_string()),
            known(&|status| status.raft_index.to_string()),
            lag(one, asked, own).map_or(String::new(), |lag| lag.to_string()),
            known(&|status| bytes(status.db_size.max(0) as u64)),
            known(&|status| status.version.clone()),
            one.endpoint.clone(),
            trouble(one),
        ]);
    }
    print::out(&table.text());
    for text in summary(asked, own, names) {
        print::line(&text);
    }
}

fn trouble(one: &Asked) -> String {
    match &one.answer {
        Ok(status) => status.errors.join("; "),
        Err(why) => why.clone(),
    }
}

fn summary(asked: &[Asked], own: Option<&wire::StatusReply>, names: &Names) -> Vec<String> {
    let Some(own) = own else {
        let counted = count(asked);
        let sentence = tolerance::sentence(counted.has_quorum(), counted.failures());
        return vec![format!("{}: {sentence}", counted.text())];
    };
    let mut lines = match &own.tolerance {
        Some(tolerance) => words::tolerance(names, tolerance),
        None => {
            let counted = count(asked);
            let sentence = tolerance::sentence(counted.has_quorum(), counted.failures());
            vec![format!("{}: {sentence}", counted.text())]
        }
    };
    if let Some(membership) = own.membership.as_ref().filter(|record| record.goal.is_some()) {
        let goal = membership.goal.as_ref();
        let id = words::entry(goal.and_then(|goal| goal.id.as_ref()));
        lines.push(format!("a change is under way (goal {id}): {}", names.membership(membership)));
        lines.extend(follow::lines(names, own));
    }
    lines
}

fn as_json(asked: &[Asked], own: Option<&wire::StatusReply>) -> serde_json::Value {
    let members: Vec<_> = asked
        .iter()
        .map(|one| {
            let status = one.answer.as_ref().ok();
            json!({
                "ID": one.member.id,
                "name": one.member.name,
                "endpoint": one.endpoint,
                "role": role(one),
                "term": status.map(|status| status.raft_term),
                "committed": status.map(|status| status.raft_index),
                "applied": status.map(|status| status.raft_applied_index),
                "lag": lag(one, asked, own),
                "dbSize": status.map(|status| status.db_size),
                "version": status.map(|status| &status.version),
                "trouble": trouble(one),
            })
        })
        .collect();
    let counted = count(asked);
    let told = own.and_then(|own| own.tolerance.as_ref());
    json!({
        "members": members,
        "voters": counted.voters,
        "quorum": counted.quorum(),
        "live": counted.live,
        "hasQuorum": told.map_or(counted.has_quorum(), |told| told.has_quorum),
        "failuresTolerated": told.map_or(counted.failures(), |told| u64::from(told.failures)),
        "settled": own.map(|own| own.settled),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64, learner: bool, answer: Result<(u64, u64, u64), &str>) -> Asked {
        let status = |(leader, index, applied)| etcd::StatusResponse {
            leader,
            raft_index: index,
            raft_applied_index: applied,
            is_learner: learner,
            ..Default::default()
        };
        Asked {
            member: etcd::Member { id, is_learner: learner, ..Default::default() },
            endpoint: String::new(),
            answer: answer.map(status).map_err(str::to_string),
        }
    }

    #[test]
    fn what_is_counted_from_outside() {
        let asked = [
            member(1, false, Ok((1, 90, 90))),
            member(2, false, Ok((1, 90, 70))),
            member(3, false, Err("refused")),
            member(4, true, Ok((1, 80, 80))),
        ];
        assert_eq!(count(&asked), Counted { voters: 3, live: 2 });
        let roles: Vec<_> = asked.iter().map(role).collect();
        assert_eq!(roles, ["leader", "follower", "unreachable", "learner"]);
        let lags: Vec<_> = asked.iter().map(|one| lag(one, &asked, None)).collect();
        assert_eq!(lags, [Some(0), Some(20), None, Some(10)]);
        let lines = summary(&asked, None, &Names::default());
        assert_eq!(
            lines,
            ["3 voters, quorum 2, live 2: no further failure is tolerated right now"]
        );
    }

    #[test]
    fn a_leader_knows_the_lag_of_who_does_not_answer() {
        let asked = [member(1, false, Ok((1, 90, 90))), member(2, false, Err("refused"))];
        let peer = wire::Peer { id: 2, matched: 85, ..Default::default() };
        let own = wire::StatusReply { peers: vec![peer], ..Default::default() };
        assert_eq!(lag(&asked[1], &asked, Some(&own)), Some(5));
    }

    #[test]
    fn who_knows_no_leader_is_not_counted() {
        let asked = [member(1, false, Ok((0, 5, 5)))];
        assert!(!count(&asked).has_quorum());
        assert_eq!(role(&asked[0]), "no leader");
    }
}
