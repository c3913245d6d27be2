//! L1: whenever enough members live, one of them can be elected.
//!
//! Brute force over what members hold and know, without the core's election code: for
//! every set of live members that holds the quorums it is promised to suffice, spread
//! what the votes of its candidates would tell until nothing changes; then a member
//! of the set must win with the votes of the set. That is electability under fair
//! retries, not a bound on time: terms do not matter, since a campaigner that was
//! refused for its term asks again in a newer one.

use std::sync::Arc;

use quorate_core::config::Activation;
use quorate_core::{EntryId, Index, MemberId, Membership};

use super::{ClusterHistory, DiskRecord, MemberView, Violation, has_quorum};

/// What of the rules matters for elections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub activation: Activation,
    /// Votes and their answers tell the last membership known to be committed.
    pub votes_tell_commit: bool,
    /// A change is called done when it is settled; otherwise as soon as it is committed,
    /// and from then on the new membership is relied on alone.
    pub settles: bool,
}

/// What an election needs to know of one member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Elector {
    pub id: MemberId,
    /// Its log, by the ids of its entries, from the one before the first on.
    log: Vec<EntryId>,
    last: EntryId,
    commit: Index,
    /// The memberships of its log, oldest first.
    memberships: Vec<(EntryId, Arc<Membership>)>,
    joined_at: Index,
    holds_newer_log: bool,
    /// The newest membership that its disk knows to be committed.
    disk_knows: Index,
}

impl Elector {
    pub fn of(view: &MemberView) -> Self {
        let memberships = view.memberships();
        let disk = DiskRecord::of_view(&view.durable);
        let knows = |index| disk.knows_committed(index);
        let disk_knows = memberships.iter().rev().find(|(id, _)| knows(id.index));
        Self {
            id: view.id,
            log: std::iter::once(view.log.base)
                .chain(view.log.entries.iter().map(|entry| entry.id))
                .collect(),
            last: view.log.last(),
            commit: view.commit,
            disk_knows: disk_knows.map_or(0, |(id, _)| id.index),
            memberships,
            joined_at: view.joined_at,
            holds_newer_log: view.holds_newer_log,
        }
    }

    /// The membership that it counts by once all it knows is applied.
    fn counts_by(&self, rules: Rules) -> Option<&(EntryId, Arc<Membership>)> {
        match rules.activation {
            Activation::OnApply => self.committed(),
            Activation::OnAppend => self.memberships.last(),
        }
    }

    /// The last membership that it knows to be committed.
    fn committed(&self) -> Option<&(EntryId, Arc<Membership>)> {
        let committed = |(id, _): &&(EntryId, _)| id.index <= self.commit;
        self.memberships.iter().rev().find(committed).or(self.memberships.first())
    }

    fn may_stand(&self, rules: Rules) -> bool {
        let joined = match rules.activation {
            Activation::OnApply => self.commit >= self.joined_at,
            Activation::OnAppend => self.last.index >= self.joined_at,
        };
        let by_right = rules.activation == Activation::OnAppend && self.holds_newer_log;
        let membership = self.counts_by(rules).map(|(_, membership)| membership);
        joined
            && membership.is_some_and(|membership| {
                membership.is_voter(self.id) || by_right && !membership.is_empty()
            })
    }

    /// Another member says that this membership is committed. True when that is new here.
    fn is_told(&mut self, told: EntryId) -> bool {
        let news = told.index > self.commit && self.log.contains(&told);
        if news {
            self.commit = told.index;
        }
        news
    }
}

/// Members that should be able to elect a leader, and cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    pub members: Vec<MemberId>,
}

impl From<Stuck> for Violation {
    fn from(stuck: Stuck) -> Self {
        let names: Vec<String> = stuck.members.iter().map(ToString::to_string).collect();
        let names = names.join(" ");
        Self::new("L1", format!("no leader is reachable with {names} alive, which should suffice"))
    }
}

/// Every set of live members that should suffice can elect a leader.
pub fn check(
    live: &[Elector],
    all: &[Elector],
    history: &ClusterHistory,
    rules: Rules,
) -> Result<(), Stuck> {
    for chosen in sets(live.len()) {
        let set = members_of(live, chosen);
        if should_suffice(&set, all, history, rules) && !can_elect(&set, rules) {
            return Err(Stuck { members: set.iter().map(|elector| elector.id).collect() });
        }
    }
    Ok(())
}

/// All subsets of this many members, as bits.
pub fn sets(count: usize) -> std::ops::Range<u32> {
    assert!(count <= 20, "tries all subsets: too many members for that");
    1..1 << count
}

pub fn members_of(live: &[Elector], chosen: u32) -> Vec<Elector> {
    live.iter()
        .enumerate()
        .filter(|(at, _)| chosen >> at & 1 == 1)
        .map(|(_, one)| one.clone())
        .collect()
}

/// Whether these members were promised to be enough. On apply: a quorum of the newest
/// committed membership, and of the one before until the newest is settled. On append: a
/// quorum of the newest committed one, and of every newer one that one of them counts by.
pub fn should_suffice(
    set: &[Elector],
    all: &[Elector],
    history: &ClusterHistory,
    rules: Rules,
) -> bool {
    let inside = |id: MemberId| set.iter().any(|elector| elector.id == id);
    let mut committed = history.memberships().rev();
    let Some((newest, membership)) = committed.next() else { return false };
    if !has_quorum(membership, inside) {
        return false;
    }
    match rules.activation {
        Activation::OnApply => {
            let knows = |id| {
                all.iter().any(|elector| elector.id == id && elector.disk_knows >= newest.index)
            };
            let done = !rules.settles || has_quorum(membership, knows);
            done || committed.next().is_none_or(|(_, before)| has_quorum(before, inside))
        }
        Activation::OnAppend => {
            let newer = set.iter().filter_map(|elector| elector.counts_by(rules));
            let mut newer = newer.filter(|(id, _)| id.index > newest.index);
            newer.all(|(_, membership)| has_quorum(membership, inside))
        }
    }
}

/// Whether one of these can win with the votes of these alone.
pub fn can_elect(set: &[Elector], rules: Rules) -> bool {
    let mut set = set.to_vec();
    while spread(&mut set, rules) {}
    set.iter().any(|candidate| candidate.may_stand(rules) && wins(candidate, &set, rules))
}

fn wins(candidate: &Elector, set: &[Elector], rules: Rules) -> bool {
    let Some((_, membership)) = candidate.counts_by(rules) else { return false };
    has_quorum(membership, |id| {
        set.iter().any(|voter| voter.id == id && voter.last <= candidate.last)
    })
}

/// One round of campaigns: every member that may campaigns once, and every message
/// arrives. True when a member learned something.
fn spread(set: &mut [Elector], rules: Rules) -> bool {
    let mut news = false;
    for at in 0..set.len() {
        let Some(candidate) = set.get(at).filter(|one| one.may_stand(rules)).cloned() else {
            continue;
        };
        let Some((_, membership)) = candidate.counts_by(rules) else { continue };
        let told = candidate.committed().map(|(id, _)| *id);
        for other in 0..set.len() {
            let Some(voter) = set.get_mut(other) else { continue };
            if other == at || !membership.is_voter(voter.id) {
                continue;
            }
            if !voter.holds_newer_log && voter.last > candidate.last {
                voter.holds_newer_log = true;
                news = true;
            }
            if !rules.votes_tell_commit {
                continue;
            }
            news |= told.is_some_and(|told| voter.is_told(told));
            let answer = voter.committed().map(|(id, _)| *id);
            if let (Some(answer), Some(candidate)) = (answer, set.get_mut(at)) {
                news |= candidate.is_told(answer);
            }
        }
    }
    news
}
