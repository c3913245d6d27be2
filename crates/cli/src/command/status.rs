//! `quorate status`: each member's role and lag, and how many more failures the cluster
//! tolerates.

use quorate_proto::etcdserverpb as etcd;
use quorate_proto::quorate::v1 as wire;
use serde_json::json;
use tokio::task::JoinSet;

use crate::arguments::{ClientArguments, StatusArguments, WriteOut};
use crate::client::{self, Connection, connect, leader_of};
use crate::error::{CliError, status_text};
use crate::goal_wait::progress_lines;
use crate::ids::{hex_id, hex_ids};
use crate::member_lookup::label;
use crate::membership_text::{self, MemberNames};
use crate::print::{self, TextTable, bytes};
use crate::tolerance::{self, VoterCount};

/// One member and its reply to the status request.
struct MemberReport {
    member: etcd::Member,
    endpoint: String,
    reply: Result<etcd::StatusResponse, String>,
    /// The server's own version, in addition to the version of etcd in its reply.
    version: Option<String>,
    /// Where it listens without TLS for other machines.
    plaintext_listeners: Vec<String>,
    unverified_listeners: Vec<String>,
}

pub(crate) async fn run(arguments: StatusArguments) -> Result<(), CliError> {
    let mut connection = connect(&arguments.client).await?;
    let mut reports = query_all(&connection, &arguments.client).await?;
    if let Some(better) = better_connection(&connection, &reports, &arguments.client).await {
        let text = format!(
            "the member at {} knows no leader; this is the status as {} reports it",
            connection.endpoint, better.endpoint
        );
        print::note(arguments.client.write_out, &text);
        connection = better;
        reports = query_all(&connection, &arguments.client).await?;
    }
    // Only Quorate has this call; for other servers the tolerance is computed from the replies.
    let leader = leader_of(&connection).await;
    let leader_status = leader.membership_status().await.ok();
    let mut names = MemberNames::default();
    names.learn(leader_status.as_ref().and_then(|status| status.membership.as_ref()));
    for report in reports.iter_mut().filter(|report| report.member.name.is_empty()) {
        report.member.name = names.known(report.member.id).unwrap_or_default();
    }
    match arguments.client.write_out {
        WriteOut::Table => {
            let table = match arguments.wide {
                true => wide_table(&reports, leader_status.as_ref()),
                false => narrow_table(&reports, leader_status.as_ref()),
            };
            print::out(&table);
            print_summary(&reports, leader_status.as_ref(), &names);
        }
        WriteOut::Json => print::json(&as_json(&reports, leader_status.as_ref(), &names)),
    }
    let counted = count(&reports);
    let has_quorum = leader_status
        .and_then(|status| status.tolerance)
        .map_or(counted.has_quorum(), |tolerance| tolerance.has_quorum);
    if has_quorum {
        return Ok(());
    }
    Err(CliError::failed(format!(
        "{}; {}",
        tolerance::sentence(false, 0),
        quorum_loss_advice(&reports)
    )))
}

/// If the connected member knows no leader, a connection to one that does: the first one may
/// have been removed, or be cut off from the others.
async fn better_connection(
    connection: &Connection,
    reports: &[MemberReport],
    arguments: &ClientArguments,
) -> Option<Connection> {
    if connection.status().await.is_ok_and(|status| status.leader != 0) {
        return None;
    }
    let knows_leader =
        |report: &&MemberReport| report.reply.as_ref().is_ok_and(|status| status.leader != 0);
    let endpoint = &reports.iter().find(knows_leader)?.endpoint;
    client::open_as(endpoint, arguments).await.ok()
}

/// What to do without a quorum: which members have to come back, and the last resort.
fn quorum_loss_advice(reports: &[MemberReport]) -> String {
    let list = |answering: bool| {
        let wanted = reports.iter().filter(|report| report.reply.is_ok() == answering);
        let voters = wanted.filter(|report| !report.member.is_learner);
        let names: Vec<_> = voters.map(|report| label(&report.member)).collect();
        if names.is_empty() { "none".to_string() } else { names.join(", ") }
    };
    format!(
        "voters that answer: {}; voters that do not: {}; start or reconnect them until a majority \
         answers. Only if a majority is lost for good, make a new cluster from one member's disk \
         with 'quorate recover'",
        list(true),
        list(false)
    )
}

/// The members; without a leader, those that the connected member knows, so that the status
/// shows which members are down.
async fn members(connection: &Connection) -> Result<Vec<etcd::Member>, CliError> {
    let status = connection.status().await.ok();
    let has_leader = status.as_ref().is_some_and(|status| status.leader != 0);
    let current = if has_leader { connection.members().await.ok() } else { None };
    let mut members = match current {
        Some(members) => members,
        None => connection.stale_members().await?,
    };
    // The connected member may not have published its client URLs yet.
    let own_id = status.and_then(|status| status.header).map(|header| header.member_id);
    let unpublished =
        |member: &&mut etcd::Member| Some(member.id) == own_id && member.client_urls.is_empty();
    if let Some(member) = members.iter_mut().find(unpublished) {
        member.client_urls.push(connection.endpoint.clone());
    }
    Ok(members)
}

/// All members at the same time, so that an unreachable one does not delay the others.
async fn query_all(
    connection: &Connection,
    arguments: &ClientArguments,
) -> Result<Vec<MemberReport>, CliError> {
    let members = members(connection).await?;
    let header = connection.status().await.ok().and_then(|status| status.header);
    let cluster_id = header.map(|header| header.cluster_id);
    let mut queries = JoinSet::new();
    for member in members {
        let arguments = arguments.clone();
        queries.spawn(async move { query(member, cluster_id, &arguments).await });
    }
    let mut reports = queries.join_all().await;
    reports.sort_by_key(|report| report.member.id);
    Ok(reports)
}

async fn query(
    member: etcd::Member,
    cluster_id: Option<u64>,
    arguments: &ClientArguments,
) -> MemberReport {
    let mut report = MemberReport {
        reply: Err("it has not published its client URLs yet".to_string()),
        endpoint: String::new(),
        version: None,
        plaintext_listeners: Vec::new(),
        unverified_listeners: Vec::new(),
        member,
    };
    for url in &report.member.client_urls {
        report.endpoint.clone_from(url);
        let opened = client::open_as(url, arguments).await;
        let reply = match opened {
            Ok(connection) => {
                let (reply, own) =
                    tokio::join!(connection.status_and_version(), connection.membership_status());
                let own = own.ok().and_then(|reply| reply.member).unwrap_or_default();
                report.plaintext_listeners = own.plaintext_listeners;
                report.unverified_listeners = own.unverified_listeners;
                reply.map_err(|status| status_text(&status))
            }
            Err(error) => Err(error.to_string()),
        };
        match reply {
            Ok((status, version)) => {
                report.reply = check_sender(status, report.member.id, cluster_id);
                report.version = version;
                break;
            }
            Err(error) => report.reply = Err(error),
        }
    }
    report
}

/// A reply counts only if it comes from this member of this cluster: another one may use its
/// address by now.
fn check_sender(
    status: etcd::StatusResponse,
    member_id: u64,
    cluster_id: Option<u64>,
) -> Result<etcd::StatusResponse, String> {
    let Some(header) = &status.header else { return Ok(status) };
    if cluster_id.is_some_and(|id| id != header.cluster_id) {
        return Err(format!("a member of cluster {} answers there", hex_id(header.cluster_id)));
    }
    if header.member_id != member_id {
        return Err(format!("member {} answers there", hex_id(header.member_id)));
    }
    Ok(status)
}

fn role(report: &MemberReport) -> &'static str {
    match &report.reply {
        Err(_) if report.member.client_urls.is_empty() => "unstarted",
        Err(_) => "unreachable",
        Ok(status) if status.leader == report.member.id => "leader",
        Ok(status) if status.is_learner => "learner",
        Ok(status) if status.leader == 0 => "no leader",
        Ok(_) => "follower",
    }
}

/// Voters, and those of them that answered and know a leader.
fn count(reports: &[MemberReport]) -> VoterCount {
    let voters = reports.iter().filter(|report| !report.member.is_learner);
    let live =
        |report: &&MemberReport| report.reply.as_ref().is_ok_and(|status| status.leader != 0);
    VoterCount { voters: voters.clone().count() as u64, live: voters.filter(live).count() as u64 }
}

/// How many entries the member is behind the most advanced one. The leader knows how much of
/// the log a member has; the member's own reply contains only what it has applied.
fn lag(
    report: &MemberReport,
    reports: &[MemberReport],
    leader_status: Option<&wire::StatusReply>,
) -> Option<u64> {
    let furthest = reports.iter().filter_map(|other| other.reply.as_ref().ok());
    let furthest = furthest.map(|status| status.raft_index).max()?;
    let peers = leader_status.map_or(&[][..], |status| &status.peers);
    let matched = peers.iter().find(|peer| peer.id == report.member.id).map(|peer| peer.matched);
    let applied = report.reply.as_ref().ok().map(|status| status.raft_applied_index);
    // The two numbers were read at slightly different times: the larger one is the newer one.
    matched.max(applied).map(|index| furthest.saturating_sub(index))
}

/// Fits into 80 columns with names of up to 9 characters. Errors are below it.
fn narrow_table(reports: &[MemberReport], leader_status: Option<&wire::StatusReply>) -> String {
    let headings = ["ID", "NAME", "ROLE", "LAG", "DB SIZE", "VERSION"];
    let mut table = TextTable::new(&headings);
    for report in reports {
        let status = report.reply.as_ref().ok();
        let cell =
            |text: &dyn Fn(&etcd::StatusResponse) -> String| status.map_or(String::new(), text);
        let etcd_version = cell(&|status| format!("etcd {}", status.version));
        table.row([
            hex_id(report.member.id),
            report.member.name.clone(),
            role(report).to_string(),
            lag(report, reports, leader_status).map_or(String::new(), |lag| lag.to_string()),
            cell(&|status| bytes(status.db_size.max(0) as u64)),
            report.version.clone().unwrap_or(etcd_version),
        ]);
    }
    let with_errors = reports.iter().filter(|report| !errors(report).is_empty());
    let lines =
        with_errors.map(|report| format!("{}: {}\n", label(&report.member), errors(report)));
    table.text() + &lines.collect::<String>()
}

fn wide_table(reports: &[MemberReport], leader_status: Option<&wire::StatusReply>) -> String {
    let headings = [
        "ID",
        "NAME",
        "ROLE",
        "TERM",
        "COMMITTED",
        "LAG",
        "DB SIZE",
        "VERSION",
        "ETCD",
        "STORAGE VERSION",
        "ENDPOINT",
        "ERRORS",
    ];
    let mut table = TextTable::new(&headings);
    for report in reports {
        let status = report.reply.as_ref().ok();
        let cell =
            |text: &dyn Fn(&etcd::StatusResponse) -> String| status.map_or(String::new(), text);
        table.row([
            hex_id(report.member.id),
            report.member.name.clone(),
            role(report).to_string(),
            cell(&|status| status.raft_term.to_string()),
            cell(&|status| status.raft_index.to_string()),
            lag(report, reports, leader_status).map_or(String::new(), |lag| lag.to_string()),
            cell(&|status| bytes(status.db_size.max(0) as u64)),
            report.version.clone().unwrap_or_default(),
            cell(&|status| status.version.clone()),
            cell(&|status| status.storage_version.clone()),
            report.endpoint.clone(),
            errors(report),
        ]);
    }
    table.text()
}

/// What the table means: the tolerance, the change in progress, and open listeners.
fn print_summary(
    reports: &[MemberReport],
    leader_status: Option<&wire::StatusReply>,
    names: &MemberNames,
) {
    for text in summary(reports, leader_status, names) {
        print::line(&text);
    }
    for report in reports.iter().filter(|report| !report.plaintext_listeners.is_empty()) {
        let (member, urls) = (label(&report.member), report.plaintext_listeners.join(", "));
        print::line(&format!("NO TLS: {member} is open to other machines: {urls}"));
    }
    for report in reports.iter().filter(|report| !report.unverified_listeners.is_empty()) {
        let (member, urls) = (label(&report.member), report.unverified_listeners.join(", "));
        print::line(&format!("NO CLIENT CERTIFICATES: {member} verifies nobody: {urls}"));
    }
}

fn errors(report: &MemberReport) -> String {
    match &report.reply {
        Ok(status) => status.errors.join("; "),
        Err(error) => error.clone(),
    }
}

fn summary(
    reports: &[MemberReport],
    leader_status: Option<&wire::StatusReply>,
    names: &MemberNames,
) -> Vec<String> {
    let mut lines = match leader_status.and_then(|status| status.tolerance.as_ref()) {
        Some(tolerance) => membership_text::tolerance(names, tolerance),
        None => {
            let counted = count(reports);
            let sentence = tolerance::sentence(counted.has_quorum(), counted.failures());
            vec![format!("{}: {sentence}", counted.text())]
        }
    };
    let Some(status) = leader_status else { return lines };
    lines.extend(status.member.as_ref().and_then(version_line));
    let changing = status.membership.as_ref().filter(|record| record.goal.is_some());
    if let Some(membership) = changing {
        let goal = membership.goal.clone().unwrap_or_default();
        let id = membership_text::entry_id(goal.id.as_ref());
        let (members, target) = (names.membership(membership), names.goal_target(&goal));
        let cancels = if goal.cancels { ", which cancels an earlier one" } else { "" };
        lines.push(format!(
            "a membership change is in progress (goal {id}{cancels}): from {members} to {target}"
        ));
        lines.extend(progress_lines(names, status));
    }
    lines
}

/// The cluster version; none from a server that does not know of it.
fn version_line(leader: &wire::MemberStatus) -> Option<String> {
    let wire::MemberStatus { cluster_version, supported_version_max, .. } = *leader;
    let more = if leader.downgrading {
        ", a downgrade is in progress".to_owned()
    } else if supported_version_max > cluster_version {
        format!(
            ", the leader supports {supported_version_max}: it rises when all members support more"
        )
    } else {
        String::new()
    };
    (cluster_version > 0).then(|| format!("cluster version {cluster_version}{more}"))
}

fn as_json(
    reports: &[MemberReport],
    leader_status: Option<&wire::StatusReply>,
    names: &MemberNames,
) -> serde_json::Value {
    let members: Vec<_> = reports
        .iter()
        .map(|report| {
            let status = report.reply.as_ref().ok();
            json!({
                "ID": hex_id(report.member.id),
                "name": report.member.name,
                "endpoint": report.endpoint,
                "role": role(report),
                "term": status.map(|status| status.raft_term),
                "committed": status.map(|status| status.raft_index),
                "applied": status.map(|status| status.raft_applied_index),
                "lag": lag(report, reports, leader_status),
                "dbSize": status.map(|status| status.db_size),
                "dbSizeInUse": status.map(|status| status.db_size_in_use),
                "version": report.version,
                "etcdVersion": status.map(|status| &status.version),
                "storageVersion": status.map(|status| &status.storage_version),
                "plaintextListeners": report.plaintext_listeners,
                "unverifiedListeners": report.unverified_listeners,
                "errors": errors(report),
            })
        })
        .collect();
    let counted = count(reports);
    let reported = leader_status.and_then(|status| status.tolerance.as_ref());
    let leader = leader_status.and_then(|status| status.member.as_ref());
    json!({
        "members": members,
        "voters": counted.voters,
        "quorum": counted.quorum(),
        "live": counted.live,
        "hasQuorum": reported.map_or(counted.has_quorum(), |tolerance| tolerance.has_quorum),
        "failuresTolerated":
            reported.map_or(counted.failures(), |tolerance| u64::from(tolerance.failures)),
        "settled": leader_status.map(|status| status.settled),
        "clusterVersion": leader.map(|member| member.cluster_version),
        "downgrading": leader.map(|member| member.downgrading),
        "membership": leader_status
            .and_then(|status| status.membership.as_ref())
            .map(|record| membership_text::entry_id(record.id.as_ref())),
        "goal": leader_status.and_then(|status| goal_json(status, names)),
    })
}

fn goal_json(status: &wire::StatusReply, names: &MemberNames) -> Option<serde_json::Value> {
    let goal = status.membership.as_ref()?.goal.as_ref()?;
    let progress = status.progress.as_ref();
    Some(json!({
        "ID": membership_text::entry_id(goal.id.as_ref()),
        "voters": hex_ids(&goal.voters),
        "learners": hex_ids(&goal.learners),
        "fromVoters": hex_ids(&goal.from_voters),
        "fromLearners": hex_ids(&goal.from_learners),
        "cancels": goal.cancels,
        "step": progress.and_then(|progress| progress.step.as_ref()).map(|step| names.step(step)),
        "waitingFor": progress.map(|progress| hex_ids(&progress.awaited)),
        "blocked": progress.and_then(|progress| progress.held_up.as_ref()).map(|why| &why.text),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64, learner: bool, reply: Result<(u64, u64, u64), &str>) -> MemberReport {
        let status = |(leader, index, applied)| etcd::StatusResponse {
            leader,
            raft_index: index,
            raft_applied_index: applied,
            is_learner: learner,
            ..Default::default()
        };
        MemberReport {
            member: etcd::Member {
                id,
                is_learner: learner,
                client_urls: vec!["http://h:1".to_string()],
                ..Default::default()
            },
            endpoint: String::new(),
            reply: reply.map(status).map_err(str::to_string),
            version: None,
            plaintext_listeners: Vec::new(),
            unverified_listeners: Vec::new(),
        }
    }

    #[test]
    fn tolerance_is_computed_from_the_replies() {
        let reports = [
            member(1, false, Ok((1, 90, 90))),
            member(2, false, Ok((1, 90, 70))),
            member(3, false, Err("refused")),
            member(4, true, Ok((1, 80, 80))),
        ];
        assert_eq!(count(&reports), VoterCount { voters: 3, live: 2 });
        let roles: Vec<_> = reports.iter().map(role).collect();
        assert_eq!(roles, ["leader", "follower", "unreachable", "learner"]);
        let lags: Vec<_> = reports.iter().map(|report| lag(report, &reports, None)).collect();
        assert_eq!(lags, [Some(0), Some(20), None, Some(10)]);
        let lines = summary(&reports, None, &MemberNames::default());
        assert_eq!(
            lines,
            ["3 voters, quorum 2, live 2: no further failure is tolerated right now"]
        );
    }

    #[test]
    fn the_table_fits_into_80_columns() {
        let mut reports = [
            member(u64::MAX, false, Ok((u64::MAX, 9_999_999, 9_999_999))),
            member(2, false, Ok((u64::MAX, 9_999_999, 0))),
            member(3, false, Err("cannot connect")),
        ];
        for report in &mut reports {
            report.member.name = "infra-one".to_string();
            report.version = Some("10.10.10".to_string());
        }
        let table = narrow_table(&reports, None);
        let rows = table.lines().filter(|line| line.starts_with(['+', '|']));
        for line in rows {
            assert!(line.chars().count() <= 80, "{table}");
        }
        assert!(table.contains("infra-one (0000000000000003): cannot connect"), "{table}");
    }

    #[test]
    fn the_leader_knows_the_lag_of_an_unreachable_member() {
        let reports = [member(1, false, Ok((1, 90, 90))), member(2, false, Err("refused"))];
        let peer = wire::Peer { id: 2, matched: 85, ..Default::default() };
        let leader_status = wire::StatusReply { peers: vec![peer], ..Default::default() };
        assert_eq!(lag(&reports[1], &reports, Some(&leader_status)), Some(5));
    }

    #[test]
    fn a_reply_counts_only_from_the_same_member_of_the_same_cluster() {
        let reply = |cluster_id, member_id| etcd::StatusResponse {
            header: Some(etcd::ResponseHeader { cluster_id, member_id, ..Default::default() }),
            ..Default::default()
        };
        assert!(check_sender(reply(1, 2), 2, Some(1)).is_ok());
        assert!(check_sender(reply(1, 2), 2, None).is_ok());
        let other = check_sender(reply(1, 3), 2, Some(1)).unwrap_err();
        assert_eq!(other, "member 0000000000000003 answers there");
        let other = check_sender(reply(9, 2), 2, Some(1)).unwrap_err();
        assert_eq!(other, "a member of cluster 0000000000000009 answers there");
    }

    #[test]
    fn the_loss_of_a_quorum_names_the_members_and_the_last_resort() {
        let reports = [member(1, false, Ok((0, 5, 5))), member(2, false, Err("refused"))];
        let text = quorum_loss_advice(&reports);
        assert!(text.contains("voters that answer: 0000000000000001 "), "{text}");
        assert!(text.contains("voters that do not: 0000000000000002 "), "{text}");
        assert!(text.contains("'quorate recover'"), "{text}");
    }

    #[test]
    fn a_member_without_leader_is_not_live() {
        let reports = [member(1, false, Ok((0, 5, 5)))];
        assert!(!count(&reports).has_quorum());
        assert_eq!(role(&reports[0]), "no leader");
    }
}
