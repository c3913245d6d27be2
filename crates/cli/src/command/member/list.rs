//! `quorate member list`.

use quorate_proto::etcdserverpb as etcd;
use quorate_proto::quorate::v1 as wire;
use serde_json::json;

use crate::arguments::{ClientArguments, WriteOut};
use crate::client::{Connection, connect};
use crate::failure::Failure;
use crate::follow;
use crate::print::{self, Table};
use crate::who::hex;
use crate::words;

pub(crate) async fn run(client: &ClientArguments) -> Result<(), Failure> {
    let connection = connect(client).await?;
    show_now(&connection, client.write_out).await
}

/// The members as they are now.
pub(super) async fn show_now(connection: &Connection, write_out: WriteOut) -> Result<(), Failure> {
    let list = connection.member_list().await?;
    // Joints and goals, where the server knows of such things.
    let own = follow::status(connection).await.ok().and_then(|own| own.membership);
    match write_out {
        WriteOut::Table => print::out(&table(&list.members, own.as_ref())),
        WriteOut::Json => {
            print::json(&as_json(list.header.as_ref(), &list.members, own.as_ref()));
        }
    }
    Ok(())
}

fn table(members: &[etcd::Member], own: Option<&wire::MembershipRecord>) -> String {
    let mut table =
        Table::new(&["ID", "STATUS", "NAME", "PEER ADDRS", "CLIENT ADDRS", "COUNTS AS"]);
    for member in members {
        table.row([
            hex(member.id),
            started(member).to_string(),
            name(member, own),
            member.peer_urls.join(","),
            member.client_urls.join(","),
            counts_as(member, own).to_string(),
        ]);
    }
    table.text()
}

/// One that has not started has none yet, or one that it is expected to have.
fn name(member: &etcd::Member, own: Option<&wire::MembershipRecord>) -> String {
    let known = own.and_then(|own| own.members.iter().find(|one| one.id == member.id));
    let expected = known.filter(|_| member.name.is_empty()).map(|known| known.name.clone());
    expected.unwrap_or_else(|| member.name.clone())
}

fn started(member: &etcd::Member) -> &'static str {
    if member.client_urls.is_empty() { "unstarted" } else { "started" }
}

fn counts_as(member: &etcd::Member, own: Option<&wire::MembershipRecord>) -> &'static str {
    let own = own.and_then(|own| own.members.iter().find(|one| one.id == member.id));
    match own.map(words::standing) {
        Some(standing) if !standing.is_empty() => standing,
        _ if member.is_learner => "learner",
        _ => "voter",
    }
}

/// The shape of etcdctl's, with one more field: what it counts as.
pub(super) fn as_json(
    header: Option<&etcd::ResponseHeader>,
    members: &[etcd::Member],
    own: Option<&wire::MembershipRecord>,
) -> serde_json::Value {
    let members: Vec<_> = members
        .iter()
        .map(|member| {
            json!({
                "ID": member.id,
                "name": name(member, own),
                "peerURLs": member.peer_urls,
                "clientURLs": member.client_urls,
                "isLearner": member.is_learner,
                "countsAs": counts_as(member, own),
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
    fn a_table_like_etcdctls() {
        let want = "\
+----+-----------+------+------------+--------------+-----------+
| ID |  STATUS   | NAME | PEER ADDRS | CLIENT ADDRS | COUNTS AS |
+----+-----------+------+------------+--------------+-----------+
| a1 | started   | a    | http://h:1 | http://h:2   | voter     |
| b2 | unstarted |      |            |              | learner   |
+----+-----------+------+------------+--------------+-----------+
";
        assert_eq!(table(&members(), None), want);
    }

    #[test]
    fn quorate_tells_more_than_voter_and_learner() {
        let leaving = wire::Member {
            id: 0xa1,
            standing: wire::Standing::OutgoingVoter.into(),
            ..Default::default()
        };
        let coming = wire::Member {
            id: 0xb2,
            name: "b".to_string(),
            standing: wire::Standing::Learner.into(),
            ..Default::default()
        };
        let own = wire::MembershipRecord { members: vec![leaving, coming], ..Default::default() };
        let json = as_json(None, &members(), Some(&own));
        assert_eq!(json["members"][0]["countsAs"], "outgoing voter");
        assert_eq!(json["members"][1]["countsAs"], "learner");
        assert_eq!(json["members"][1]["ID"], 0xb2);
        assert_eq!(json["members"][1]["name"], "b", "it is expected to have that name");
    }
}
