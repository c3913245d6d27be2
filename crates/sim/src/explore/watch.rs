//! The cheap invariants, checked after every event of a run.
//!
//! Everything is kept up as it happens, so that a check costs what the event changed
//! and not what the world holds. The same rules over whole states, for the model
//! checker and for a look now and then, stand in [`checkers`](crate::checkers).

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use quorate_core::config::Activation;
use quorate_core::membership::EndedGoal;
use quorate_core::message::{AppendReply, Message};
use quorate_core::status::RoleKind;
use quorate_core::{
    Boot, Entries, EntryId, Envelope, HardState, Index, MemberId, Membership, Payload, Raft, Save,
    SnapshotMeta, Term,
};

use crate::checkers::{Violation, has_quorum, quorums_meet};

type Checked = Result<(), Violation>;

/// What was seen of a run so far.
#[derive(Default)]
pub(crate) struct Watch {
    elected: HashMap<Term, MemberId>,
    /// Whom a member voted for in a term, over restarts.
    votes: HashMap<(MemberId, Term), MemberId>,
    /// Every entry that was ever logged.
    entries: HashMap<EntryId, Logged>,
    /// The term of each committed entry, from index 1 on.
    committed: Vec<Term>,
    /// The committed memberships, oldest first.
    memberships: Vec<(EntryId, Arc<Membership>)>,
    /// What the machines' states hash to, by index, where somebody captured one.
    states: HashMap<Index, u64>,
    members: Vec<Seen>,
}

struct Logged {
    hash: u64,
    /// The term of the entry before it.
    before: Term,
}

/// What was seen of one member.
#[derive(Default)]
struct Seen {
    /// Its log as it was told to save it.
    told: Terms,
    disk: Kept,
    /// What a disk held that is gone. It kept its word as long as it was there, and
    /// another one under the same name keeps no word at all.
    former: Option<Kept>,
    term: Term,
    commit: Index,
    applied: Index,
    /// The term it leads.
    leads: Option<Term>,
    stands: bool,
    membership: Option<Arc<Membership>>,
    /// Up to where it said, since it was started, that memberships are settled.
    settled: Index,
    /// Goals whose end it told since then.
    goals_told: Vec<EntryId>,
}

/// What a disk keeps.
#[derive(Clone, Default)]
struct Kept {
    log: Terms,
    hard_state: HardState,
}

/// The terms of a log's entries, and which of them change the membership.
#[derive(Clone, Default)]
struct Terms {
    /// The newest entry before the first one held.
    base: EntryId,
    terms: Vec<Term>,
    /// That of the snapshot first; where a cluster begins, zero.
    changes: Vec<EntryId>,
}

impl Terms {
    fn last(&self) -> Index {
        self.base.index + self.terms.len() as u64
    }

    fn at(&self, index: Index) -> Option<Term> {
        if index == self.base.index {
            return Some(self.base.term);
        }
        let place = index.checked_sub(self.base.index + 1)?;
        self.terms.get(usize::try_from(place).ok()?).copied()
    }

    /// Holds this entry, or a snapshot that covers it.
    fn covers(&self, id: EntryId) -> bool {
        id.index < self.base.index || self.at(id.index) == Some(id.term)
    }

    fn take(&mut self, entries: &Entries) {
        let Some(first) = entries.first() else { return };
        let keep = first.id.index.saturating_sub(self.base.index + 1);
        self.terms.truncate(keep as usize);
        self.terms.extend(entries.iter().map(|entry| entry.id.term));
        self.changes.retain(|change| change.index < first.id.index);
        let changes = entries.iter().filter(|entry| entry.change().is_some());
        self.changes.extend(changes.map(|entry| entry.id));
    }

    /// The newest change up to here.
    fn change_at(&self, index: Index) -> EntryId {
        let found = self.changes.iter().rev().find(|change| change.index <= index);
        found.copied().unwrap_or_default()
    }

    /// A snapshot takes the place of what is before it, and of all that does not
    /// continue it.
    fn install(&mut self, meta: &SnapshotMeta) {
        let id = meta.id;
        if self.at(id.index) == Some(id.term) && id.index >= self.base.index {
            let gone = (id.index - self.base.index) as usize;
            self.terms.drain(..gone);
        } else {
            self.terms.clear();
        }
        self.base = id;
        self.changes.retain(|change| change.index > id.index && !self.terms.is_empty());
        self.changes.insert(0, meta.membership.since());
    }
}

fn broken(rule: &'static str, what: String) -> Checked {
    Err(Violation::new(rule, what))
}

impl Watch {
    pub(crate) fn add_member(&mut self) {
        self.members.push(Seen::default());
    }

    fn note_first(&mut self, boot: &Boot) {
        let id = boot.snapshot.id;
        if id.index > 0 && self.committed.is_empty() {
            self.committed.push(id.term);
            self.memberships.push((id, Arc::clone(&boot.snapshot.membership)));
        }
    }

    /// The newest committed membership.
    pub(crate) fn membership(&self) -> Option<&(EntryId, Arc<Membership>)> {
        self.memberships.last()
    }

    /// The index of the newest committed membership up to here, where it has to settle.
    fn newest_settling(&self, index: Index) -> Index {
        let settles = |known: &Membership| known.activation() == Activation::OnApply;
        let mut known = self.memberships.iter().rev();
        let found = known.find(|(id, known)| id.index <= index && settles(known));
        found.map_or(0, |(id, _)| id.index)
    }

    /// The newest committed memberships, the latest first.
    pub(crate) fn memberships(&self) -> impl Iterator<Item = &(EntryId, Arc<Membership>)> {
        self.memberships.iter().rev()
    }

    pub(crate) fn elections(&self) -> u64 {
        self.elected.len() as u64
    }

    pub(crate) fn commit(&self) -> Index {
        self.committed.len() as u64
    }

    /// A member asks its disk to save something (I2, I3).
    pub(crate) fn on_save(&mut self, place: usize, raft: &Raft, save: &Save) -> Checked {
        if let Some(meta) = &save.install {
            self.members[place].told.install(meta);
        }
        let Some(first) = save.entries.first() else { return Ok(()) };
        let seen = &self.members[place];
        let id = raft.config().id;
        if seen.leads == Some(raft.term()) && first.id.index <= seen.told.last() {
            return broken("I3", format!("{id} leads and replaces its own {:?}", first));
        }
        let Some(mut before) = seen.told.at(first.id.index - 1) else {
            return broken("I2", format!("{id} saves {:?} after a gap", first));
        };
        for entry in save.entries.chunks().flatten() {
            let hash = hash_of(&entry.payload);
            let logged = self.entries.entry(entry.id).or_insert(Logged { hash, before });
            if (logged.hash, logged.before) != (hash, before) {
                return broken("I2", format!("{id} holds another {entry:?} than was logged"));
            }
            before = entry.id.term;
        }
        self.members[place].told.take(&save.entries);
        Ok(())
    }

    /// The disk of a member holds a save (one vote per term: I1).
    pub(crate) fn on_saved(&mut self, place: usize, id: MemberId, save: &Save) -> Checked {
        let seen = &mut self.members[place];
        if let Some(hard_state) = save.hard_state {
            seen.disk.hard_state = hard_state;
            if let Some(vote) = hard_state.vote {
                let first = *self.votes.entry((id, hard_state.term)).or_insert(vote);
                if first != vote {
                    let term = hard_state.term;
                    return broken(
                        "I1",
                        format!("{id} votes for {vote} and {first} in term {term}"),
                    );
                }
            }
        }
        if let Some(meta) = &save.install {
            seen.disk.log.install(meta);
        }
        seen.disk.log.take(&save.entries);
        Ok(())
    }

    /// A message leaves a member (I12).
    pub(crate) fn on_send(&self, place: usize, envelope: &Envelope) -> Checked {
        let seen = &self.members[place];
        let HardState { term, vote, .. } = seen.disk.hard_state;
        let kept = match &envelope.message {
            Message::VoteReply(reply) if reply.granted => {
                term > envelope.term || term == envelope.term && vote == Some(envelope.to)
            }
            // A commit index may be told before it is durable, but not that of a
            // membership: what is settled rests on it.
            Message::AppendReply(AppendReply::Matches { index, commit }) => {
                let known = seen.disk.hard_state.commit.max(seen.disk.log.base.index);
                // What was accepted in an older term was accepted before this one: it may
                // be told although a later leader has replaced it since.
                let kept = *index <= seen.disk.log.last() || envelope.term < term;
                kept && self.newest_settling(*commit) <= known
            }
            _ => true,
        };
        if kept {
            return Ok(());
        }
        let Envelope { from, to, term, message, .. } = envelope;
        let (last, known) = (seen.disk.log.last(), seen.disk.hard_state);
        let said = format!("{from} tells {to} {message:?} in term {term}");
        broken("I12", format!("{said}, its disk holds {last} entries and {known:?}"))
    }

    /// Something happened to a member (I1, I4, I5, I9, I10).
    pub(crate) fn after(&mut self, place: usize, raft: &Raft) -> Checked {
        let id = raft.config().id;
        let (term, log) = (raft.term(), raft.log_status());
        let seen = &mut self.members[place];
        if term < seen.term || log.commit < seen.commit {
            return broken("I9", format!("{id} goes back to term {term}, commit {}", log.commit));
        }
        seen.term = term;
        let leads = (raft.role() == RoleKind::Leader).then_some(term);
        if leads.is_some() && seen.leads != leads {
            self.on_elected(place, raft)?;
        }
        let led = std::mem::replace(&mut self.members[place].leads, leads);
        if log.commit > self.members[place].commit {
            if leads.is_some() && led == leads && log.commit > self.commit() {
                self.commit_is_of_own_term(place, raft, log.commit)?;
            }
            self.on_commit(place, raft, log.commit)?;
        }
        let stands = matches!(raft.role(), RoleKind::PreCandidate | RoleKind::Candidate);
        let seen = &mut self.members[place];
        if stands && !std::mem::replace(&mut seen.stands, stands) {
            may_stand(raft)?;
        }
        seen.stands = stands;
        if seen.membership.as_ref().is_none_or(|known| !Arc::ptr_eq(known, raft.membership())) {
            seen.membership = Some(Arc::clone(raft.membership()));
            if !log.installing {
                is_derived(raft, &seen.told)?;
            }
        }
        Ok(())
    }

    fn on_elected(&mut self, place: usize, raft: &Raft) -> Checked {
        let (id, term) = (raft.config().id, raft.term());
        let winner = *self.elected.entry(term).or_insert(id);
        if winner != id {
            return broken("I1", format!("{winner} and {id} both lead term {term}"));
        }
        // Logs that hold the same entry are the same before it: looking at the newest
        // committed one is looking at all.
        let newest = EntryId::new(self.committed.last().copied().unwrap_or(0), self.commit());
        let last = raft.log_status().last;
        let told = &self.members[place].told;
        let holds = told.covers(newest) || last == newest || newest.term > term;
        if newest.index > 0 && !holds {
            return broken("I4", format!("{id} leads term {term} without committed {newest}"));
        }
        Ok(())
    }

    fn on_commit(&mut self, place: usize, raft: &Raft, commit: Index) -> Checked {
        let id = raft.config().id;
        let told = &self.members[place].told;
        let before = self.members[place].commit;
        for index in before + 1..=commit {
            let Some(term) = told.at(index) else { continue };
            let known = usize::try_from(index - 1).ok().and_then(|at| self.committed.get(at));
            match known {
                Some(known) if *known == term => {}
                Some(known) => {
                    return broken(
                        "I5",
                        format!("{id} commits {term}.{index}, before it was {known}.{index}"),
                    );
                }
                None if index == self.commit() + 1 => self.committed.push(term),
                None => {
                    return broken("I5", format!("{id} commits {index}, nobody has {}", index - 1));
                }
            }
        }
        if raft.role() == RoleKind::Leader && before > 0 {
            self.commit_is_on_quorum(place, raft, commit)?;
        }
        self.members[place].commit = commit;
        Ok(())
    }

    /// A leader commits by an entry of its own term: an older one may be on a quorum and
    /// still be replaced. Runs in which it then is are too rare to wait for.
    fn commit_is_of_own_term(&self, place: usize, raft: &Raft, commit: Index) -> Checked {
        let (id, term) = (raft.config().id, raft.term());
        match self.members[place].told.at(commit) {
            Some(found) if found < term => broken(
                "I10",
                format!("{id} leads term {term} and commits {found}.{commit} by count"),
            ),
            _ => Ok(()),
        }
    }

    /// On the disks of a quorum, also of members that are down: of the membership
    /// that counts, or of the one that counted when the leader looked.
    fn commit_is_on_quorum(&self, place: usize, raft: &Raft, commit: Index) -> Checked {
        let Some(term) = self.members[place].told.at(commit) else { return Ok(()) };
        let entry = EntryId::new(term, commit);
        let holds = |id: MemberId| {
            let at = usize::try_from(id.0 - 1).ok();
            let seen = at.and_then(|at| self.members.get(at));
            seen.is_some_and(|seen| seen.word().log.covers(entry))
        };
        let now = Some(raft.membership());
        let before = self.members[place].membership.as_ref();
        let enough = |known: &Arc<Membership>| has_quorum(known, holds);
        if [now, before].into_iter().flatten().any(enough) {
            return Ok(());
        }
        let membership = raft.membership();
        broken("I10", format!("{entry} is committed without a quorum of {membership}"))
    }

    /// A member logs a change of membership (I6, I7).
    pub(crate) fn on_change(&self, raft: &Raft, id: EntryId, next: &Membership) -> Checked {
        let before = raft.membership_at(id.index - 1);
        if !quorums_meet(&before, next) {
            return broken("I6", format!("{id} goes from {before} to {next}"));
        }
        let commit = raft.log_status().commit;
        let leads = raft.role() == RoleKind::Leader && raft.term() == id.term;
        if leads && before.since().index > commit {
            let first = before.since();
            return broken("I7", format!("{id} follows {first}, which is not committed"));
        }
        Ok(())
    }

    /// A member takes a membership for settled: a quorum of it knows it committed, also
    /// after a restart (T5).
    pub(crate) fn on_settled(
        &mut self,
        place: usize,
        id: MemberId,
        entry: EntryId,
        membership: &Membership,
    ) -> Checked {
        self.members[place].settled = entry.index;
        if membership.activation() == Activation::OnAppend {
            return Ok(());
        }
        let knows = |id: MemberId| {
            let at = usize::try_from(id.0 - 1).ok();
            let seen = at.and_then(|at| self.members.get(at));
            seen.is_some_and(|seen| seen.word().knows_committed(entry.index))
        };
        if has_quorum(membership, knows) {
            return Ok(());
        }
        let sure: Vec<MemberId> = membership.members().iter().filter(|id| knows(*id)).collect();
        broken("I13", format!("{id} takes {entry} of {membership} for settled, sure are {sure:?}"))
    }

    /// A member tells how a goal ended: once in each of its runs, and when the membership
    /// in which it ended is settled (I13).
    pub(crate) fn on_goal_ended(
        &mut self,
        place: usize,
        id: MemberId,
        ended: EndedGoal,
    ) -> Checked {
        let seen = &mut self.members[place];
        if ended.at.index > seen.settled {
            let settled = seen.settled;
            return broken("I13", format!("{id} tells {ended:?}, settled is {settled}"));
        }
        if seen.goals_told.contains(&ended.id) {
            return broken("R2", format!("{id} tells twice: {ended:?}"));
        }
        seen.goals_told.push(ended.id);
        Ok(())
    }

    /// A machine is handed entries (I5).
    pub(crate) fn on_apply(&mut self, place: usize, id: MemberId, entries: &Entries) -> Checked {
        for entry in entries.chunks().flatten() {
            let index = entry.id.index;
            let committed = usize::try_from(index - 1).ok().and_then(|at| self.committed.get(at));
            if committed != Some(&entry.id.term) {
                return broken("I5", format!("{id} applies {}, not committed", entry.id));
            }
            let seen = &mut self.members[place];
            if index != seen.applied + 1 {
                return broken("I5", format!("{id} applies {index} after {}", seen.applied));
            }
            seen.applied = index;
            if let Payload::Change(change) = &entry.payload {
                let newest = self.memberships.last().map_or(0, |(id, _)| id.index);
                if index > newest {
                    self.memberships.push((entry.id, Arc::clone(&change.membership)));
                }
            }
        }
        Ok(())
    }

    /// A machine is to go on from a snapshot.
    pub(crate) fn on_install(&mut self, place: usize, index: Index) {
        self.members[place].applied = index;
    }

    /// Machines that have run the same entries are in the same state (I5).
    pub(crate) fn on_state(&mut self, id: MemberId, index: Index, hash: u64) -> Checked {
        let first = *self.states.entry(index).or_insert(hash);
        if first == hash {
            return Ok(());
        }
        broken("I5", format!("the machine of {id} is in another state at {index}"))
    }

    /// A disk is gone for good, or an empty one took its place.
    pub(crate) fn on_disk_lost(&mut self, place: usize, id: MemberId) {
        let seen = &mut self.members[place];
        seen.former = Some(std::mem::take(&mut seen.disk));
        // Another disk under this name may vote otherwise: it must not count.
        self.votes.retain(|(voter, _), _| *voter != id);
    }

    /// A member starts with what its disk says, which is at least what it was told it
    /// holds (D1, D2).
    pub(crate) fn on_start(&mut self, place: usize, id: MemberId, boot: &Boot) -> Checked {
        self.note_first(boot);
        let seen = &mut self.members[place];
        seen.settled = 0;
        seen.goals_told.clear();
        let mut told = Terms { base: boot.base, terms: terms_of(boot), changes: Vec::new() };
        let first = boot.snapshot.membership.since();
        told.changes.push(first);
        told.changes.extend(boot.memberships.iter().map(|(id, _)| *id));
        let changes = boot.tail.iter().filter(|entry| entry.change().is_some());
        told.changes.extend(changes.map(|entry| entry.id));
        let snapshot = boot.snapshot.id.index;
        told.changes.retain(|change| *change == first || change.index > snapshot);
        if seen.former.is_none() {
            let kept = seen.disk.hard_state;
            let found = boot.hard_state;
            if found.term < kept.term
                || found.term == kept.term && kept.vote.is_some() && found.vote != kept.vote
            {
                return broken("D2", format!("{id} saved {kept:?} and starts with {found:?}"));
            }
            let newest = EntryId::new(
                seen.disk.log.at(seen.disk.log.last()).unwrap_or(0),
                seen.disk.log.last(),
            );
            // What was told later may have replaced it without being known durable.
            if !told.covers(newest) && seen.told.covers(newest) {
                return broken("D1", format!("{id} saved {newest} and starts without it"));
            }
        }
        seen.told = told.clone();
        seen.disk.log = told;
        seen.disk.hard_state = boot.hard_state;
        seen.commit = boot.hard_state.commit.max(boot.snapshot.id.index).min(seen.commit);
        seen.term = boot.hard_state.term;
        seen.applied = boot.applied;
        seen.leads = None;
        seen.membership = None;
        Ok(())
    }
}

impl Seen {
    /// What can be said to be on this member's disk.
    fn word(&self) -> &Kept {
        self.former.as_ref().unwrap_or(&self.disk)
    }
}

impl Kept {
    /// Would know this to be committed after a restart: it was saved, or a later
    /// membership stands in the log, which proves the one before it.
    fn knows_committed(&self, index: Index) -> bool {
        let proven = self.log.changes.iter().rev().nth(1).map_or(0, |change| change.index);
        index <= self.hard_state.commit.max(self.log.base.index).max(proven)
    }
}

/// Who stands for election has a vote, or alone holds the newest log (I11). A member
/// that joined holds the entry that added it.
fn may_stand(raft: &Raft) -> Checked {
    let (id, log) = (raft.config().id, raft.log_status());
    let on_append = raft.config().activation == Activation::OnAppend;
    let may = raft.membership().is_voter(id) || on_append && raft.holds_newer_log();
    let reached = if on_append { log.last.index } else { log.commit };
    if may && reached >= raft.config().joined_at {
        return Ok(());
    }
    broken("I11", format!("{id} stands for election under {}", raft.membership()))
}

/// The membership that counts is that of the newest change in the log, or the newest
/// one handed to the machine (I8).
fn is_derived(raft: &Raft, told: &Terms) -> Checked {
    let upto = match raft.config().activation {
        Activation::OnApply => raft.log_status().applying,
        Activation::OnAppend => Index::MAX,
    };
    let (counts, newest) = (raft.membership().since(), told.change_at(upto));
    if counts == newest {
        return Ok(());
    }
    broken("I8", format!("{} counts by {counts}, its log says {newest}", raft.config().id))
}

fn terms_of(boot: &Boot) -> Vec<Term> {
    let tail_first = boot.tail.first().map_or(Index::MAX, |entry| entry.id.index);
    let mut terms = Vec::new();
    let mut starts = boot.terms.iter().peekable();
    let mut term = boot.base.term;
    let below = boot.tail.first().map_or_else(
        || boot.terms.last().map_or(boot.base.index, |id| id.index),
        |_| tail_first - 1,
    );
    for index in boot.base.index + 1..=below {
        while starts.peek().is_some_and(|start| start.index <= index) {
            term = starts.next().map_or(term, |start| start.term);
        }
        terms.push(term);
    }
    terms.extend(boot.tail.iter().map(|entry| entry.id.term));
    terms
}

fn hash_of(payload: &Payload) -> u64 {
    let mut hasher = DefaultHasher::new();
    match payload {
        Payload::Command(command) => command.hash(&mut hasher),
        Payload::Change(change) => change.hash(&mut hasher),
    }
    hasher.finish()
}
