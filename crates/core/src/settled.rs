//! When a change is done: committed, and known to be so by enough members that they
//! can elect a leader without anybody else. And the leader that is on its way out,
//! which has to stay until then.

use crate::role::Role;
use crate::{Activation, Event, Index, MemberId, Message, Raft, mutant};

impl Raft {
    /// A peer durably knows the log to be committed up to here.
    pub(crate) fn on_commit_known(&mut self, id: MemberId, commit: Index) {
        let known = commit.min(self.log.commit);
        let Role::Leader(leader) = &mut self.role else { return };
        let Some(peer) = leader.peer_mut(id) else { return };
        if known > peer.committed {
            peer.committed = known;
            self.duties_due = true;
        }
    }

    /// Our own disk knows.
    pub(crate) fn on_own_commit_saved(&mut self, commit: Index) {
        if self.role.is_leader() {
            self.on_commit_known(self.config.id, commit);
        }
    }

    /// Reports a membership as settled once it is, and lets a leader go that it does
    /// not count.
    pub(crate) fn check_settled(&mut self) {
        let Some(leader) = self.role.leader() else { return };
        if leader.settled >= self.counting.index {
            return;
        }
        if !self.config.liveness.settle {
            if self.config.activation == Activation::OnAppend {
                self.leave_office_if_out();
            }
            return;
        }
        let known = self.membership_known();
        let id = known.id;
        // Only a leader that has committed an entry of its own knows what is committed.
        let own = if mutant!(SettledBeforeOwnCommit) { 0 } else { leader.first_own };
        if self.log.commit < id.index.max(own) {
            return;
        }
        // On append: whoever is elected has the committed membership in its log, and
        // that is the one it counts by. On apply it also has to know that it is
        // committed; a quorum of those who do is enough, for a vote tells the rest.
        let knows = |member| leader.peer(member).map_or(0, |peer| peer.committed);
        let settled = match self.config.activation {
            Activation::OnAppend => true,
            Activation::OnApply if mutant!(CommittedIsSettled) => true,
            Activation::OnApply => known.membership.quorum(knows) >= id.index,
        };
        if !settled {
            return;
        }
        let membership = known.membership.clone();
        let evidence = leader.peers.iter().map(|peer| (peer.id, peer.committed)).collect();
        // The last step may be another leader's; then the log tells of the goal.
        let before = self.memberships.last_but_one().map(|known| known.membership.clone());
        let pursued = before.is_some_and(|before| before.goal().is_some());
        let reached = membership.goal().is_none() && pursued;
        if let Some(leader) = self.role.leader_mut() {
            leader.settled = id.index;
            if reached {
                leader.step = None;
            }
        }
        self.out.events.push(Event::Settled { id, membership, evidence });
        if reached {
            self.out.events.push(Event::GoalReached { id });
        }
        self.leave_office_if_out();
    }

    /// Without a vote, but not free to go: the survivors may not know yet that they
    /// can do without this leader.
    /// Shown by scenarios/leaving_leader_of_two_waits_until_settled.txt.
    pub(crate) fn leads_on_its_way_out(&self) -> bool {
        let known = self.membership_known().id.index;
        let settles = self.config.liveness.settle
            && self.role.leader().is_some_and(|leader| leader.settled < known);
        (settles || known > self.log.commit) && !mutant!(LeaverGoesAtOnce)
    }

    /// A leader that the settled membership does not count hands over to the voter
    /// that is furthest and knows it, and steps down. Going on to send heartbeats
    /// would keep the others from electing anybody.
    /// Shown by scenarios/membership_removed_leader_steps_down.txt.
    fn leave_office_if_out(&mut self) {
        let known = self.membership_known().id.index;
        let membership = self.membership().clone();
        let committed = known.max(self.role.leader().map_or(0, |leader| leader.first_own));
        let stays = membership.is_voter(self.config.id) || committed > self.log.commit;
        if stays || !self.config.step_down_on_removal || mutant!(RemovedLeaderStays) {
            return;
        }
        let Some(leader) = self.role.leader() else { return };
        let on_append = self.config.activation == Activation::OnAppend;
        let heirs = leader.peers.iter().filter(|peer| membership.is_voter(peer.id));
        let heir = heirs
            .filter(|peer| on_append || peer.committed >= known || mutant!(HeirNeedNotKnow))
            .max_by_key(|peer| {
                // One that will stay, before one that is on its way out as well.
                let stays = membership.incoming().contains(peer.id) && !mutant!(HeirMayBeLeaving);
                (stays, peer.progress.matched, std::cmp::Reverse(peer.id))
            })
            .map(|peer| peer.id);
        // What is committed but not told yet must reach them before we fall silent.
        if !mutant!(LeaverTellsNobody) {
            self.broadcast_append();
            self.send_wanted();
        }
        if let Some(heir) = heir.filter(|_| !mutant!(LeaverNamesNoHeir)) {
            self.send(heir, Message::TimeoutNow);
        }
        self.become_follower(self.term, None);
    }
}
