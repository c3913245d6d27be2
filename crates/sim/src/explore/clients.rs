//! Clients: what they ask, what they are told, and the history of both.

use std::collections::HashMap;

use quorate::RequestError;
use quorate::driver::{RequestOutcome, RequestReply, RequestToken};
use quorate_core::RequestId;

use super::machine::numbered;
use super::setting::{RunSettings, TICK};
use super::workload::{ClientReply, Exchange, Workload, WorkloadRequest};
use crate::checkers::replies::{CheckedRequest, ReplyChecker, ReplyKind as Said};
use crate::random::Random;

/// Which answer belongs to which request: where it was asked, in which run of that
/// member, under which ticket.
pub(crate) type Asked = (usize, u64, RequestToken);

pub(crate) struct SimClients {
    random: Random,
    pub(crate) workload: Box<dyn Workload>,
    think: u64,
    clients: usize,
    open: HashMap<Asked, usize>,
    /// Counts calls and returns: a clock finer than the world's.
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

    /// How long a client waits before it asks again.
    pub(crate) fn pause(&mut self) -> u64 {
        1 + self.random.below(self.think)
    }

    /// A number below `bound`, for choices that clients make.
    pub(crate) fn draw(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    /// A client makes up something to ask. The request is open until answered.
    pub(crate) fn ask(&mut self, client: usize) -> (usize, WorkloadRequest) {
        let ask = self.workload.next(&mut self.random);
        self.push(client, ask)
    }

    pub(crate) fn ask_question(&mut self, client: usize) -> (usize, WorkloadRequest) {
        let ask = WorkloadRequest::Question(self.workload.question(&mut self.random));
        self.push(client, ask)
    }

    pub(crate) fn give_command(&mut self, client: usize) -> (usize, WorkloadRequest) {
        let ask = WorkloadRequest::Command(self.workload.command(&mut self.random));
        self.push(client, ask)
    }

    /// Its number, and what to hand to a driver.
    fn push(&mut self, client: usize, ask: WorkloadRequest) -> (usize, WorkloadRequest) {
        let number = self.history.len();
        let handed = match &ask {
            WorkloadRequest::Command(command) => {
                WorkloadRequest::Command(numbered(number as u64, command))
            }
            WorkloadRequest::Question(question) => WorkloadRequest::Question(question.clone()),
        };
        self.moment += 1;
        self.history.push(Exchange {
            client,
            ask,
            called: self.moment,
            returned: None,
            heard: ClientReply::Nothing,
            ran_at: None,
        });
        (number, handed)
    }

    /// The driver at this place took the request under this ticket.
    pub(crate) fn asked(&mut self, asked: Asked, number: usize) -> Result<(), String> {
        self.open.insert(asked, number);
        let wish = match self.history[number].ask {
            WorkloadRequest::Question(_) => CheckedRequest::Read,
            WorkloadRequest::Command(_) => CheckedRequest::Command,
        };
        self.answers.request_sent(RequestId(number as u64), wish).map_err(|why| why.to_string())
    }

    /// A driver replies. Returns the client, which may continue.
    pub(crate) fn answered(
        &mut self,
        asked: Asked,
        answer: &RequestOutcome,
    ) -> Result<Option<usize>, String> {
        let Some(number) = self.open.remove(&asked) else { return Ok(None) };
        let said = match answer {
            Ok(_) => Said::Done,
            Err(RequestError::Refused(_)) => Said::Refused,
            Err(RequestError::Unknown(_)) => Said::Unknown,
        };
        let id = RequestId(number as u64);
        self.answers.reply_received(id, said).map_err(|why| why.to_string())?;
        self.moment += 1;
        let exchange = &mut self.history[number];
        exchange.returned = Some(self.moment);
        match answer {
            Ok(done) => {
                self.done += 1;
                exchange.note(done);
            }
            Err(RequestError::Refused(_)) => {
                self.refused += 1;
                exchange.heard = ClientReply::Refused;
            }
            Err(RequestError::Unknown(_)) => self.unknown += 1,
        }
        Ok(Some(exchange.client))
    }

    /// A command ran at this index, whether its client learns of it or not.
    pub(crate) fn ran(&mut self, number: u64, index: u64) {
        if let Some(exchange) = self.history.get_mut(number as usize) {
            exchange.ran_at = Some(index);
        }
    }

    /// A request that ran up to this index and is open in this run of a member.
    pub(crate) fn waits_for(&self, at: (usize, u64), index: u64) -> Option<usize> {
        let ran = |number: usize| self.history[number].ran_at;
        let here = self.open.iter().filter(|(asked, _)| (asked.0, asked.1) == at);
        let mut late = here.map(|(_, number)| *number).collect::<Vec<usize>>();
        late.retain(|number| ran(*number).is_some_and(|ran| ran <= index));
        late.into_iter().min()
    }

    /// A member died: the clients that waited for it get no reply.
    pub(crate) fn lost(&mut self, place: usize, run: u64) -> Result<Vec<usize>, String> {
        let mut lost: Vec<(Asked, usize)> = Vec::new();
        self.open.retain(|asked, number| {
            let stays = (asked.0, asked.1) != (place, run);
            if !stays {
                lost.push((*asked, *number));
            }
            stays
        });
        lost.sort_unstable();
        let mut clients = Vec::new();
        for (_, number) in lost {
            self.unknown += 1;
            let id = RequestId(number as u64);
            self.answers.reply_received(id, Said::Unknown).map_err(|why| why.to_string())?;
            clients.push(self.history[number].client);
        }
        Ok(clients)
    }
}

impl Exchange {
    fn note(&mut self, done: &RequestReply) {
        let reply = match done {
            RequestReply::Ran { index, reply } => {
                self.ran_at = Some(*index);
                reply
            }
            RequestReply::Read { reply, .. } => reply,
            _ => return,
        };
        self.heard = ClientReply::Reply(reply.clone());
    }
}
