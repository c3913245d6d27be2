//! Text for what Quorate's membership service reports, with names instead of ids.

use std::collections::BTreeMap;

use quorate_proto::quorate::v1 as wire;
use quorate_proto::quorate::v1::membership_event::Event;
use quorate_proto::quorate::v1::step::Kind;

use crate::ids::{hex_id, named_id};
use crate::print::counted;
use crate::progress_bar::progress_bar;
use crate::tolerance;

/// Names by id. A member without a known name is shown by its id.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemberNames(BTreeMap<u64, String>);

impl MemberNames {
    pub(crate) fn learn(&mut self, membership: Option<&wire::MembershipRecord>) {
        self.learn_members(membership.map_or(&[][..], |record| &record.members));
    }

    pub(crate) fn learn_members(&mut self, members: &[wire::Member]) {
        for member in members.iter().filter(|member| !member.name.is_empty()) {
            self.0.insert(member.id, member.name.clone());
        }
    }

    pub(crate) fn known(&self, id: u64) -> Option<String> {
        self.0.get(&id).cloned()
    }

    fn name_or_id(&self, id: u64) -> String {
        self.known(id).unwrap_or_else(|| hex_id(id))
    }

    /// Names separated by commas.
    fn list(&self, ids: &[u64]) -> String {
        if ids.is_empty() {
            return "none".to_string();
        }
        let mut names: Vec<_> = ids.iter().map(|id| self.name_or_id(*id)).collect();
        names.sort();
        names.join(", ")
    }

    /// `NAME (ID)` separated by commas.
    fn labels(&self, ids: &[u64]) -> String {
        let label = |id: &u64| named_id(self.0.get(id).map_or("", String::as_str), *id);
        ids.iter().map(label).collect::<Vec<_>>().join(", ")
    }

    /// `{a b c}`; the majorities of a joint membership with `&` between them; then learners.
    pub(crate) fn membership(&self, record: &wire::MembershipRecord) -> String {
        let voters = |majority: &wire::Majority| {
            let mut names: Vec<_> = majority.voters.iter().map(|id| self.name_or_id(*id)).collect();
            names.sort();
            format!("{{{}}}", names.join(" "))
        };
        let mut text = record.majorities.iter().map(voters).collect::<Vec<_>>().join(" & ");
        if !record.learners.is_empty() {
            text += &format!(" learners {}", self.list(&record.learners));
        }
        text
    }

    /// The members that a goal leads to, in the same form.
    pub(crate) fn goal_target(&self, goal: &wire::Goal) -> String {
        self.sets(&goal.voters, &goal.learners)
    }

    /// The members that a cancellation of the goal goes back to.
    pub(crate) fn goal_origin(&self, goal: &wire::Goal) -> String {
        self.sets(&goal.from_voters, &goal.from_learners)
    }

    fn sets(&self, voters: &[u64], learners: &[u64]) -> String {
        let majority = wire::Majority { voters: voters.to_vec(), quorum: 0 };
        self.membership(&wire::MembershipRecord {
            majorities: vec![majority],
            learners: learners.to_vec(),
            ..Default::default()
        })
    }

    pub(crate) fn step(&self, step: &wire::Step) -> String {
        match &step.kind {
            Some(Kind::AddLearners(members)) => {
                format!("add learners: {}", self.list(&members.ids))
            }
            Some(Kind::CatchUp(members)) => format!("catch up: {}", self.list(&members.ids)),
            Some(Kind::HandOver(members)) => {
                format!("transfer leadership to one of: {}", self.list(&members.ids))
            }
            Some(Kind::MoveVotes(votes)) => {
                let operations: Vec<_> =
                    votes.operations.iter().map(|operation| self.operation(operation)).collect();
                format!("change voters: {}", operations.join(", "))
            }
            Some(Kind::Leave(_)) => "leave the joint membership".to_string(),
            Some(Kind::Settle(_)) => "settle".to_string(),
            Some(Kind::RemoveLearners(members)) => format!("remove: {}", self.list(&members.ids)),
            // A server newer than this program may send other kinds.
            None => step.text.clone(),
        }
    }

    fn operation(&self, operation: &wire::Operation) -> String {
        let name = self.name_or_id(operation.member_id);
        match operation.kind() {
            wire::operation::Kind::Voter => format!("promote {name}"),
            wire::operation::Kind::Learner => format!("demote {name}"),
            wire::operation::Kind::Remove => format!("remove {name}"),
            wire::operation::Kind::Update | wire::operation::Kind::Unspecified => {
                format!("update {name}")
            }
        }
    }

    /// Sets of members, such as `a; b+c`: the loss of any one set stops the cluster.
    pub(crate) fn losses(&self, losses: &[wire::MemberIds]) -> String {
        let loss = |members: &wire::MemberIds| {
            let mut names: Vec<_> = members.ids.iter().map(|id| self.name_or_id(*id)).collect();
            names.sort();
            names.join("+")
        };
        let mut losses: Vec<_> = losses.iter().map(loss).collect();
        losses.sort();
        losses.join("; ")
    }

    /// The current step of a change, the members it waits for, and how far each lags.
    pub(crate) fn progress(&self, progress: &wire::GoalProgress, last_index: u64) -> Vec<String> {
        let step =
            progress.step.as_ref().map_or("no step is due".to_string(), |step| self.step(step));
        let seconds = progress.since_millis / 1000;
        let mut first = format!("{step} ({seconds} s)");
        if !progress.awaited.is_empty() {
            first += &format!(", waiting for {}", self.labels(&progress.awaited));
        }
        let mut lines = vec![first];
        let awaited =
            |behind: &&wire::goal_progress::Behind| progress.awaited.contains(&behind.member_id);
        lines.extend(progress.behind.iter().filter(awaited).map(|behind| {
            let matched = last_index.saturating_sub(behind.entries);
            format!(
                "  {} {} {} behind, {}",
                self.name_or_id(behind.member_id),
                progress_bar(matched, last_index),
                counted(behind.entries, "entry", "entries"),
                counted(u64::from(behind.rounds), "catch-up round", "catch-up rounds"),
            )
        }));
        lines.extend(
            progress.not_ready.iter().filter(|one| one.reason != "behind").map(|one| {
                format!("  {} is not ready: {}", self.name_or_id(one.member_id), one.text)
            }),
        );
        lines.extend(progress.held_up.as_ref().map(|why| format!("  blocked: {}", why.text)));
        lines
    }

    /// One line of `quorate member watch`.
    pub(crate) fn event(&self, event: &Event) -> String {
        match event {
            Event::Current(now) => {
                let settled = if now.settled { "settled" } else { "not settled yet" };
                let membership = now.membership.as_ref();
                let text = membership.map_or("unknown".to_string(), |one| self.membership(one));
                format!("current    {text} ({settled})")
            }
            Event::Committed(record) => format!("committed  {}", self.with_entry(record)),
            Event::Active(record) => format!("active     {}", self.with_entry(record)),
            Event::Settled(record) => format!("settled    {}", self.with_entry(record)),
            Event::Step(step) => format!("step       {}", self.step(step)),
            Event::GoalEnded(ended) => {
                format!("goal {} {}", entry_id(ended.id.as_ref()), end_text(ended))
            }
        }
    }

    fn with_entry(&self, record: &wire::MembershipRecord) -> String {
        format!("{} {}", entry_id(record.id.as_ref()), self.membership(record))
    }
}

/// `term.index`.
pub(crate) fn entry_id(id: Option<&wire::EntryId>) -> String {
    id.map_or_else(|| "0.0".to_string(), |id| format!("{}.{}", id.term, id.index))
}

pub(crate) fn end_text(ended: &wire::EndedGoal) -> &'static str {
    match ended.end() {
        wire::GoalEnd::Reached => "reached",
        wire::GoalEnd::Cancelled => "cancelled",
        wire::GoalEnd::Replaced => "replaced by another goal",
        wire::GoalEnd::Unspecified => "ended",
    }
}

pub(crate) fn voting_role(member: &wire::Member) -> &'static str {
    match member.voting_role() {
        wire::VotingRole::Voter => "voter",
        wire::VotingRole::IncomingVoter => "incoming voter",
        wire::VotingRole::OutgoingVoter => "outgoing voter",
        wire::VotingRole::Learner => "learner",
        wire::VotingRole::Expected => "expected",
        wire::VotingRole::Unspecified => "",
    }
}

/// The fault tolerance that the leader reports: its counts, and the losses that stop writes.
pub(crate) fn tolerance(names: &MemberNames, reported: &wire::Tolerance) -> Vec<String> {
    let counts: Vec<_> = reported
        .counts
        .iter()
        .map(|count| {
            let voters = counted(u64::from(count.voters), "voter", "voters");
            format!("{voters}, quorum {}, live {}", count.quorum, count.live)
        })
        .collect();
    let sentence = tolerance::sentence(reported.has_quorum, u64::from(reported.failures));
    let mut lines = vec![format!("{}: {sentence}", counts.join(" and "))];
    if reported.has_quorum && !reported.stops_commits.is_empty() {
        lines.push(format!(
            "losing any of these sets of members would stop writes: {}",
            names.losses(&reported.stops_commits)
        ));
    }
    if !reported.blocking_zone.is_empty() {
        lines.push(format!("losing zone '{}' would stop writes", reported.blocking_zone));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> MemberNames {
        let member =
            |id, name: &str| wire::Member { id, name: name.to_string(), ..Default::default() };
        let mut names = MemberNames::default();
        names.learn_members(&[member(1, "a"), member(2, "b"), member(3, "c"), member(10, "")]);
        names
    }

    fn majority(voters: &[u64]) -> wire::Majority {
        wire::Majority { voters: voters.to_vec(), quorum: voters.len() as u32 / 2 + 1 }
    }

    #[test]
    fn memberships_use_the_notation_of_stories() {
        let record = wire::MembershipRecord {
            majorities: vec![majority(&[1, 2, 16]), majority(&[1, 2, 3])],
            learners: vec![3],
            ..Default::default()
        };
        assert_eq!(names().membership(&record), "{0000000000000010 a b} & {a b c} learners c");
    }

    #[test]
    fn progress_shows_awaited_members_and_their_lag() {
        let ids = |ids: &[u64]| wire::MemberIds { ids: ids.to_vec() };
        let progress = wire::GoalProgress {
            step: Some(wire::Step { text: String::new(), kind: Some(Kind::CatchUp(ids(&[3]))) }),
            since_millis: 2_500,
            awaited: vec![3],
            held_up: Some(wire::Refusal { text: "2 of 4 live".to_string(), ..Default::default() }),
            behind: vec![
                wire::goal_progress::Behind { member_id: 2, entries: 0, rounds: 9 },
                wire::goal_progress::Behind { member_id: 3, entries: 50, rounds: 1 },
            ],
            not_ready: vec![
                wire::goal_progress::NotReady {
                    member_id: 2,
                    text: "5 entries behind".to_string(),
                    reason: "behind".to_string(),
                },
                wire::goal_progress::NotReady {
                    member_id: 3,
                    text: "its disk stands still".to_string(),
                    reason: "disk_stalled".to_string(),
                },
            ],
        };
        assert_eq!(
            names().progress(&progress, 100),
            [
                "catch up: c (2 s), waiting for c (0000000000000003)",
                "  c [##########----------] 50 entries behind, 1 catch-up round",
                "  c is not ready: its disk stands still",
                "  blocked: 2 of 4 live",
            ]
        );
    }

    #[test]
    fn a_step_of_a_newer_server_uses_its_text() {
        let step = wire::Step { text: "unknown step".to_string(), kind: None };
        assert_eq!(names().step(&step), "unknown step");
    }

    #[test]
    fn tolerance_shows_counts_and_losses() {
        let ids = |ids: &[u64]| wire::MemberIds { ids: ids.to_vec() };
        let counted = wire::Tolerance {
            failures: 1,
            has_quorum: true,
            stops_commits: vec![ids(&[1, 2])],
            counts: vec![wire::tolerance::Count { voters: 3, quorum: 2, live: 3 }],
            blocking_zone: String::new(),
        };
        assert_eq!(
            tolerance(&names(), &counted),
            [
                "3 voters, quorum 2, live 3: 1 more failure is tolerated right now",
                "losing any of these sets of members would stop writes: a+b",
            ]
        );
    }

    #[test]
    fn each_event_is_one_line() {
        let id = Some(wire::EntryId { term: 2, index: 7 });
        let record = wire::MembershipRecord {
            id,
            majorities: vec![majority(&[1, 2])],
            ..Default::default()
        };
        assert_eq!(names().event(&Event::Settled(record)), "settled    2.7 {a b}");
        let ended = wire::EndedGoal { id, end: wire::GoalEnd::Reached.into(), at: None };
        assert_eq!(names().event(&Event::GoalEnded(ended)), "goal 2.7 reached");
    }
}
