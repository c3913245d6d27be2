//! `quorate member add`: by etcd's own call, and how to start who was added.

use quorate_proto::etcdserverpb as etcd;
use serde_json::json;

use super::list;
use crate::arguments::{ClientArguments, WriteOut};
use crate::client::connect;
use crate::failure::Failure;
use crate::print;
use crate::who::{self, hex};

pub(crate) async fn run(
    client: &ClientArguments,
    member: &str,
    peer_urls: Vec<String>,
    learner: bool,
) -> Result<(), Failure> {
    let (name, peer_urls) = named(member, peer_urls)?;
    let connection = connect(client).await?;
    who::check_free(&connection.named_members().await?, &name)?;
    let request = etcd::MemberAddRequest { peer_urls, is_learner: learner };
    let reply = connection.cluster().member_add(connection.request(request)).await;
    let reply = reply
        .map_err(|status| {
            Failure::answered(&format!("cannot add {name}"), &connection.endpoint, &status)
        })?
        .into_inner();
    let id = reply.member.as_ref().map_or(0, |member| member.id);
    let settings = settings(&name, id, &reply.members);
    match client.write_out {
        WriteOut::Json => {
            let mut shown = list::as_json(reply.header.as_ref(), &reply.members, None);
            shown["member"] = json!({ "ID": id, "name": name });
            shown["environment"] =
                settings.iter().map(|(key, value)| (*key, json!(value))).collect();
            print::json(&shown);
        }
        WriteOut::Table => {
            print::line(&format!("member {} added; start it with", hex(id)));
            print::line("");
            for (key, value) in settings {
                print::line(&format!("{key}=\"{value}\""));
            }
        }
    }
    Ok(())
}

/// Name and addresses, in either of the two ways to say them.
fn named(member: &str, peer_urls: Vec<String>) -> Result<(String, Vec<String>), Failure> {
    if peer_urls.is_empty() {
        let new = who::new_member(member)?;
        return Ok((new.name, new.peer_urls));
    }
    if member.contains('=') {
        return Err(Failure::usage(
            "give the address as NAME=PEER_URL or with --peer-urls, not both",
        ));
    }
    let new = who::new_member(&format!("{member}={}", peer_urls.join(",")))?;
    Ok((new.name, new.peer_urls))
}

/// What the new member is to be started with, as etcdctl tells it.
pub(super) fn settings(
    name: &str,
    id: u64,
    members: &[etcd::Member],
) -> Vec<(&'static str, String)> {
    let of = |member: &etcd::Member| {
        let its_name = if member.id == id { name } else { &member.name };
        member.peer_urls.iter().map(|url| format!("{its_name}={url}")).collect::<Vec<_>>()
    };
    let cluster: Vec<_> = members.iter().flat_map(of).collect();
    let own = members.iter().find(|member| member.id == id);
    let own = own.map_or_else(String::new, |member| member.peer_urls.join(","));
    vec![
        ("ETCD_NAME", name.to_string()),
        ("ETCD_INITIAL_CLUSTER", cluster.join(",")),
        ("ETCD_INITIAL_ADVERTISE_PEER_URLS", own),
        ("ETCD_INITIAL_CLUSTER_STATE", "existing".to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_in_two_ways() {
        let url = || vec!["http://h:1".to_string()];
        assert_eq!(named("d=http://h:1", Vec::new()).unwrap(), ("d".to_string(), url()));
        assert_eq!(named("d", url()).unwrap(), ("d".to_string(), url()));
        assert!(named("d=http://h:1", url()).unwrap_err().to_string().contains("not both"));
        assert_eq!(named("d", Vec::new()).unwrap_err().code(), 2);
    }

    #[test]
    fn a_new_member_is_told_whom_to_join() {
        let member = |id, name: &str, url: &str| etcd::Member {
            id,
            name: name.to_string(),
            peer_urls: vec![url.to_string()],
            ..Default::default()
        };
        let members = [member(1, "a", "http://h:1"), member(2, "", "http://h:2")];
        let settings = settings("d", 2, &members);
        assert_eq!(settings[1], ("ETCD_INITIAL_CLUSTER", "a=http://h:1,d=http://h:2".to_string()));
        assert_eq!(settings[2].1, "http://h:2");
    }
}
