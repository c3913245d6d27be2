//! What Quorate's own service says about members, as words: names instead of ids.

use std::collections::BTreeMap;

use quorate_proto::quorate::v1 as wire;
use quorate_proto::quorate::v1::membership_news::News;
use quorate_proto::quorate::v1::step::Kind;

use crate::bar::bar;
use crate::print::counted;
use crate::tolerance;
use crate::who::hex;

/// Names by id. Ids without one stay ids.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names(BTreeMap<u64, String>);

impl Names {
    pub(crate) fn learn(&mut self, membership: Option<&wire::MembershipRecord>) {
        self.learn_members(membership.map_or(&[][..], |record| &record.members));
    }

    pub(crate) fn learn_members(&mut self, members: &[wire::Member]) {
        for member in members.iter().filter(|member| !member.name.is_empty()) {
            self.0.insert(member.id, member.name.clone());
        }
    }

    pub(crate) fn of(&self, id: u64) -> String {
        self.known(id).unwrap_or_else(|| hex(id))
    }

    pub(crate) fn known(&self, id: u64) -> Option<String> {
        self.0.get(&id).cloned()
    }

    pub(crate) fn all(&self, ids: &[u64]) -> String {
        if ids.is_empty() {
            return "nobody".to_string();
        }
        ids.iter().map(|id| self.of(*id)).collect::<Vec<_>>().join(", ")
    }

    /// `{a b c}`, both of a joint with `&` between, learners behind.
    pub(crate) fn membership(&self, record: &wire::MembershipRecord) -> String {
        let voters = |majority: &wire::Majority| {
            let names: Vec<_> = majority.voters.iter().map(|id| self.of(*id)).collect();
            format!("{{{}}}", names.join(" "))
        };
        let mut text = record.majorities.iter().map(voters).collect::<Vec<_>>().join(" & ");
        if !record.learners.is_empty() {
            text += &format!(" learners {}", self.all(&record.learners));
        }
        text
    }

    pub(crate) fn step(&self, step: &wire::Step) -> String {
        match &step.kind {
            Some(Kind::AddLearners(who)) => format!("add as learners: {}", self.all(&who.ids)),
            Some(Kind::CatchUp(who)) => format!("catch up: {}", self.all(&who.ids)),
            Some(Kind::HandOver(who)) => {
                format!("hand over leadership to one of: {}", self.all(&who.ids))
            }
            Some(Kind::MoveVotes(votes)) => {
                let moves: Vec<_> =
                    votes.operations.iter().map(|one| self.operation(one)).collect();
                format!("move votes: {}", moves.join(", "))
            }
            Some(Kind::Leave(_)) => "leave the joint".to_string(),
            Some(Kind::Settle(_)) => "settle".to_string(),
            Some(Kind::RemoveLearners(who)) => format!("remove: {}", self.all(&who.ids)),
            // A kind that is newer than this program.
            None => step.text.clone(),
        }
    }

    fn operation(&self, operation: &wire::Operation) -> String {
        let name = self.of(operation.member_id);
        match operation.kind() {
            wire::operation::Kind::Voter => format!("{name} gets a vote"),
            wire::operation::Kind::Learner => format!("{name} gives up its vote"),
            wire::operation::Kind::Remove => format!("{name} goes"),
            wire::operation::Kind::Update | wire::operation::Kind::Unspecified => {
                format!("{name} is updated")
            }
        }
    }

    /// Losses that would stop the cluster: `a; b+c`.
    pub(crate) fn losses(&self, losses: &[wire::MemberIds]) -> String {
        let loss = |who: &wire::MemberIds| {
            let mut names: Vec<_> = who.ids.iter().map(|id| self.of(*id)).collect();
            names.sort();
            names.join("+")
        };
        let mut losses: Vec<_> = losses.iter().map(loss).collect();
        losses.sort();
        losses.join("; ")
    }

    /// Where a change stands: what is due, who is awaited, how far they are.
    pub(crate) fn progress(&self, progress: &wire::GoalProgress, last_index: u64) -> Vec<String> {
        let step =
            progress.step.as_ref().map_or("nothing is due".to_string(), |step| self.step(step));
        let seconds = progress.since_millis / 1000;
        let mut first = format!("{step} ({seconds} s)");
        if !progress.awaited.is_empty() {
            first += &format!(", waits for {}", self.all(&progress.awaited));
        }
        let mut lines = vec![first];
        lines.extend(progress.behind.iter().map(|behind| {
            let there = last_index.saturating_sub(behind.entries);
            format!(
                "  {} {} {} behind, {}",
                self.of(behind.member_id),
                bar(there, last_index),
                counted(behind.entries, "entry", "entries"),
                counted(u64::from(behind.rounds), "round", "rounds"),
            )
        }));
        lines.extend(progress.held_up.as_ref().map(|why| format!("  held up: {}", why.text)));
        lines
    }

    pub(crate) fn news(&self, news: &News) -> String {
        match news {
            News::Now(now) => {
                let settled = if now.settled { "settled" } else { "not settled yet" };
                format!("now        {} ({settled})", self.optional(now.membership.as_ref()))
            }
            News::Committed(record) => format!("committed  {}", self.at(record)),
            News::Counts(record) => format!("counts     {}", self.at(record)),
            News::Settled(record) => format!("settled    {}", self.at(record)),
            News::Step(step) => format!("step       {}", self.step(step)),
            News::GoalEnded(ended) => {
                format!("goal {} {}", entry(ended.id.as_ref()), ending(ended))
            }
        }
    }

    fn at(&self, record: &wire::MembershipRecord) -> String {
        format!("{} {}", entry(record.id.as_ref()), self.membership(record))
    }

    fn optional(&self, record: Option<&wire::MembershipRecord>) -> String {
        record.map_or_else(|| "nothing known".to_string(), |record| self.membership(record))
    }
}

/// `term.index`.
pub(crate) fn entry(id: Option<&wire::EntryId>) -> String {
    id.map_or_else(|| "0.0".to_string(), |id| format!("{}.{}", id.term, id.index))
}

pub(crate) fn ending(ended: &wire::EndedGoal) -> &'static str {
    match ended.end() {
        wire::GoalEnd::Reached => "reached",
        wire::GoalEnd::Cancelled => "cancelled",
        wire::GoalEnd::Replaced => "replaced by another",
        wire::GoalEnd::Unspecified => "ended",
    }
}

pub(crate) fn standing(member: &wire::Member) -> &'static str {
    match member.standing() {
        wire::Standing::Voter => "voter",
        wire::Standing::IncomingVoter => "incoming voter",
        wire::Standing::OutgoingVoter => "outgoing voter",
        wire::Standing::Learner => "learner",
        wire::Standing::Expected => "expected",
        wire::Standing::Unspecified => "",
    }
}

/// What the leader counts, and what follows from it.
pub(crate) fn tolerance(names: &Names, told: &wire::Tolerance) -> Vec<String> {
    let counts: Vec<_> = told
        .counts
        .iter()
        .map(|count| {
            let voters = counted(u64::from(count.voters), "voter", "voters");
            format!("{voters}, quorum {}, live {}", count.quorum, count.live)
        })
        .collect();
    let sentence = tolerance::sentence(told.has_quorum, u64::from(told.failures));
    let mut lines = vec![format!("{}: {sentence}", counts.join(" and "))];
    if told.has_quorum && !told.stops_commits.is_empty() {
        lines.push(format!(
            "losing any of these would stop it: {}",
            names.losses(&told.stops_commits)
        ));
    }
    if !told.blocking_zone.is_empty() {
        lines.push(format!("losing the zone '{}' would stop it", told.blocking_zone));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        let member =
            |id, name: &str| wire::Member { id, name: name.to_string(), ..Default::default() };
        let mut names = Names::default();
        names.learn_members(&[member(1, "a"), member(2, "b"), member(3, "c"), member(10, "")]);
        names
    }

    fn majority(voters: &[u64]) -> wire::Majority {
        wire::Majority { voters: voters.to_vec(), quorum: voters.len() as u32 / 2 + 1 }
    }

    #[test]
    fn memberships_read_like_stories() {
        let record = wire::MembershipRecord {
            majorities: vec![majority(&[1, 2, 16]), majority(&[1, 2, 3])],
            learners: vec![3],
            ..Default::default()
        };
        assert_eq!(names().membership(&record), "{a b 10} & {a b c} learners c");
    }

    #[test]
    fn progress_shows_who_is_awaited_and_how_far() {
        let ids = |ids: &[u64]| wire::MemberIds { ids: ids.to_vec() };
        let progress = wire::GoalProgress {
            step: Some(wire::Step { text: String::new(), kind: Some(Kind::CatchUp(ids(&[3]))) }),
            since_millis: 2_500,
            awaited: vec![3],
            held_up: Some(wire::Refusal { text: "2 of 4 live".to_string(), ..Default::default() }),
            behind: vec![wire::goal_progress::Behind { member_id: 3, entries: 50, rounds: 1 }],
        };
        assert_eq!(
            names().progress(&progress, 100),
            [
                "catch up: c (2 s), waits for c",
                "  c [##########----------] 50 entries behind, 1 round",
                "  held up: 2 of 4 live",
            ]
        );
    }

    #[test]
    fn a_step_of_a_newer_server_is_told_in_its_words() {
        let step = wire::Step { text: "paint it".to_string(), kind: None };
        assert_eq!(names().step(&step), "paint it");
    }

    #[test]
    fn losses_and_counts() {
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
                "losing any of these would stop it: a+b",
            ]
        );
    }

    #[test]
    fn news_in_a_line_each() {
        let id = Some(wire::EntryId { term: 2, index: 7 });
        let record = wire::MembershipRecord {
            id,
            majorities: vec![majority(&[1, 2])],
            ..Default::default()
        };
        assert_eq!(names().news(&News::Settled(record)), "settled    2.7 {a b}");
        let ended = wire::EndedGoal { id, end: wire::GoalEnd::Reached.into(), at: None };
        assert_eq!(names().news(&News::GoalEnded(ended)), "goal 2.7 reached");
    }
}
