//! Rejects messages that no correct member sends, and state that no intact disk holds.

use crate::log::Log;
use crate::membership::Membership;
use crate::membership::history::MembershipHistory;
use crate::progress::{Peer, Progress};
use crate::{
    Accepted, Activation, Append, AppendReply, Boot, BootError, Config, Dropped, Entries, EntryId,
    Envelope, Event, Identity, Index, Malformed, MemberId, Message, Raft, SnapshotMeta, Term,
};

use crate::ids::{NUMBER_MAX, REQUEST_MAX};

impl Raft {
    /// Rejects a message for another recipient or with impossible content.
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
            Message::HeartbeatReply(reply) => in_range(EntryId::new(0, reply.applied))?,
            Message::AppendReply(AppendReply::Matches { index, .. }) if *index >= NUMBER_MAX => {
                return Err(Malformed::NumberTooLarge.into());
            }
            Message::AppendReply(AppendReply::Differs { prev, hint }) => {
                in_range(*hint)?;
                in_range(EntryId::new(0, *prev))?;
            }
            Message::AppendReply(AppendReply::Missing { confirmed, hint, .. }) => {
                in_range(*hint)?;
                in_range(EntryId::new(0, *confirmed))?;
            }
            Message::Propose(request, _) if request.0 >= REQUEST_MAX => {
                return Err(Malformed::NumberTooLarge.into());
            }
            _ => {}
        }
        Ok(())
    }

    /// A promise counts only from the member that the membership records: another disk has
    /// lost its earlier promises, and a former member with the same id has made others. The
    /// sender is told, so that an operator can add it again.
    /// Shown by scenarios/identity_wiped_member_does_not_count.txt and
    /// scenarios/identity_former_member_does_not_count.txt.
    pub(crate) fn check_identity(&mut self, envelope: &Envelope) -> Result<(), Dropped> {
        let (from, incarnation) = (envelope.from, envelope.incarnation);
        if let Some(other) = self.identity_mismatch(envelope) {
            let known = self.membership().identity(from);
            self.send(from, Message::IdentityRejected(known));
            return Err(other);
        }
        if !envelope.message.is_reply() {
            return Ok(()); // A request may have been forwarded in its sender's name.
        }
        let last = self.log.last().index;
        let clock = self.role.leader().map_or(0, |leader| leader.clock);
        if let Some(peer) = self.role.leader_mut().and_then(|leader| leader.peer_mut(from)) {
            let swapped = peer.incarnation != 0 && peer.incarnation != incarnation;
            peer.incarnation = incarnation;
            if swapped {
                // The new disk does not have what the old one acknowledged.
                let (learner, replied_at) = (peer.learner, peer.replied_at);
                let progress = Progress::new(last + 1, true, &self.config);
                let new = Peer::new(from, learner, progress, clock);
                *peer = Peer { incarnation, replied_at, ..new };
            }
        }
        Ok(())
    }

    /// The difference between the sender of a promise and the recorded member, if any.
    #[inline]
    pub(crate) fn identity_mismatch(&self, envelope: &Envelope) -> Option<Dropped> {
        let Envelope { from, incarnation, joined_at, message, .. } = envelope;
        let (from, incarnation, joined_at) = (*from, *incarnation, *joined_at);
        if !message.is_promise() {
            return None;
        }
        let known = self.membership().identity(from);
        let as_known = joined_at == known.joined_at || incarnation == 0;
        if as_known && known.incarnation.is_none_or(|named| named == incarnation) {
            return None;
        }
        if !self.membership().contains(from) {
            return None;
        }
        if incarnation != 0 && joined_at != known.joined_at {
            // A sender with a later join index belongs to a newer membership that has not
            // arrived here, and that one decides. Its replies, however, would be counted by
            // this member's membership.
            // Shown by scenarios/identity_lagging_voter_votes_for_newer_member.txt.
            let asks = matches!(message, Message::Vote(_) | Message::PreVote(_));
            let newer = asks && joined_at > known.joined_at;
            return (!newer).then_some(Dropped::OtherJoinIndex { from, joined_at });
        }
        let other = known.incarnation.is_some_and(|named| named != incarnation);
        other.then_some(Dropped::OtherIncarnation { from, incarnation })
    }

    /// Another member's membership records another member under this id.
    pub(crate) fn on_identity_rejected(
        &mut self,
        by: MemberId,
        known: Identity,
    ) -> Result<Accepted, Dropped> {
        // From a lagging member, or about this member before a restart.
        let joined_at = self.config.joined_at;
        let joined = joined_at != Config::NEVER_JOINED;
        let behind = known.joined_at < joined_at && joined;
        if behind || self.config.is_known_as(known) {
            return Err(Dropped::Unsolicited);
        }
        if self.reports.identity_rejected.as_deref() != Some(&known) {
            self.reports.identity_rejected = Some(Box::new(known));
            self.out.rare().events.push(Event::IdentityRejected { by, known });
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

#[inline]
pub(crate) fn check_append(
    term: Term,
    append: &Append,
    activation: Activation,
) -> Result<(), Malformed> {
    in_range(append.prev)?;
    in_range(EntryId::new(0, append.commit))?;
    if append.entries.is_empty() {
        return Ok(());
    }
    check_entries(append.prev, &append.entries, term, activation)
}

/// Entries must follow `prev` without gaps, with terms that never decrease and are not
/// above `term`, and with valid memberships.
pub(crate) fn check_entries(
    prev: EntryId,
    entries: &Entries,
    term: Term,
    activation: Activation,
) -> Result<(), Malformed> {
    let mut before = prev;
    for slice in entries.slices() {
        for entry in slice.entries() {
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

/// A valid membership with the cluster's activation rule.
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
    /// Builds the log and the membership history, if they are consistent.
    pub(crate) fn check(
        &self,
        activation: Activation,
    ) -> Result<(Log, MembershipHistory), BootError> {
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
            .map_err(|index| BootError::BrokenLog { index })?;
        if !log.holds(snapshot) {
            return Err(BootError::BrokenLog { index: snapshot.index });
        }
        let memberships = self.check_memberships(activation)?;
        let recorded = self.snapshot.membership.activation();
        if !self.snapshot.membership.is_empty() && recorded != activation {
            return Err(BootError::OtherActivation { recorded });
        }
        self.set_marks(&mut log)?;
        if activation == Activation::OnApply {
            // A leader proposes a membership only when the one before it is applied, so a
            // membership in the log proves that the one before it is committed. A member
            // that is two behind could elect a leader that conflicts with one elected by
            // the newest.
            // Shown by scenarios/restart_never_two_memberships_behind.txt.
            let proven = memberships.second_newest().map_or(0, |known| known.id.index);
            log.commit = log.commit.max(proven);
        }
        Ok((log, memberships))
    }

    fn check_memberships(&self, activation: Activation) -> Result<MembershipHistory, BootError> {
        let broken = |index| BootError::BrokenLog { index };
        let mut history =
            MembershipHistory::new(self.snapshot.id, self.snapshot.membership.clone());
        // Only a member that has not joined yet may have an empty membership.
        if self.snapshot.id != EntryId::ZERO || !self.snapshot.membership.is_empty() {
            let index = self.snapshot.id.index;
            self.snapshot
                .membership
                .check()
                .map_err(|error| BootError::Membership { index, error })?;
        }
        let first_held = self.tail.first().map_or(Index::MAX, |entry| entry.id.index);
        let below = self.memberships.iter().map(|(id, membership)| (*id, membership));
        let held = self
            .tail
            .iter()
            .filter_map(|entry| entry.change().map(|change| (entry.id, &change.membership)));
        for (id, membership) in below.filter(|(id, _)| id.index < first_held).chain(held) {
            membership.check().map_err(|error| BootError::Membership { index: id.index, error })?;
            if membership.activation() != activation {
                return Err(BootError::OtherActivation { recorded: membership.activation() });
            }
            if id.index > history.newest().id.index {
                history.push(id, membership.clone());
            } else if id.index > self.snapshot.id.index {
                return Err(broken(id.index));
            }
        }
        Ok(history)
    }

    fn set_marks(&self, log: &mut Log) -> Result<(), BootError> {
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
        // Only committed entries are applied or contained in a snapshot.
        log.commit = commit.max(applied).max(self.snapshot.id.index);
        log.applied = applied;
        log.applying = applied;
        Ok(())
    }
}
