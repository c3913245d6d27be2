//! L1: whenever enough members are up, one of them can be elected.
//!
//! Brute force over the logs and commit indexes of the members, without the core's
//! election code. For every set of live members that must suffice, the commit information
//! in vote requests and replies is exchanged until nothing changes; then a member of the
//! set must win with the votes of the set. This is electability under fair retries, not a
//! bound on time. Terms do not matter, because a candidate that was rejected for its term
//! retries in a newer one.

use std::sync::Arc;

use quorate_core::config::Activation;
use quorate_core::{EntryId, Index, MemberId, Membership};

use super::{ClusterHistory, DiskRecord, MemberView, Violation, has_quorum};

/// The protocol settings that matter for elections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub activation: Activation,
    /// Vote requests and replies carry the last membership known to be committed.
    pub votes_tell_commit: bool,
    /// A change is done when it is settled. Otherwise it is done as soon as it is
    /// committed, and from then on only the new membership is required.
    pub settles: bool,
}

/// The facts about one member that matter for an election.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Elector {
    pub id: MemberId,
    /// The entry ids of its log, starting with the entry before the first.
    log: Vec<EntryId>,
    last: EntryId,
    commit: Index,
    /// The memberships of its log, oldest first.
    memberships: Vec<(EntryId, Arc<Membership>)>,
    joined_at: Index,
    holds_newer_log: bool,
    /// The newest membership that is known to be committed from its disk alone.
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

    /// The membership that is active once all committed entries are applied.
    fn active_membership(&self, rules: Rules) -> Option<&(EntryId, Arc<Membership>)> {
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

    fn may_campaign(&self, rules: Rules) -> bool {
        let joined = match rules.activation {
            Activation::OnApply => self.commit >= self.joined_at,
            Activation::OnAppend => self.last.index >= self.joined_at,
        };
        let newer_log = rules.activation == Activation::OnAppend && self.holds_newer_log;
        let membership = self.active_membership(rules).map(|(_, membership)| membership);
        joined
            && membership.is_some_and(|membership| {
                membership.is_voter(self.id) || newer_log && !membership.is_empty()
            })
    }

    /// Learns from another member that this entry is committed. True if that is new.
    fn learn_committed(&mut self, entry: EntryId) -> bool {
        let is_new = entry.index > self.commit && self.log.contains(&entry);
        if is_new {
            self.commit = entry.index;
        }
        is_new
    }
}

/// Members that should be able to elect a leader but cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    pub members: Vec<MemberId>,
}

impl From<Stuck> for Violation {
    fn from(stuck: Stuck) -> Self {
        let names: Vec<String> = stuck.members.iter().map(ToString::to_string).collect();
        let names = names.join(" ");
        Self::new("L1", format!("{names} are up, which should suffice, but cannot elect a leader"))
    }
}

/// Checks that every set of live members that should suffice can elect a leader.
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
    assert!(count <= 20, "too many members to try all subsets");
    1..1 << count
}

pub fn members_of(live: &[Elector], chosen: u32) -> Vec<Elector> {
    live.iter()
        .enumerate()
        .filter(|(index, _)| chosen >> index & 1 == 1)
        .map(|(_, elector)| elector.clone())
        .collect()
}

/// Whether these members must be able to elect a leader. With activation on apply: a
/// quorum of the newest committed membership, and of the previous one until the newest is
/// settled. With activation on append: a quorum of the newest committed membership, and of
/// every newer one that is active at one of them.
pub fn should_suffice(
    set: &[Elector],
    all: &[Elector],
    history: &ClusterHistory,
    rules: Rules,
) -> bool {
    let in_set = |id: MemberId| set.iter().any(|elector| elector.id == id);
    let mut committed = history.memberships().rev();
    let Some((newest, membership)) = committed.next() else { return false };
    if !has_quorum(membership, in_set) {
        return false;
    }
    match rules.activation {
        Activation::OnApply => {
            let knows = |id| {
                all.iter().any(|elector| elector.id == id && elector.disk_knows >= newest.index)
            };
            let done = !rules.settles || has_quorum(membership, knows);
            done || committed.next().is_none_or(|(_, before)| has_quorum(before, in_set))
        }
        Activation::OnAppend => {
            let newer = set.iter().filter_map(|elector| elector.active_membership(rules));
            let mut newer = newer.filter(|(id, _)| id.index > newest.index);
            newer.all(|(_, membership)| has_quorum(membership, in_set))
        }
    }
}

/// Whether a member of the set can win with the votes of the set alone.
pub fn can_elect(set: &[Elector], rules: Rules) -> bool {
    let mut set = set.to_vec();
    while exchange_commits(&mut set, rules) {}
    set.iter().any(|candidate| candidate.may_campaign(rules) && wins(candidate, &set, rules))
}

fn wins(candidate: &Elector, set: &[Elector], rules: Rules) -> bool {
    let Some((_, membership)) = candidate.active_membership(rules) else { return false };
    has_quorum(membership, |id| {
        set.iter().any(|voter| voter.id == id && voter.last <= candidate.last)
    })
}

/// One round of campaigns: every eligible member campaigns once, and every message
/// arrives. True if a member learned something.
fn exchange_commits(set: &mut [Elector], rules: Rules) -> bool {
    let mut changed = false;
    for index in 0..set.len() {
        let Some(candidate) = set.get(index).filter(|member| member.may_campaign(rules)).cloned()
        else {
            continue;
        };
        let Some((_, membership)) = candidate.active_membership(rules) else { continue };
        let announced = candidate.committed().map(|(id, _)| *id);
        for other in 0..set.len() {
            let Some(voter) = set.get_mut(other) else { continue };
            if other == index || !membership.is_voter(voter.id) {
                continue;
            }
            if !voter.holds_newer_log && voter.last > candidate.last {
                voter.holds_newer_log = true;
                changed = true;
            }
            if !rules.votes_tell_commit {
                continue;
            }
            changed |= announced.is_some_and(|entry| voter.learn_committed(entry));
            let reply = voter.committed().map(|(id, _)| *id);
            if let (Some(reply), Some(candidate)) = (reply, set.get_mut(index)) {
                changed |= candidate.learn_committed(reply);
            }
        }
    }
    changed
}
