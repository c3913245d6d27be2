//! What no honest peer sends, and no intact disk holds, goes no further than here.

use crate::log::Log;
use crate::membership::Membership;
use crate::membership::history::History;
use crate::progress::{Peer, Progress};
use crate::{
    Accepted, Activation, Append, AppendReply, Boot, BootError, Config, Dropped, Entries, EntryId,
    Envelope, Event, Identity, Index, Malformed, MemberId, Message, Raft, SnapshotMeta, Term,
};

use crate::ids::NUMBER_MAX;

impl Raft {
    /// Refuses what could not be meant for us, or by anybody.
    pub(crate) fn check_envelope(&self, envelope: &Envelope) -> Result<(), Dropped> {
        if envelope.to != self.config.id {
            return Err(Dropped::WrongRecipient { to: envelope.to });
        }
        if envelope.from == MemberId(0) {
            return Err(Malformed::NoSender.into());
        }
        if envelope.from == self.config.id {
            return Err(Malformed::FromSelf.into());
        }
        if envelope.term >= NUMBER_MAX {
            return Err(Malformed::NumberTooLarge.into());
        }
        match &envelope.message {
            Message::Append(append) => {
                check_append(envelope.term, append, self.config.activation)?;
            }
            Message::Snapshot(meta) => {
                check_snapshot(envelope.term, meta, self.config.activation)?;
            }
            Message::Vote(vote) | Message::PreVote(vote) => {
                in_range(vote.last)?;
                in_range(vote.committed)?;
            }
            Message::Heartbeat(heartbeat) => {
                in_range(EntryId::new(0, heartbeat.commit))?;
                in_range(EntryId::new(0, heartbeat.settled))?;
            }
            Message::AppendReply(AppendReply::Matches { index, .. }) if *index >= NUMBER_MAX => {
                return Err(Malformed::NumberTooLarge.into());
            }
            Message::AppendReply(AppendReply::Differs { prev, hint }) => {
                in_range(*hint)?;
                in_range(EntryId::new(0, *prev))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// A promise counts only from the member that the membership means: another disk
    /// has forgotten what was promised before, and a former member of the same id has
    /// promised something else. It is told, so that somebody can add it anew.
    /// Shown by scenarios/identity_wiped_member_does_not_count.txt and
    /// scenarios/identity_former_member_does_not_count.txt.
    pub(crate) fn check_identity(&mut self, envelope: &Envelope) -> Result<(), Dropped> {
        let (from, incarnation) = (envelope.from, envelope.incarnation);
        if let Some(other) = self.other_than_known(envelope) {
            let known = self.membership().identity(from);
            self.send(from, Message::IdentityRejected(known));
            return Err(other);
        }
        if !envelope.message.is_reply() {
            return Ok(()); // A request may have been passed on in its sender's name.
        }
        let last = self.log.last().index;
        if let Some(peer) = self.role.leader_mut().and_then(|leader| leader.peer_mut(from)) {
            let swapped = peer.incarnation != 0 && peer.incarnation != incarnation;
            peer.incarnation = incarnation;
            if swapped {
                // What the old disk acknowledged, the new one does not have.
                let (learner, clock) = (peer.learner, peer.answered_at);
                let progress = Progress::new(last + 1, true, &self.config);
                *peer = Peer { incarnation, ..Peer::new(from, learner, progress, clock) };
            }
        }
        Ok(())
    }

    /// What tells the sender of a promise from the member that the membership means.
    fn other_than_known(&self, envelope: &Envelope) -> Option<Dropped> {
        let Envelope { from, incarnation, joined_at, message, .. } = envelope;
        let (from, incarnation, joined_at) = (*from, *incarnation, *joined_at);
        let membership = self.membership();
        if !message.is_promise() || !membership.contains(from) {
            return None;
        }
        let known = membership.identity(from);
        if incarnation != 0 && joined_at != known.joined_at {
            // Who was added after all that we know asks by a membership that has not
            // reached us, and that one governs. Its answers would count by ours.
            // Shown by scenarios/identity_lagging_voter_votes_for_newer_member.txt.
            let asks = matches!(message, Message::Vote(_) | Message::PreVote(_));
            let newer = asks && joined_at > known.joined_at;
            return (!newer).then_some(Dropped::OtherJoinIndex { from, joined_at });
        }
        let other = known.incarnation.is_some_and(|named| named != incarnation);
        other.then_some(Dropped::OtherIncarnation { from, incarnation })
    }

    /// Somebody's membership knows another one as the member of our id.
    pub(crate) fn on_disowned(
        &mut self,
        by: MemberId,
        known: Identity,
    ) -> Result<Accepted, Dropped> {
        // Said by one that is behind, or answering what we were before a restart.
        let joined_at = self.config.joined_at;
        let joined = joined_at != Config::NEVER_JOINED;
        let behind = known.joined_at < joined_at && joined;
        if behind || self.config.is_known_as(known) {
            return Err(Dropped::Unsolicited);
        }
        if self.reports.disowned.replace(known) != Some(known) {
            self.out.events.push(Event::IdentityRejected { by, known });
        }
        Ok(Accepted::Done)
    }
}

fn in_range(id: EntryId) -> Result<(), Malformed> {
    if id.term < NUMBER_MAX && id.index < NUMBER_MAX {
        Ok(())
    } else {
        Err(Malformed::NumberTooLarge)
    }
}

fn check_append(term: Term, append: &Append, activation: Activation) -> Result<(), Malformed> {
    in_range(append.prev)?;
    in_range(EntryId::new(0, append.commit))?;
    check_entries(append.prev, &append.entries, term, activation)
}

/// Entries that follow `prev`, one after the other, with terms that never fall and
/// are not above `term`, and with possible memberships.
pub(crate) fn check_entries(
    prev: EntryId,
    entries: &Entries,
    term: Term,
    activation: Activation,
) -> Result<(), Malformed> {
    let mut before = prev;
    for chunk in entries.chunks() {
        for entry in chunk {
            if entry.id.index != before.index + 1 {
                return Err(Malformed::GapInEntries);
            }
            if entry.id.term < before.term {
                return Err(Malformed::TermsDecrease);
            }
            if let Some(change) = entry.change() {
                check_membership(&change.membership, activation)?;
            }
            before = entry.id;
        }
    }
    in_range(before)?;
    if before.term > term && before != prev {
        return Err(Malformed::TermAboveMessage);
    }
    Ok(())
}

/// Possible, and of a cluster with the same rule about when memberships count.
fn check_membership(membership: &Membership, activation: Activation) -> Result<(), Malformed> {
    if membership.check().is_err() {
        return Err(Malformed::BadMembership);
    }
    if membership.activation() != activation {
        return Err(Malformed::OtherActivation);
    }
    Ok(())
}

fn check_snapshot(
    term: Term,
    meta: &SnapshotMeta,
    activation: Activation,
) -> Result<(), Malformed> {
    in_range(meta.id)?;
    if meta.id.term > term {
        return Err(Malformed::TermAboveMessage);
    }
    check_membership(&meta.membership, activation)
}

impl Boot {
    /// Puts log and memberships together, if they fit.
    pub(crate) fn check(&self, activation: Activation) -> Result<(Log, History), BootError> {
        let in_range = |index: Index, term: Term| index < NUMBER_MAX && term < NUMBER_MAX;
        let last = self.tail.last().map_or(self.base, |entry| entry.id);
        if !in_range(last.index, last.term)
            || !in_range(self.hard_state.commit, self.hard_state.term)
            || !in_range(self.snapshot.id.index, self.snapshot.id.term)
        {
            return Err(BootError::NumberTooLarge);
        }
        let (snapshot, base) = (self.snapshot.id, self.base);
        if snapshot.index < base.index {
            return Err(BootError::SnapshotBeforeLog { snapshot, base });
        }
        let mut log = Log::new(base, self.terms.clone(), &self.tail)
            .map_err(|at| BootError::BrokenLog { at })?;
        if !log.holds(snapshot) {
            return Err(BootError::BrokenLog { at: snapshot.index });
        }
        let memberships = self.check_memberships(activation)?;
        let kept = self.snapshot.membership.activation();
        if !self.snapshot.membership.is_empty() && kept != activation {
            return Err(BootError::OtherActivation { kept });
        }
        self.place_marks(&mut log)?;
        if activation == Activation::OnApply {
            // A leader proposes a membership only when the one before is applied, so
            // a membership in the log proves that the one before is committed. Two
            // behind, a member could elect a leader that the newest one knows nothing of.
            // Shown by scenarios/restart_never_two_memberships_behind.txt.
            let proven = memberships.last_but_one().map_or(0, |known| known.id.index);
            log.commit = log.commit.max(proven);
        }
        Ok((log, memberships))
    }

    fn check_memberships(&self, activation: Activation) -> Result<History, BootError> {
        let broken = |at| BootError::BrokenLog { at };
        let mut history = History::new(self.snapshot.id, self.snapshot.membership.clone());
        // Only who has not joined yet may know of nobody.
        if self.snapshot.id != EntryId::ZERO || !self.snapshot.membership.is_empty() {
            let at = self.snapshot.id.index;
            self.snapshot.membership.check().map_err(|why| BootError::Membership { at, why })?;
        }
        let first_held = self.tail.first().map_or(Index::MAX, |entry| entry.id.index);
        let below = self.memberships.iter().map(|(id, membership)| (*id, membership));
        let held = self
            .tail
            .iter()
            .filter_map(|entry| entry.change().map(|change| (entry.id, &change.membership)));
        for (id, membership) in below.filter(|(id, _)| id.index < first_held).chain(held) {
            membership.check().map_err(|why| BootError::Membership { at: id.index, why })?;
            if membership.activation() != activation {
                return Err(BootError::OtherActivation { kept: membership.activation() });
            }
            if id.index > history.newest().id.index {
                history.push(id, membership.clone());
            } else if id.index > self.snapshot.id.index {
                return Err(broken(id.index));
            }
        }
        Ok(history)
    }

    fn place_marks(&self, log: &mut Log) -> Result<(), BootError> {
        let last = log.last().index;
        let (commit, applied) = (self.hard_state.commit, self.applied);
        if commit > last {
            return Err(BootError::CommitBeyondLog { commit, last });
        }
        if applied > last {
            return Err(BootError::AppliedBeyondLog { applied, last });
        }
        if applied < log.base().index {
            return Err(BootError::AppliedBeforeLog { applied, base: log.base().index });
        }
        // Only what is committed is ever applied or captured.
        log.commit = commit.max(applied).max(self.snapshot.id.index);
        log.applied = applied;
        log.applying = applied;
        Ok(())
    }
}
