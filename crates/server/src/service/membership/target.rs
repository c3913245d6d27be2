//! Whom a target means: members by id or name, and those that are new.

use quorate::{Change, EntryId, MemberId, MemberInfo, MemberSet, Membership};
use quorate_proto::quorate::v1;
use quorate_proto::quorate::v1::target_member::Member as Named;
use tonic::Status;

use super::convert::member;
use crate::member_errors::{bad_target, bad_urls, member_not_found, urls_exist};
use crate::member_info::Info;
use crate::members::{Target, fresh_id};
use crate::url::Url;

/// A target with ids for everybody.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) voters: MemberSet,
    pub(super) learners: MemberSet,
    pub(super) newcomers: Vec<(MemberId, MemberInfo)>,
}

impl Resolved {
    pub(super) fn new(target: Option<v1::Target>, now: &Membership) -> Result<Self, Status> {
        let target = target.ok_or_else(|| bad_target("no target was given"))?;
        let mut newcomers = Vec::new();
        let mut ids = |members: Vec<v1::TargetMember>| -> Result<MemberSet, Status> {
            members.into_iter().map(|one| resolve(one, now, &mut newcomers)).collect()
        };
        let (voters, learners) = (ids(target.voters)?, ids(target.learners)?);
        Ok(Self { voters, learners, newcomers })
    }

    /// Those who come, as they were announced.
    pub(super) fn newcomers(&self, now: &Membership) -> Vec<v1::Member> {
        let mut described = now.clone();
        for (id, info) in &self.newcomers {
            described = described.with_info(*id, info.clone());
        }
        self.newcomers.iter().map(|(id, _)| member(&described, *id)).collect()
    }

    pub(super) fn change(&self, expected: Option<v1::EntryId>) -> Change {
        let mut change = Change::goal(self.voters.iter(), self.learners.iter());
        for (id, info) in &self.newcomers {
            change = change.with_info(*id, info.clone());
        }
        expecting(change, expected)
    }
}

pub(super) fn expecting(change: Change, expected: Option<v1::EntryId>) -> Change {
    match expected {
        Some(v1::EntryId { term, index }) => change.expecting(EntryId::new(term, index)),
        None => change,
    }
}

fn resolve(
    member: v1::TargetMember,
    now: &Membership,
    newcomers: &mut Vec<(MemberId, MemberInfo)>,
) -> Result<MemberId, Status> {
    let target = Target::of(now);
    let members = now.members();
    let known: MemberSet =
        members.iter().chain(target.voters.iter()).chain(target.learners.iter()).collect();
    match member.member.ok_or_else(|| bad_target("a member of the target is not named"))? {
        Named::Id(id) if known.contains(MemberId(id)) => Ok(MemberId(id)),
        Named::Id(_) => Err(member_not_found()),
        Named::Name(name) => {
            let found: Vec<_> = known.iter().filter(|id| Info::of(now, *id).name == name).collect();
            match found.as_slice() {
                [id] => Ok(*id),
                [] => Err(member_not_found()),
                _ => Err(bad_target(&format!("several members have the name {name:?}"))),
            }
        }
        Named::New(new) => {
            let urls: Result<Vec<Url>, _> =
                new.peer_urls.iter().map(|url| Url::parse(url)).collect();
            let urls = urls.ok().filter(|urls| !urls.is_empty()).ok_or_else(bad_urls)?;
            let used =
                |id| Info::of(now, id).peer_urls.iter().any(|url| new.peer_urls.contains(url));
            if known.iter().any(used) {
                return Err(urls_exist());
            }
            let id = if new.id == 0 { fresh_id(&urls, now) } else { MemberId(new.id) };
            let info = Info::expected(&new.name, &urls).in_zone(new.zone.into());
            newcomers.push((id, info));
            Ok(id)
        }
    }
}
