//! `quorate member list`.

use quorate_proto::etcdserverpb as etcd;
use quorate_proto::quorate::v1 as wire;
use serde_json::json;

use crate::arguments::{ClientArguments, WriteOut};
use crate::client::{Connection, connect};
use crate::error::CliError;
use crate::ids::hex_id;
use crate::membership_text;
use crate::print::{self, TextTable};

pub(crate) async fn run(client: &ClientArguments) -> Result<(), CliError> {
    let connection = connect(client).await?;
    print_members(&connection, client.write_out).await
}

/// Prints the present members.
pub(super) async fn print_members(
    connection: &Connection,
    write_out: WriteOut,
) -> Result<(), CliError> {
    let list = connection.member_list().await?;
    // Quorate's own membership knows joint memberships and goals; etcd does not have it.
    let record = connection.membership_status().await.ok().and_then(|status| status.membership);
    match write_out {
        WriteOut::Table => print::out(&table(&list.members, record.as_ref())),
        WriteOut::Json => {
            print::json(&as_json(list.header.as_ref(), &list.members, record.as_ref()));
        }
    }
    Ok(())
}

fn table(members: &[etcd::Member], record: Option<&wire::MembershipRecord>) -> String {
    let mut table =
        TextTable::new(&["ID", "STATUS", "NAME", "PEER ADDRS", "CLIENT ADDRS", "VOTING ROLE"]);
    for member in members {
        table.row([
            hex_id(member.id),
            started(member).to_string(),
            name(member, record),
            member.peer_urls.join(","),
            member.client_urls.join(","),
            voting_role(member, record).to_string(),
        ]);
    }
    table.text()
}

/// The name of the member; if it has not started, the name that it is expected to have.
fn name(member: &etcd::Member, record: Option<&wire::MembershipRecord>) -> String {
    let known = known_member(member, record);
    let expected = known.filter(|_| member.name.is_empty()).map(|known| known.name.clone());
    expected.unwrap_or_else(|| member.name.clone())
}

fn known_member<'a>(
    member: &etcd::Member,
    record: Option<&'a wire::MembershipRecord>,
) -> Option<&'a wire::Member> {
    record?.members.iter().find(|known| known.id == member.id)
}

fn started(member: &etcd::Member) -> &'static str {
    if member.client_urls.is_empty() { "unstarted" } else { "started" }
}

fn voting_role(member: &etcd::Member, record: Option<&wire::MembershipRecord>) -> &'static str {
    match known_member(member, record).map(membership_text::voting_role) {
        Some(voting_role) if !voting_role.is_empty() => voting_role,
        _ if member.is_learner => "learner",
        _ => "voter",
    }
}

/// As etcdctl prints it, with two more fields: the id in hex and the voting role.
pub(super) fn as_json(
    header: Option<&etcd::ResponseHeader>,
    members: &[etcd::Member],
    record: Option<&wire::MembershipRecord>,
) -> serde_json::Value {
    let members: Vec<_> = members
        .iter()
        .map(|member| {
            json!({
                "ID": member.id,
                "hexID": hex_id(member.id),
                "name": name(member, record),
                "peerURLs": member.peer_urls,
                "clientURLs": member.client_urls,
                "isLearner": member.is_learner,
                "votingRole": voting_role(member, record),
            })
        })
        .collect();
    let header = header.map(|header| {
        json!({
            "cluster_id": header.cluster_id,
            "member_id": header.member_id,
            "raft_term": header.raft_term,
        })
    });
    json!({ "header": header, "members": members })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members() -> Vec<etcd::Member> {
        vec![
            etcd::Member {
                id: 0xa1,
                name: "a".to_string(),
                peer_urls: vec!["http://h:1".to_string()],
                client_urls: vec!["http://h:2".to_string()],
                is_learner: false,
            },
            etcd::Member { id: 0xb2, is_learner: true, ..Default::default() },
        ]
    }

    #[test]
    fn the_table_resembles_that_of_etcdctl() {
        let expected = "\
+------------------+-----------+------+------------+--------------+-------------+
|        ID        |  STATUS   | NAME | PEER ADDRS | CLIENT ADDRS | VOTING ROLE |
+------------------+-----------+------+------------+--------------+-------------+
| 00000000000000a1 | started   | a    | http://h:1 | http://h:2   | voter       |
| 00000000000000b2 | unstarted |      |            |              | learner     |
+------------------+-----------+------+------------+--------------+-------------+
";
        assert_eq!(table(&members(), None), expected);
    }

    #[test]
    fn json_contains_the_role_in_a_joint_membership() {
        let leaving = wire::Member {
            id: 0xa1,
            voting_role: wire::VotingRole::OutgoingVoter.into(),
            ..Default::default()
        };
        let joining = wire::Member {
            id: 0xb2,
            name: "b".to_string(),
            voting_role: wire::VotingRole::Learner.into(),
            ..Default::default()
        };
        let record =
            wire::MembershipRecord { members: vec![leaving, joining], ..Default::default() };
        let json = as_json(None, &members(), Some(&record));
        assert_eq!(json["members"][0]["votingRole"], "outgoing voter");
        assert_eq!(json["members"][1]["votingRole"], "learner");
        assert_eq!(json["members"][1]["ID"], 0xb2);
        assert_eq!(
            json["members"][1]["name"], "b",
            "the expected name of a member that has not started"
        );
    }
}
