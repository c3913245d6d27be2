//! Log replication: appends, their replies, and heartbeats (thesis §3.5).
//!
//! A leader decides for each peer what to send next and how far ahead of the replies;
//! [`progress`](crate::progress) holds that state. With coalescing, appends are built when
//! the output is taken, so that one append carries all new entries.

use crate::log::LogRead;
use crate::progress::{AppendNeeded, Flow};
use crate::role::{Leader, Role};
use crate::validate::check_entries;
use crate::{
    Accepted, Append, AppendReply, Dropped, Entries, EntryId, Heartbeat, HeartbeatReply, Index,
    Load, LoadTarget, Malformed, MemberId, Message, Raft,
};

impl Raft {
    /// An append from the leader: the entries after `prev` in its log.
    #[inline]
    pub(crate) fn on_append(
        &mut self,
        from: MemberId,
        append: Append,
    ) -> Result<Accepted, Dropped> {
        let commit = self.log.commit;
        let append_last = append.entries.last().map_or(append.prev, |entry| entry.id);
        if append.prev.index < commit {
            // A late append, or a leader that does not know this member's progress. If an
            // entry differed from the committed one, the append would come from a deposed
            // leader, and this member's log must not count for it.
            let common = append_last.index.min(commit);
            let known = common >= self.log.base().index;
            if known && !self.append_matches(&append, common) {
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
        self.commit_to(commit.min(append_last.index));
        self.reply_matches(from, append_last.index);
        Ok(Accepted::Done)
    }

    /// The append's entry at this index, or its `prev`, equals the one in this log.
    fn append_matches(&self, append: &Append, index: Index) -> bool {
        if index <= append.prev.index {
            return self.log.holds(append.prev);
        }
        let term = append.entries.iter().find(|entry| entry.id.index == index);
        term.is_none_or(|entry| self.log.holds(entry.id))
    }

    /// Appends new entries and truncates conflicting ones.
    #[inline]
    fn take_entries(&mut self, append: Append) -> Result<(), Dropped> {
        if append.entries.is_empty() {
            return Ok(());
        }
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
                self.truncate_log(from);
            }
            for slice in append.entries.slices() {
                if let Some(part) = slice.part(from, Index::MAX) {
                    new.push(part);
                }
            }
        }
        for slice in new.slices() {
            for entry in slice.entries() {
                if let Some(change) = entry.change() {
                    self.memberships.push(entry.id, change.membership.clone());
                }
            }
        }
        self.log.append(new);
        self.update_active_membership();
        Ok(())
    }

    fn truncate_log(&mut self, from: Index) {
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
        // Between here and `prev` this log's terms are all above the leader's, so no entry
        // in between can match: one reply skips a whole diverged tail.
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
            // A correct leader sends only a commit index that this member is known to hold.
            return Err(self.on_missing_entries(from, heartbeat));
        }
        self.commit_to(commit);
        self.check_log_complete();
        let Heartbeat { round, sent_at, settled, .. } = heartbeat;
        self.on_leader_settled(from, settled);
        let reply = HeartbeatReply {
            round,
            sent_at,
            commit: self.saves.durable_commit,
            applied: self.applied_by_machine(),
            stalled: self.stalled(),
        };
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
        leader.peers[slot].replied_at = leader.clock;
        let progress = &mut leader.peers[slot].progress;
        match reply {
            AppendReply::Matches { index, .. } if index > last => {
                return Err(Malformed::MatchBeyondLog.into());
            }
            AppendReply::Matches { index, commit } => self.on_matches(slot, index, commit),
            AppendReply::Missing { confirmed, hint, sent_at } => {
                self.on_peer_missing_entries(from, confirmed, hint, sent_at)?;
                self.on_differs(slot, confirmed, hint);
            }
            AppendReply::Differs { prev, hint } => {
                progress.active = true;
                self.on_differs(slot, prev, hint);
            }
            // Only the envelope's term mattered; it equals the current one by now.
            AppendReply::OldTerm => {
                progress.active = true;
                return Err(Dropped::Unsolicited);
            }
        }
        Ok(Accepted::Done)
    }

    /// A peer replies that its log matches up to `index`, and is committed up to `commit`.
    #[inline]
    pub(crate) fn on_matches(&mut self, slot: usize, index: Index, commit: Index) {
        let Some(leader) = self.role.leader_mut() else { return };
        let peer = &mut leader.peers[slot];
        peer.replied_at = leader.clock;
        peer.progress.active = true;
        self.on_matched(slot, index);
        self.on_commit_known(slot, commit);
    }

    fn on_differs(&mut self, slot: usize, prev: Index, hint: EntryId) {
        // Terms never decrease along a log. Where the leader's are above the hint's, the
        // peer cannot have the same entries: skip them all.
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

    /// A member, possibly this one, holds this log durably up to here.
    pub(crate) fn on_matched(&mut self, slot: usize, index: Index) {
        let base = self.log.base().index;
        let Some(leader) = self.role.leader_mut() else { return };
        let peer = &mut leader.peers[slot];
        let own = peer.id == self.config.id;
        let progress = &mut peer.progress;
        // An answered probe ends probing, even without new entries.
        let news = progress.match_to(index);
        if news {
            peer.grew_at = leader.clock;
        }
        let ends_probe = || progress.matched == index && progress.flow == Flow::Probe;
        if !(news || ends_probe()) {
            return;
        }
        match progress.flow {
            Flow::Probe => progress.become_replicate(),
            // However the peer got this far, the log continues from there.
            Flow::Snapshot(_) if progress.matched >= base => {
                progress.become_probe();
                progress.become_replicate();
            }
            Flow::Snapshot(_) => {}
            Flow::Replicate => progress.inflight.free(index),
        }
        peer.rounds.advance(progress.matched, self.log.last().index);
        let (commit, id) = (self.log.commit, peer.id);
        let tells_commit = !own && progress.needs_commit(commit);
        // A peer that is not past the commit index cannot advance it.
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
        if peer
            .lost
            .as_ref()
            .is_some_and(|lost| reply.sent_at > lost.sent_at && reply.sent_at <= clock)
        {
            // It accepted a later heartbeat: it holds what it confirmed.
            peer.lost = None;
        }
        peer.progress.active = true;
        peer.replied_at = clock;
        (peer.applied, peer.stalled) = (reply.applied, reply.stalled);
        if peer.progress.matched == last {
            peer.grew_at = clock;
        }
        peer.progress.unpause();
        if reply.sent_at <= clock {
            peer.heard_at = peer.heard_at.max(reply.sent_at);
        }
        let behind = peer.progress.matched < last || peer.progress.flow == Flow::Probe;
        if behind {
            self.send_append(slot);
        }
        self.on_round_confirmed(slot, reply.round);
        self.on_commit_known(slot, reply.commit);
        Ok(Accepted::Done)
    }

    pub(crate) fn on_leader_tick(&mut self) {
        self.timer.heartbeat_elapsed += 1;
        let (last, ticks) = (self.log.last().index, self.config.election_ticks);
        if let Some(leader) = self.role.leader_mut() {
            leader.clock += 1;
            leader.recent_log_end.tick(last, ticks);
        }
        if self.timer.elapsed >= self.config.election_ticks {
            self.timer.elapsed = 0;
            if self.config.check_quorum && !self.check_quorum() {
                self.become_follower(self.term, None);
                return;
            }
            if self.config.check_quorum {
                self.term_budget.on_quorum_heard();
            }
            self.on_transfer_timeout();
        }
        self.hand_over_if_stalled();
        self.tick_disk_pace();
        self.membership_work_due = true;
        if self.timer.heartbeat_elapsed >= self.config.heartbeat_ticks {
            self.timer.heartbeat_elapsed = 0;
            self.broadcast_heartbeat();
        }
    }

    /// Whether a quorum has replied since the last check. A leader without a quorum must
    /// not keep suppressing elections where it is still heard (thesis §6.2).
    /// Shown by scenarios/checkquorum_leader_without_quorum_steps_down.txt.
    fn check_quorum(&mut self) -> bool {
        let id = self.config.id;
        let Some(leader) = self.role.leader_mut() else { return true };
        let active = leader.quorum_active();
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
            // Never above what the peer is known to hold.
            let commit = commit.min(peer.progress.matched);
            peer.progress.set_sent_commit(commit);
            let message = Message::Heartbeat(Heartbeat { commit, round, sent_at, settled });
            self.out.send.push(self.config.envelope(peer.id, term, message));
        }
    }

    pub(crate) fn on_unreachable(&mut self, peer: MemberId) -> Result<Accepted, Dropped> {
        let Some(leader) = self.role.leader_mut() else { return Err(Dropped::NotForRole) };
        let Some(peer) = leader.peer_mut(peer) else {
            return Err(Dropped::UnknownSender { from: peer });
        };
        // Appends in flight are probably lost: probe for the peer's last match.
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
        leader.pace.load_ended();
        let peer = &mut leader.peers[slot];
        peer.loading = false;
        let waits = peer.progress.is_paused() || peer.progress.is_full();
        let first = entries.first().map(|entry| entry.id.index);
        if first != Some(peer.progress.next) || matches!(peer.progress.flow, Flow::Snapshot(_)) {
            return Err(Dropped::NothingPending);
        }
        let Some(prev) = self.own_entries(entries) else {
            return Err(Malformed::WrongEntries.into());
        };
        if waits {
            if let Some(leader) = self.role.leader_mut() {
                leader.peers[slot].read_ahead = Some(Box::new(entries.clone()));
            }
            return Ok(Accepted::Done);
        }
        self.emit(slot, prev, entries.clone());
        self.read_ahead(slot);
        self.send_entries(slot);
        Ok(Accepted::Done)
    }

    /// While a full window waits for replies, the disk reads what is sent next: otherwise a peer
    /// that lags would get entries more slowly than the quorum, and never catch up under load.
    /// At most one append is kept in memory.
    /// Shown by scenarios/replication_reads_ahead_for_a_lagging_peer.txt.
    fn read_ahead(&mut self, slot: usize) {
        let Role::Leader(leader) = &mut self.role else { return };
        let peer = &mut leader.peers[slot];
        let waits = peer.progress.is_paused() && peer.progress.flow == Flow::Replicate;
        let next = peer.progress.next;
        if waits && next <= self.log.last().index && peer.read_ahead.is_none() {
            let read = self.log.from(next, self.config.append_bytes_max);
            if matches!(read, LogRead::OnDisk) {
                self.load_for_peer(slot);
            }
        }
    }

    fn load_for_peer(&mut self, slot: usize) {
        let Role::Leader(leader) = &mut self.role else { return };
        let peer = &mut leader.peers[slot];
        if !std::mem::replace(&mut peer.loading, true) {
            let range = peer.progress.next..self.log.last().index + 1;
            let (target, bytes_max) = (LoadTarget::Peer(peer.id), self.config.append_bytes_max);
            self.out.rare().load.push(Load { target, range, bytes_max });
        }
    }

    /// Sends what was read ahead, if that is what comes next.
    fn emit_read_ahead(&mut self, slot: usize) -> bool {
        let Some(leader) = self.role.leader_mut() else { return false };
        let peer = &mut leader.peers[slot];
        let next = peer.progress.next;
        let read = peer.read_ahead.take();
        let fits = |read: &Entries| read.first().is_some_and(|entry| entry.id.index == next);
        let Some(read) = read.filter(|read| fits(read)) else { return false };
        let Some(prev) = self.own_entries(&read) else { return false };
        self.emit(slot, prev, *read);
        self.read_ahead(slot);
        true
    }

    /// The entry before these, if they equal the entries of this log.
    pub(crate) fn own_entries(&self, entries: &Entries) -> Option<EntryId> {
        let index = entries.first()?.id.index.checked_sub(1)?;
        let prev = EntryId::new(self.log.term(index)?, index);
        let equal = entries.iter().all(|entry| self.log.holds(entry.id));
        (equal && check_entries(prev, entries, self.term, self.config.activation).is_ok())
            .then_some(prev)
    }

    /// An append to all peers, at least with the commit index.
    pub(crate) fn broadcast_append(&mut self) {
        if self.config.etcd_compat.coalesce {
            if let Some(leader) = self.role.leader_mut() {
                leader.broadcast = AppendNeeded::Always;
            }
            return;
        }
        self.for_each_peer(|raft, slot| {
            raft.emit_append(slot, true);
        });
    }

    /// An append to one peer, even without entries.
    pub(crate) fn send_append(&mut self, slot: usize) {
        if !self.record_append(slot, AppendNeeded::Always) {
            self.emit_append(slot, true);
        }
    }

    /// As many appends with entries as one peer may be sent now.
    pub(crate) fn send_entries(&mut self, slot: usize) {
        if !self.record_append(slot, AppendNeeded::IfEntries) {
            while self.emit_append(slot, false) {}
        }
    }

    /// Entries for all peers that lack some.
    pub(crate) fn broadcast_entries(&mut self) {
        self.for_each_peer(|raft, slot| {
            if !raft.record_append(slot, AppendNeeded::IfEntries) {
                raft.emit_append(slot, false);
            }
        });
    }

    /// With coalescing, records what to send until the output is taken.
    fn record_append(&mut self, slot: usize, needed: AppendNeeded) -> bool {
        let coalesce = self.config.etcd_compat.coalesce;
        if coalesce && let Some(leader) = self.role.leader_mut() {
            let peer = &mut leader.peers[slot];
            peer.append_needed = peer.append_needed.max(needed);
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

    /// Sends the appends that were recorded.
    #[inline]
    pub(crate) fn send_pending_appends(&mut self) {
        if self.role.leader().is_some_and(Leader::has_pending_appends) {
            self.send_due_appends();
        }
    }

    fn send_due_appends(&mut self) {
        let Some(leader) = self.role.leader_mut() else { return };
        let broadcast = std::mem::replace(&mut leader.broadcast, AppendNeeded::No);
        self.for_each_peer(|raft, slot| {
            let Some(leader) = raft.role.leader_mut() else { return };
            let needed = std::mem::replace(&mut leader.peers[slot].append_needed, AppendNeeded::No);
            let needed = needed.max(broadcast);
            if needed != AppendNeeded::No && raft.emit_append(slot, needed == AppendNeeded::Always)
            {
                while raft.lacks_entries(slot) && raft.emit_append(slot, false) {}
            }
        });
    }

    /// The peer has not been sent all of the log.
    #[inline]
    fn lacks_entries(&self, slot: usize) -> bool {
        let last = self.log.last().index;
        self.role.leader().is_some_and(|leader| leader.peers[slot].progress.next <= last)
    }

    /// One append to a peer, with as many entries as the limits allow; a snapshot where the
    /// log does not reach back far enough. False when nothing was sent.
    fn emit_append(&mut self, slot: usize, even_empty: bool) -> bool {
        let Role::Leader(leader) = &mut self.role else { return false };
        let peer = &mut leader.peers[slot];
        let next = peer.progress.next;
        if peer.progress.is_paused() || !even_empty && next > self.log.last().index {
            return false;
        }
        let Some(term) = self.log.term(next - 1) else { return self.emit_snapshot(slot) };
        let read = if peer.progress.is_full() {
            LogRead::InMemory(Entries::new())
        } else {
            self.log.from(next, self.config.append_bytes_max)
        };
        match read {
            LogRead::InMemory(entries) if entries.is_empty() && !even_empty => false,
            LogRead::InMemory(entries) => {
                self.emit(slot, EntryId::new(term, next - 1), entries);
                true
            }
            LogRead::OnDisk => {
                if self.emit_read_ahead(slot) {
                    return true;
                }
                self.load_for_peer(slot);
                false
            }
        }
    }

    #[inline(always)]
    fn emit(&mut self, slot: usize, prev: EntryId, entries: Entries) {
        let (term, commit) = (self.term, self.log.commit);
        let Role::Leader(leader) = &mut self.role else { return };
        let peer = &mut leader.peers[slot];
        peer.progress.sent(entries.len() as u64, entries.bytes(), commit);
        let message = Message::Append(Append { prev, entries, commit });
        self.out.send.push(self.config.envelope(peer.id, term, message));
    }
}
