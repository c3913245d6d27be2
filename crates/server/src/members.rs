//! Changes of membership as operators mean them: one member comes, goes, or gets a vote.
//!
//! etcd's calls are turned into goals, so that whoever leads takes the safe way. One that
//! comes while a goal waits for a joiner extends it: add, add, remove is no conflict.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorate::{
    Change, ChangeRefusal, EntryId, MemberId, MemberInfo, MemberSet, Membership, MembershipEvent,
    Node, Operation, OutcomeUnknown, Refusal, RequestError, RequestRefused,
};
use tokio::time::Instant;

use crate::bootstrap::member_id;
use crate::member_info::Info;
use crate::url::Url;

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

/// The id of one that comes to these: as etcd makes it, of its addresses and the time. Time
/// goes on a little where that id was used, as by one that came and went in the same second.
pub(crate) fn fresh_id(urls: &[Url], now: &Membership) -> MemberId {
    let target = Target::of(now);
    let is_used = |id: &MemberId| {
        let wanted = target.voters.contains(*id) || target.learners.contains(*id);
        wanted || now.contains(*id) || now.removed().contains(id)
    };
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let at = |seconds| MemberId(member_id(urls, "", Some(seconds)));
    (seconds..).map(at).find(|id| !is_used(id)).unwrap_or_else(|| at(seconds))
}

/// What is to happen to one member.
#[derive(Clone, Debug)]
pub(crate) enum Wish {
    AddVoter(MemberId, MemberInfo),
    AddLearner(MemberId, MemberInfo),
    Promote(MemberId),
    Remove(MemberId),
    /// Says something new about it.
    Describe(MemberId, News),
}

/// What is new about a member. The rest that is known of it stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Where its peers reach it.
    PeerUrls(Vec<String>),
    /// What it says about itself.
    Itself { name: String, client_urls: Vec<String> },
}

impl News {
    fn added_to(&self, known: Info) -> Info {
        match self.clone() {
            Self::PeerUrls(peer_urls) => Info { peer_urls, ..known },
            Self::Itself { name, client_urls } => Info { name, client_urls, ..known },
        }
    }
}

impl Wish {
    /// What to ask for, of a cluster that looks like this and of no other: asked again it
    /// must not undo what somebody else did meanwhile.
    fn change(&self, now: &Membership) -> Change {
        let target = Target::of(now);
        let aims = now.goal().is_some();
        let change = match self {
            Self::AddVoter(id, info) => target.with_voter(*id).goal().with_info(*id, info.clone()),
            Self::AddLearner(id, info) if aims => {
                target.with_learner(*id).goal().with_info(*id, info.clone())
            }
            Self::AddLearner(id, info) => Change::add_learner(*id).with_info(*id, info.clone()),
            Self::Promote(id) if aims => target.with_voter(*id).goal(),
            Self::Promote(id) => Change::new([Operation::Voter(*id)]),
            Self::Remove(id) if !aims && now.is_learner(*id) => {
                Change::new([Operation::Remove(*id)])
            }
            Self::Remove(id) => target.without(*id).goal(),
            Self::Describe(id, news) => {
                let zone = now.info(*id).map(|info| info.zone.clone()).unwrap_or_default();
                let info = news.added_to(Info::of(now, *id)).in_zone(zone);
                // No goal is set anew for this: whoever waits for it would wait in vain.
                Change::new([Operation::Update(*id)]).with_info(*id, info)
            }
        };
        change.expecting(now.since())
    }

    fn is_fulfilled(&self, now: &Membership) -> bool {
        match self {
            Self::AddVoter(id, _) | Self::AddLearner(id, _) => now.contains(*id),
            Self::Promote(id) => now.majorities().iter().all(|voters| voters.contains(*id)),
            Self::Remove(id) => !now.contains(*id),
            Self::Describe(id, news) => {
                let known = Info::of(now, *id);
                news.added_to(known.clone()) == known
            }
        }
    }

    /// Whoever leads brings it about already, or has.
    fn is_on_its_way(&self, now: &Membership) -> bool {
        let aimed = now.goal().is_some_and(|goal| match self {
            Self::AddVoter(id, _) | Self::Promote(id) => goal.voters.contains(*id),
            Self::AddLearner(id, _) => goal.learners.contains(*id),
            Self::Remove(id) => !goal.voters.contains(*id) && !goal.learners.contains(*id),
            Self::Describe(..) => false,
        });
        aimed || self.is_fulfilled(now)
    }
}

/// Why one attempt came to nothing.
enum Missed {
    /// Look, and ask again.
    ForNow(RequestError),
    ForGood(RequestError),
}

impl From<RequestError> for Missed {
    fn from(why: RequestError) -> Self {
        if may_pass(&why) { Self::ForNow(why) } else { Self::ForGood(why) }
    }
}

/// Makes it happen, and returns when what the wish is about is settled. The rest of a goal,
/// such as the vote of one that has yet to start, is left to the leader.
pub(crate) async fn fulfil(node: &Node, wish: &Wish) -> Result<(), RequestError> {
    let deadline = Instant::now() + PATIENCE;
    let mut asked = false;
    loop {
        let now = node.membership();
        // What was asked before may have happened, though nobody said so.
        let change = (!asked || !wish.is_on_its_way(&now)).then(|| wish.change(&now));
        asked = true;
        match attempt(node, wish, change, deadline).await {
            Ok(()) => return Ok(()),
            Err(Missed::ForNow(_)) if Instant::now() < deadline => {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            Err(Missed::ForNow(why) | Missed::ForGood(why)) => return Err(why),
        }
    }
}

/// Asks for the change, if it is not on its way, and waits until it is settled.
async fn attempt(
    node: &Node,
    wish: &Wish,
    change: Option<Change>,
    deadline: Instant,
) -> Result<(), Missed> {
    let mut news = node.watch_membership();
    let mut answered = change.is_none();
    let asked = async {
        match change {
            Some(change) => node.change(change).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(asked);
    let lost = leader_lost(node);
    tokio::pin!(lost);
    let goes = matches!(wish, Wish::Remove(id) if *id == node.id());
    loop {
        tokio::select! {
            answer = &mut asked, if !answered => match answer {
                // Who goes itself is told nothing more, and sees by itself that it is out.
                Err(RequestError::Unknown(_)) if goes => answered = true,
                Err(RequestError::Unknown(OutcomeUnknown::GoalAbandoned(_))) => answered = true,
                Err(why) => return Err(why.into()),
                Ok(_) if wish.is_fulfilled(&node.membership()) => return Ok(()),
                Ok(_) => answered = true,
            },
            heard = news.next() => match heard {
                Some(MembershipEvent::Settled { membership, .. })
                | Some(MembershipEvent::Current { membership, settled: true, .. })
                    if wish.is_fulfilled(&membership) => return Ok(()),
                // Who goes itself does not hear that it is settled. It went as a learner, and
                // that was.
                Some(MembershipEvent::InEffect { membership, .. })
                | Some(MembershipEvent::Current { membership, .. })
                    if goes && wish.is_fulfilled(&membership) => return Ok(()),
                Some(_) => {}
                None => return Err(Missed::ForGood(RequestError::Refused(RequestRefused::Stopped))),
            },
            // What the old leader was asked, the new one may never hear of.
            () = &mut lost, if !answered => {
                return Err(Missed::ForNow(RequestError::Unknown(OutcomeUnknown::TimedOut)));
            }
            () = tokio::time::sleep_until(deadline) => {
                return Err(Missed::ForGood(RequestError::Unknown(OutcomeUnknown::TimedOut)));
            }
        }
    }
}

/// Waits until another one leads than who leads now.
async fn leader_lost(node: &Node) {
    let mut leader = node.watch_leader();
    let mut is_led = leader.borrow_and_update().is_some();
    while leader.changed().await.is_ok() {
        let found = leader.borrow_and_update().is_some();
        if is_led && found {
            return;
        }
        is_led |= found;
    }
    // The member has ended, and that is told elsewhere.
    std::future::pending().await
}

/// Logs a goal, and returns the entry that set it as soon as it is committed.
pub(crate) async fn begin(node: &Node, change: Change) -> Result<EntryId, RequestError> {
    let before = node.membership().goal().map(|goal| goal.id);
    loop {
        if let Some(begun) = begin_with_leader(node, change.clone(), before).await {
            return begun;
        }
        // Of what the old leader logged, all that will ever count is known after this.
        node.barrier().await?;
        if let Some(id) = new_goal(&node.membership(), before) {
            return Ok(id);
        }
    }
}

/// The same, unless another one leads before there is an answer.
async fn begin_with_leader(
    node: &Node,
    change: Change,
    before: Option<EntryId>,
) -> Option<Result<EntryId, RequestError>> {
    let mut news = node.watch_membership();
    let asked = node.change(change);
    tokio::pin!(asked);
    let lost = leader_lost(node);
    tokio::pin!(lost);
    loop {
        tokio::select! {
            answer = &mut asked => return Some(answer),
            heard = news.next() => match heard {
                Some(MembershipEvent::Committed { membership, .. }) => {
                    if let Some(id) = new_goal(&membership, before) {
                        return Some(Ok(id));
                    }
                }
                Some(_) => {}
                None => return Some(Err(RequestError::Refused(RequestRefused::Stopped))),
            },
            () = &mut lost => return None,
        }
    }
}

fn new_goal(now: &Membership, before: Option<EntryId>) -> Option<EntryId> {
    now.goal().map(|goal| goal.id).filter(|id| Some(*id) != before)
}

/// Somebody else was quicker, or a change is on its way: look, and ask again.
fn may_pass(why: &RequestError) -> bool {
    let RequestError::Refused(RequestRefused::ByLeader(Refusal::Change(why))) = why else {
        return false;
    };
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
