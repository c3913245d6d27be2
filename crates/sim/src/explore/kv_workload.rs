//! Clients of the small map: they put, get, delete and compare-and-set a few keys.

use bytes::Bytes;
use quorate::{KvCommand, KvReply};

use super::setting::RunSettings;
use super::workload::{ClientReply, Exchange, Workload, WorkloadRequest, WorkloadVerdict};
use crate::checkers::Violation;
use crate::checkers::linearizable::{self, Call, ClientOperation, History, Seen, Verdict};
use crate::random::Random;

/// The requests so far, in order.
pub(crate) struct KvWorkload {
    keys: u64,
    value_bytes: usize,
    calls: Vec<Call>,
}

/// One that all clients use.
const FIRST_KEY: Bytes = Bytes::from_static(b"k0");

const LINEARIZABLE_STEPS: u64 = 200_000;

impl KvWorkload {
    pub(crate) fn new(setting: &RunSettings) -> Self {
        let value_bytes = setting.value_bytes as usize;
        Self { keys: setting.keys.max(1), value_bytes, calls: Vec::new() }
    }

    fn request(&mut self, call: Call) -> WorkloadRequest {
        let request = match &call {
            Call::Put(key, value) => {
                command(&KvCommand::Put { key: key.clone(), value: value.clone() })
            }
            Call::Delete(key) => command(&KvCommand::Delete { key: key.clone() }),
            Call::CompareAndSet { key, expected, new } => {
                let (key, expected, value) = (key.clone(), expected.clone(), new.clone());
                command(&KvCommand::CompareAndSet { key, expected, value })
            }
            Call::Get(key) => WorkloadRequest::Query(key.clone()),
            Call::GetSeveral(keys) => {
                WorkloadRequest::Query(keys.first().cloned().unwrap_or_default())
            }
        };
        self.calls.push(call);
        request
    }

    fn key(&self, random: &mut Random) -> Bytes {
        Bytes::from(format!("k{}", random.below(self.keys)))
    }

    /// Another one each time, so that it is seen who wrote what is read.
    fn value(&self) -> Bytes {
        let mut value = format!("v{}", self.calls.len()).into_bytes();
        if value.len() < self.value_bytes {
            value.resize(self.value_bytes, b'.');
        }
        value.into()
    }

    /// What a client may expect to be there: a value written lately, or none.
    fn guess(&self, random: &mut Random) -> Option<Bytes> {
        let back = random.below(8) as usize;
        self.calls.iter().rev().nth(back).and_then(|call| match call {
            Call::Put(_, value) => Some(value.clone()),
            Call::CompareAndSet { new, .. } => Some(new.clone()),
            _ => None,
        })
    }
}

fn command(command: &KvCommand) -> WorkloadRequest {
    WorkloadRequest::Command(command.encode())
}

fn bytes(request: WorkloadRequest) -> Bytes {
    match request {
        WorkloadRequest::Command(bytes) | WorkloadRequest::Query(bytes) => bytes,
    }
}

impl Workload for KvWorkload {
    fn command(&mut self, _random: &mut Random) -> Bytes {
        let value = Bytes::from(format!("v{:06}", self.calls.len()));
        bytes(self.request(Call::Put(FIRST_KEY, value)))
    }

    fn query(&mut self, _random: &mut Random) -> Bytes {
        bytes(self.request(Call::Get(FIRST_KEY)))
    }

    fn next(&mut self, random: &mut Random) -> WorkloadRequest {
        let key = self.key(random);
        let call = match random.below(10) {
            0..4 => Call::Put(key, self.value()),
            4..8 => Call::Get(key),
            8 => Call::Delete(key),
            _ => Call::CompareAndSet { key, expected: self.guess(random), new: self.value() },
        };
        self.request(call)
    }

    /// Linearizability once more, found out from what clients saw alone: without the log.
    fn check(&self, history: &[Exchange]) -> WorkloadVerdict {
        let operations = history.iter().zip(&self.calls).map(|(exchange, call)| ClientOperation {
            client: exchange.client as u64,
            called: exchange.called,
            returned: exchange.returned,
            call: call.clone(),
            seen: observed(call, &exchange.reply),
            applied: exchange.ran_at,
        });
        let history = History { operations: operations.collect() };
        match linearizable::check(&history, LINEARIZABLE_STEPS).verdict {
            Verdict::Linearizable => WorkloadVerdict::Passed,
            Verdict::Undecided(_) => WorkloadVerdict::Undecided,
            Verdict::Violation(violation) => {
                WorkloadVerdict::Broken(Violation::new("R1", violation.to_string()))
            }
        }
    }
}

fn observed(call: &Call, reply: &ClientReply) -> Seen {
    let reply = match reply {
        ClientReply::Nothing => return Seen::Nothing,
        ClientReply::Refused => return Seen::Refused,
        ClientReply::Reply(reply) => KvReply::decode(reply),
    };
    let Some(reply) = reply else { return Seen::Nothing };
    match call {
        Call::Put(..) | Call::Delete(_) => Seen::Done,
        Call::Get(_) => Seen::Value(reply.value),
        Call::CompareAndSet { .. } => Seen::Swapped(reply.done),
        Call::GetSeveral(_) => Seen::Values(vec![reply.value]),
    }
}
