//! Staying with a change until it has ended, and telling how far it is.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use quorate_proto::quorate::v1 as wire;

use crate::client::Connection;
use crate::failure::Failure;
use crate::whereabouts::Whereabouts;
use crate::words::{Names, ending, entry};

const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How long to stay with it, and where to tell.
pub(crate) struct Follow {
    pub(crate) patience: Duration,
    /// Told on standard error, so that what is printed stays what was asked for.
    pub(crate) told: bool,
}

impl Follow {
    /// Until the goal that this entry set has ended. Any leader can tell: the endings of the
    /// latest goals are part of the membership.
    pub(crate) async fn goal(
        &self,
        connection: &Connection,
        goal: wire::EntryId,
    ) -> Result<wire::StatusReply, Failure> {
        let began = Instant::now();
        let mut teller = Teller::new();
        let mut names = Names::default();
        let mut whereabouts = Whereabouts::new(connection);
        let mut asked = whereabouts.leader().await;
        while began.elapsed() < self.patience {
            match status(&asked).await {
                Ok(reply) => {
                    names.learn(reply.membership.as_ref());
                    whereabouts.learn(reply.membership.as_ref());
                    if let Some(ended) = ended(&reply, goal) {
                        return finished(reply.clone(), ended, goal);
                    }
                    if self.told {
                        teller.tell(&lines(&names, &reply));
                    }
                    if !leads(&reply) {
                        asked = whereabouts.leader().await;
                    }
                }
                // It may be the one that left, or an election is on: somebody else knows.
                Err(_) => asked = whereabouts.leader().await,
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Err(Failure::failed(format!(
            "goal {} is still under way after {} s; it goes on: see 'quorate status', or undo it \
             with 'quorate member cancel'",
            entry(Some(&goal)),
            self.patience.as_secs()
        )))
    }
}

pub(crate) async fn status(asked: &Connection) -> Result<wire::StatusReply, tonic::Status> {
    let reply = asked.membership().status(asked.request(wire::StatusRequest {})).await;
    reply.map(tonic::Response::into_inner)
}

fn leads(reply: &wire::StatusReply) -> bool {
    reply.header.as_ref().is_some_and(|header| header.leader_id == header.member_id)
}

fn ended(reply: &wire::StatusReply, goal: wire::EntryId) -> Option<wire::EndedGoal> {
    let membership = reply.membership.as_ref()?;
    let ended = membership.ended_goals.iter().find(|ended| ended.id == Some(goal))?;
    // Done means that what came of it needs nobody else any more.
    reply.settled.then_some(*ended)
}

fn finished(
    reply: wire::StatusReply,
    ended: wire::EndedGoal,
    goal: wire::EntryId,
) -> Result<wire::StatusReply, Failure> {
    match ended.end() {
        wire::GoalEnd::Reached => Ok(reply),
        _ => Err(Failure::failed(format!("goal {} was {}", entry(Some(&goal)), ending(&ended)))),
    }
}

/// Where the change stands, a line for each thing worth knowing.
pub(crate) fn lines(names: &Names, reply: &wire::StatusReply) -> Vec<String> {
    let log = reply.member.as_ref().and_then(|member| member.log.as_ref());
    let last = log.and_then(|log| log.last.as_ref()).map_or(0, |last| last.index);
    match &reply.progress {
        Some(progress) => names.progress(progress, last),
        None if reply.settled => Vec::new(),
        None => vec!["waits until a quorum durably knows the members".to_string()],
    }
}

/// Writes over its own lines on a terminal; elsewhere a line when something is new.
struct Teller {
    drawn: usize,
    latest: Vec<String>,
    terminal: bool,
}

impl Teller {
    fn new() -> Self {
        Self { drawn: 0, latest: Vec::new(), terminal: stderr().is_terminal() }
    }

    fn tell(&mut self, lines: &[String]) {
        if self.terminal {
            if self.drawn > 0 {
                eprint!("\x1b[{}A\x1b[J", self.drawn);
            }
            lines.iter().for_each(|line| eprintln!("{line}"));
            self.drawn = lines.len();
        } else if without_times(lines) != self.latest {
            lines.iter().for_each(|line| eprintln!("{line}"));
            self.latest = without_times(lines);
        }
    }
}

/// A line that differs only in its seconds says nothing new.
fn without_times(lines: &[String]) -> Vec<String> {
    let cut = |line: &String| match (line.find(" ("), line.find(" s)")) {
        (Some(from), Some(to)) if from < to => format!("{}{}", &line[..from], &line[to + 3..]),
        _ => line.clone(),
    };
    lines.iter().map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOAL: wire::EntryId = wire::EntryId { term: 2, index: 9 };

    fn reply(end: wire::GoalEnd, settled: bool) -> wire::StatusReply {
        let ended = wire::EndedGoal { id: Some(GOAL), end: end.into(), at: None };
        let membership = wire::MembershipRecord { ended_goals: vec![ended], ..Default::default() };
        wire::StatusReply { membership: Some(membership), settled, ..Default::default() }
    }

    #[test]
    fn done_is_reached_and_settled() {
        assert!(ended(&reply(wire::GoalEnd::Reached, false), GOAL).is_none());
        let other = wire::EntryId { term: 2, index: 8 };
        assert!(ended(&reply(wire::GoalEnd::Reached, true), other).is_none());
        let done = reply(wire::GoalEnd::Reached, true);
        let how = ended(&done, GOAL).unwrap();
        assert!(finished(done, how, GOAL).is_ok());
    }

    #[test]
    fn other_endings_are_failures() {
        let undone = reply(wire::GoalEnd::Cancelled, true);
        let how = ended(&undone, GOAL).unwrap();
        let failure = finished(undone, how, GOAL).unwrap_err();
        assert_eq!(failure.to_string(), "goal 2.9 was cancelled");
    }

    #[test]
    fn seconds_are_no_news() {
        let line = |text: &str| vec![text.to_string()];
        assert_eq!(without_times(&line("catch up: c (1 s), waits")), line("catch up: c, waits"));
        assert_eq!(without_times(&line("settle")), line("settle"));
    }
}
