//! Which member is meant: by id in hex, by name, or a new one by name and address.

use quorate_proto::etcdserverpb as etcd;
use quorate_proto::quorate::v1::{NewMember, Target, TargetMember, target_member};

use crate::failure::Failure;

/// An id as etcd prints it.
pub(crate) fn hex(id: u64) -> String {
    format!("{id:x}")
}

/// The member with this name, else with this id. A name that looks like another one's id is
/// refused: nobody could know which of the two would go.
pub(crate) fn find<'a>(
    members: &'a [etcd::Member],
    asked: &str,
) -> Result<&'a etcd::Member, Failure> {
    let id = u64::from_str_radix(asked.trim_start_matches("0x"), 16).ok();
    let by_id = members.iter().find(|member| Some(member.id) == id);
    let named: Vec<_> =
        members.iter().filter(|member| !asked.is_empty() && member.name == asked).collect();
    match (named.as_slice(), by_id) {
        ([one], None) => Ok(one),
        ([], Some(one)) => Ok(one),
        ([one], Some(other)) if one.id == other.id => Ok(one),
        ([], None) => Err(Failure::failed(format!(
            "no member has the name or id '{asked}'; there are {}",
            list(members)
        ))),
        _ => Err(Failure::failed(format!(
            "'{asked}' means several members; give the id of one of {}",
            list(members)
        ))),
    }
}

/// `name (id)` of each.
pub(crate) fn list(members: &[etcd::Member]) -> String {
    members.iter().map(label).collect::<Vec<_>>().join(", ")
}

pub(crate) fn label(member: &etcd::Member) -> String {
    if member.name.is_empty() {
        format!("{} (not started)", hex(member.id))
    } else {
        format!("{} ({})", member.name, hex(member.id))
    }
}

/// `NAME=PEER_URL`, the address once for each of its addresses.
pub(crate) fn new_member(text: &str) -> Result<NewMember, Failure> {
    let wrong = |why: &str| {
        Failure::usage(format!(
            "'{text}' is not NAME=PEER_URL: {why}; write d=http://10.0.0.4:2380"
        ))
    };
    let (name, addresses) = text.split_once('=').ok_or_else(|| wrong("there is no '='"))?;
    if name.is_empty() {
        return Err(wrong("the name is empty"));
    }
    let peer_urls: Vec<String> = addresses.split(',').map(str::to_string).collect();
    if let Some(odd) = peer_urls.iter().find(|address| !is_peer_url(address)) {
        return Err(wrong(&format!("'{odd}' is not http://HOST:PORT")));
    }
    Ok(NewMember { name: name.to_string(), peer_urls, zone: String::new(), id: 0 })
}

/// With TLS members do not reach each other yet.
pub(crate) fn is_peer_url(text: &str) -> bool {
    let rest = text.strip_prefix("http://");
    let Some((host, port)) = rest.and_then(|rest| rest.rsplit_once(':')) else { return false };
    !host.is_empty() && port.parse::<u16>().is_ok()
}

/// Two of the same name could not be told apart.
pub(crate) fn check_free(members: &[etcd::Member], name: &str) -> Result<(), Failure> {
    match members.iter().find(|member| member.name == name) {
        Some(member) => Err(Failure::failed(format!(
            "there is a member of that name, {}; choose another name, or remove that one first",
            label(member)
        ))),
        None => Ok(()),
    }
}

/// The same for everybody who comes, among each other as well; and nobody is named twice.
pub(crate) fn check_names(members: &[etcd::Member], target: &Target) -> Result<(), Failure> {
    let mut seen = Vec::new();
    for one in target.voters.iter().chain(&target.learners).filter_map(|one| one.member.as_ref()) {
        let name = match one {
            target_member::Member::New(new) => {
                check_free(members, &new.name)?;
                new.name.clone()
            }
            target_member::Member::Id(id) => named(members, *id),
            target_member::Member::Name(name) => name.clone(),
        };
        if seen.contains(&name) {
            return Err(Failure::usage(format!("{name} is named twice")));
        }
        seen.push(name);
    }
    Ok(())
}

fn named(members: &[etcd::Member], id: u64) -> String {
    members.iter().find(|member| member.id == id).map_or_else(|| hex(id), label)
}

pub(crate) fn known(id: u64) -> TargetMember {
    TargetMember { member: Some(target_member::Member::Id(id)) }
}

pub(crate) fn fresh(new: NewMember) -> TargetMember {
    TargetMember { member: Some(target_member::Member::New(new)) }
}

/// One of those there are, or a new one.
pub(crate) fn target(members: &[etcd::Member], text: &str) -> Result<TargetMember, Failure> {
    if text.contains('=') {
        new_member(text).map(fresh)
    } else {
        Ok(known(find(members, text)?.id))
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
    fn members_go_by_name_or_id() {
        let members = members();
        assert_eq!(find(&members, "first").unwrap().id, 0xa1);
        assert_eq!(find(&members, "c3").unwrap().id, 0xc3);
        assert_eq!(find(&members, "0xa1").unwrap().id, 0xa1);
        let unknown = find(&members, "d4").unwrap_err().to_string();
        assert!(unknown.contains("'d4'") && unknown.contains("first (a1)"), "{unknown}");
        assert!(find(&members, "b2").unwrap_err().to_string().contains("several"));
        assert!(find(&members, "").is_err(), "one that did not start has no name to go by");
    }

    #[test]
    fn new_members_have_a_name_and_an_address() {
        let new = new_member("d=http://h:1,http://h:2").unwrap();
        assert_eq!((new.name.as_str(), new.peer_urls.len()), ("d", 2));
        for wrong in
            ["d", "=http://h:1", "d=", "d=h:1", "d=http://h", "d=http://:1", "d=http://h:x"]
        {
            assert_eq!(new_member(wrong).unwrap_err().code(), 2, "{wrong}");
        }
    }

    #[test]
    fn nobody_is_named_twice() {
        let members = members();
        let of = |texts: &[&str]| {
            let voters = texts.iter().map(|text| target(&members, text).unwrap()).collect();
            check_names(&members, &Target { voters, learners: Vec::new() })
        };
        assert!(of(&["first", "second", "d=http://h:1", "e=http://h:2"]).is_ok());
        let refused = |texts: &[&str]| of(texts).unwrap_err().to_string();
        assert_eq!(refused(&["first", "a1"]), "first (a1) is named twice");
        assert_eq!(refused(&["d=http://h:1", "d=http://h:2"]), "d is named twice");
        assert!(refused(&["first=http://h:1"]).contains("a member of that name, first (a1)"));
    }

    #[test]
    fn targets_tell_new_from_known() {
        let known = target(&members(), "first").unwrap();
        assert_eq!(known.member, Some(target_member::Member::Id(0xa1)));
        let new = target(&members(), "d=http://h:1").unwrap();
        assert!(matches!(new.member, Some(target_member::Member::New(_))));
    }
}
