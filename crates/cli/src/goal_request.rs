//! Sends a membership change together with the membership that it was prepared from, so that
//! the server refuses it if somebody else changed the members meanwhile.

use std::time::{Duration, Instant};

use quorate_proto::etcdserverpb as etcd;
use quorate_proto::quorate::v1 as wire;
use tonic::Status;

use crate::client::Connection;
use crate::error::CliError;
use crate::membership_text::{MemberNames, entry_id};

const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The members that a change is prepared from, and the membership that contains them.
#[derive(Clone, Debug)]
pub(crate) struct ObservedMembership {
    pub(crate) members: Vec<etcd::Member>,
    pub(crate) record: wire::MembershipRecord,
    pub(crate) names: MemberNames,
}

impl ObservedMembership {
    /// Reads the membership. It is not stale: the linearizable list comes first, so that the
    /// status of the same member afterwards is at least as new.
    pub(crate) async fn read(connection: &Connection) -> Result<Self, CliError> {
        connection.members().await?;
        let status = connection.membership_status().await.map_err(|status| {
            CliError::from_status("cannot read the membership", &connection.endpoint, &status)
        })?;
        Ok(Self::new(status.membership.unwrap_or_default()))
    }

    fn new(record: wire::MembershipRecord) -> Self {
        let mut names = MemberNames::default();
        names.learn(Some(&record));
        let goal_voters = record.goal.as_ref().map_or(&[][..], |goal| &goal.voters);
        let is_member = |member: &&wire::Member| member.voting_role() != wire::VotingRole::Expected;
        let member = |member: &wire::Member| {
            let is_learner = member.voting_role() == wire::VotingRole::Learner;
            etcd::Member {
                id: member.id,
                name: member.name.clone(),
                peer_urls: member.peer_urls.clone(),
                client_urls: member.client_urls.clone(),
                is_learner: is_learner && !goal_voters.contains(&member.id),
            }
        };
        let members = record.members.iter().filter(is_member).map(member).collect();
        Self { members, record, names }
    }

    pub(crate) fn id(&self) -> Option<wire::EntryId> {
        self.record.id
    }

    /// The same voters, learners and goal. A membership changes also when a member publishes
    /// its addresses, which does not affect a change that was prepared before.
    fn has_same_members(&self, other: &Self) -> bool {
        let (one, other) = (&self.record, &other.record);
        one.majorities == other.majorities
            && one.learners == other.learners
            && self.goal_id() == goal_id(other)
    }

    pub(crate) fn goal_id(&self) -> Option<wire::EntryId> {
        goal_id(&self.record)
    }

    /// Refuses a change that was prepared from another membership than this one.
    pub(crate) fn check_expected(&self, expected: Option<wire::EntryId>) -> Result<(), CliError> {
        match expected {
            Some(expected) if Some(expected) != self.id() => Err(self.changed(&expected)),
            _ => Ok(()),
        }
    }

    /// The error for a change that was prepared from the membership `prepared_from`.
    fn changed(&self, prepared_from: &wire::EntryId) -> CliError {
        CliError::failed(format!(
            "nothing was changed: the change was prepared from membership {}, and the membership \
             is now {}, {}; check with 'quorate member list' or 'quorate member plan', then run \
             the command again",
            entry_id(Some(prepared_from)),
            entry_id(self.id().as_ref()),
            self.names.membership(&self.record),
        ))
    }

    /// A new goal would replace the goal in progress, which somebody else may have set. Only a
    /// cancellation may be replaced: the member that it waits for may be dead.
    fn check_no_goal(&self) -> Result<(), CliError> {
        let Some(goal) = self.record.goal.as_ref().filter(|goal| !goal.cancels) else {
            return Ok(());
        };
        Err(CliError::failed(format!(
            "nothing was changed: a goal is in progress ({}: {}); wait for its end with 'quorate \
             member watch', or undo it with 'quorate member cancel'",
            entry_id(goal.id.as_ref()),
            self.names.goal_target(goal),
        )))
    }
}

fn goal_id(record: &wire::MembershipRecord) -> Option<wire::EntryId> {
    record.goal.as_ref().and_then(|goal| goal.id)
}

/// Sets the goal that `prepare` makes from the present members. If the membership changes
/// between reading it and the request, the goal is prepared again if the members are the same,
/// and refused otherwise. With `expected`, it is refused unless that is the membership.
pub(crate) async fn set_goal(
    connection: &Connection,
    expected: Option<wire::EntryId>,
    prepare: impl Fn(&[etcd::Member]) -> Result<wire::Target, CliError>,
) -> Result<wire::SetGoalReply, CliError> {
    let deadline = Instant::now() + connection.request_timeout;
    let first = ObservedMembership::read(connection).await?;
    let mut now = first.clone();
    loop {
        now.check_expected(expected)?;
        now.check_no_goal()?;
        let target = prepare(&now.members)?;
        let request =
            wire::SetGoalRequest { target: Some(target), wait: false, expected: now.id() };
        let reply = connection.membership().set_goal(connection.request(request)).await;
        let status = match reply {
            Ok(reply) => return Ok(reply.into_inner()),
            Err(status) => status,
        };
        if !is_stale(&status) || Instant::now() >= deadline {
            let context = "cannot change the members";
            return Err(CliError::from_status(context, &connection.endpoint, &status));
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
        now = ObservedMembership::read(connection).await?;
        if !now.has_same_members(&first) {
            return Err(now.changed(&first.id().unwrap_or_default()));
        }
    }
}

/// Cancels the goal of this membership, and no other: a goal that was reached or replaced
/// meanwhile is left alone. Steps of the same goal do not matter.
pub(crate) async fn cancel(
    connection: &Connection,
    first: &ObservedMembership,
) -> Result<wire::CancelReply, CliError> {
    let deadline = Instant::now() + connection.request_timeout;
    let mut now = first.clone();
    loop {
        let request = wire::CancelRequest { wait: false, expected: now.id() };
        let reply = connection.membership().cancel(connection.request(request)).await;
        let status = match reply {
            Ok(reply) => return Ok(reply.into_inner()),
            Err(status) => status,
        };
        if !is_stale(&status) || Instant::now() >= deadline {
            let context = "cannot cancel the change";
            return Err(CliError::from_status(context, &connection.endpoint, &status));
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
        now = ObservedMembership::read(connection).await?;
        if now.goal_id() != first.goal_id() {
            return Err(CliError::failed(format!(
                "nothing was cancelled: goal {} ended before; the members are {}",
                entry_id(first.goal_id().as_ref()),
                now.names.membership(&now.record),
            )));
        }
    }
}

/// Whether the request was refused because the membership is another one than expected.
fn is_stale(status: &Status) -> bool {
    status.metadata().contains_key(NEWEST_MEMBERSHIP)
}

/// The metadata key with which a server refuses a change that was prepared from an old
/// membership. Its value is the newest one.
const NEWEST_MEMBERSHIP: &str = "quorate-newest-membership";

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(index: u64, voters: &[u64], learners: &[u64]) -> ObservedMembership {
        let voting_role = |id: &u64| match learners.contains(id) {
            true => wire::VotingRole::Learner,
            false => wire::VotingRole::Voter,
        };
        let member = |id: &u64| wire::Member {
            id: *id,
            name: format!("m{id}"),
            voting_role: voting_role(id).into(),
            ..Default::default()
        };
        ObservedMembership::new(wire::MembershipRecord {
            id: Some(wire::EntryId { term: 2, index }),
            majorities: vec![wire::Majority { voters: voters.to_vec(), quorum: 2 }],
            learners: learners.to_vec(),
            members: voters.iter().chain(learners).map(member).collect(),
            ..Default::default()
        })
    }

    #[test]
    fn only_voters_learners_and_goals_matter() {
        let first = observed(5, &[1, 2, 3], &[]);
        let mut published = observed(6, &[1, 2, 3], &[]);
        published.record.members[0].client_urls.push("http://h:1".to_string());
        assert!(first.has_same_members(&published));
        assert!(!first.has_same_members(&observed(6, &[1, 2, 3], &[4])));
        assert!(!first.has_same_members(&observed(6, &[1, 2, 4], &[])));
        let mut with_goal = observed(6, &[1, 2, 3], &[]);
        let id = Some(wire::EntryId { term: 2, index: 6 });
        with_goal.record.goal = Some(wire::Goal { id, voters: vec![1, 2], ..Default::default() });
        assert!(!first.has_same_members(&with_goal));
        let text = with_goal.check_no_goal().unwrap_err().to_string();
        assert!(text.contains("a goal is in progress (2.6: {m1 m2})"), "{text}");
    }

    #[test]
    fn another_membership_than_the_expected_one_is_refused() {
        let now = observed(7, &[1, 2], &[3]);
        assert!(now.check_expected(None).is_ok());
        assert!(now.check_expected(now.id()).is_ok());
        let old = wire::EntryId { term: 2, index: 5 };
        let text = now.check_expected(Some(old)).unwrap_err().to_string();
        assert!(text.contains("prepared from membership 2.5"), "{text}");
        assert!(text.contains("is now 2.7, {m1 m2} learners m3"), "{text}");
    }
}
