//! The requests of clients and their replies: the part of a simulation that an embedder
//! writes for their own machine.

use bytes::Bytes;
use quorate_core::Index;

use crate::checkers::Violation;
use crate::random::Random;

/// Makes requests, and judges the replies when a run is over.
///
/// Everything must follow from `random` and from what was asked before: the same seed is
/// then the same run. That answers are linearizable, and what the machine says when the
/// log is run again, is checked without any help.
pub trait Workload {
    /// A command that some client gives.
    fn command(&mut self, random: &mut Random) -> Bytes;

    /// A question that some client asks.
    fn question(&mut self, random: &mut Random) -> Bytes;

    /// What a client wants next: as many commands as questions, unless said otherwise.
    fn next(&mut self, random: &mut Random) -> WorkloadRequest {
        if random.below(2) == 0 {
            WorkloadRequest::Command(self.command(random))
        } else {
            WorkloadRequest::Question(self.question(random))
        }
    }

    /// Looks at everything that was asked in a run, in the order of asking. For rules of
    /// this machine; a run in which nothing is wrong passes.
    fn judge(&self, _history: &[Exchange]) -> Judgement {
        Judgement::Passed
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadRequest {
    /// For [`Machine::apply`](quorate::Machine::apply).
    Command(Bytes),
    /// For [`Machine::query`](quorate::Machine::query).
    Question(Bytes),
}

/// A request and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    pub client: usize,
    pub ask: WorkloadRequest,
    /// Counts calls and returns of all clients: a clock finer than the world's.
    pub called: u64,
    /// When the client was answered; never, if the member it asked died.
    pub returned: Option<u64>,
    pub heard: ClientReply,
    /// Where the command ran, whether its client heard of that or not.
    pub ran_at: Option<Index>,
}

/// What a client was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientReply {
    /// Nothing, or that the result is unknown: a command may have run, or may still run.
    Nothing,
    /// It did not happen and never will.
    Refused,
    /// What the machine said.
    Reply(Bytes),
}

/// What a workload says of a run.
#[derive(Clone, Debug)]
pub enum Judgement {
    Passed,
    /// It would take too long to find out.
    Undecided,
    /// A rule is broken: its name, and what happened.
    Broken(Violation),
}
