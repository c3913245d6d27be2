//! `quorate member add`: etcd's own call, and how to start the new member.

use quorate_proto::etcdserverpb as etcd;
use serde_json::json;
use tonic::metadata::MetadataValue;

use super::list;
use crate::arguments::{ClientArguments, WriteOut};
use crate::client::connect;
use crate::error::CliError;
use crate::ids::{hex_id, named_id};
use crate::member_lookup;
use crate::print;

pub(crate) async fn run(
    client: &ClientArguments,
    member: &str,
    peer_urls: Vec<String>,
    learner: bool,
) -> Result<(), CliError> {
    let (name, peer_urls) = name_and_urls(member, peer_urls)?;
    let connection = connect(client).await?;
    member_lookup::check_name_is_free(&connection.named_members().await?, &name)?;
    let request = etcd::MemberAddRequest { peer_urls, is_learner: learner };
    let mut request = connection.request(request);
    // etcd's request has no name; Quorate's servers remember it from this metadata.
    let bytes = MetadataValue::from_bytes(name.as_bytes());
    request.metadata_mut().insert_bin(MEMBER_NAME, bytes);
    let reply = connection.cluster().member_add(request).await;
    let reply = reply
        .map_err(|status| {
            CliError::from_status(&format!("cannot add {name}"), &connection.endpoint, &status)
        })?
        .into_inner();
    let id = reply.member.as_ref().map_or(0, |member| member.id);
    let settings = settings(&name, id, &reply.members);
    match client.write_out {
        WriteOut::Json => {
            let mut shown = list::as_json(reply.header.as_ref(), &reply.members, None);
            shown["member"] = json!({ "ID": hex_id(id), "name": name });
            shown["environment"] =
                settings.iter().map(|(key, value)| (*key, json!(value))).collect();
            print::json(&shown);
        }
        WriteOut::Table => {
            print::line(&format!("added {}; start it with these variables:", named_id(&name, id)));
            print::line("");
            for (key, value) in settings {
                print::line(&format!("{key}=\"{value}\""));
            }
        }
    }
    Ok(())
}

/// Name and peer URLs, from `NAME=PEER_URL` or from `NAME` and `--peer-urls`.
fn name_and_urls(member: &str, peer_urls: Vec<String>) -> Result<(String, Vec<String>), CliError> {
    if peer_urls.is_empty() {
        let new = member_lookup::new_member(member)?;
        return Ok((new.name, new.peer_urls));
    }
    if member.contains('=') {
        return Err(CliError::usage(
            "give the peer URL either as NAME=PEER_URL or with --peer-urls, not both",
        ));
    }
    let new = member_lookup::new_member(&format!("{member}={}", peer_urls.join(",")))?;
    Ok((new.name, new.peer_urls))
}

/// The environment variables to start the new member with, as etcdctl prints them.
pub(super) fn settings(
    name: &str,
    id: u64,
    members: &[etcd::Member],
) -> Vec<(&'static str, String)> {
    let pairs = |member: &etcd::Member| {
        let member_name = if member.id == id { name } else { &member.name };
        member.peer_urls.iter().map(|url| format!("{member_name}={url}")).collect::<Vec<_>>()
    };
    let cluster: Vec<_> = members.iter().flat_map(pairs).collect();
    let own = members.iter().find(|member| member.id == id);
    let own = own.map_or_else(String::new, |member| member.peer_urls.join(","));
    vec![
        ("ETCD_NAME", name.to_string()),
        ("ETCD_INITIAL_CLUSTER", cluster.join(",")),
        ("ETCD_INITIAL_ADVERTISE_PEER_URLS", own),
        ("ETCD_INITIAL_CLUSTER_STATE", "existing".to_string()),
    ]
}

/// The metadata key of the name of the new member.
const MEMBER_NAME: &str = "quorate-member-name-bin";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_and_urls_come_from_either_form() {
        let url = || vec!["http://h:1".to_string()];
        assert_eq!(name_and_urls("d=http://h:1", Vec::new()).unwrap(), ("d".to_string(), url()));
        assert_eq!(name_and_urls("d", url()).unwrap(), ("d".to_string(), url()));
        assert!(name_and_urls("d=http://h:1", url()).unwrap_err().to_string().contains("not both"));
        assert_eq!(name_and_urls("d", Vec::new()).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn the_settings_name_all_members() {
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
