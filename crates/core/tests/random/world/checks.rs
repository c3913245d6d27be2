//! What must hold of the whole cluster, whatever happens.

use std::collections::{BTreeMap, BTreeSet};

use quorate_core::config::Activation;
use quorate_core::status::RoleKind;
use quorate_core::{
    Entry, EntryId, Index, MemberId, Membership, Output, Payload, Raft, RequestId, Term,
};

use super::Member;

#[derive(Default)]
pub(crate) struct History {
    /// I1: who led each term.
    elected: BTreeMap<Term, MemberId>,
    /// I5: what was committed at each index, the first time anybody said so.
    committed: BTreeMap<Index, Entry>,
    /// R2: proposals that were refused, which means that they did not happen.
    refused: BTreeSet<RequestId>,
    /// Proposals that did, by number. Each is taken once, unless the cluster has etcd's
    /// rules.
    taken: BTreeMap<RequestId, EntryId>,
    /// I3: the log of a leader as last seen.
    leading: BTreeMap<MemberId, (Term, EntryId)>,
    /// I9: terms and commit indexes never fall, except that a crash forgets a
    /// commit index that was not saved.
    marks: BTreeMap<MemberId, (Term, Index, Index)>,
}

impl History {
    pub(crate) fn committed_to(&self) -> Index {
        self.committed.keys().next_back().copied().unwrap_or(0)
    }

    /// A proposal was refused: it did not happen, and never will.
    pub(crate) fn refuse(&mut self, request: RequestId) {
        self.refused.insert(request);
    }

    fn taken_once(taken: &mut BTreeMap<RequestId, EntryId>, entry: &Entry) {
        let Payload::Command(command) = &entry.payload else { return };
        let Ok(number) = <[u8; 8]>::try_from(&command[..]) else { return };
        let request = RequestId(u64::from_be_bytes(number));
        let first = *taken.entry(request).or_insert(entry.id);
        assert_eq!(first, entry.id, "{request:?} is taken twice");
    }

    pub(crate) fn restarted(&mut self, raft: &Raft) {
        let status = raft.status();
        self.leading.remove(&status.id);
        let marks = (status.term, status.log.commit, status.log.applied);
        self.marks.insert(status.id, marks);
    }

    pub(crate) fn note(&mut self, raft: &Raft, output: &Output) {
        let status = raft.status();
        for entry in output.apply.iter() {
            let known = self.committed.entry(entry.id.index).or_insert_with(|| entry.clone());
            assert_eq!(known, entry, "{} applies another entry", status.id);
            if !raft.config().etcd_compat.forwards_unanswered {
                Self::taken_once(&mut self.taken, entry);
            }
        }
        for (request, _) in &output.refused {
            self.refuse(*request);
        }
        let both = self.refused.iter().find(|request| self.taken.contains_key(*request));
        assert_eq!(both, None, "refused and taken");
        let marks = self.marks.entry(status.id).or_default();
        let now = (status.term, status.log.commit, status.log.applied);
        assert!(marks.0 <= now.0 && marks.1 <= now.1 && marks.2 <= now.2, "{marks:?} {now:?}");
        *marks = now;
        if status.role == RoleKind::Leader {
            let winner = *self.elected.entry(status.term).or_insert(status.id);
            assert_eq!(winner, status.id, "two leaders in term {}", status.term);
            let known = self.leading.insert(status.id, (status.term, status.log.last));
            if let Some((term, last)) = known.filter(|(term, _)| *term == status.term) {
                assert!(status.log.last.index >= last.index, "leader of {term} lost entries");
            }
        }
    }

    /// I2, I4, I10 over all disks and members.
    pub(crate) fn check(&mut self, members: &BTreeMap<MemberId, Member>) {
        for (id, member) in members {
            let Some(raft) = &member.raft else { continue };
            let status = raft.status();
            if status.role == RoleKind::Leader {
                self.leader_has_all_committed(*id, raft);
            }
        }
        let disks: Vec<_> = members.values().map(|member| &member.disk).collect();
        for (at, left) in disks.iter().enumerate() {
            for right in &disks[at + 1..] {
                logs_match(&left.entries, &right.entries);
            }
        }
    }

    fn leader_has_all_committed(&self, id: MemberId, raft: &Raft) {
        let status = raft.status();
        for (index, entry) in &self.committed {
            if *index > status.log.base.index && entry.id.term < status.term {
                assert!(
                    *index <= status.log.last.index,
                    "leader {id} lacks committed {}",
                    entry.id
                );
            }
        }
    }
}

/// I13: enough disks know that it is committed.
pub(crate) fn is_settled(
    id: EntryId,
    membership: &Membership,
    members: &BTreeMap<MemberId, Member>,
) {
    let knows = |voter| {
        members.get(&voter).is_some_and(|member| {
            let disk = &member.disk;
            let commit = disk.hard_state.commit.max(disk.snapshot.id.index);
            commit.max(disk.applied) >= id.index
        })
    };
    let on_append = membership.activation() == Activation::OnAppend;
    assert!(on_append || membership.quorum(knows), "{id} {membership} is not settled");
}

/// Where two logs have the same id they have the same entries up to there.
fn logs_match(left: &[Entry], right: &[Entry]) {
    let (Some(first_left), Some(first_right)) = (left.first(), right.first()) else { return };
    let from = first_left.id.index.max(first_right.id.index);
    let left = &left[((from - first_left.id.index) as usize).min(left.len())..];
    let right = &right[((from - first_right.id.index) as usize).min(right.len())..];
    let same = left.iter().zip(right).rposition(|(left, right)| left.id == right.id);
    if let Some(last) = same {
        assert_eq!(&left[..=last], &right[..=last], "logs differ before a common entry");
    }
}
