//! Changes of membership as operators mean them: one member comes, goes, or gets a vote.
//!
//! etcd's calls are turned into goals, so that whoever leads takes the safe way. One that
//! comes while a goal waits for a joiner extends it: add, add, remove is no conflict.

use std::time::Duration;

use quorate::{
    Change, ChangeRefusal, EntryId, Failed, MemberId, MemberInfo, MemberSet, Membership,
    MembershipNews, Node, Operation, Refusal, Refused, Unknown,
};
use tokio::time::Instant;

/// Voters and learners that the members are on their way to, or have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) voters: MemberSet,
    pub(crate) learners: MemberSet,
}

impl Target {
    pub(crate) fn of(membership: &Membership) -> Self {
        match membership.goal() {
            Some(goal) => Self { voters: goal.voters.clone(), learners: goal.learners.clone() },
            None => Self {
                voters: membership.incoming().clone(),
                learners: membership.learners().clone(),
            },
        }
    }

    pub(crate) fn with_voter(&self, id: MemberId) -> Self {
        let voters = self.voters.iter().chain([id]).collect();
        Self { voters, learners: self.learners.iter().filter(|other| *other != id).collect() }
    }

    pub(crate) fn with_learner(&self, id: MemberId) -> Self {
        let learners = self.learners.iter().chain([id]).collect();
        Self { voters: self.voters.iter().filter(|other| *other != id).collect(), learners }
    }

    pub(crate) fn without(&self, id: MemberId) -> Self {
        let keep = |set: &MemberSet| set.iter().filter(|other| *other != id).collect();
        Self { voters: keep(&self.voters), learners: keep(&self.learners) }
    }

    fn goal(&self) -> Change {
        Change::goal(self.voters.iter(), self.learners.iter())
    }
}

/// What is to happen to one member.
#[derive(Clone, Debug)]
pub(crate) enum Wish {
    AddVoter(MemberId, MemberInfo),
    AddLearner(MemberId, MemberInfo),
    Promote(MemberId),
    Remove(MemberId),
    /// Says something new about it.
    Describe(MemberId, MemberInfo),
}

impl Wish {
    /// What to ask for, of a cluster that looks like this.
    fn change(&self, now: &Membership) -> Change {
        let target = Target::of(now);
        let aims = now.goal().is_some();
        match self {
            Self::AddVoter(id, info) => {
                let goal = target.with_voter(*id).goal().with_info(*id, info.clone());
                goal.expecting(now.since())
            }
            Self::AddLearner(id, info) if aims => {
                let goal = target.with_learner(*id).goal().with_info(*id, info.clone());
                goal.expecting(now.since())
            }
            Self::AddLearner(id, info) => Change::add_learner(*id).with_info(*id, info.clone()),
            Self::Promote(id) if aims => target.with_voter(*id).goal().expecting(now.since()),
            Self::Promote(id) => Change::new([Operation::Voter(*id)]),
            Self::Remove(id) if !aims && now.is_learner(*id) => {
                Change::new([Operation::Remove(*id)])
            }
            Self::Remove(id) => target.without(*id).goal().expecting(now.since()),
            Self::Describe(id, info) if aims => {
                target.goal().with_info(*id, info.clone()).expecting(now.since())
            }
            Self::Describe(id, info) => {
                Change::new([Operation::Update(*id)]).with_info(*id, info.clone())
            }
        }
    }

    fn is_fulfilled(&self, now: &Membership) -> bool {
        match self {
            Self::AddVoter(id, _) | Self::AddLearner(id, _) => now.contains(*id),
            Self::Promote(id) => now.majorities().iter().all(|voters| voters.contains(*id)),
            Self::Remove(id) => !now.contains(*id),
            Self::Describe(id, info) => now.info(*id) == Some(info),
        }
    }
}

/// Makes it happen, and returns when what the wish is about is settled. The rest of a goal,
/// such as the vote of one that has yet to start, is left to the leader.
pub(crate) async fn fulfil(node: &Node, wish: &Wish) -> Result<(), Failed> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let change = wish.change(&node.membership());
        match fulfil_by(node, wish, change, deadline).await {
            Err(why) if may_pass(&why) && Instant::now() < deadline => {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            ended => return ended,
        }
    }
}

async fn fulfil_by(
    node: &Node,
    wish: &Wish,
    change: Change,
    deadline: Instant,
) -> Result<(), Failed> {
    let mut news = node.watch_membership();
    let asked = node.change(change);
    tokio::pin!(asked);
    let mut answered = false;
    loop {
        tokio::select! {
            answer = &mut asked, if !answered => match answer {
                // It went, and is told nothing more.
                Err(Failed::Unknown(Unknown::Removed)) if matches!(wish, Wish::Remove(_)) => {
                    return Ok(());
                }
                Err(Failed::Unknown(Unknown::GivenUp(_))) => answered = true,
                Err(why) => return Err(why),
                Ok(_) if wish.is_fulfilled(&node.membership()) => return Ok(()),
                Ok(_) => answered = true,
            },
            heard = news.next() => match heard {
                Some(MembershipNews::Settled { membership, .. })
                | Some(MembershipNews::Now { membership, settled: true, .. })
                    if wish.is_fulfilled(&membership) => return Ok(()),
                Some(_) => {}
                None => return Err(Failed::Refused(Refused::Stopped)),
            },
            () = tokio::time::sleep_until(deadline) => {
                return Err(Failed::Unknown(Unknown::TimedOut));
            }
        }
    }
}

/// Logs a goal, and returns the entry that set it as soon as it is committed.
pub(crate) async fn begin(node: &Node, change: Change) -> Result<EntryId, Failed> {
    let before = node.membership().goal().map(|goal| goal.id);
    let mut news = node.watch_membership();
    let asked = node.change(change);
    tokio::pin!(asked);
    loop {
        tokio::select! {
            answer = &mut asked => return answer,
            heard = news.next() => match heard {
                Some(MembershipNews::Committed { membership, .. }) => {
                    let now = membership.goal().map(|goal| goal.id);
                    if let Some(id) = now.filter(|_| now != before) {
                        return Ok(id);
                    }
                }
                Some(_) => {}
                None => return Err(Failed::Refused(Refused::Stopped)),
            },
        }
    }
}

/// Somebody else was quicker, or a change is on its way: look, and ask again.
fn may_pass(why: &Failed) -> bool {
    let Failed::Refused(Refused::ByLeader(Refusal::Change(why))) = why else { return false };
    matches!(
        why,
        ChangeRefusal::Stale { .. }
            | ChangeRefusal::InFlight { .. }
            | ChangeRefusal::NoOwnCommit
            | ChangeRefusal::AlreadyJoint
            | ChangeRefusal::SimpleInJoint
            | ChangeRefusal::GoalInProgress
    )
}

const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// As long as etcd's clients are used to wait for a change.
const PATIENCE: Duration = Duration::from_secs(30);
