//! Membership changes as operators request them: add, remove, promote or update one member.
//!
//! etcd's calls are turned into goals, so that the leader makes the change in safe steps. A
//! change that is requested while a goal waits for a joining member extends that goal: add,
//! add, remove is no conflict.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorate::membership::{ChangeRefusal, MembershipEvent, Operation};
use quorate::{
    Change, EntryId, MemberId, MemberInfo, MemberSet, Membership, Node, OutcomeUnknown, Refusal,
    RequestError, RequestRefused,
};
use tokio::time::Instant;

use crate::bootstrap::member_id;
use crate::member_details::MemberDetails;
use crate::url::Url;

/// The voters and learners of the goal, or of the membership if there is no goal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TargetMembership {
    pub(crate) voters: MemberSet,
    pub(crate) learners: MemberSet,
}

impl TargetMembership {
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

/// The id of a joining member, made as etcd makes it from its addresses and the time. If that
/// id was used before, by a member that was added and removed within the same second, a later
/// time is used.
pub(crate) fn fresh_id(urls: &[Url], now: &Membership) -> MemberId {
    let target = TargetMembership::of(now);
    let is_used = |id: &MemberId| {
        let in_target = target.voters.contains(*id) || target.learners.contains(*id);
        in_target || now.contains(*id) || now.removed().contains(id)
    };
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let id_at = |seconds| MemberId(member_id(urls, "", Some(seconds)));
    (seconds..).map(id_at).find(|id| !is_used(id)).unwrap_or_else(|| id_at(seconds))
}

/// A change of one member.
#[derive(Clone, Debug)]
pub(crate) enum MemberChange {
    AddVoter(MemberId, MemberInfo),
    AddLearner(MemberId, MemberInfo),
    Promote(MemberId),
    Remove(MemberId),
    /// Changes the details of a member.
    Update(MemberId, MemberUpdate),
}

/// New details of a member. All others stay as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MemberUpdate {
    /// Where its peers reach it.
    PeerUrls(Vec<String>),
    /// What a member publishes about itself when it starts.
    Published { name: String, client_urls: Vec<String> },
}

impl MemberUpdate {
    fn applied_to(&self, details: MemberDetails) -> MemberDetails {
        match self.clone() {
            Self::PeerUrls(peer_urls) => MemberDetails { peer_urls, ..details },
            Self::Published { name, client_urls } => MemberDetails { name, client_urls, ..details },
        }
    }
}

impl MemberChange {
    /// The change to propose to a cluster with this membership and no other: without that
    /// condition, a retry could undo what another client did meanwhile.
    fn change(&self, now: &Membership) -> Change {
        let target = TargetMembership::of(now);
        let has_goal = now.goal().is_some();
        let change = match self {
            Self::AddVoter(id, info) => target.with_voter(*id).goal().with_info(*id, info.clone()),
            Self::AddLearner(id, info) if has_goal => {
                target.with_learner(*id).goal().with_info(*id, info.clone())
            }
            Self::AddLearner(id, info) => Change::add_learner(*id).with_info(*id, info.clone()),
            Self::Promote(id) if has_goal => target.with_voter(*id).goal(),
            Self::Promote(id) => Change::new([Operation::Voter(*id)]),
            Self::Remove(id) if !has_goal && now.is_learner(*id) => {
                Change::new([Operation::Remove(*id)])
            }
            Self::Remove(id) => target.without(*id).goal(),
            Self::Update(id, update) => {
                let zone = now.info(*id).map(|info| info.zone.clone()).unwrap_or_default();
                let info = update.applied_to(MemberDetails::of(now, *id)).in_zone(zone);
                // Not as part of a new goal: clients that wait for the present goal would see
                // it end as replaced.
                Change::new([Operation::Update(*id)]).with_info(*id, info)
            }
        };
        change.expecting(now.since())
    }

    fn is_done(&self, now: &Membership) -> bool {
        match self {
            Self::AddVoter(id, _) | Self::AddLearner(id, _) => now.contains(*id),
            Self::Promote(id) => now.majorities().iter().all(|voters| voters.contains(*id)),
            Self::Remove(id) => !now.contains(*id),
            Self::Update(id, update) => {
                let details = MemberDetails::of(now, *id);
                update.applied_to(details.clone()) == details
            }
        }
    }

    /// The change is done, or is part of the goal that the leader works on.
    fn is_done_or_in_goal(&self, now: &Membership) -> bool {
        let in_goal = now.goal().is_some_and(|goal| match self {
            Self::AddVoter(id, _) | Self::Promote(id) => goal.voters.contains(*id),
            Self::AddLearner(id, _) => goal.learners.contains(*id),
            Self::Remove(id) => !goal.voters.contains(*id) && !goal.learners.contains(*id),
            Self::Update(..) => false,
        });
        in_goal || self.is_done(now)
    }
}

/// Why one attempt failed.
enum AttemptError {
    Retryable(RequestError),
    Final(RequestError),
}

impl From<RequestError> for AttemptError {
    fn from(error: RequestError) -> Self {
        if is_retryable(&error) { Self::Retryable(error) } else { Self::Final(error) }
    }
}

impl MemberChange {
    /// Makes the change, and returns when it is settled. The rest of a goal, such as the vote
    /// of a member that has yet to start, is left to the leader.
    pub(crate) async fn run(&self, node: &Node) -> Result<(), RequestError> {
        let deadline = Instant::now() + CHANGE_TIMEOUT;
        let mut attempted = false;
        loop {
            let now = node.membership();
            // An earlier attempt may have succeeded although its reply was lost.
            let propose = !attempted || !self.is_done_or_in_goal(&now);
            let change = propose.then(|| self.change(&now));
            attempted = true;
            match attempt(node, self, change, deadline).await {
                Ok(()) => return Ok(()),
                Err(AttemptError::Retryable(_)) if Instant::now() < deadline => {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                Err(AttemptError::Retryable(error) | AttemptError::Final(error)) => {
                    return Err(error);
                }
            }
        }
    }
}

/// Proposes the change, if one is given, and waits until it is settled.
async fn attempt(
    node: &Node,
    member_change: &MemberChange,
    change: Option<Change>,
    deadline: Instant,
) -> Result<(), AttemptError> {
    let mut events = node.watch_membership();
    let mut has_reply = change.is_none();
    let reply = async {
        match change {
            Some(change) => node.change(change).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(reply);
    let leader_changed = leader_changed(node);
    tokio::pin!(leader_changed);
    let removes_itself = matches!(member_change, MemberChange::Remove(id) if *id == node.id());
    loop {
        tokio::select! {
            reply = &mut reply, if !has_reply => match reply {
                // A member that removes itself gets no reply, and sees by itself that it is out.
                Err(RequestError::Unknown(_)) if removes_itself => has_reply = true,
                Err(RequestError::Unknown(OutcomeUnknown::GoalAbandoned(_))) => has_reply = true,
                Err(error) => return Err(error.into()),
                Ok(_) if member_change.is_done(&node.membership()) => return Ok(()),
                Ok(_) => has_reply = true,
            },
            event = events.next() => match event {
                Some(MembershipEvent::Settled { membership, .. })
                | Some(MembershipEvent::Current { membership, settled: true, .. })
                    if member_change.is_done(&membership) => return Ok(()),
                // A member that removes itself does not learn that the change is settled. It left
                // as a learner, so it was settled before.
                Some(MembershipEvent::InEffect { membership, .. })
                | Some(MembershipEvent::Current { membership, .. })
                    if removes_itself && member_change.is_done(&membership) => return Ok(()),
                Some(_) => {}
                None => return Err(AttemptError::Final(RequestError::Refused(RequestRefused::Stopped))),
            },
            // A proposal that only the old leader knows may never be committed.
            () = &mut leader_changed, if !has_reply => {
                return Err(AttemptError::Retryable(RequestError::Unknown(OutcomeUnknown::TimedOut)));
            }
            () = tokio::time::sleep_until(deadline) => {
                return Err(AttemptError::Final(RequestError::Unknown(OutcomeUnknown::TimedOut)));
            }
        }
    }
}

/// Waits until another leader than the present one is known.
async fn leader_changed(node: &Node) {
    let mut leader = node.watch_leader();
    let mut had_leader = leader.borrow_and_update().is_some();
    while leader.changed().await.is_ok() {
        let has_leader = leader.borrow_and_update().is_some();
        if had_leader && has_leader {
            return;
        }
        had_leader |= has_leader;
    }
    // The member has stopped, which is reported elsewhere.
    std::future::pending().await
}

/// Proposes a goal, and returns the entry that set it as soon as it is committed.
pub(crate) async fn begin_change(node: &Node, change: Change) -> Result<EntryId, RequestError> {
    let old_goal = node.membership().goal().map(|goal| goal.id);
    let deadline = Instant::now() + CHANGE_TIMEOUT;
    loop {
        match begin_with_leader(node, change.clone(), old_goal).await {
            Some(Err(error)) if is_not_applied_yet(&error) && Instant::now() < deadline => {
                tokio::time::sleep(RETRY_INTERVAL).await;
                continue;
            }
            Some(result) => return result,
            None => {}
        }
        // After this barrier, every entry of the old leader that will ever commit is applied.
        node.barrier().await?;
        if let Some(id) = new_goal(&node.membership(), old_goal) {
            return Ok(id);
        }
    }
}

/// The same. `None` if the leader changes before there is a reply.
async fn begin_with_leader(
    node: &Node,
    change: Change,
    old_goal: Option<EntryId>,
) -> Option<Result<EntryId, RequestError>> {
    let mut events = node.watch_membership();
    let reply = node.change(change);
    tokio::pin!(reply);
    let leader_changed = leader_changed(node);
    tokio::pin!(leader_changed);
    loop {
        tokio::select! {
            reply = &mut reply => return Some(reply),
            event = events.next() => match event {
                Some(MembershipEvent::Committed { membership, .. }) => {
                    if let Some(id) = new_goal(&membership, old_goal) {
                        return Some(Ok(id));
                    }
                }
                Some(_) => {}
                None => return Some(Err(RequestError::Refused(RequestRefused::Stopped))),
            },
            () = &mut leader_changed => return None,
        }
    }
}

fn new_goal(now: &Membership, old_goal: Option<EntryId>) -> Option<EntryId> {
    now.goal().map(|goal| goal.id).filter(|id| Some(*id) != old_goal)
}

/// A change is computed from a membership, as in a compare-and-set. If another change came first
/// or is in progress, it is computed again. All other retries are the driver's.
fn is_retryable(error: &RequestError) -> bool {
    let change_refused =
        matches!(error, RequestError::Refused(RequestRefused::ByLeader(Refusal::Change(_))));
    change_refused && error.is_retryable()
}

/// The previous change is committed and not applied yet. Without this, a client that changes the
/// membership twice in a row would get an error for the second change.
fn is_not_applied_yet(error: &RequestError) -> bool {
    let RequestError::Refused(RequestRefused::ByLeader(Refusal::Change(refusal))) = error else {
        return false;
    };
    matches!(refusal, ChangeRefusal::InFlight { .. } | ChangeRefusal::NoOwnCommit)
}

const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// As long as etcd's clients usually wait for a change.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);
