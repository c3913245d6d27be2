//! Resolves a target membership, which names members by id or by name or describes new ones.

use quorate::{Change, EntryId, MemberId, MemberInfo, MemberSet, Membership};
use quorate_proto::quorate::v1;
use quorate_proto::quorate::v1::target_member::Member as Named;

use super::convert::member;
use crate::member_change::{TargetMembership, fresh_id};
use crate::member_details::{MemberDetails, parse_peer_urls};
use crate::status::{BadTarget, ServiceError};

/// A target whose members all have ids.
#[derive(Debug)]
pub(super) struct ResolvedTarget {
    pub(super) voters: MemberSet,
    pub(super) learners: MemberSet,
    /// New members, with what the request says about them.
    pub(super) joining: Vec<(MemberId, MemberInfo)>,
}

impl ResolvedTarget {
    pub(super) fn new(target: Option<v1::Target>, now: &Membership) -> Result<Self, ServiceError> {
        let target = target.ok_or(ServiceError::BadTarget(BadTarget::Missing))?;
        let mut joining = Vec::new();
        let mut ids = |members: Vec<v1::TargetMember>| -> Result<MemberSet, ServiceError> {
            members.into_iter().map(|one| resolve(one, now, &mut joining)).collect()
        };
        let (voters, learners) = (ids(target.voters)?, ids(target.learners)?);
        Ok(Self { voters, learners, joining })
    }

    /// The joining members, described as in the request.
    pub(super) fn joining_members(&self, now: &Membership) -> Vec<v1::Member> {
        let mut described = now.clone();
        for (id, info) in &self.joining {
            described = described.with_info(*id, info.clone());
        }
        self.joining.iter().map(|(id, _)| member(&described, *id)).collect()
    }

    pub(super) fn change(&self, expected: Option<v1::EntryId>) -> Change {
        let mut change = Change::goal(self.voters.iter(), self.learners.iter());
        for (id, info) in &self.joining {
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
    joining: &mut Vec<(MemberId, MemberInfo)>,
) -> Result<MemberId, ServiceError> {
    let target = TargetMembership::of(now);
    let members = now.members();
    let known: MemberSet =
        members.iter().chain(target.voters.iter()).chain(target.learners.iter()).collect();
    match member.member.ok_or(ServiceError::BadTarget(BadTarget::UnnamedMember))? {
        Named::Id(id) if known.contains(MemberId(id)) => Ok(MemberId(id)),
        Named::Id(_) => Err(ServiceError::MemberNotFound),
        Named::Name(name) => {
            let matching: Vec<_> =
                known.iter().filter(|id| MemberDetails::of(now, *id).name == name).collect();
            match matching.as_slice() {
                [id] => Ok(*id),
                [] => Err(ServiceError::MemberNotFound),
                _ => Err(ServiceError::BadTarget(BadTarget::AmbiguousName(name))),
            }
        }
        Named::New(new) => {
            let urls = parse_peer_urls(&new.peer_urls)?;
            let used = |id| {
                MemberDetails::of(now, id).peer_urls.iter().any(|url| new.peer_urls.contains(url))
            };
            if known.iter().any(used) {
                return Err(ServiceError::PeerUrlsExist);
            }
            let id = if new.id == 0 { fresh_id(&urls, now) } else { MemberId(new.id) };
            let info = MemberDetails::expected(&new.name, &urls).in_zone(new.zone.into());
            joining.push((id, info));
            Ok(id)
        }
    }
}
