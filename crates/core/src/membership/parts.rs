//! A membership split into its parts, for encoders and decoders.
//!
//! Both directions name every field, so that a new one cannot be forgotten here, nor in an
//! encoder.

use super::{EndedGoal, Goal, MemberInfo, Membership};
use crate::{Activation, EntryId, Index, MemberId, MemberSet};

/// Everything that a [`Membership`] consists of. Use [`Membership::check`] on untrusted
/// input.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct MembershipParts {
    pub majorities: Vec<MemberSet>,
    pub learners: MemberSet,
    pub learners_next: MemberSet,
    pub auto_leave: bool,
    pub since: EntryId,
    pub activation: Activation,
    pub goal: Option<Goal>,
    pub ended: Vec<EndedGoal>,
    /// Sorted by member.
    pub incarnations: Vec<(MemberId, u64)>,
    /// Sorted by member.
    pub joined: Vec<(MemberId, Index)>,
    pub removed: Vec<MemberId>,
    /// Sorted by member.
    pub infos: Vec<(MemberId, MemberInfo)>,
}

impl From<Membership> for MembershipParts {
    fn from(whole: Membership) -> Self {
        let Membership {
            majorities,
            learners,
            learners_next,
            auto_leave,
            since,
            activation,
            goal,
            ended,
            incarnations,
            joined,
            removed,
            infos,
        } = whole;
        let goal = goal.map(|goal| *goal);
        Self {
            majorities,
            learners,
            learners_next,
            auto_leave,
            since,
            activation,
            goal,
            ended,
            incarnations,
            joined,
            removed,
            infos,
        }
    }
}

impl From<MembershipParts> for Membership {
    fn from(parts: MembershipParts) -> Self {
        Self {
            majorities: parts.majorities,
            learners: parts.learners,
            learners_next: parts.learners_next,
            auto_leave: parts.auto_leave,
            since: parts.since,
            activation: parts.activation,
            goal: parts.goal.map(Box::new),
            ended: parts.ended,
            incarnations: parts.incarnations,
            joined: parts.joined,
            removed: parts.removed,
            infos: parts.infos,
        }
    }
}

/// In any order, but valid: input written by hand is checked like a peer's.
#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Membership {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let mut parts = MembershipParts::deserialize(deserializer)?;
        sort(&mut parts.incarnations).map_err(Error::custom)?;
        sort(&mut parts.joined).map_err(Error::custom)?;
        sort(&mut parts.infos).map_err(Error::custom)?;
        let empty = MembershipParts { activation: parts.activation, ..MembershipParts::default() };
        // The membership of a member that has not joined yet.
        if parts == empty {
            return Ok(empty.into());
        }
        let whole = Self::from(parts);
        whole.check().map_err(Error::custom)?;
        Ok(whole)
    }
}

#[cfg(feature = "serde")]
fn sort<T>(said: &mut [(MemberId, T)]) -> Result<(), String> {
    said.sort_by_key(|(id, _)| *id);
    match said.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(format!("{} is listed twice", pair[0].0)),
        None => Ok(()),
    }
}
