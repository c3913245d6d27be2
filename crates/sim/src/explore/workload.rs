//! The requests of clients and their replies: the part of a simulation that an embedder
//! writes for their own machine.

#![warn(missing_docs)]

use bytes::Bytes;
use quorate_core::Index;

use crate::checkers::Violation;
use crate::random::Random;

/// Makes the requests of simulated clients, and may check the replies at the end of a run.
///
/// Everything must follow from `random` and from earlier requests, so that the same seed gives
/// the same run. The simulator itself checks that replies are linearizable, and that the machine
/// gives the same replies when the log is run again.
pub trait Workload {
    /// A command of some client.
    fn command(&mut self, random: &mut Random) -> Bytes;

    /// A query of some client.
    fn query(&mut self, random: &mut Random) -> Bytes;

    /// The next request of some client. The default makes as many commands as queries.
    fn next(&mut self, random: &mut Random) -> WorkloadRequest {
        if random.below(2) == 0 {
            WorkloadRequest::Command(self.command(random))
        } else {
            WorkloadRequest::Query(self.query(random))
        }
    }

    /// Checks all requests of a run, in the order in which they were sent, for rules of this
    /// machine. The default passes.
    fn check(&self, _history: &[Exchange]) -> WorkloadVerdict {
        WorkloadVerdict::Passed
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadRequest {
    /// For [`Machine::apply`](quorate::Machine::apply).
    Command(Bytes),
    /// For [`Machine::query`](quorate::Machine::query).
    Query(Bytes),
}

/// A request and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The number of the client.
    pub client: usize,
    /// The request.
    pub request: WorkloadRequest,
    /// When it was sent. The clock counts calls and returns of all clients.
    pub called: u64,
    /// When its reply arrived, by the same clock; none if the member died before.
    pub returned: Option<u64>,
    /// The reply.
    pub reply: ClientReply,
    /// The index at which the command ran, whether its client got a reply or not.
    pub ran_at: Option<Index>,
}

/// The reply that a client got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientReply {
    /// None, or that the outcome is unknown: a command may have run, or may still run.
    Nothing,
    /// It did not happen and never will.
    Refused,
    /// What the machine returned.
    Reply(Bytes),
}

/// The result of [`Workload::check`].
#[derive(Clone, Debug)]
pub enum WorkloadVerdict {
    /// No rule is broken.
    Passed,
    /// It would take too long to find out.
    Undecided,
    /// A rule is broken: its name, and what happened.
    Broken(Violation),
}
