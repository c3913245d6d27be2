//! Membership changes as operators request them: add, remove, promote or update one member.
//!
//! etcd's calls are turned into goals, so that the leader makes the change in safe steps. A
//! change that is requested while a goal waits for a joining member extends that goal: add,
//! add, remove is no conflict.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorate::membership::{ChangeKind, GoalEnd, MembershipEvent, MembershipWatch, Operation};
use quorate::{
    Change, EntryId, MemberId, MemberInfo, MemberSet, Membership, Node, OutcomeUnknown, Refusal,
    RequestError, RequestRefused,
};
use tokio::time::{Instant, timeout_at};

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

impl MemberChange {
    /// What it does, for people.
    pub(crate) fn description(&self) -> String {
        match self {
            Self::AddVoter(id, _) => format!("add {id}"),
            Self::AddLearner(id, _) => format!("add {id} as a learner"),
            Self::Promote(id) => format!("promote {id}"),
            Self::Remove(id) => format!("remove {id}"),
            Self::Update(id, _) => format!("update the details of {id}"),
        }
    }
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

impl MemberChange {
    /// Makes the change, and returns when it is settled. The rest of a goal, such as the vote
    /// of a member that has yet to start, is left to the leader.
    pub(crate) async fn run(&self, node: &Node) -> Result<(), RequestError> {
        let deadline = Instant::now() + CHANGE_TIMEOUT;
        // Before the change: it may be settled before its reply arrives.
        let events = node.watch_membership();
        self.propose(node, deadline).await?;
        match timeout_at(deadline, self.wait_done(node, events)).await {
            Ok(done) => done,
            Err(_) => Err(RequestError::Unknown(OutcomeUnknown::TimedOut)),
        }
    }

    /// Returns when the change is committed, or part of the goal. It is computed from a membership,
    /// as in a compare-and-set: if another change came first, it is computed again. An earlier
    /// attempt may have succeeded although its reply was lost. All other retries are the driver's.
    async fn propose(&self, node: &Node, deadline: Instant) -> Result<(), RequestError> {
        let mut attempted = false;
        loop {
            let now = node.membership();
            if attempted && self.is_done_or_in_goal(&now) {
                return Ok(());
            }
            attempted = true;
            let Err(error) = node.begin_change(self.change(&now)).await else { return Ok(()) };
            match &error {
                // A member that removes itself gets no reply, and sees by itself that it is out.
                RequestError::Unknown(_) if self.removes(node.id()) => return Ok(()),
                _ if is_reply_lost(&error) && Instant::now() < deadline => {
                    node.barrier().await?;
                }
                _ if is_retryable(&error) && Instant::now() < deadline => {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                _ => return Err(error),
            }
        }
    }

    async fn wait_done(
        &self,
        node: &Node,
        mut events: MembershipWatch,
    ) -> Result<(), RequestError> {
        while let Some(event) = events.next().await {
            match event {
                MembershipEvent::Settled { membership, .. }
                | MembershipEvent::Current { membership, settled: true, .. }
                    if self.is_done(&membership) =>
                {
                    return Ok(());
                }
                // A member that removes itself does not learn that the change is settled. It left
                // as a learner, so it was settled before.
                MembershipEvent::InEffect { membership, .. }
                | MembershipEvent::Current { membership, .. }
                    if self.removes(node.id()) && self.is_done(&membership) =>
                {
                    return Ok(());
                }
                _ => {}
            }
        }
        Err(RequestError::Refused(RequestRefused::Stopped))
    }

    fn removes(&self, id: MemberId) -> bool {
        matches!(self, Self::Remove(removed) if *removed == id)
    }
}

/// Proposes a goal or a cancel, and returns the entry that set it as soon as it is committed. If
/// the leader is lost before it replies, the membership shows whether it happened; if not, it is
/// proposed again.
pub(crate) async fn begin_change(node: &Node, change: Change) -> Result<EntryId, RequestError> {
    let before = node.membership();
    let deadline = Instant::now() + CHANGE_TIMEOUT;
    let mut attempted = false;
    loop {
        let result = node.begin_change(change.clone()).await;
        let Err(error) = &result else { return result };
        let lost = is_reply_lost(error);
        if lost {
            // After this, every entry of the lost leader that will ever commit is applied.
            node.barrier().await?;
        }
        // A refusal may be due to an earlier attempt that succeeded.
        if (lost || attempted)
            && let Some(id) = goal_set_since(&before, &node.membership(), &change)
        {
            return Ok(id);
        }
        if !lost || Instant::now() >= deadline {
            return result;
        }
        attempted = true;
    }
}

/// The goal of the present membership, if this change set it after an earlier membership.
fn goal_set_since(before: &Membership, now: &Membership, change: &Change) -> Option<EntryId> {
    let new = |id: EntryId| id > before.since();
    if let Some(goal) = now.goal() {
        let matches = match &change.kind {
            ChangeKind::Goal { voters, learners } => {
                goal.voters == *voters && goal.learners == *learners && !goal.cancels
            }
            ChangeKind::Cancel => goal.cancels,
            _ => false,
        };
        return Some(goal.id).filter(|id| matches && new(*id));
    }
    // It may have been reached meanwhile.
    let reached = match &change.kind {
        ChangeKind::Goal { voters, learners } => {
            now.incoming() == voters && now.learners() == learners
        }
        kind => *kind == ChangeKind::Cancel,
    };
    let ended = now.ended_goals().iter().rev();
    ended
        .filter(|ended| ended.end == GoalEnd::Reached)
        .map(|ended| ended.id)
        .find(|id| reached && new(*id))
}

/// The leader was lost: the change may have happened, or was overwritten by the next leader.
fn is_reply_lost(error: &RequestError) -> bool {
    matches!(
        error,
        RequestError::Unknown(OutcomeUnknown::TimedOut | OutcomeUnknown::PassedBySnapshot)
            | RequestError::Refused(RequestRefused::Overwritten { .. })
    )
}

/// Another change came first, or is in progress.
fn is_retryable(error: &RequestError) -> bool {
    let change_refused =
        matches!(error, RequestError::Refused(RequestRefused::ByLeader(Refusal::Change(_))));
    change_refused && error.is_retryable()
}

const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// As long as etcd's clients usually wait for a change.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);
