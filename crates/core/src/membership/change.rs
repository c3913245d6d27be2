//! Which membership changes are possible, and what they result in.
//!
//! A change is resolved and checked once, by the leader, when it is proposed; it is logged
//! *with* its result. So a logged change cannot fail, and undoing it means going back to
//! the entry before.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::{ChangeRefusal, MemberInfo, Membership};
use crate::config::EtcdCompat;
use crate::{EntryId, MemberId, MemberSet};

/// A request to change the membership.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Change {
    /// What to change.
    pub kind: ChangeKind,
    /// Opaque to the core; reaches the state machine with the entry.
    #[cfg_attr(feature = "serde", serde(default, with = "crate::opaque"))]
    pub context: Bytes,
    /// Refused unless the newest membership in the log is the one of this entry.
    pub expected: Option<EntryId>,
    /// Info to record about members.
    #[cfg_attr(feature = "serde", serde(default))]
    pub infos: Vec<(MemberId, MemberInfo)>,
}

/// The kind of a change. Exhaustive because it is stored: every case has a byte on the disk.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case", deny_unknown_fields))]
pub enum ChangeKind {
    /// Operations in order, all or none. Without operations: leave the joint.
    Operations {
        /// What to do, in order.
        operations: Vec<Operation>,
        /// Whether to go through a joint.
        transition: Transition,
    },
    /// The older form: one operation, never through a joint.
    V1(Operation),
    /// A list of majorities, the incoming one first: any list that may follow the present
    /// one.
    Majorities(Vec<MemberSet>),
    /// These become learners, if they are not members yet.
    AddLearners(MemberSet),
    /// Exactly these voters. A voter that loses its vote stays as a learner with `retain`,
    /// and is removed in the end without it.
    SetVoters {
        /// The voters.
        voters: MemberSet,
        /// Whether demoted voters stay as learners.
        retain: bool,
    },
    /// Adds and removes voters; `retain` as above.
    EditVoters {
        /// The voters to add.
        add: MemberSet,
        /// The voters to demote.
        remove: MemberSet,
        /// Whether demoted voters stay as learners.
        retain: bool,
    },
    /// The members to end with. The leader takes the steps.
    Goal {
        /// The voters.
        voters: MemberSet,
        /// The learners.
        learners: MemberSet,
    },
    /// Returns to where the change in progress began.
    Cancel,
}

impl Default for ChangeKind {
    fn default() -> Self {
        Self::Operations { operations: Vec::new(), transition: Transition::Auto }
    }
}

/// One operation of a change. Exhaustive because it is stored: every case has a byte on the
/// disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Operation {
    /// Add as a voter, or promote a learner.
    Voter(MemberId),
    /// Add as a learner, or demote a voter.
    Learner(MemberId),
    /// Remove from the cluster.
    Remove(MemberId),
    /// Changes only the info of this member.
    Update(MemberId),
}

/// Whether a change goes through a joint membership. Exhaustive because it is stored: every
/// case has a byte on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Transition {
    /// In one step where that is safe, else through a joint that is left automatically.
    #[default]
    Auto,
    /// Through a joint that is left automatically.
    JointImplicit,
    /// Into a joint that stays until a change leaves it.
    JointExplicit,
}

/// What happens to members that lose their vote. Exhaustive because there is no third case: a
/// member without a vote is a learner or no member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RemovedVoters {
    /// They stay members, without a vote.
    BecomeLearners,
    /// They leave the cluster, once they are learners and that is settled.
    Leave,
}

/// A change in the log, with the resulting membership.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LoggedChange {
    /// The change as it was requested.
    pub change: Change,
    /// The membership after it.
    pub membership: Arc<Membership>,
}

impl LoggedChange {
    pub(crate) fn bytes(&self) -> u64 {
        let ids = match &self.change.kind {
            ChangeKind::Operations { operations, .. } => operations.len(),
            ChangeKind::V1(_) => 1,
            ChangeKind::Majorities(majorities) => majorities.iter().map(MemberSet::len).sum(),
            ChangeKind::AddLearners(ids) | ChangeKind::SetVoters { voters: ids, .. } => ids.len(),
            ChangeKind::EditVoters { add: some, remove: others, .. }
            | ChangeKind::Goal { voters: some, learners: others } => some.len() + others.len(),
            ChangeKind::Cancel => 0,
        };
        // Leaving a joint costs nothing: it is never refused for its size.
        let infos = self.change.infos.iter().map(|(_, info)| 8 + info.info.len() + info.zone.len());
        8 * ids as u64 + self.change.context.len() as u64 + infos.sum::<usize>() as u64
    }
}

impl Change {
    /// These operations, in one step if that is safe.
    pub fn new(operations: impl IntoIterator<Item = Operation>) -> Self {
        let operations = operations.into_iter().collect();
        ChangeKind::Operations { operations, transition: Transition::Auto }.into()
    }

    /// One operation in the older form.
    pub fn v1(operation: Operation) -> Self {
        ChangeKind::V1(operation).into()
    }

    /// Leaves a joint for its incoming majority.
    pub fn leave() -> Self {
        Self::default()
    }

    /// Changes to these majorities in one step: joint, extended (three and more), or back
    /// to an outgoing one. Voters that are in none of them become learners.
    pub fn majorities(majorities: impl IntoIterator<Item = MemberSet>) -> Self {
        ChangeKind::Majorities(majorities.into_iter().collect()).into()
    }

    /// Adds a learner. No effect on a member.
    pub fn add_learner(id: MemberId) -> Self {
        ChangeKind::AddLearners([id].into_iter().collect()).into()
    }

    /// Exactly these voters, which must be members already.
    pub fn set_voters(voters: impl IntoIterator<Item = MemberId>, removed: RemovedVoters) -> Self {
        let retain = removed == RemovedVoters::BecomeLearners;
        ChangeKind::SetVoters { voters: voters.into_iter().collect(), retain }.into()
    }

    /// Promotes these learners.
    pub fn add_voters(ids: impl IntoIterator<Item = MemberId>) -> Self {
        let (add, remove) = (ids.into_iter().collect(), MemberSet::new());
        ChangeKind::EditVoters { add, remove, retain: true }.into()
    }

    /// Takes the vote of these members.
    pub fn remove_voters(ids: impl IntoIterator<Item = MemberId>, removed: RemovedVoters) -> Self {
        let retain = removed == RemovedVoters::BecomeLearners;
        let (add, remove) = (MemberSet::new(), ids.into_iter().collect());
        ChangeKind::EditVoters { add, remove, retain }.into()
    }

    /// Sets a goal: the voters and learners to end with. The leader takes the steps, also
    /// after a change of leader. It replaces a goal in progress only with
    /// [`Change::expecting`], outside a joint.
    pub fn goal(
        voters: impl IntoIterator<Item = MemberId>,
        learners: impl IntoIterator<Item = MemberId>,
    ) -> Self {
        let (voters, learners) = (voters.into_iter().collect(), learners.into_iter().collect());
        ChangeKind::Goal { voters, learners }.into()
    }

    /// Returns to where the change in progress began.
    pub fn cancel() -> Self {
        ChangeKind::Cancel.into()
    }

    /// Records the info of a member: addresses and zone.
    pub fn with_info(mut self, id: MemberId, info: MemberInfo) -> Self {
        self.infos.push((id, info));
        self
    }

    /// Refuse the change if the newest membership is not that of this entry (compare and
    /// set). A cancel may name the entry that set its goal instead: it is then refused if
    /// another goal, or none, is in progress.
    pub fn expecting(mut self, newest: EntryId) -> Self {
        self.expected = Some(newest);
        self
    }

    /// The transition for operations; other kinds have only one.
    pub fn with_transition(mut self, new: Transition) -> Self {
        if let ChangeKind::Operations { transition, .. } = &mut self.kind {
            *transition = new;
        }
        self
    }

    /// Adds an opaque context that reaches the state machine with the entry.
    pub fn with_context(mut self, context: impl Into<Bytes>) -> Self {
        self.context = context.into();
        self
    }

    /// Whether the change leaves a joint.
    pub fn is_leave(&self) -> bool {
        matches!(&self.kind, ChangeKind::Operations { operations, .. } if operations.is_empty())
    }

    /// The operations of this change; none for other kinds.
    pub fn operations(&self) -> &[Operation] {
        match &self.kind {
            ChangeKind::Operations { operations, .. } => operations,
            ChangeKind::V1(operation) => std::slice::from_ref(operation),
            _ => &[],
        }
    }

    /// Whether only the info of members changes.
    pub fn only_updates_info(&self) -> bool {
        let operations = self.operations();
        let about = |operation: &Operation| matches!(operation, Operation::Update(_));
        !operations.is_empty() && operations.iter().all(about)
    }

    /// Whether the change has the older form with one operation.
    pub fn is_v1(&self) -> bool {
        matches!(self.kind, ChangeKind::V1(_))
    }
}

impl From<ChangeKind> for Change {
    fn from(kind: ChangeKind) -> Self {
        Self { kind, ..Self::default() }
    }
}

impl Operation {
    /// The member that the operation is about.
    pub fn member(self) -> MemberId {
        match self {
            Self::Voter(id) | Self::Learner(id) | Self::Remove(id) | Self::Update(id) => id,
        }
    }
}

impl Membership {
    /// The membership that a change results in, or why it is not possible.
    pub fn resolve(
        &self,
        change: &Change,
        etcd_compat: &EtcdCompat,
    ) -> Result<Self, ChangeRefusal> {
        if !etcd_compat.ignore_member_zero
            && change.operations().iter().any(|operation| operation.member().0 == 0)
        {
            return Err(ChangeRefusal::MemberZero);
        }
        let mut next = match &change.kind {
            ChangeKind::V1(operation) => self.simple(&[*operation]),
            ChangeKind::Operations { operations, .. } if operations.is_empty() => self.leave(),
            ChangeKind::Operations { operations, transition } => {
                self.operations(operations, *transition, etcd_compat)
            }
            ChangeKind::Majorities(majorities) => self.change_majorities(majorities),
            ChangeKind::AddLearners(ids) => {
                let new = ids.iter().filter(|id| !self.contains(*id)).map(Operation::Learner);
                let new: Vec<Operation> = new.collect();
                if new.is_empty() { Err(ChangeRefusal::AlreadyReached) } else { self.simple(&new) }
            }
            ChangeKind::SetVoters { voters, retain } => self.set_voters(voters, *retain),
            ChangeKind::EditVoters { add, remove, retain } => {
                let stay = self.incoming().iter().filter(|id| !remove.contains(*id));
                self.set_voters(&stay.chain(add.iter()).collect(), *retain)
            }
            // A caller that names the membership it expects has seen the goal that it
            // replaces.
            ChangeKind::Goal { voters, learners } if change.expected.is_some() => {
                self.with_new_goal(voters, learners)
            }
            ChangeKind::Goal { voters, learners } => self.set_goal(voters, learners),
            ChangeKind::Cancel => self.cancel_goal(),
        }?;
        for (id, info) in &change.infos {
            if next.contains(*id) || next.goal_includes(*id) {
                next = next.with_info(*id, info.clone());
            }
        }
        Ok(next)
    }

    fn set_voters(&self, voters: &MemberSet, retain: bool) -> Result<Self, ChangeRefusal> {
        if let Some(id) = voters.iter().find(|id| !self.contains(*id)) {
            return Err(ChangeRefusal::UnknownMember { id });
        }
        if !retain {
            let learners = self.learners().iter().filter(|id| !voters.contains(*id)).collect();
            return self.set_goal(voters, &learners);
        }
        let now = self.incoming();
        let promoted = voters.iter().filter(|id| !now.contains(*id)).map(Operation::Voter);
        let demoted = now.iter().filter(|id| !voters.contains(*id)).map(Operation::Learner);
        let operations: Vec<Operation> = promoted.chain(demoted).collect();
        if operations.is_empty() {
            return Err(ChangeRefusal::AlreadyReached);
        }
        self.operations(&operations, Transition::Auto, &EtcdCompat::default())
    }

    fn operations(
        &self,
        operations: &[Operation],
        transition: Transition,
        etcd_compat: &EtcdCompat,
    ) -> Result<Self, ChangeRefusal> {
        if self.is_joint() {
            return Err(ChangeRefusal::AlreadyJoint);
        }
        match transition {
            Transition::Auto if etcd_compat.auto_counts_operations && operations.len() > 1 => {
                self.enter_joint(operations, true)
            }
            Transition::Auto => match self.simple(operations) {
                Err(ChangeRefusal::ManyVoters) => self.enter_joint(operations, true),
                other => other,
            },
            Transition::JointImplicit => self.enter_joint(operations, true),
            Transition::JointExplicit => self.enter_joint(operations, false),
        }
    }

    /// In one step: at most one voter changes (thesis §4.1).
    pub fn simple(&self, operations: &[Operation]) -> Result<Self, ChangeRefusal> {
        if self.is_joint() {
            return Err(ChangeRefusal::SimpleInJoint);
        }
        let next = self.apply_operations(operations)?;
        if self.incoming().difference_count(next.incoming()) > 1 {
            return Err(ChangeRefusal::ManyVoters);
        }
        next.checked()
    }

    /// Enters the joint of the result and the present membership (thesis §4.3).
    pub fn enter_joint(
        &self,
        operations: &[Operation],
        auto_leave: bool,
    ) -> Result<Self, ChangeRefusal> {
        if self.is_joint() {
            return Err(ChangeRefusal::AlreadyJoint);
        }
        if self.incoming().is_empty() {
            return Err(ChangeRefusal::NoVotersForJoint);
        }
        let mut joint = self.clone();
        joint.majorities.push(self.incoming().clone());
        joint.auto_leave = auto_leave;
        joint.apply_operations(operations)?.checked()
    }

    /// Leaves a joint for the incoming majority.
    pub fn leave(&self) -> Result<Self, ChangeRefusal> {
        if !self.is_joint() {
            return Err(ChangeRefusal::NotJoint);
        }
        let mut next = self.clone();
        next.majorities.truncate(1);
        for id in std::mem::take(&mut next.learners_next).iter() {
            next.learners.insert(id);
        }
        next.auto_leave = false;
        next.checked()
    }

    /// Changes to this list of majorities, if every quorum of it overlaps every present
    /// quorum.
    pub fn change_majorities(&self, majorities: &[MemberSet]) -> Result<Self, ChangeRefusal> {
        let mut next = self.clone();
        next.majorities = majorities.to_vec();
        next.auto_leave = false;
        next.learners_next = MemberSet::new();
        // A voter that loses its vote stays as a learner; one that is only in an outgoing
        // majority becomes a learner when that is dropped.
        for id in self.voters().iter().chain(next.voters().iter()) {
            if !next.is_voter(id) {
                next.learners.insert(id);
            } else if !next.incoming().contains(id) {
                next.learners.remove(id);
                next.learners_next.insert(id);
            } else {
                next.learners.remove(id);
            }
        }
        let next = next.checked()?;
        if self.can_change_to(&next) { Ok(next) } else { Err(ChangeRefusal::UnsafeTransition) }
    }

    /// Whether every quorum of this membership overlaps every quorum of `next`: some
    /// majority of the one equals some majority of the other, or differs by one voter.
    /// Majorities are compared with majorities, never with their unions.
    pub fn can_change_to(&self, next: &Self) -> bool {
        self.majorities
            .iter()
            .any(|old| next.majorities.iter().any(|new| old.difference_count(new) <= 1))
    }

    /// A voter that would be removed without having been a learner: by this step, or when
    /// the joint that it enters is left.
    pub fn voter_removed_by(&self, next: &Self) -> Option<MemberId> {
        let gone = self.voters().iter().find(|id| !next.contains(*id));
        let stays = |id| next.incoming().contains(id) || next.learners_next.contains(id);
        gone.or_else(|| next.voters().iter().find(|id| !stays(*id)))
    }

    fn apply_operations(&self, operations: &[Operation]) -> Result<Self, ChangeRefusal> {
        let mut next = self.clone();
        if next.majorities.is_empty() {
            next.majorities.push(MemberSet::new());
        }
        for operation in operations.iter().filter(|operation| operation.member().0 != 0) {
            match *operation {
                Operation::Voter(id) => next.make_voter(id),
                Operation::Learner(id) => next.make_learner(id),
                Operation::Remove(id) => next.remove(id),
                Operation::Update(_) => {}
            }
        }
        if next.incoming().is_empty() {
            return Err(ChangeRefusal::NoVotersLeft);
        }
        Ok(next)
    }

    fn make_voter(&mut self, id: MemberId) {
        self.learners.remove(id);
        self.learners_next.remove(id);
        self.majorities[0].insert(id);
    }

    fn make_learner(&mut self, id: MemberId) {
        self.majorities[0].remove(id);
        // A voter of the outgoing majority still votes there: it becomes a learner when the
        // joint is left, since a member cannot be both.
        if self.leaves(id) {
            self.learners_next.insert(id);
        } else {
            self.learners.insert(id);
        }
    }

    fn remove(&mut self, id: MemberId) {
        self.majorities[0].remove(id);
        self.learners.remove(id);
        self.learners_next.remove(id);
    }

    fn leaves(&self, id: MemberId) -> bool {
        self.outgoing().iter().any(|majority| majority.contains(id))
    }

    fn checked(self) -> Result<Self, ChangeRefusal> {
        match self.check() {
            Ok(()) => Ok(self),
            Err(error) => Err(ChangeRefusal::InvalidMembership(error)),
        }
    }
}

/// `v…  l… r… u…` with ids, `leave`, `(…)&&(…)`, `goal (…) learners (…)`, `cancel`.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ChangeKind::Majorities(majorities) => {
                for (at, majority) in majorities.iter().enumerate() {
                    write!(f, "{}({majority})", if at > 0 { "&&" } else { "" })?;
                }
                Ok(())
            }
            ChangeKind::AddLearners(ids) => write!(f, "add learners ({ids})"),
            ChangeKind::SetVoters { voters, retain } => {
                write!(f, "voters ({voters}){}", if *retain { " retain" } else { "" })
            }
            ChangeKind::EditVoters { add, remove, retain } => {
                let retain = if *retain { " retain" } else { "" };
                write!(f, "voters +({add}) -({remove}){retain}")
            }
            ChangeKind::Goal { voters, learners } if learners.is_empty() => {
                write!(f, "goal ({voters})")
            }
            ChangeKind::Goal { voters, learners } => {
                write!(f, "goal ({voters}) learners ({learners})")
            }
            ChangeKind::Cancel => f.write_str("cancel"),
            _ if self.is_leave() => f.write_str("leave"),
            _ => {
                for (at, operation) in self.operations().iter().enumerate() {
                    write!(f, "{}{operation}", if at > 0 { " " } else { "" })?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self {
            Self::Voter(_) => 'v',
            Self::Learner(_) => 'l',
            Self::Remove(_) => 'r',
            Self::Update(_) => 'u',
        };
        write!(f, "{letter}{}", self.member())
    }
}
