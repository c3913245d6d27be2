//! Runs the log once more on a machine that never restarted, and compares the replies to all
//! clients and the state of every machine.
//!
//! The order of the log decides which replies are correct: a command ran at its entry, and a
//! query was answered at some moment between its call and its return, after
//! everything that had returned before (R1). So no search is needed.

use std::sync::Arc;

use bytes::Bytes;
use quorate::Machine;
use quorate_core::{Index, MemberId, Membership};

use super::workload::{ClientReply, Exchange, WorkloadRequest};
use crate::checkers::Violation;

/// Where a member's machine is, and what it captured there.
pub(crate) struct Reached {
    pub(crate) member: MemberId,
    pub(crate) applied: Index,
    pub(crate) chunks: Vec<Bytes>,
}

/// Runs the log on `machine`, which is in its first state.
pub(crate) fn check(
    machine: Box<dyn Machine>,
    history: &[Exchange],
    memberships: &[(Index, Arc<Membership>)],
    reached: &[Reached],
) -> Result<(), Violation> {
    commands_keep_their_order(history)?;
    let mut rerun = Rerun { machine, history, open: open_queries(history), at: 0 };
    for (index, step) in steps(history, memberships) {
        rerun.answer_before(index)?;
        rerun.compare(reached, index)?;
        rerun.run(index, step)?;
    }
    rerun.answer_before(Index::MAX)?;
    rerun.compare(reached, Index::MAX)
}

enum RerunStep<'a> {
    Command(usize, &'a Bytes),
    Membership(&'a Membership),
}

fn steps<'a>(
    history: &'a [Exchange],
    memberships: &'a [(Index, Arc<Membership>)],
) -> Vec<(Index, RerunStep<'a>)> {
    let commands = history.iter().enumerate().filter_map(|(number, exchange)| {
        let WorkloadRequest::Command(command) = &exchange.request else { return None };
        Some((exchange.ran_at?, RerunStep::Command(number, command)))
    });
    let changes = memberships.iter().map(|(index, known)| (*index, RerunStep::Membership(known)));
    let mut steps: Vec<_> = commands.chain(changes).collect();
    steps.sort_by_key(|(index, _)| *index);
    steps
}

/// A command that was given after another was answered runs after it.
fn commands_keep_their_order(history: &[Exchange]) -> Result<(), Violation> {
    for (number, before) in floors(history).into_iter().enumerate() {
        let exchange = &history[number];
        if let (WorkloadRequest::Command(_), Some(index)) = (&exchange.request, exchange.ran_at)
            && index <= before
        {
            let what = format!("command {number} ran at {index}, after {before} was answered");
            return Err(Violation::new("R1", what));
        }
    }
    Ok(())
}

/// For each request, the last index that a client knew when it was called.
fn floors(history: &[Exchange]) -> Vec<Index> {
    let done = |exchange: &&Exchange| matches!(exchange.reply, ClientReply::Reply(_));
    let known = |exchange: &Exchange| Some((exchange.returned?, exchange.ran_at?));
    let mut known: Vec<_> = history.iter().filter(done).filter_map(known).collect();
    known.sort_unstable();
    let mut newest = 0;
    let mut known = known.into_iter().peekable();
    // Requests are numbered in the order of their calls.
    let floor = |exchange: &Exchange| {
        while let Some((_, index)) = known.next_if(|(returned, _)| *returned < exchange.called) {
            newest = newest.max(index);
        }
        newest
    };
    history.iter().map(floor).collect()
}

/// A query that was answered, and where in the log that may have been.
struct OpenQuery {
    number: usize,
    called: u64,
    returned: u64,
    /// Everything up to here was known when it was called.
    from: Index,
    /// This was only called when it had been answered.
    before: Index,
}

/// In the order of their returns.
fn open_queries(history: &[Exchange]) -> Vec<OpenQuery> {
    let floors = floors(history);
    // The first index among the commands that were called from here on.
    let mut first = vec![Index::MAX; history.len() + 1];
    for (number, exchange) in history.iter().enumerate().rev() {
        first[number] = first[number + 1].min(exchange.ran_at.unwrap_or(Index::MAX));
    }
    let query = |(number, exchange): (usize, &Exchange)| {
        let answered = matches!(exchange.reply, ClientReply::Reply(_));
        let returned = exchange.returned.filter(|_| answered)?;
        let later = history.partition_point(|other| other.called <= returned);
        let (called, from, before) = (exchange.called, floors[number], first[later]);
        matches!(exchange.request, WorkloadRequest::Query(_)).then_some(OpenQuery {
            number,
            called,
            returned,
            from,
            before,
        })
    };
    let mut open: Vec<OpenQuery> = history.iter().enumerate().filter_map(query).collect();
    open.sort_by_key(|query| query.returned);
    open
}

struct Rerun<'a> {
    machine: Box<dyn Machine>,
    history: &'a [Exchange],
    /// Questions whose answer is not explained yet, in the order of their returns.
    open: Vec<OpenQuery>,
    /// Everything up to here has run.
    at: Index,
}

impl Rerun<'_> {
    fn run(&mut self, index: Index, step: RerunStep<'_>) -> Result<(), Violation> {
        self.at = index;
        let (number, command) = match step {
            RerunStep::Command(number, command) => (number, command),
            RerunStep::Membership(membership) => {
                self.machine.on_membership(index, membership);
                return Ok(());
            }
        };
        let again = match self.machine.apply(index, command) {
            Ok(again) => again,
            Err(why) => {
                let what = format!("command {number} at {index} fails when run again: {why}");
                return Err(Violation::new("replay", what));
            }
        };
        match &self.history[number].reply {
            ClientReply::Reply(reply) if *reply != again => {
                let what = format!(
                    "command {number} at {index} was answered {reply:?}, and {again:?} when run again"
                );
                Err(Violation::new("replay", what))
            }
            _ => Ok(()),
        }
    }

    /// Matches open queries with the state at this index. A query is matched as early as
    /// possible, which leaves the most choices for later ones; one that can no longer be matched
    /// is a violation.
    fn answer_before(&mut self, next: Index) -> Result<(), Violation> {
        let mut unexplained_since = u64::MAX;
        let (machine, at, history) = (&self.machine, self.at, self.history);
        self.open.retain(|query| {
            // Not before one that had returned when this was called.
            let possible = query.from <= at && unexplained_since > query.called;
            let exchange = &history[query.number];
            let explained = possible
                && match (&exchange.request, &exchange.reply) {
                    (WorkloadRequest::Query(asked), ClientReply::Reply(reply)) => {
                        machine.query(asked).is_ok_and(|again| again == *reply)
                    }
                    _ => true,
                };
            if !explained {
                unexplained_since = unexplained_since.min(query.returned);
            }
            !explained
        });
        let late = self.open.iter().find(|query| query.before <= next);
        let Some(OpenQuery { number, from, before, .. }) = late else { return Ok(()) };
        let reply = &self.history[*number].reply;
        let what = format!(
            "query {number} was answered {reply:?}, which is true nowhere from {from} to {before}"
        );
        Err(Violation::new("R1", what))
    }

    /// Members that have run everything up to here, and not what comes next.
    fn compare(&self, reached: &[Reached], next: Index) -> Result<(), Violation> {
        let here = |reached: &&Reached| (self.at..next).contains(&reached.applied);
        let mut here = reached.iter().filter(here).peekable();
        if here.peek().is_none() {
            return Ok(());
        }
        let chunks = self.machine.snapshot().and_then(Iterator::collect::<Result<Vec<Bytes>, _>>);
        let chunks = chunks.map_err(|error| Violation::new("replay", error.to_string()))?;
        match here.find(|reached| reached.chunks != chunks) {
            None => Ok(()),
            Some(Reached { member, applied, .. }) => {
                let what =
                    format!("the machine of {member} at {applied} is not what its log makes");
                Err(Violation::new("replay", what))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate::{BadSnapshot, MachineError, SnapshotChunks};

    use super::*;

    /// Says how many commands it has run.
    #[derive(Default)]
    struct Counter(u8);

    impl Machine for Counter {
        fn apply(&mut self, _index: Index, _command: &Bytes) -> Result<Bytes, MachineError> {
            self.0 += 1;
            self.query(&Bytes::new())
        }

        fn query(&self, _question: &Bytes) -> Result<Bytes, MachineError> {
            Ok(Bytes::from(vec![self.0]))
        }

        fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
            Ok(Box::new(std::iter::once(Ok(Bytes::from(vec![self.0])))))
        }

        fn install(
            &mut self,
            _chunks: &mut dyn Iterator<Item = Bytes>,
        ) -> Result<(), MachineError> {
            Err(BadSnapshot.into())
        }
    }

    fn exchange(
        request: WorkloadRequest,
        called: u64,
        returned: u64,
        reply: u8,
        ran_at: Option<u64>,
    ) -> Exchange {
        let reply = ClientReply::Reply(Bytes::from(vec![reply]));
        Exchange { client: 0, request, called, returned: Some(returned), reply, ran_at }
    }

    fn command(called: u64, returned: u64, reply: u8, ran_at: u64) -> Exchange {
        exchange(WorkloadRequest::Command(Bytes::new()), called, returned, reply, Some(ran_at))
    }

    fn query(called: u64, returned: u64, reply: u8) -> Exchange {
        exchange(WorkloadRequest::Query(Bytes::new()), called, returned, reply, None)
    }

    fn rule(history: &[Exchange], reached: &[Reached]) -> Option<&'static str> {
        let machine = Box::<Counter>::default();
        check(machine, history, &[], reached).err().map(|violation| violation.rule)
    }

    #[test]
    fn the_log_explains_what_clients_saw() {
        assert_eq!(rule(&[], &[]), None);
        // Both queries overlap the command: one saw it, one did not.
        let history = [query(1, 9, 0), query(2, 8, 1), command(3, 7, 1, 5)];
        assert_eq!(rule(&history, &[]), None);
        // No client got a reply to the first command, but it ran.
        let mut unanswered = command(1, 0, 0, 4);
        (unanswered.reply, unanswered.returned) = (ClientReply::Nothing, None);
        assert_eq!(rule(&[unanswered, query(2, 3, 1), command(4, 5, 2, 6)], &[]), None);
    }

    #[test]
    fn a_stale_answer_is_noticed() {
        assert_eq!(rule(&[command(1, 2, 1, 5), query(3, 4, 0)], &[]), Some("R1"));
    }

    #[test]
    fn an_answer_from_the_future_is_noticed() {
        assert_eq!(rule(&[query(1, 2, 1), command(3, 4, 1, 5)], &[]), Some("R1"));
    }

    #[test]
    fn queries_do_not_go_back() {
        let running = command(1, 9, 1, 5);
        let forth = [running.clone(), query(2, 3, 0), query(4, 5, 1)];
        assert_eq!(rule(&forth, &[]), None);
        let back = [running, query(2, 3, 1), query(4, 5, 0)];
        assert_eq!(rule(&back, &[]), Some("R1"));
    }

    #[test]
    fn commands_run_in_the_order_of_their_clients() {
        assert_eq!(rule(&[command(1, 2, 2, 6), command(3, 4, 1, 5)], &[]), Some("R1"));
    }

    #[test]
    fn another_answer_and_another_state_are_noticed() {
        assert_eq!(rule(&[command(1, 2, 7, 5)], &[]), Some("replay"));
        let at = |applied, state| Reached {
            member: MemberId(1),
            applied,
            chunks: vec![Bytes::from(vec![state])],
        };
        let history = [command(1, 2, 1, 5), command(3, 4, 2, 7)];
        assert_eq!(rule(&history, &[at(4, 0), at(5, 1), at(6, 1), at(7, 2), at(9, 2)]), None);
        assert_eq!(rule(&history, &[at(6, 2)]), Some("replay"));
    }
}
