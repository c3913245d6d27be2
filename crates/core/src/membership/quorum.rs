//! What counts as agreement. Every quorum decision in the system uses
//! [`Membership::quorum`]: for votes, match indexes, read rounds and leases.

use super::Membership;
use crate::pack::pack_fields;
use crate::{MemberId, MemberSet};

/// The voters of a membership as positions in the sorted list of its members: for a leader,
/// which stores what it knows of its peers in that order and counts with every
/// acknowledgement.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VoterSlots {
    /// The number of members if all of them are voters of one majority, as in most clusters;
    /// otherwise 0.
    all: u32,
    /// Otherwise the positions of the voters of each majority.
    listed: Box<[Box<[u32]>]>,
}

pack_fields!(VoterSlots { all, listed });

impl VoterSlots {
    /// The positions of the voters among [`Membership::members`].
    pub fn new(membership: &Membership) -> Self {
        let members = membership.members();
        if let [only] = membership.majorities()
            && *only == members
        {
            return Self { all: members.len() as u32, listed: Box::default() };
        }
        let slot =
            |id: MemberId| members.as_slice().binary_search(&id).unwrap_or(usize::MAX) as u32;
        let slots = |majority: &MemberSet| majority.iter().map(slot).collect();
        Self { all: 0, listed: membership.majorities().iter().map(slots).collect() }
    }

    /// As [`Membership::quorum`], for values by position.
    #[inline]
    pub fn quorum<T: Quorum>(&self, value: impl Fn(usize) -> T) -> T {
        let all = one(self.all as usize, &value);
        let listed = |slots: &[u32]| one(slots.len(), &|at| value(slots[at] as usize));
        self.listed.iter().fold(all, |all, majority| all.min(listed(majority)))
    }
}

/// Values that a quorum can agree on. `ALL` is the result for a membership without voters.
pub trait Quorum: Ord + Copy {
    /// The result for a membership without voters.
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
    /// A majority cannot be reached any longer.
    Lost,
    /// Not decided yet.
    Pending,
    /// A majority has granted its votes.
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
        let of = |voters: &[MemberId]| one(voters.len(), &|at| value(voters[at]));
        let majorities = self.majorities.iter().map(MemberSet::as_slice);
        majorities.fold(T::ALL, |all, majority| all.min(of(majority)))
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

/// The value that a majority of so many voters reaches: with n voters, the (n / 2 + 1)-th
/// largest.
#[inline(always)]
fn one<T: Quorum>(voters: usize, value: &impl Fn(usize) -> T) -> T {
    match voters {
        0 => T::ALL,
        1 => value(0),
        2 => value(1).min(value(0)),
        3 => median(read::<_, 3>(value), MEDIAN_OF_3),
        5 => median(read::<_, 5>(value), MEDIAN_OF_5),
        7 => median(read::<_, 7>(value), MEDIAN_OF_7),
        _ => many(voters, value),
    }
}

/// The last value first: once its position is known to exist, those before it need no check.
#[inline(always)]
fn read<T: Quorum, const N: usize>(value: &impl Fn(usize) -> T) -> [T; N] {
    let mut values = [T::ALL; N];
    for at in (0..N).rev() {
        values[at] = value(at);
    }
    values
}

/// Pairs of positions. When the values of one pair after the other are put in order, the median
/// is in the middle.
type Network<const PAIRS: usize> = [(usize, usize); PAIRS];

const MEDIAN_OF_3: Network<3> = [(0, 1), (1, 2), (0, 1)];
const MEDIAN_OF_5: Network<7> = [(0, 1), (3, 4), (0, 3), (1, 4), (1, 2), (2, 3), (1, 2)];
const MEDIAN_OF_7: Network<13> = [
    (0, 5),
    (0, 3),
    (1, 6),
    (2, 4),
    (0, 1),
    (3, 5),
    (2, 6),
    (2, 3),
    (3, 6),
    (4, 5),
    (1, 4),
    (1, 3),
    (3, 4),
];

/// What a majority of an odd number of voters reaches is the median. No branch depends on a
/// value.
#[inline(always)]
fn median<T: Quorum, const N: usize, const PAIRS: usize>(
    mut values: [T; N],
    network: Network<PAIRS>,
) -> T {
    for (low, high) in network {
        let (left, right) = (values[low], values[high]);
        (values[low], values[high]) = (left.min(right), left.max(right));
    }
    values[N - quorum_size(N)]
}

fn many<T: Quorum>(voters: usize, value: &impl Fn(usize) -> T) -> T {
    const SMALL: usize = 16;
    let mut small = [T::ALL; SMALL];
    let mut large = Vec::new();
    let values = if voters <= SMALL {
        &mut small[..voters]
    } else {
        large.resize(voters, T::ALL);
        &mut large[..]
    };
    for (at, slot) in values.iter_mut().enumerate() {
        *slot = value(at);
    }
    // In ascending order, a majority has at least this value.
    let place = voters - quorum_size(voters);
    *values.select_nth_unstable(place).1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By every order of values, also with equal ones: 7 values of 0 and 1 would do for a
    /// network, but sorting shows the rule.
    #[test]
    fn a_majority_reaches_the_value_that_sorting_finds() {
        for voters in 1..=7_u32 {
            for number in 0..4_u64.pow(voters) {
                let values: Vec<u64> =
                    (0..voters).map(|voter| number / 4_u64.pow(voter) % 4).collect();
                let mut sorted = values.clone();
                sorted.sort_unstable();
                let expected = sorted[values.len() - quorum_size(values.len())];
                assert_eq!(one(values.len(), &|at| values[at]), expected, "{values:?}");
            }
        }
    }

    #[test]
    fn positions_and_ids_count_the_same() {
        let joint = vec![MemberSet::from([2, 3, 9]), MemberSet::from([1, 3, 5, 9])];
        let with_learner = (vec![MemberSet::from([2, 3, 9])], MemberSet::from([1]));
        let voters_only = (vec![MemberSet::from([1, 3, 5, 9])], MemberSet::new());
        for (majorities, learners) in
            [(joint, MemberSet::from([4])), with_learner, voters_only, (vec![], MemberSet::new())]
        {
            let membership = Membership::from_parts(majorities, learners, MemberSet::new());
            let (slots, members) = (VoterSlots::new(&membership), membership.members());
            for number in 0..6_u64.pow(members.len() as u32) {
                let value = |slot: usize| number / 6_u64.pow(slot as u32) % 6;
                let of = |id| members.as_slice().binary_search(&id).map_or(0, value);
                assert_eq!(slots.quorum(value), membership.quorum(of));
            }
        }
    }
}
