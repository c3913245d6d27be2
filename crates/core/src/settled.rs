//! When a change is done: committed, and known to be so by enough members that they
//! can elect a leader without anybody else. And the leader that is on its way out,
//! which has to stay until then.

use crate::membership::history::Known;
use crate::membership::{EndedGoal, GoalEnd};
use crate::role::Role;
use crate::{
    Activation, EntryId, Event, Identity, Index, MemberId, Message, Raft, SettledEvidence,
};

/// What this member has reported since it was started, so that nothing is told twice.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Reports {
    /// The newest membership that is known to be settled, by the index of the entry that
    /// brought it.
    pub(crate) settled: Index,
    /// Who said that memberships are settled up to where, and it has yet to be seen here.
    heard: Option<(MemberId, Index)>,
    /// Goals that ended with this entry or before.
    goals_ended: Index,
    /// As whom others know the member of this id, if that is somebody else.
    pub(crate) disowned: Option<Identity>,
}

impl Reports {
    /// At a start: of the goals that ended, only those of the membership in force may
    /// not have been told.
    pub(crate) fn new(known: &Known) -> Self {
        let before = known.membership.ended_goals().iter().rev();
        let before = before.map(|ended| ended.at).find(|at| *at < known.since());
        Self { goals_ended: before.map_or(0, |at| at.index), ..Self::default() }
    }
}

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

    /// The leader says up to where memberships are settled.
    pub(crate) fn hear_settled(&mut self, leader: MemberId, index: Index) {
        if self.config.liveness.settle && index > self.reports.settled {
            self.reports.heard = Some((leader, index));
            self.duties_due = true;
        }
    }

    /// Reports a membership as settled once it is, and lets a leader go that it does
    /// not count.
    pub(crate) fn check_settled(&mut self) {
        if !self.role.is_leader() {
            self.settle_by_word();
            return;
        }
        if self.config.liveness.settle {
            if self.reports.settled < self.membership_known().since().index {
                self.settle_by_count();
            }
            if self.reports.settled < self.membership_known().since().index {
                return;
            }
        } else if self.config.activation == Activation::OnApply {
            return;
        }
        self.leave_office_if_out();
    }

    fn settle_by_count(&mut self) {
        let Some(leader) = self.role.leader() else { return };
        let known = self.membership_known();
        let index = known.id.index;
        // Only a leader that has committed an entry of its own knows what is committed.
        if self.log.commit < index.max(leader.first_own) {
            return;
        }
        // On append: whoever is elected has the committed membership in its log, and
        // that is the one it counts by. On apply it also has to know that it is
        // committed; a quorum of those who do is enough, for a vote tells the rest.
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

    /// What the leader said counts once this member is that far: before, it could not
    /// tell its clients which membership that is.
    /// Shown by scenarios/settled_reported_by_every_member.txt.
    fn settle_by_word(&mut self) {
        let Some((leader, index)) = self.reports.heard else { return };
        if self.log.commit < index || self.membership_known().since().index < index {
            return;
        }
        self.reports.heard = None;
        let known = self.memberships.counts(index).clone();
        // Where a snapshot took its place, a newer one is waited for.
        if known.since().index <= index {
            self.report_settled(&known, SettledEvidence::ReportedBy(leader));
        }
    }

    fn report_settled(&mut self, known: &Known, evidence: SettledEvidence) {
        let (id, membership) = (known.since(), known.membership.clone());
        self.reports.settled = id.index;
        self.out.events.push(Event::Settled { id, membership, evidence });
    }

    /// Tells of each goal once how it ended.
    /// Shown by scenarios/goal_end_reported_once_by_each_member.txt.
    pub(crate) fn report_goal_ends(&mut self) {
        let (ended, told) = (self.membership().ended_goals(), self.reports.goals_ended);
        if ended.last().is_none_or(|last| last.at.index <= told) {
            return;
        }
        let is_final = |ended: &&EndedGoal| self.is_final(ended);
        let news = ended.iter().filter(|ended| ended.at.index > told).filter(is_final);
        let news: Vec<EndedGoal> = news.copied().collect();
        for ended in news {
            self.reports.goals_ended = ended.at.index;
            self.out.events.push(Event::GoalEnded(ended));
        }
        let goes_on = self.memberships.newest().membership.goal().is_some();
        if let Some(leader) = self.role.leader_mut().filter(|_| !goes_on) {
            leader.step = None;
        }
    }

    /// The membership in which the goal ended is settled or, where nobody waits for that,
    /// committed.
    fn is_final(&self, ended: &EndedGoal) -> bool {
        let settles = self.config.liveness.settle;
        ended.at.index <= if settles { self.reports.settled } else { self.log.commit }
    }

    /// What became of the goal that this entry set, once that is certain: also long after,
    /// on any member. Nothing while it is pursued, and when so many ended since that it
    /// is forgotten.
    pub fn ended_goal(&self, id: EntryId) -> Option<EndedGoal> {
        let mut ended = self.membership().ended_goals().iter();
        ended.find(|ended| ended.id == id && self.is_final(ended)).copied()
    }

    /// How the goal of this entry ended, as above.
    pub fn goal_end(&self, id: EntryId) -> Option<GoalEnd> {
        self.ended_goal(id).map(|ended| ended.end)
    }

    /// The newest membership that is known to be settled, by the index of the entry that
    /// brought it.
    pub fn settled(&self) -> Index {
        self.reports.settled
    }

    /// Without a vote, but not free to go: the survivors may not know yet that they
    /// can do without this leader.
    /// Shown by scenarios/leaving_leader_of_two_waits_until_settled.txt.
    pub(crate) fn leads_on_its_way_out(&self) -> bool {
        let known = self.membership_known();
        let settles = self.config.liveness.settle && self.reports.settled < known.since().index;
        settles || known.id.index > self.log.commit
    }

    /// A leader that the settled membership does not count hands over to the voter
    /// that is furthest and knows it, and steps down. Going on to send heartbeats
    /// would keep the others from electing anybody.
    /// Shown by scenarios/membership_removed_leader_steps_down.txt.
    fn leave_office_if_out(&mut self) {
        if self.membership().is_voter(self.config.id) || !self.config.step_down_on_removal {
            return;
        }
        let known = self.membership_known().id.index;
        let membership = self.membership().clone();
        let committed = known.max(self.role.leader().map_or(0, |leader| leader.first_own));
        if committed > self.log.commit {
            return;
        }
        let Some(leader) = self.role.leader() else { return };
        let on_append = self.config.activation == Activation::OnAppend;
        let heirs = leader.peers.iter().filter(|peer| membership.is_voter(peer.id));
        let heir = heirs
            .filter(|peer| on_append || peer.committed >= known)
            .max_by_key(|peer| {
                // One that will stay, before one that is on its way out as well.
                let stays = membership.incoming().contains(peer.id);
                (stays, peer.progress.matched, std::cmp::Reverse(peer.id))
            })
            .map(|peer| peer.id);
        // What is committed but not told yet must reach them before we fall silent.
        self.broadcast_append();
        self.send_wanted();
        if let Some(heir) = heir {
            self.send(heir, Message::TimeoutNow);
        }
        self.become_follower(self.term, None);
    }
}
