//! Waits until a membership goal has ended, and shows the progress meanwhile.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use quorate_proto::quorate::v1 as wire;

use crate::arguments::WriteOut;
use crate::client::{Connection, is_unreachable};
use crate::error::CliError;
use crate::leader_finder::LeaderFinder;
use crate::membership_text::{MemberNames, end_text, entry_id};
use crate::print;

const POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) struct GoalWait {
    pub(crate) timeout: Duration,
    /// Print the progress in this format on standard error, so that standard output holds only
    /// the result.
    pub(crate) progress: Option<WriteOut>,
}

impl GoalWait {
    /// Waits until the goal that this entry set has ended. Any leader can tell: the membership
    /// contains the ends of the latest goals.
    pub(crate) async fn run(
        &self,
        connection: &Connection,
        goal: wire::EntryId,
    ) -> Result<wire::StatusReply, CliError> {
        let started = Instant::now();
        let mut printer = ProgressPrinter::new(self.progress.unwrap_or(WriteOut::Table));
        let mut names = MemberNames::default();
        let mut finder = LeaderFinder::new(connection);
        let mut leader = finder.leader().await;
        while started.elapsed() < self.timeout {
            match leader.membership_status().await {
                Ok(reply) => {
                    names.learn(reply.membership.as_ref());
                    finder.update(reply.membership.as_ref());
                    if let Some(ended) = settled_end(&reply, goal) {
                        return check_reached(reply.clone(), ended, goal);
                    }
                    if self.progress.is_some() {
                        printer.print(&progress_lines(&names, &reply));
                    }
                    if !is_from_leader(&reply) {
                        leader = finder.leader().await;
                    }
                }
                // The member may have been removed, or an election is in progress.
                Err(status) if is_unreachable(&status) => leader = finder.leader().await,
                Err(status) => {
                    let context = "cannot read the progress of the change";
                    return Err(CliError::from_status(context, &leader.endpoint, &status));
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Err(CliError::failed(format!(
            "goal {} is still in progress after {} s, and the cluster continues with it: check \
             with 'quorate status', or undo it with 'quorate member cancel'",
            entry_id(Some(&goal)),
            self.timeout.as_secs()
        )))
    }
}

fn is_from_leader(reply: &wire::StatusReply) -> bool {
    reply.header.as_ref().is_some_and(|header| header.leader_id == header.member_id)
}

/// How the goal ended, once the resulting membership is settled.
fn settled_end(reply: &wire::StatusReply, goal: wire::EntryId) -> Option<wire::EndedGoal> {
    let membership = reply.membership.as_ref()?;
    let ended = membership.ended_goals.iter().find(|ended| ended.id == Some(goal))?;
    reply.settled.then_some(*ended)
}

fn check_reached(
    reply: wire::StatusReply,
    ended: wire::EndedGoal,
    goal: wire::EntryId,
) -> Result<wire::StatusReply, CliError> {
    match ended.end() {
        wire::GoalEnd::Reached => Ok(reply),
        _ => {
            let (goal, end) = (entry_id(Some(&goal)), end_text(&ended));
            Err(CliError::failed(format!("goal {goal} was {end}")))
        }
    }
}

/// The progress of the change, one line for each fact.
pub(crate) fn progress_lines(names: &MemberNames, reply: &wire::StatusReply) -> Vec<String> {
    let log = reply.member.as_ref().and_then(|member| member.log.as_ref());
    let last = log.and_then(|log| log.last.as_ref()).map_or(0, |last| last.index);
    match &reply.progress {
        Some(progress) => names.progress(progress, last),
        None if reply.settled => Vec::new(),
        None => vec!["waiting until a quorum has saved the new membership".to_string()],
    }
}

/// Redraws its lines on a terminal; elsewhere prints only lines that changed.
struct ProgressPrinter {
    drawn: usize,
    latest: Vec<String>,
    write_out: WriteOut,
    terminal: bool,
}

impl ProgressPrinter {
    fn new(write_out: WriteOut) -> Self {
        let terminal = write_out == WriteOut::Table && stderr().is_terminal();
        Self { drawn: 0, latest: Vec::new(), write_out, terminal }
    }

    fn print(&mut self, lines: &[String]) {
        if self.terminal {
            if self.drawn > 0 {
                eprint!("\x1b[{}A\x1b[J", self.drawn);
            }
            lines.iter().for_each(|line| eprintln!("{line}"));
            self.drawn = lines.len();
        } else if without_seconds(lines) != self.latest {
            lines.iter().for_each(|line| print::note(self.write_out, line));
            self.latest = without_seconds(lines);
        }
    }
}

/// Cuts ` (N s)`: a line that differs only there has not changed.
fn without_seconds(lines: &[String]) -> Vec<String> {
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
    fn a_goal_is_done_when_reached_and_settled() {
        assert!(settled_end(&reply(wire::GoalEnd::Reached, false), GOAL).is_none());
        let other = wire::EntryId { term: 2, index: 8 };
        assert!(settled_end(&reply(wire::GoalEnd::Reached, true), other).is_none());
        let done = reply(wire::GoalEnd::Reached, true);
        let end = settled_end(&done, GOAL).unwrap();
        assert!(check_reached(done, end, GOAL).is_ok());
    }

    #[test]
    fn a_cancelled_goal_is_an_error() {
        let cancelled = reply(wire::GoalEnd::Cancelled, true);
        let end = settled_end(&cancelled, GOAL).unwrap();
        let error = check_reached(cancelled, end, GOAL).unwrap_err();
        assert_eq!(error.to_string(), "goal 2.9 was cancelled");
    }

    #[test]
    fn lines_that_differ_in_seconds_only_are_equal() {
        let line = |text: &str| vec![text.to_string()];
        assert_eq!(without_seconds(&line("catch up: c (1 s), x")), line("catch up: c, x"));
        assert_eq!(without_seconds(&line("settle")), line("settle"));
    }
}
