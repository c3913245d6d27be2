//! User-defined state machines in simulated clusters: a correct one, and several broken ones.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use quorate::{BadSnapshot, Machine, MachineError, SnapshotChunks};
use quorate_core::Index;
use quorate_sim::checkers::Violation;
use quorate_sim::explore::{
    ClientReply, Exchange, MachineTrial, Workload, WorkloadRequest, WorkloadVerdict, try_machine,
};
use quorate_sim::random::Random;

const SEEDS: std::ops::Range<u64> = 0..40;

/// Hands out numbers: each command takes the next number of a queue, each query returns the
/// last number taken. A queue is named by one byte.
#[derive(Default)]
struct Tickets {
    last: BTreeMap<u8, u64>,
}

fn queue(name: &Bytes) -> u8 {
    name.first().copied().unwrap_or_default()
}

fn number(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().map(u64::from_le_bytes).ok()
}

fn reply(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_le_bytes())
}

/// One chunk per queue, in iteration order.
fn capture<'a>(queues: impl Iterator<Item = (&'a u8, &'a u64)>) -> SnapshotChunks {
    let chunks: Vec<Bytes> =
        queues.map(|(name, last)| [&[*name][..], &last.to_le_bytes()].concat().into()).collect();
    Box::new(chunks.into_iter().map(Ok))
}

fn restore(chunks: &mut dyn Iterator<Item = Bytes>) -> Result<Vec<(u8, u64)>, BadSnapshot> {
    let read = |chunk: Bytes| Some((queue(&chunk), number(chunk.get(1..)?)?));
    chunks.map(|chunk| read(chunk).ok_or(BadSnapshot)).collect()
}

impl Machine for Tickets {
    fn apply(&mut self, _index: Index, command: &Bytes) -> Result<Bytes, MachineError> {
        let last = self.last.entry(queue(command)).or_default();
        *last += 1;
        Ok(reply(*last))
    }

    fn query(&self, query: &Bytes) -> Result<Bytes, MachineError> {
        Ok(reply(self.last.get(&queue(query)).copied().unwrap_or_default()))
    }

    fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
        Ok(capture(self.last.iter()))
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        self.last = restore(chunks)?.into_iter().collect();
        Ok(())
    }
}

/// Clients that take tickets from a few queues.
struct TicketClients;

impl Workload for TicketClients {
    fn command(&mut self, random: &mut Random) -> Bytes {
        Bytes::from(vec![random.below(6) as u8])
    }

    fn query(&mut self, random: &mut Random) -> Bytes {
        self.command(random)
    }

    /// No ticket goes to two clients.
    fn check(&self, history: &[Exchange]) -> WorkloadVerdict {
        let mut issued = BTreeSet::new();
        for exchange in history {
            if let (WorkloadRequest::Command(name), ClientReply::Reply(ticket)) =
                (&exchange.request, &exchange.reply)
                && !issued.insert((name, ticket))
            {
                let message = format!("{ticket:?} of queue {name:?} was issued twice");
                return WorkloadVerdict::Broken(Violation::new("one owner", message));
            }
        }
        WorkloadVerdict::Passed
    }
}

#[test]
fn a_correct_machine_passes() {
    let report = try_machine(SEEDS, Tickets::default, || TicketClients).unwrap();
    // The machine ran, was captured, lost and restored.
    assert!(report.requests_done > 1_000, "{report}");
    assert!(report.snapshots_installed > 5 && report.elections > 40, "{report}");
    // The same seeds give the same runs.
    let again = try_machine(SEEDS, Tickets::default, || TicketClients).unwrap();
    assert_eq!(report, again);
}

/// Writes its snapshot in the order of a hash map, which differs between processes.
#[derive(Default)]
struct UnorderedTickets(HashMap<u8, u64>);

impl Machine for UnorderedTickets {
    fn apply(&mut self, _index: Index, command: &Bytes) -> Result<Bytes, MachineError> {
        let last = self.0.entry(queue(command)).or_default();
        *last += 1;
        Ok(reply(*last))
    }

    fn query(&self, query: &Bytes) -> Result<Bytes, MachineError> {
        Ok(reply(self.0.get(&queue(query)).copied().unwrap_or_default()))
    }

    fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
        Ok(capture(self.0.iter()))
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        self.0 = restore(chunks)?.into_iter().collect();
        Ok(())
    }
}

#[test]
fn a_snapshot_in_hash_map_order_is_detected() {
    let failure = try_machine(SEEDS, UnorderedTickets::default, || TicketClients).unwrap_err();
    let rule = failure.violation.rule;
    assert!(["I5", "replay", "restore"].contains(&rule), "{failure}");
}

/// Counts commands since its process started, so replies depend on when that was.
#[derive(Default)]
struct ProcessLocalTickets {
    tickets: Tickets,
    since_start: u64,
}

impl Machine for ProcessLocalTickets {
    fn apply(&mut self, index: Index, command: &Bytes) -> Result<Bytes, MachineError> {
        self.since_start += 1;
        self.tickets.apply(index, command)?;
        Ok(reply(self.since_start))
    }

    fn query(&self, query: &Bytes) -> Result<Bytes, MachineError> {
        self.tickets.query(query)
    }

    fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
        self.tickets.snapshot()
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        self.tickets.install(chunks)
    }
}

#[test]
fn process_local_state_is_detected_and_the_run_is_shrunk() {
    let failure = try_machine(SEEDS, ProcessLocalTickets::default, || TicketClients).unwrap_err();
    assert_eq!(failure.violation.rule, "replay", "{failure}");
    // The shrunk run still shows the violation.
    let replay = &failure.replay;
    let trial = MachineTrial::new(ProcessLocalTickets::default, || TicketClients);
    let violation = trial.run(&replay.setting, &replay.actions).violation.unwrap();
    assert_eq!(violation.rule, "replay");
}

/// Loses a queue when it is restored from a snapshot.
#[derive(Default)]
struct LossyTickets(Tickets);

impl Machine for LossyTickets {
    fn apply(&mut self, index: Index, command: &Bytes) -> Result<Bytes, MachineError> {
        self.0.apply(index, command)
    }

    fn query(&self, query: &Bytes) -> Result<Bytes, MachineError> {
        self.0.query(query)
    }

    fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
        self.0.snapshot()
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        self.0.install(chunks)?;
        self.0.last.pop_last();
        Ok(())
    }
}

#[test]
fn a_snapshot_that_loses_data_is_detected() {
    let failure = try_machine(SEEDS, LossyTickets::default, || TicketClients).unwrap_err();
    assert_eq!(failure.violation.rule, "restore", "{failure}");
}

/// Deterministic, but wrong: only the workload's own check can detect it.
#[derive(Default)]
struct DuplicateTickets(Tickets);

impl Machine for DuplicateTickets {
    fn apply(&mut self, index: Index, command: &Bytes) -> Result<Bytes, MachineError> {
        if index.is_multiple_of(7) { self.0.query(command) } else { self.0.apply(index, command) }
    }

    fn query(&self, query: &Bytes) -> Result<Bytes, MachineError> {
        self.0.query(query)
    }

    fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
        self.0.snapshot()
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        self.0.install(chunks)
    }
}

#[test]
fn the_workload_detects_a_deterministic_error() {
    let failure = try_machine(SEEDS, DuplicateTickets::default, || TicketClients).unwrap_err();
    assert_eq!(failure.violation.rule, "one owner", "{failure}");
}
