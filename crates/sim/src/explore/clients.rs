//! The simulated clients: their requests, the replies, and the history of both.

use std::collections::HashMap;

use quorate::RequestError;
use quorate::driver::{RequestOutcome, RequestReply, RequestToken};
use quorate_core::RequestId;

use super::machine::{TOO_EARLY, numbered};
use super::setting::{RunSettings, TICK};
use super::workload::{ClientReply, Exchange, Workload, WorkloadRequest};
use crate::checkers::replies::{CheckedRequest, ReplyChecker, ReplyKind};
use crate::random::Random;

/// Identifies an open request: the member's position, its run, and the driver's token.
pub(crate) type RequestKey = (usize, u64, RequestToken);

pub(crate) struct SimClients {
    random: Random,
    pub(crate) workload: Box<dyn Workload>,
    think: u64,
    clients: usize,
    open: HashMap<RequestKey, usize>,
    /// Counts calls and returns: a more precise clock than that of the simulation.
    moment: u64,
    pub(crate) history: Vec<Exchange>,
    pub(crate) answers: ReplyChecker,
    pub(crate) done: u64,
    pub(crate) refused: u64,
    pub(crate) unknown: u64,
}

impl SimClients {
    pub(crate) fn new(setting: &RunSettings, workload: Box<dyn Workload>) -> Self {
        Self {
            random: Random::stream(setting.seed, 3),
            workload,
            think: setting.think_ticks.max(1) * TICK,
            clients: setting.clients as usize,
            open: HashMap::new(),
            moment: 0,
            history: Vec::new(),
            answers: ReplyChecker::new(),
            done: 0,
            refused: 0,
            unknown: 0,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.clients
    }

    pub(crate) fn open(&self) -> usize {
        self.open.len()
    }

    /// The time that a client waits before its next request.
    pub(crate) fn pause(&mut self) -> u64 {
        1 + self.random.below(self.think)
    }

    /// A random number below `bound`, for choices of clients.
    pub(crate) fn draw(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    /// Creates the next request of a client. It is open until it gets a reply.
    pub(crate) fn next_request(&mut self, client: usize) -> (usize, WorkloadRequest) {
        let request = self.workload.next(&mut self.random);
        self.push(client, request)
    }

    pub(crate) fn next_query(&mut self, client: usize) -> (usize, WorkloadRequest) {
        let request = WorkloadRequest::Query(self.workload.query(&mut self.random));
        self.push(client, request)
    }

    pub(crate) fn next_command(&mut self, client: usize) -> (usize, WorkloadRequest) {
        let request = WorkloadRequest::Command(self.workload.command(&mut self.random));
        self.push(client, request)
    }

    /// Records a request. Returns its number and the request to pass to a driver.
    pub(crate) fn push(
        &mut self,
        client: usize,
        request: WorkloadRequest,
    ) -> (usize, WorkloadRequest) {
        let number = self.history.len();
        let driver_request = match &request {
            WorkloadRequest::Command(command) => {
                WorkloadRequest::Command(numbered(number as u64, command))
            }
            WorkloadRequest::Query(query) => WorkloadRequest::Query(query.clone()),
        };
        self.moment += 1;
        self.history.push(Exchange {
            client,
            request,
            called: self.moment,
            returned: None,
            reply: ClientReply::Nothing,
            ran_at: None,
        });
        (number, driver_request)
    }

    /// The request waits for its reply.
    pub(crate) fn is_open(&self, number: usize) -> bool {
        self.open.values().any(|open| *open == number)
    }

    /// A driver accepted the request and returned a token.
    pub(crate) fn on_submitted(&mut self, key: RequestKey, number: usize) -> Result<(), String> {
        self.open.insert(key, number);
        let kind = match self.history[number].request {
            WorkloadRequest::Query(_) => CheckedRequest::Read,
            WorkloadRequest::Command(_) => CheckedRequest::Command,
        };
        self.answers.request_sent(RequestId(number as u64), kind).map_err(|why| why.to_string())
    }

    /// A driver replies. Returns the client, which may continue.
    pub(crate) fn answered(
        &mut self,
        key: RequestKey,
        outcome: &RequestOutcome,
    ) -> Result<Option<usize>, String> {
        let Some(number) = self.open.remove(&key) else { return Ok(None) };
        let kind = match outcome {
            Ok(_) => ReplyKind::Done,
            Err(RequestError::Refused(_)) => ReplyKind::Refused,
            Err(RequestError::Unknown(_)) => ReplyKind::Unknown,
        };
        let id = RequestId(number as u64);
        self.answers.reply_received(id, kind).map_err(|why| why.to_string())?;
        self.moment += 1;
        let exchange = &mut self.history[number];
        exchange.returned = Some(self.moment);
        match outcome {
            Ok(done) => {
                self.done += 1;
                exchange.note(done);
            }
            Err(RequestError::Refused(_)) => {
                self.refused += 1;
                exchange.reply = ClientReply::Refused;
            }
            Err(RequestError::Unknown(_)) => self.unknown += 1,
        }
        Ok(Some(exchange.client))
    }

    /// A command was applied at this index, whether its client gets a reply or not.
    pub(crate) fn ran(&mut self, number: u64, index: u64) {
        if let Some(exchange) = self.history.get_mut(number as usize) {
            exchange.ran_at = Some(index);
        }
    }

    /// The first request that was applied up to this index and is still open in this run of
    /// a member.
    pub(crate) fn waits_for(&self, process: (usize, u64), index: u64) -> Option<usize> {
        let ran = |number: usize| self.history[number].ran_at;
        let open = self.open.iter().filter(|(key, _)| (key.0, key.1) == process);
        let mut late = open.map(|(_, number)| *number).collect::<Vec<usize>>();
        late.retain(|number| ran(*number).is_some_and(|ran| ran <= index));
        late.into_iter().min()
    }

    /// A member died: its waiting clients get no reply.
    pub(crate) fn lost(&mut self, place: usize, run: u64) -> Result<Vec<usize>, String> {
        let mut lost: Vec<(RequestKey, usize)> = Vec::new();
        self.open.retain(|key, number| {
            let stays = (key.0, key.1) != (place, run);
            if !stays {
                lost.push((*key, *number));
            }
            stays
        });
        lost.sort_unstable();
        let mut clients = Vec::new();
        for (_, number) in lost {
            self.unknown += 1;
            let id = RequestId(number as u64);
            self.answers.reply_received(id, ReplyKind::Unknown).map_err(|why| why.to_string())?;
            clients.push(self.history[number].client);
        }
        Ok(clients)
    }
}

impl Exchange {
    fn note(&mut self, done: &RequestReply) {
        let reply = match done {
            RequestReply::Ran { reply, .. } if reply[..] == *TOO_EARLY => {
                self.reply = ClientReply::Refused;
                return;
            }
            RequestReply::Ran { index, reply } => {
                self.ran_at = Some(*index);
                reply
            }
            RequestReply::Read { reply, .. } => reply,
            _ => return,
        };
        self.reply = ClientReply::Reply(reply.clone());
    }
}
