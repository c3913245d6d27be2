//! Which member an argument means: by id in hex or by name; or a new one by name and address.

use quorate_proto::etcdserverpb as etcd;
use quorate_proto::quorate::v1::{NewMember, Target, TargetMember, target_member};

use crate::error::CliError;
use crate::ids::{hex_id, named_id};

/// The member with this name or id. An argument that is the name of one member and the id of
/// another is ambiguous and refused.
pub(crate) fn find<'a>(
    members: &'a [etcd::Member],
    argument: &str,
) -> Result<&'a etcd::Member, CliError> {
    let id = u64::from_str_radix(argument.trim_start_matches("0x"), 16).ok();
    let by_id = members.iter().find(|member| Some(member.id) == id);
    let by_name: Vec<_> =
        members.iter().filter(|member| !argument.is_empty() && member.name == argument).collect();
    match (by_name.as_slice(), by_id) {
        ([member], None) => Ok(member),
        ([], Some(member)) => Ok(member),
        ([member], Some(same)) if member.id == same.id => Ok(member),
        ([], None) => Err(CliError::failed(format!(
            "no member has the name or id '{argument}'; the members are {}",
            list(members)
        ))),
        _ => Err(CliError::failed(format!(
            "'{argument}' means several members; give the id of one of {}",
            list(members)
        ))),
    }
}

/// `NAME (ID)` of each member.
fn list(members: &[etcd::Member]) -> String {
    members.iter().map(label).collect::<Vec<_>>().join(", ")
}

/// `NAME (ID)`.
pub(crate) fn label(member: &etcd::Member) -> String {
    if member.name.is_empty() {
        format!("{} (not started)", hex_id(member.id))
    } else {
        named_id(&member.name, member.id)
    }
}

/// Parses `NAME=PEER_URL[,PEER_URL...]`.
pub(crate) fn new_member(text: &str) -> Result<NewMember, CliError> {
    let invalid = |problem: &str| {
        CliError::usage(format!(
            "'{text}' is not NAME=PEER_URL: {problem}; an example is m4=http://10.0.0.4:2380"
        ))
    };
    let (name, addresses) = text.split_once('=').ok_or_else(|| invalid("there is no '='"))?;
    if name.is_empty() {
        return Err(invalid("the name is empty"));
    }
    let peer_urls: Vec<String> = addresses.split(',').map(str::to_string).collect();
    if let Some(address) = peer_urls.iter().find(|address| !is_peer_url(address)) {
        return Err(invalid(&format!("'{address}' is not http://HOST:PORT or https://HOST:PORT")));
    }
    Ok(NewMember { name: name.to_string(), peer_urls, zone: String::new(), id: 0 })
}

fn is_peer_url(text: &str) -> bool {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let Some((host, port)) = rest.and_then(|rest| rest.rsplit_once(':')) else { return false };
    !host.is_empty() && port.parse::<u16>().is_ok()
}

/// Refuses a new member with the name of an existing one: commands could not tell them apart.
pub(crate) fn check_name_is_free(members: &[etcd::Member], name: &str) -> Result<(), CliError> {
    match members.iter().find(|member| member.name == name) {
        Some(member) => Err(CliError::failed(format!(
            "a member with that name exists: {}; choose another name, or remove that member first",
            label(member)
        ))),
        None => Ok(()),
    }
}

/// Checks that new names are free and that no member is listed twice.
pub(crate) fn check_names(members: &[etcd::Member], target: &Target) -> Result<(), CliError> {
    let mut listed = Vec::new();
    let all = target.voters.iter().chain(&target.learners);
    for member in all.filter_map(|entry| entry.member.as_ref()) {
        let name = match member {
            target_member::Member::New(new) => {
                check_name_is_free(members, &new.name)?;
                new.name.clone()
            }
            target_member::Member::Id(id) => label_by_id(members, *id),
            target_member::Member::Name(name) => name.clone(),
        };
        if listed.contains(&name) {
            return Err(CliError::usage(format!("{name} is listed twice; list each member once")));
        }
        listed.push(name);
    }
    Ok(())
}

fn label_by_id(members: &[etcd::Member], id: u64) -> String {
    members.iter().find(|member| member.id == id).map_or_else(|| hex_id(id), label)
}

pub(crate) fn existing_target(id: u64) -> TargetMember {
    TargetMember { member: Some(target_member::Member::Id(id)) }
}

pub(crate) fn new_target(new: NewMember) -> TargetMember {
    TargetMember { member: Some(target_member::Member::New(new)) }
}

/// `NAME=PEER_URL` is a new member; anything else names an existing one.
pub(crate) fn target(members: &[etcd::Member], text: &str) -> Result<TargetMember, CliError> {
    if text.contains('=') {
        new_member(text).map(new_target)
    } else {
        Ok(existing_target(find(members, text)?.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members() -> Vec<etcd::Member> {
        let member =
            |id, name: &str| etcd::Member { id, name: name.to_string(), ..Default::default() };
        vec![member(0xa1, "first"), member(0xb2, "second"), member(0xc3, ""), member(7, "b2")]
    }

    #[test]
    fn members_are_found_by_name_or_id() {
        let members = members();
        assert_eq!(find(&members, "first").unwrap().id, 0xa1);
        assert_eq!(find(&members, "c3").unwrap().id, 0xc3);
        assert_eq!(find(&members, "0xa1").unwrap().id, 0xa1);
        let unknown = find(&members, "d4").unwrap_err().to_string();
        assert!(
            unknown.contains("'d4'") && unknown.contains("first (00000000000000a1)"),
            "{unknown}"
        );
        assert!(find(&members, "b2").unwrap_err().to_string().contains("several"));
        assert!(find(&members, "").is_err(), "a member that has not started has no name");
    }

    #[test]
    fn new_members_need_a_name_and_an_address() {
        let new = new_member("d=http://h:1,http://h:2").unwrap();
        assert_eq!((new.name.as_str(), new.peer_urls.len()), ("d", 2));
        for invalid in
            ["d", "=http://h:1", "d=", "d=h:1", "d=http://h", "d=http://:1", "d=http://h:x"]
        {
            assert_eq!(new_member(invalid).unwrap_err().exit_code(), 2, "{invalid}");
        }
    }

    #[test]
    fn no_member_is_listed_twice() {
        let members = members();
        let check = |texts: &[&str]| {
            let voters = texts.iter().map(|text| target(&members, text).unwrap()).collect();
            check_names(&members, &Target { voters, learners: Vec::new() })
        };
        assert!(check(&["first", "second", "d=http://h:1", "e=http://h:2"]).is_ok());
        let refused = |texts: &[&str]| check(texts).unwrap_err().to_string();
        assert_eq!(
            refused(&["first", "a1"]),
            "first (00000000000000a1) is listed twice; list each member once"
        );
        assert_eq!(
            refused(&["d=http://h:1", "d=http://h:2"]),
            "d is listed twice; list each member once"
        );
        assert!(
            refused(&["first=http://h:1"])
                .contains("a member with that name exists: first (00000000000000a1)")
        );
    }

    #[test]
    fn targets_distinguish_new_and_existing_members() {
        let existing = target(&members(), "first").unwrap();
        assert_eq!(existing.member, Some(target_member::Member::Id(0xa1)));
        let new = target(&members(), "d=http://h:1").unwrap();
        assert!(matches!(new.member, Some(target_member::Member::New(_))));
    }
}
