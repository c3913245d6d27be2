//! What counts as agreement. Every quorum decision in the system uses
//! [`Membership::quorum`]: for votes, match indexes, read rounds and leases.

use super::Membership;
use crate::{MemberId, MemberSet};

/// Values that a quorum can agree on. `ALL` is the result for a membership without voters.
pub trait Quorum: Ord + Copy {
    const ALL: Self;
}

impl Quorum for u64 {
    const ALL: Self = Self::MAX;
}

impl Quorum for bool {
    const ALL: Self = true;
}

/// The state of an election. Ordered, so that the quorum over it is the result: the best
/// that a majority of voters still supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VoteResult {
    Lost,
    Pending,
    Won,
}

impl Quorum for VoteResult {
    const ALL: Self = Self::Won;
}

/// The number of voters that form a quorum: more than half.
pub const fn quorum_size(voters: usize) -> usize {
    voters / 2 + 1
}

impl Membership {
    /// The greatest value that a majority of every majority reaches: for match indexes the
    /// commit index, for votes the election result, for times how long a quorum has been
    /// silent.
    pub fn quorum<T: Quorum>(&self, value: impl Fn(MemberId) -> T) -> T {
        self.majorities.iter().fold(T::ALL, |all, majority| all.min(one(majority, &value)))
    }

    /// The result of an election, given the replies so far.
    pub fn count(&self, vote: impl Fn(MemberId) -> Option<bool>) -> VoteResult {
        self.quorum(|id| match vote(id) {
            Some(true) => VoteResult::Won,
            Some(false) => VoteResult::Lost,
            None => VoteResult::Pending,
        })
    }
}

/// The value that a majority of these voters reaches: with n voters, the (n / 2 + 1)-th
/// largest.
fn one<T: Quorum>(majority: &MemberSet, value: &impl Fn(MemberId) -> T) -> T {
    match majority.as_slice() {
        [] => T::ALL,
        [only] => value(*only),
        [left, right] => value(*left).min(value(*right)),
        [left, middle, right] => median(value(*left), value(*middle), value(*right)),
        voters => many(voters, value),
    }
}

fn median<T: Ord + Copy>(left: T, middle: T, right: T) -> T {
    let (low, high) = if left <= middle { (left, middle) } else { (middle, left) };
    low.max(high.min(right))
}

fn many<T: Quorum>(voters: &[MemberId], value: &impl Fn(MemberId) -> T) -> T {
    const SMALL: usize = 16;
    let mut small = [T::ALL; SMALL];
    let mut large = Vec::new();
    let values = if voters.len() <= SMALL {
        &mut small[..voters.len()]
    } else {
        large.resize(voters.len(), T::ALL);
        &mut large[..]
    };
    for (slot, id) in values.iter_mut().zip(voters) {
        *slot = value(*id);
    }
    // In ascending order, a majority has at least this value.
    let place = voters.len() - quorum_size(voters.len());
    *values.select_nth_unstable(place).1
}
