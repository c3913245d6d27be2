//! How entries reach the others: appends, their replies, heartbeats (thesis §3.5).
//!
//! A leader decides per peer what to send next and how far ahead of the answers;
//! [`progress`](crate::progress) keeps that. With coalescing, deciding waits until
//! the output is taken, so that one append carries everything that is new.

use crate::log::Found;
use crate::progress::{Flow, Wanted};
use crate::role::Role;
use crate::validate::check_entries;
use crate::{
    Accepted, Append, AppendReply, Dropped, Entries, EntryId, Heartbeat, HeartbeatReply, Index,
    Load, LoadTarget, Malformed, MemberId, Message, Raft,
};

impl Raft {
    /// The leader says what follows `prev` in its log.
    pub(crate) fn on_append(
        &mut self,
        from: MemberId,
        append: Append,
    ) -> Result<Accepted, Dropped> {
        let commit = self.log.commit;
        let told = append.entries.last().map_or(append.prev, |entry| entry.id);
        if append.prev.index < commit {
            // Late, or from a leader that does not know how far we are. If even one
            // entry were another than the committed one, it could only come from a
            // leader that was deposed, and what we have must not count for it.
            let common = told.index.min(commit);
            let known = common >= self.log.base().index;
            if known && !self.would_hold(&append, common) {
                return Err(Dropped::ContradictsCommitted { index: common, commit });
            }
            self.reply_matches(from, commit);
            return Ok(Accepted::Done);
        }
        if !self.log.holds(append.prev) {
            self.reply_differs(from, append.prev);
            return Ok(Accepted::Done);
        }
        let commit = append.commit;
        self.take_entries(append)?;
        self.commit_to(commit.min(told.index));
        self.reply_matches(from, told.index);
        Ok(Accepted::Done)
    }

    /// The append's entry at this index, or its `prev`, is the one in our log.
    fn would_hold(&self, append: &Append, index: Index) -> bool {
        if index <= append.prev.index {
            return self.log.holds(append.prev);
        }
        let term = append.entries.iter().find(|entry| entry.id.index == index);
        term.is_none_or(|entry| self.log.holds(entry.id))
    }

    /// Appends what is new, cutting what contradicts it.
    fn take_entries(&mut self, append: Append) -> Result<(), Dropped> {
        let last = self.log.last().index;
        let mut new = Entries::new();
        if append.prev.index == last {
            new = append.entries;
        } else if let Some(first) = append.entries.iter().find(|entry| !self.log.holds(entry.id)) {
            let from = first.id.index;
            if from <= self.log.commit {
                let commit = self.log.commit;
                return Err(Dropped::ContradictsCommitted { index: from, commit });
            }
            if from <= last {
                self.cut(from);
            }
            for slice in append.entries.slices() {
                if let Some(part) = slice.part(from, Index::MAX) {
                    new.push(part);
                }
            }
        }
        for entry in new.chunks().flatten() {
            if let Some(change) = entry.change() {
                self.memberships.push(entry.id, change.membership.clone());
            }
        }
        self.log.append(new);
        self.follow_membership();
        Ok(())
    }

    fn cut(&mut self, from: Index) {
        self.log.truncate(from);
        self.saves.truncate(from);
        self.memberships.truncate(from);
    }

    pub(crate) fn reply_matches(&mut self, to: MemberId, index: Index) {
        let commit = self.saves.durable_commit;
        let reply = Message::AppendReply(AppendReply::Matches { index, commit });
        self.send_when_saved(to, self.term, reply);
    }

    fn reply_differs(&mut self, to: MemberId, prev: EntryId) {
        // Between here and `prev` our terms are all above the leader's, so nothing
        // in between can be the same: one answer skips a whole diverged tail.
        // Shown by scenarios/replication_conflict_skips_terms.txt.
        let index = prev.index.min(self.log.last().index);
        let hint = self.log.newest_not_above(index, prev.term);
        let reply = AppendReply::Differs { prev: prev.index, hint };
        self.send_when_saved(to, self.term, Message::AppendReply(reply));
    }

    pub(crate) fn on_heartbeat(
        &mut self,
        from: MemberId,
        heartbeat: Heartbeat,
    ) -> Result<Accepted, Dropped> {
        let (commit, last) = (heartbeat.commit, self.log.last().index);
        if commit > last {
            // The leader tells only what it knows us to hold: we lost it, or it lies. A
            // new disk shows itself, or in a quiet cluster nobody would ever notice.
            // Shown by scenarios/identity_swapped_learner_starts_over.txt.
            if self.config.incarnation != 0 {
                self.reply_differs(from, EntryId::new(self.term, commit));
            }
            return Err(Dropped::CommitBeyondLog { commit, last });
        }
        self.commit_to(commit);
        let Heartbeat { round, sent_at, settled, .. } = heartbeat;
        self.hear_settled(from, settled);
        let reply = HeartbeatReply { round, sent_at, commit: self.saves.durable_commit };
        self.send(from, Message::HeartbeatReply(reply));
        Ok(Accepted::Done)
    }

    pub(crate) fn on_append_reply(
        &mut self,
        from: MemberId,
        reply: AppendReply,
    ) -> Result<Accepted, Dropped> {
        let last = self.log.last().index;
        let Some(leader) = self.role.leader_mut() else { return Err(Dropped::NotForRole) };
        let Some(slot) = leader.slot(from) else { return Err(Dropped::UnknownSender { from }) };
        leader.peers[slot].answered_at = leader.clock;
        let progress = &mut leader.peers[slot].progress;
        match reply {
            AppendReply::Matches { index, .. } if index > last => {
                return Err(Malformed::MatchBeyondLog.into());
            }
            AppendReply::Matches { index, commit } => {
                progress.active = true;
                self.on_matched(slot, index);
                self.on_commit_known(from, commit);
            }
            AppendReply::Differs { prev, hint } => {
                progress.active = true;
                self.on_differs(slot, prev, hint);
            }
            // The envelope's term was all it had to say; it equals ours by now.
            AppendReply::OldTerm => {
                progress.active = true;
                return Err(Dropped::Unsolicited);
            }
        }
        Ok(Accepted::Done)
    }

    fn on_differs(&mut self, slot: usize, prev: Index, hint: EntryId) {
        // Terms never fall along a log. Where ours is above the hint's, the peer
        // cannot have the same entry: skip them all.
        let next_prev = if hint.term > 0 {
            self.log.newest_not_above(hint.index, hint.term).index
        } else {
            hint.index
        };
        let Some(leader) = self.role.leader_mut() else { return };
        let progress = &mut leader.peers[slot].progress;
        if progress.step_back(prev, next_prev) {
            if progress.flow == Flow::Replicate {
                progress.become_probe();
            }
            leader.peers[slot].loading = false;
            self.send_append(slot);
        }
    }

    /// A member, perhaps this one, holds our log durably up to here.
    pub(crate) fn on_matched(&mut self, slot: usize, index: Index) {
        let base = self.log.base().index;
        let Some(leader) = self.role.leader_mut() else { return };
        let peer = &mut leader.peers[slot];
        let own = peer.id == self.config.id;
        let progress = &mut peer.progress;
        // A probe that is answered ends the probing, even without news.
        let news = progress.match_to(index);
        let ends_probe = || progress.matched == index && progress.flow == Flow::Probe;
        if !(news || ends_probe()) {
            return;
        }
        match progress.flow {
            Flow::Probe => progress.become_replicate(),
            // However it got that far: the log can take it from there.
            Flow::Snapshot(_) if progress.matched >= base => {
                progress.become_probe();
                progress.become_replicate();
            }
            Flow::Snapshot(_) => {}
            Flow::Replicate => progress.inflight.free(index),
        }
        peer.rounds.advance(progress.matched, self.log.last().index);
        let (commit, id) = (self.log.commit, peer.id);
        let tells_commit = !own && progress.wants_commit(commit);
        // Who is not past the commit index cannot move it.
        if index > commit && self.commit_by_quorum() {
            self.broadcast_append();
        } else if tells_commit {
            self.send_append(slot);
        }
        if !own {
            self.send_entries(slot);
        }
        self.trim_if_free();
        self.on_transfer_progress(id);
    }

    pub(crate) fn on_heartbeat_reply(
        &mut self,
        from: MemberId,
        reply: HeartbeatReply,
    ) -> Result<Accepted, Dropped> {
        let last = self.log.last().index;
        let Some(leader) = self.role.leader_mut() else { return Err(Dropped::NotForRole) };
        let clock = leader.clock;
        let Some(slot) = leader.slot(from) else { return Err(Dropped::UnknownSender { from }) };
        let peer = &mut leader.peers[slot];
        peer.progress.active = true;
        peer.answered_at = clock;
        peer.progress.unpause();
        if reply.sent_at <= clock {
            peer.heard_at = peer.heard_at.max(reply.sent_at);
        }
        let behind = peer.progress.matched < last || peer.progress.flow == Flow::Probe;
        if behind {
            self.send_append(slot);
        }
        self.on_round_confirmed(slot, reply.round);
        self.on_commit_known(from, reply.commit);
        Ok(Accepted::Done)
    }

    pub(crate) fn on_leader_tick(&mut self) {
        self.timer.beat_elapsed += 1;
        let (last, ticks) = (self.log.last().index, self.config.election_ticks);
        if let Some(leader) = self.role.leader_mut() {
            leader.clock += 1;
            leader.pace.tick(last, ticks);
        }
        if self.timer.elapsed >= self.config.election_ticks {
            self.timer.elapsed = 0;
            if self.config.check_quorum && !self.check_quorum() {
                self.become_follower(self.term, None);
                return;
            }
            self.on_transfer_timeout();
        }
        self.duties_due = true;
        if self.timer.beat_elapsed >= self.config.heartbeat_ticks {
            self.timer.beat_elapsed = 0;
            self.broadcast_heartbeat();
        }
    }

    /// Whether a quorum was heard from since the last time. A leader cut off from
    /// it must not go on suppressing elections where it is still heard.
    /// Shown by scenarios/checkquorum_leader_without_quorum_steps_down.txt.
    fn check_quorum(&mut self) -> bool {
        let membership = self.membership().clone();
        let id = self.config.id;
        let Some(leader) = self.role.leader_mut() else { return true };
        let active = leader.quorum_active(&membership);
        for peer in leader.peers.iter_mut().filter(|peer| peer.id != id) {
            peer.progress.active = false;
        }
        active
    }

    pub(crate) fn broadcast_heartbeat(&mut self) {
        let (own, term, commit) = (self.config.id, self.term, self.log.commit);
        let settled = self.reports.settled;
        let Role::Leader(leader) = &mut self.role else { return };
        let (round, sent_at) = (leader.reads.round(), leader.clock);
        for peer in leader.peers.iter_mut().filter(|peer| peer.id != own) {
            // Never beyond what the peer is known to hold.
            let commit = commit.min(peer.progress.matched);
            peer.progress.told_commit(commit);
            let message = Message::Heartbeat(Heartbeat { commit, round, sent_at, settled });
            self.out.send.push(self.config.envelope(peer.id, term, message));
        }
    }

    pub(crate) fn on_unreachable(&mut self, peer: MemberId) -> Result<Accepted, Dropped> {
        let Some(leader) = self.role.leader_mut() else { return Err(Dropped::NotForRole) };
        let Some(peer) = leader.peer_mut(peer) else {
            return Err(Dropped::UnknownSender { from: peer });
        };
        // What was sent ahead is probably lost: find out where the peer is.
        if peer.progress.flow == Flow::Replicate {
            peer.progress.become_probe();
        }
        Ok(Accepted::Done)
    }

    pub(crate) fn on_loaded_for_peer(
        &mut self,
        id: MemberId,
        entries: &Entries,
    ) -> Result<Accepted, Dropped> {
        let Some(leader) = self.role.leader_mut() else { return Err(Dropped::NothingPending) };
        let Some(slot) = leader.slot(id).filter(|slot| leader.peers[*slot].loading) else {
            return Err(Dropped::NothingPending);
        };
        let peer = &mut leader.peers[slot];
        peer.loading = false;
        let progress = &peer.progress;
        let first = entries.first().map(|entry| entry.id.index);
        if progress.is_paused() || progress.is_full() || first != Some(progress.next) {
            return Err(Dropped::NothingPending);
        }
        let Some(prev) = self.own_entries(entries) else {
            return Err(Malformed::WrongEntries.into());
        };
        self.emit(slot, prev, entries.clone());
        self.send_entries(slot);
        Ok(Accepted::Done)
    }

    /// The entry before these, if they are what our log holds there.
    pub(crate) fn own_entries(&self, entries: &Entries) -> Option<EntryId> {
        let index = entries.first()?.id.index.checked_sub(1)?;
        let prev = EntryId::new(self.log.term(index)?, index);
        let ours = entries.iter().all(|entry| self.log.holds(entry.id));
        (ours && check_entries(prev, entries, self.term, self.config.activation).is_ok())
            .then_some(prev)
    }

    /// An append to everybody, if only to tell them the commit index.
    pub(crate) fn broadcast_append(&mut self) {
        if self.config.etcd_compat.coalesce {
            if let Some(leader) = self.role.leader_mut() {
                leader.broadcast = Wanted::Append;
            }
            return;
        }
        self.for_each_peer(|raft, slot| {
            raft.emit_append(slot, true);
        });
    }

    /// An append to one peer, even without entries.
    pub(crate) fn send_append(&mut self, slot: usize) {
        if !self.want(slot, Wanted::Append) {
            self.emit_append(slot, true);
        }
    }

    /// As many appends with entries as one peer may be sent now.
    pub(crate) fn send_entries(&mut self, slot: usize) {
        if !self.want(slot, Wanted::Entries) {
            while self.emit_append(slot, false) {}
        }
    }

    /// Entries to everybody for whom there are any.
    pub(crate) fn broadcast_entries(&mut self) {
        self.for_each_peer(|raft, slot| {
            if !raft.want(slot, Wanted::Entries) {
                raft.emit_append(slot, false);
            }
        });
    }

    /// With coalescing, remembers what to send until the output is taken.
    fn want(&mut self, slot: usize, wanted: Wanted) -> bool {
        let coalesce = self.config.etcd_compat.coalesce;
        if coalesce && let Some(leader) = self.role.leader_mut() {
            let peer = &mut leader.peers[slot];
            peer.wanted = peer.wanted.max(wanted);
        }
        coalesce
    }

    fn for_each_peer(&mut self, mut act: impl FnMut(&mut Self, usize)) {
        let Some(leader) = self.role.leader() else { return };
        let (count, own) = (leader.peers.len(), leader.own);
        for slot in (0..count).filter(|slot| Some(*slot) != own) {
            act(self, slot);
        }
    }

    /// Sends what was remembered.
    pub(crate) fn send_wanted(&mut self) {
        if !self.has_wanted() {
            return;
        }
        let Some(leader) = self.role.leader_mut() else { return };
        let everybody = std::mem::replace(&mut leader.broadcast, Wanted::Nothing);
        self.for_each_peer(|raft, slot| {
            let Some(leader) = raft.role.leader_mut() else { return };
            let wanted = std::mem::replace(&mut leader.peers[slot].wanted, Wanted::Nothing);
            let wanted = wanted.max(everybody);
            if wanted != Wanted::Nothing && raft.emit_append(slot, wanted == Wanted::Append) {
                while raft.emit_append(slot, false) {}
            }
        });
    }

    pub(crate) fn has_wanted(&self) -> bool {
        self.role.leader().is_some_and(|leader| {
            leader.broadcast != Wanted::Nothing
                || leader.peers.iter().any(|peer| peer.wanted != Wanted::Nothing)
        })
    }

    /// One append to a peer, with as many entries as it may have; a snapshot where
    /// the log does not reach back. False when nothing was sent.
    fn emit_append(&mut self, slot: usize, even_empty: bool) -> bool {
        let Role::Leader(leader) = &mut self.role else { return false };
        let peer = &mut leader.peers[slot];
        let next = peer.progress.next;
        if peer.progress.is_paused() || !even_empty && next > self.log.last().index {
            return false;
        }
        let Some(term) = self.log.term(next - 1) else { return self.emit_snapshot(slot) };
        let mut entries = Entries::new();
        if !peer.progress.is_full() {
            match self.log.from(next, self.config.append_bytes_max) {
                Found::Here(found) => entries = found,
                Found::OnDisk => {
                    if !std::mem::replace(&mut peer.loading, true) {
                        let range = next..self.log.last().index + 1;
                        let bytes_max = self.config.append_bytes_max;
                        self.out.load.push(Load {
                            target: LoadTarget::Peer(peer.id),
                            range,
                            bytes_max,
                        });
                    }
                    return false;
                }
            }
        }
        if entries.is_empty() && !even_empty {
            return false;
        }
        self.emit(slot, EntryId::new(term, next - 1), entries);
        true
    }

    fn emit(&mut self, slot: usize, prev: EntryId, entries: Entries) {
        let (term, commit) = (self.term, self.log.commit);
        let Role::Leader(leader) = &mut self.role else { return };
        let peer = &mut leader.peers[slot];
        peer.progress.sent(entries.len() as u64, entries.bytes(), commit);
        let message = Message::Append(Append { prev, entries, commit });
        self.out.send.push(self.config.envelope(peer.id, term, message));
    }
}
