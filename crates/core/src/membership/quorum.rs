//! What counts as agreement. Every quorum decision in the system uses
//! [`Membership::quorum`]: for votes, match indexes, read rounds and leases.

use super::Membership;
use crate::{MemberId, MemberSet};

/// The voters of a membership as positions in the sorted list of its members: for a leader,
/// which stores what it knows of its peers in that order and counts with every
/// acknowledgement.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VoterSlots {
    incoming: Box<[u32]>,
    outgoing: Vec<Box<[u32]>>,
}

impl VoterSlots {
    /// The positions of the voters among [`Membership::members`].
    pub fn new(membership: &Membership) -> Self {
        let members = membership.members();
        let slot =
            |id: MemberId| members.as_slice().binary_search(&id).unwrap_or(usize::MAX) as u32;
        let slots = |majority: &MemberSet| majority.iter().map(slot).collect();
        let outgoing = membership.outgoing().iter().map(slots).collect();
        Self { incoming: slots(membership.incoming()), outgoing }
    }

    /// As [`Membership::quorum`], for values by position.
    #[inline]
    pub fn quorum<T: Quorum>(&self, value: impl Fn(usize) -> T) -> T {
        let value = |slot: u32| value(slot as usize);
        let incoming = one(&self.incoming, &value);
        self.outgoing.iter().fold(incoming, |all, majority| all.min(one(majority, &value)))
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
        let majorities = self.majorities.iter().map(MemberSet::as_slice);
        majorities.fold(T::ALL, |all, majority| all.min(one(majority, &value)))
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
#[inline(always)]
fn one<V: Copy, T: Quorum>(majority: &[V], value: &impl Fn(V) -> T) -> T {
    match *majority {
        [] => T::ALL,
        [only] => value(only),
        [left, right] => value(left).min(value(right)),
        [a, b, c] => median([a, b, c].map(value), MEDIAN_OF_3),
        [a, b, c, d, e] => median([a, b, c, d, e].map(value), MEDIAN_OF_5),
        [a, b, c, d, e, f, g] => median([a, b, c, d, e, f, g].map(value), MEDIAN_OF_7),
        _ => many(majority, value),
    }
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

fn many<V: Copy, T: Quorum>(voters: &[V], value: &impl Fn(V) -> T) -> T {
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
                let positions: Vec<usize> = (0..values.len()).collect();
                assert_eq!(one(&positions, &|at: usize| values[at]), expected, "{values:?}");
            }
        }
    }

    #[test]
    fn positions_and_ids_count_the_same() {
        let majorities = vec![MemberSet::from([2, 3, 9]), MemberSet::from([1, 3, 5, 9])];
        let membership = Membership::from_parts(majorities, MemberSet::from([4]), MemberSet::new());
        let (slots, members) = (VoterSlots::new(&membership), membership.members());
        for number in 0..6_u64.pow(6) {
            let value = |slot: usize| number / 6_u64.pow(slot as u32) % 6;
            let of = |id| members.as_slice().binary_search(&id).map_or(0, value);
            assert_eq!(slots.quorum(value), membership.quorum(of));
        }
    }
}
