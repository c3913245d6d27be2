//! What must hold across members, whatever a story does to them.
//!
//! `I1` one leader and one vote per term, `I2` logs that share an entry share all
//! before it, `I4` a new leader holds everything that was applied, `I5` everybody
//! applies the same entries, `I9` a term on disk never falls, `I10` what a leader
//! commits is on the disks of a quorum, `I12` no promise leaves before it is on disk.

use std::collections::BTreeMap;

use quorate_core::message::{AppendReply, Message};
use quorate_core::{Entry, Envelope, HardState, Index, MemberId, MemberSet, Membership, Term};

use super::disk::Disk;
use super::message::envelope_text;
use super::notation::entry_text;

/// What was seen so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Checks {
    leaders: BTreeMap<Term, MemberId>,
    applied: BTreeMap<Index, (MemberId, Entry)>,
}

impl Checks {
    /// A member won this term, with this log.
    pub(super) fn leads(&mut self, id: MemberId, term: Term, log: &Disk) -> Result<(), String> {
        if let Some(other) = self.leaders.get(&term).filter(|other| **other != id) {
            return Err(format!("I1 violated: {other} and {id} both lead term {term}"));
        }
        let newest = self.leaders.keys().next_back().is_none_or(|newest| *newest < term);
        self.leaders.insert(term, id);
        // A late win in an older term may miss what was committed after it.
        let held = |index: &Index, entry: &Entry| {
            *index <= log.base.index || log.id_at(*index) == Some(entry.id)
        };
        match self.applied.iter().find(|(index, (_, entry))| newest && !held(index, entry)) {
            Some((_, (by, entry))) => Err(format!(
                "I4 violated: {id} leads term {term} without {}, which {by} applied",
                entry_text(entry)
            )),
            None => Ok(()),
        }
    }

    pub(super) fn applies(&mut self, id: MemberId, entry: &Entry) -> Result<(), String> {
        let (by, first) = self.applied.entry(entry.id.index).or_insert_with(|| (id, entry.clone()));
        if first == entry {
            return Ok(());
        }
        let (first, entry) = (entry_text(first), entry_text(entry));
        Err(format!("I5 violated: {by} applied {first}, {id} applied {entry}"))
    }
}

/// Two logs, of which one has just been written.
pub(super) fn logs_match(a: (MemberId, &Disk), b: (MemberId, &Disk)) -> Result<(), String> {
    let ((a_id, a), (b_id, b)) = (a, b);
    let first = a.base.index.max(b.base.index) + 1;
    let last = a.last().index.min(b.last().index);
    let mut shared = false;
    for index in (first..=last).rev() {
        let (Some(ours), Some(theirs)) = (a.entry(index), b.entry(index)) else { continue };
        shared |= ours.id == theirs.id;
        if shared && ours != theirs {
            let (ours, theirs) = (entry_text(ours), entry_text(theirs));
            return Err(format!(
                "I2 violated: {a_id} holds {ours} and {b_id} holds {theirs}, below an entry that both hold"
            ));
        }
    }
    Ok(())
}

/// A member's promises, before and after a write.
pub(super) fn promises_kept(id: MemberId, old: &HardState, new: &HardState) -> Result<(), String> {
    if new.term < old.term {
        return Err(format!("I9 violated: {id} goes back from term {} to {}", old.term, new.term));
    }
    if let Some(first) = old.vote.filter(|_| new.term == old.term && new.vote != old.vote) {
        let second = new.vote.map_or("nobody".to_owned(), |id| id.to_string());
        return Err(format!(
            "I1 violated: in term {} {id} votes for {first}, then for {second}",
            old.term
        ));
    }
    Ok(())
}

/// A message leaves a member with this disk.
pub(super) fn promise_is_durable(envelope: &Envelope, disk: &Disk) -> Result<(), String> {
    let durable = match &envelope.message {
        Message::VoteReply(reply) if reply.granted => {
            let HardState { term, vote, .. } = disk.hard_state;
            term > envelope.term || (term == envelope.term && vote == Some(envelope.to))
        }
        Message::AppendReply(AppendReply::Matches { index, .. }) => *index <= disk.last().index,
        _ => true,
    };
    if durable {
        return Ok(());
    }
    Err(format!("I12 violated: {} leaves before it is on disk", envelope_text(envelope)))
}

/// Whether more than half of every majority are such. Counted here, and not by the core,
/// whose counting is what is being checked.
pub(super) fn is_quorum(membership: &Membership, such: impl Fn(MemberId) -> bool) -> bool {
    let counts = |majority: &MemberSet| {
        let many = majority.iter().filter(|id| such(*id)).count();
        many > majority.len() / 2
    };
    membership.majorities().iter().all(counts)
}
