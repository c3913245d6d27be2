//! When a change is done: committed, and known to be committed by enough members to elect a
//! leader without the others. And the leaving leader, which has to stay until then.

use crate::membership::history::LoggedMembership;
use crate::membership::{EndedGoal, GoalEnd};
use crate::pack::pack_fields;
use crate::role::Role;
use crate::{
    Activation, EntryId, Event, Identity, Index, MemberId, Message, Raft, SettledEvidence,
};

/// What this member has reported since it was started, so that nothing is reported twice.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Reports {
    /// The newest membership known to be settled, as the index of its entry.
    pub(crate) settled: Index,
    /// A leader's report of settled memberships, and up to where; not confirmed here yet.
    pub(crate) leader_report: Option<Box<(MemberId, Index)>>,
    /// Goals that ended with this entry or an earlier one are reported.
    pub(crate) goals_ended: Index,
    /// How other members know this member's id, if it is another member.
    pub(crate) identity_rejected: Option<Box<Identity>>,
}

pack_fields!(Reports { settled, goals_ended } unset { leader_report, identity_rejected });

impl Reports {
    /// After a start only goals that ended with the current membership may not have been
    /// reported.
    pub(crate) fn new(known: &LoggedMembership) -> Self {
        let before = known.membership.ended_goals().iter().rev();
        let before = before.map(|ended| ended.at).find(|at| *at < known.since());
        Self { goals_ended: before.map_or(0, |at| at.index), ..Self::default() }
    }
}

impl Raft {
    /// A peer durably knows the log to be committed up to here.
    #[inline]
    pub(crate) fn on_commit_known(&mut self, slot: usize, commit: Index) {
        let known = commit.min(self.log.commit);
        let Role::Leader(leader) = &mut self.role else { return };
        let Some(peer) = leader.peers.get_mut(slot) else { return };
        if known > peer.committed {
            peer.committed = known;
            self.membership_work_due = true;
        }
    }

    /// This member's own disk holds the commit index.
    pub(crate) fn on_own_commit_saved(&mut self, commit: Index) {
        if let Some(slot) = self.role.leader().and_then(|leader| leader.own) {
            self.on_commit_known(slot, commit);
        }
    }

    /// The leader reports up to where memberships are settled.
    pub(crate) fn on_leader_settled(&mut self, leader: MemberId, index: Index) {
        if self.config.liveness.settle && index > self.reports.settled {
            self.reports.leader_report = Some(Box::new((leader, index)));
            self.membership_work_due = true;
        }
    }

    /// Reports a membership as settled once it is, and lets a removed leader step down.
    pub(crate) fn check_settled(&mut self) {
        if !self.role.is_leader() {
            self.settle_by_report();
            return;
        }
        if self.config.liveness.settle {
            if self.reports.settled < self.active.since {
                self.settle_by_count();
            }
            if self.reports.settled < self.active.since {
                return;
            }
        } else if self.config.activation == Activation::OnApply {
            return;
        }
        self.step_down_if_removed();
    }

    fn settle_by_count(&mut self) {
        let Some(leader) = self.role.leader() else { return };
        let known = &self.active.logged;
        let index = known.id.index;
        // Only a leader that has committed an entry of its own term knows what is
        // committed.
        if self.log.commit < index.max(leader.first_of_term) {
            return;
        }
        // On append, an elected leader has the committed membership in its log, and counts
        // by it. On apply it also has to know that it is committed; a quorum that knows is
        // enough, because votes inform the rest.
        let knows = |member| leader.peer(member).map_or(0, |peer| peer.committed);
        let settled = match self.config.activation {
            Activation::OnAppend => true,
            Activation::OnApply => known.membership.quorum(knows) >= index,
        };
        if settled {
            let evidence = leader.peers.iter().map(|peer| (peer.id, peer.committed)).collect();
            let known = known.clone();
            self.report_settled(&known, SettledEvidence::Counted(evidence));
        }
    }

    /// The leader's report counts once this member has committed that entry: before, it
    /// does not know which membership it is.
    /// Shown by scenarios/settled_reported_by_every_member.txt.
    fn settle_by_report(&mut self) {
        let Some((leader, index)) = self.reports.leader_report.as_deref().copied() else { return };
        if self.log.commit < index || self.active.since < index {
            return;
        }
        self.reports.leader_report = None;
        let known = self.memberships.at(index).clone();
        // If a snapshot has replaced the entry, wait for a newer report.
        if known.since().index <= index {
            self.report_settled(&known, SettledEvidence::ReportedBy(leader));
        }
    }

    fn report_settled(&mut self, known: &LoggedMembership, evidence: SettledEvidence) {
        let (id, membership) = (known.since(), known.membership.clone());
        self.reports.settled = id.index;
        self.out.rare().events.push(Event::Settled { id, membership, evidence });
    }

    /// Reports once how each goal ended.
    /// Shown by scenarios/goal_end_reported_once_by_each_member.txt.
    pub(crate) fn report_goal_ends(&mut self) {
        let (ended, reported) = (self.membership().ended_goals(), self.reports.goals_ended);
        if ended.last().is_none_or(|last| last.at.index <= reported) {
            return;
        }
        let is_final = |ended: &&EndedGoal| self.is_final(ended);
        let news = ended.iter().filter(|ended| ended.at.index > reported).filter(is_final);
        let news: Vec<EndedGoal> = news.copied().collect();
        for ended in news {
            self.reports.goals_ended = ended.at.index;
            self.out.rare().events.push(Event::GoalEnded(ended));
        }
        let continues = self.memberships.newest().membership.goal().is_some();
        if let Some(leader) = self.role.leader_mut().filter(|_| !continues) {
            leader.step = None;
        }
    }

    /// The membership in which the goal ended is settled or, with settling off, committed.
    fn is_final(&self, ended: &EndedGoal) -> bool {
        let settles = self.config.liveness.settle;
        ended.at.index <= if settles { self.reports.settled } else { self.log.commit }
    }

    /// How and where the goal that this entry set ended, once that is certain, on any
    /// member. None while it is in progress, or when so many goals ended since that it is
    /// no longer remembered.
    pub fn ended_goal(&self, id: EntryId) -> Option<EndedGoal> {
        let mut ended = self.membership().ended_goals().iter();
        ended.find(|ended| ended.id == id && self.is_final(ended)).copied()
    }

    /// How the goal that this entry set ended; see [`Raft::ended_goal`].
    pub fn goal_end(&self, id: EntryId) -> Option<GoalEnd> {
        self.ended_goal(id).map(|ended| ended.end)
    }

    /// The newest membership known to be settled, as the index of its entry.
    pub fn settled(&self) -> Index {
        self.reports.settled
    }

    /// A leader without a vote must stay: the other members may not know yet that they can
    /// elect without it.
    /// Shown by scenarios/leaving_leader_of_two_waits_until_settled.txt.
    pub(crate) fn must_lead_until_settled(&self) -> bool {
        let known = &self.active.logged;
        let settles = self.config.liveness.settle && self.reports.settled < self.active.since;
        settles || known.id.index > self.log.commit
    }

    /// A leader that is not a voter of the settled membership hands over to the voter with
    /// the newest log that knows it, and steps down. If it continued to send heartbeats,
    /// the others could not elect a leader.
    /// Shown by scenarios/membership_removed_leader_steps_down.txt.
    fn step_down_if_removed(&mut self) {
        if self.membership().is_voter(self.config.id) || !self.config.step_down_on_removal {
            return;
        }
        let known = self.active.logged.id.index;
        let membership = self.membership().clone();
        let committed = known.max(self.role.leader().map_or(0, |leader| leader.first_of_term));
        if committed > self.log.commit {
            return;
        }
        let Some(leader) = self.role.leader() else { return };
        let on_append = self.config.activation == Activation::OnAppend;
        let successors = leader.peers.iter().filter(|peer| membership.is_voter(peer.id));
        let successor = successors
            .filter(|peer| on_append || peer.committed >= known)
            .max_by_key(|peer| {
                // Prefer a live member, and one that stays over one that is leaving too.
                // Shown by scenarios/stall_leaving_leader_skips_stalled_successor.txt.
                let live = self.is_live(leader, peer);
                let stays = membership.incoming().contains(peer.id);
                (live, stays, peer.progress.matched, std::cmp::Reverse(peer.id))
            })
            .map(|peer| peer.id);
        // The other members must receive the commit index before this leader steps down.
        self.broadcast_append();
        self.send_pending_appends();
        if let Some(successor) = successor {
            self.send(successor, Message::TimeoutNow);
        }
        self.become_follower(self.term, None);
    }
}
