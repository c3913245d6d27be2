//! Clients: what they ask, what they are told, and the history of both.

use std::collections::HashMap;

use bytes::Bytes;
use quorate::{Answer, Done, KvCommand, KvReply, Ticket};
use quorate_core::RequestId;

use super::machine::numbered;
use super::setting::{Setting, TICK};
use crate::checkers::answers::{Answer as Said, Answers, Wish};
use crate::checkers::linearizable::{Call, History, Operation, Seen};
use crate::random::Random;

/// Which answer belongs to which operation: where it was asked, in which run of that
/// member, under which ticket.
pub(crate) type Asked = (usize, u64, Ticket);

pub(crate) struct Clients {
    random: Random,
    keys: u64,
    value_bytes: usize,
    think: u64,
    clients: usize,
    open: HashMap<Asked, usize>,
    /// Counts calls and returns: a clock finer than the world's.
    moment: u64,
    pub(crate) history: History,
    pub(crate) answers: Answers,
    pub(crate) done: u64,
    pub(crate) refused: u64,
    pub(crate) unknown: u64,
}

/// What to hand to a driver.
pub(crate) enum Request {
    Command(Bytes),
    Read(Bytes),
}

impl Clients {
    pub(crate) fn new(setting: &Setting) -> Self {
        Self {
            random: Random::stream(setting.seed, 3),
            keys: setting.keys.max(1),
            value_bytes: setting.value_bytes as usize,
            think: setting.think_ticks.max(1) * TICK,
            clients: setting.clients as usize,
            open: HashMap::new(),
            moment: 0,
            history: History::default(),
            answers: Answers::new(),
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

    /// A client makes up something to ask. The operation is open until answered.
    pub(crate) fn ask(&mut self, client: usize) -> (usize, Request) {
        let number = self.history.operations.len();
        let key = Bytes::from(format!("k{}", self.random.below(self.keys)));
        let call = match self.random.below(10) {
            0..4 => Call::Put(key, self.value(number)),
            4..8 => Call::Get(key),
            8 => Call::Delete(key),
            _ => {
                let new = self.value(number);
                Call::CompareAndSet { key, expected: self.guess(), new }
            }
        };
        self.push(client, call)
    }

    /// A client asks for this very thing.
    pub(crate) fn push(&mut self, client: usize, call: Call) -> (usize, Request) {
        let number = self.history.operations.len();
        let request = match &call {
            Call::Put(key, value) => {
                let command = KvCommand::Put { key: key.clone(), value: value.clone() };
                Request::Command(numbered(number as u64, &command))
            }
            Call::Delete(key) => {
                let command = KvCommand::Delete { key: key.clone() };
                Request::Command(numbered(number as u64, &command))
            }
            Call::CompareAndSet { key, expected, new } => {
                let (key, expected, value) = (key.clone(), expected.clone(), new.clone());
                let command = KvCommand::CompareAndSet { key, expected, value };
                Request::Command(numbered(number as u64, &command))
            }
            Call::Get(key) => Request::Read(key.clone()),
            Call::GetSeveral(keys) => Request::Read(keys.first().cloned().unwrap_or_default()),
        };
        self.moment += 1;
        self.history.operations.push(Operation {
            client: client as u64,
            called: self.moment,
            returned: None,
            call,
            seen: Seen::Nothing,
            applied: None,
        });
        (number, request)
    }

    fn value(&self, number: usize) -> Bytes {
        let mut value = format!("v{number}").into_bytes();
        if value.len() < self.value_bytes {
            value.resize(self.value_bytes, b'.');
        }
        value.into()
    }

    /// What somebody may believe to be there: a value written lately, or none.
    fn guess(&mut self) -> Option<Bytes> {
        let operations = &self.history.operations;
        let back = self.random.below(8) as usize;
        operations.iter().rev().nth(back).and_then(|operation| match &operation.call {
            Call::Put(_, value) => Some(value.clone()),
            Call::CompareAndSet { new, .. } => Some(new.clone()),
            _ => None,
        })
    }

    /// The driver at this place took the operation under this ticket.
    pub(crate) fn asked(&mut self, asked: Asked, number: usize) -> Result<(), String> {
        self.open.insert(asked, number);
        let is_read = self.history.operations[number].call.is_read();
        let wish = if is_read { Wish::Read } else { Wish::Command };
        self.answers.asked(RequestId(number as u64), wish).map_err(|why| why.to_string())
    }

    /// A driver answers. Returns the client, who may go on.
    pub(crate) fn answered(
        &mut self,
        asked: Asked,
        answer: &Answer,
    ) -> Result<Option<usize>, String> {
        let Some(number) = self.open.remove(&asked) else { return Ok(None) };
        let said = match answer {
            Answer::Done(_) => Said::Done,
            Answer::Refused(_) => Said::Refused,
            Answer::Unknown(_) => Said::Unknown,
        };
        let id = RequestId(number as u64);
        self.answers.answered(id, said).map_err(|why| why.to_string())?;
        self.moment += 1;
        let operation = &mut self.history.operations[number];
        operation.returned = Some(self.moment);
        match answer {
            Answer::Done(done) => {
                self.done += 1;
                let (seen, index) = what_was_seen(&operation.call, done);
                operation.seen = seen;
                operation.applied = index;
            }
            Answer::Refused(_) => {
                self.refused += 1;
                operation.seen = Seen::Refused;
            }
            Answer::Unknown(_) => self.unknown += 1,
        }
        Ok(Some(operation.client as usize))
    }

    /// A command ran at this index, whether its client learns of it or not.
    pub(crate) fn ran(&mut self, operation: u64, index: u64) {
        if let Some(operation) = self.history.operations.get_mut(operation as usize) {
            operation.applied = Some(index);
        }
    }

    /// An operation that ran up to this index and is open in this run of a member.
    pub(crate) fn waits_for(&self, at: (usize, u64), index: u64) -> Option<usize> {
        let ran = |number: usize| self.history.operations[number].applied;
        let here = self.open.iter().filter(|(asked, _)| (asked.0, asked.1) == at);
        let mut late = here.map(|(_, number)| *number).collect::<Vec<usize>>();
        late.retain(|number| ran(*number).is_some_and(|ran| ran <= index));
        late.into_iter().min()
    }

    /// A member died: whoever waited for it learns nothing.
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
            self.answers.answered(id, Said::Unknown).map_err(|why| why.to_string())?;
            clients.push(self.history.operations[number].client as usize);
        }
        Ok(clients)
    }
}

fn what_was_seen(call: &Call, done: &Done) -> (Seen, Option<u64>) {
    let (reply, index) = match done {
        Done::Ran { index, reply } => (reply, Some(*index)),
        Done::Read { reply } => (reply, None),
        _ => return (Seen::Nothing, None),
    };
    let Some(reply) = KvReply::decode(reply) else { return (Seen::Nothing, index) };
    let seen = match call {
        Call::Put(..) | Call::Delete(_) => Seen::Done,
        Call::Get(_) => Seen::Value(reply.value),
        Call::CompareAndSet { .. } => Seen::Swapped(reply.done),
        Call::GetSeveral(_) => Seen::Values(vec![reply.value]),
    };
    (seen, index)
}
