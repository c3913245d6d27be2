//! Machines that keep their state on disks of their own, through every crash of their
//! members: what they have resumed does not run again, and what they have lost does.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use quorate::storage::StoreIdentity;
use quorate::{BadSnapshot, Machine, MachineError, SnapshotChunks};
use quorate_kv::{AnyTable, BatchConfig, Kv, RedbTable};
use quorate_sim::explore::{RunReport, Workload, try_machine};
use quorate_sim::faulty_disk::{FaultyDisk, SharedDisk};
use quorate_sim::random::Random;

use crate::{assert_enough_happened, memory};
use quorate_sim::explore::EtcdClients;

const SEEDS: std::ops::Range<u64> = 100..160;

/// The disks of all members, by their ids: an id that comes back in another world, or on a
/// new disk, finds what another owner has left.
#[derive(Clone, Default)]
struct MemberDisks {
    by_member: Rc<RefCell<BTreeMap<u64, FaultyDisk>>>,
    counts: Rc<ResumeCounts>,
}

#[derive(Default)]
struct ResumeCounts {
    /// Starts that continued from a state, and those that found another owner's.
    resumed: Cell<u64>,
    foreign: Cell<u64>,
    installed: Cell<u64>,
}

fn count(number: &Cell<u64>) {
    number.set(number.get() + 1);
}

/// In memory until a member starts with it, then on redb.
struct ResumedKv {
    kv: Kv<AnyTable>,
    disks: MemberDisks,
    member: u64,
    disk: SharedDisk,
}

impl ResumedKv {
    fn new(disks: &MemberDisks) -> Self {
        let kv = Kv::open(AnyTable::default()).unwrap();
        Self { kv, disks: disks.clone(), member: 0, disk: SharedDisk::default() }
    }
}

impl Machine for ResumedKv {
    fn resume(&mut self, owner: &StoreIdentity) -> Result<u64, MachineError> {
        self.member = owner.member.0;
        let found = self.disks.by_member.borrow_mut().remove(&self.member);
        self.disk = SharedDisk::new(found.unwrap_or_default());
        let table = RedbTable::open(self.disk.clone(), "kv", 1 << 20).unwrap();
        let kv = Kv::open(table.into()).unwrap();
        self.kv = kv.with_batch_config(BatchConfig::default().commands(2).durable_every(2));
        let before = self.kv.applied();
        let resumed = Machine::resume(&mut self.kv, owner)?;
        if before > 0 {
            count(if resumed > 0 {
                &self.disks.counts.resumed
            } else {
                &self.disks.counts.foreign
            });
        }
        assert_eq!(resumed, self.kv.applied());
        Ok(resumed)
    }

    fn save(&mut self) -> Result<(), MachineError> {
        Machine::save(&mut self.kv)
    }

    fn prepare(&mut self, commands: &[(u64, &[u8])]) {
        assert!(commands.iter().all(|(index, _)| *index > self.kv.applied()));
        Machine::prepare(&mut self.kv, commands);
    }

    fn apply(&mut self, index: u64, command: &Bytes) -> Result<Bytes, MachineError> {
        assert!(index > self.kv.applied(), "command {index} runs again");
        Machine::apply(&mut self.kv, index, command)
    }

    fn query(&self, query: &Bytes) -> Result<Bytes, MachineError> {
        Machine::query(&self.kv, query)
    }

    fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
        Machine::snapshot(&self.kv)
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        if self.member != 0 {
            count(&self.disks.counts.installed);
        }
        let before = self.kv.applied();
        Machine::install(&mut self.kv, chunks)?;
        assert!(self.kv.applied() >= before, "a snapshot takes back what was resumed");
        Ok(())
    }
}

/// The power fails: of what redb has not synced, anything may be there.
impl Drop for ResumedKv {
    fn drop(&mut self) {
        if self.member != 0 {
            self.disk.inner().stop_after(Some(0));
            let mut left = self.disk.inner().clone();
            left.crash(&mut Random::new(self.kv.applied()));
            self.disks.by_member.borrow_mut().insert(self.member, left);
        }
    }
}

/// Requests and changes of members by their results, and what these led to.
fn what_clients_see(report: &RunReport) -> [u64; 8] {
    let RunReport { requests_done, requests_refused, requests_unknown, .. } = *report;
    let RunReport { changes_done, changes_refused, changes_unknown, .. } = *report;
    let RunReport { memberships, goals_reached, .. } = *report;
    [
        requests_done,
        requests_refused,
        requests_unknown,
        changes_done,
        changes_refused,
        changes_unknown,
        memberships,
        goals_reached,
    ]
}

#[test]
fn redb_resumes_after_crashes() {
    let disks = MemberDisks::default();
    let counts = Rc::clone(&disks.counts);
    let report = try_machine(SEEDS, move || ResumedKv::new(&disks), EtcdClients::default);
    let report = report.unwrap_or_else(|failure| panic!("{failure}"));
    assert_enough_happened(&report);
    // What clients see does not depend on what is resumed. Messages do: a machine that is ahead of its log
    // cannot send its state, and a peer gets the snapshot on the disk instead.
    let in_memory = try_machine(SEEDS, memory, EtcdClients::default).unwrap();
    assert_eq!(what_clients_see(&in_memory), what_clients_see(&report));
    let [resumed, foreign, installed] =
        [&counts.resumed, &counts.foreign, &counts.installed].map(Cell::get);
    assert!(resumed > 50 && foreign > 20, "{resumed} resumed, {foreign} foreign");
    assert!(installed > 5, "{installed} installed");
}

/// Counts commands, and would count one twice that runs twice. Notes the number now and
/// then, with the entry that it is the number of.
struct CommandCounter {
    notes: Rc<RefCell<BTreeMap<Owner, (u64, u64)>>>,
    owner: Owner,
    index: u64,
    number: u64,
    /// Whether it reports that it continues from what it has recorded.
    reports_index: bool,
}

type Owner = (u64, u64);

fn command_counter(reports_index: bool) -> impl Fn() -> CommandCounter {
    let notes = Rc::default();
    move || CommandCounter {
        notes: Rc::clone(&notes),
        owner: (0, 0),
        index: 0,
        number: 0,
        reports_index,
    }
}

impl Machine for CommandCounter {
    fn resume(&mut self, owner: &StoreIdentity) -> Result<u64, MachineError> {
        self.owner = (owner.member.0, owner.incarnation);
        let noted = self.notes.borrow().get(&self.owner).copied();
        (self.index, self.number) = noted.unwrap_or_default();
        Ok(if self.reports_index { self.index } else { 0 })
    }

    fn save(&mut self) -> Result<(), MachineError> {
        self.notes.borrow_mut().insert(self.owner, (self.index, self.number));
        Ok(())
    }

    fn apply(&mut self, index: u64, command: &Bytes) -> Result<Bytes, MachineError> {
        (self.index, self.number) = (index, self.number + 1);
        if self.number.is_multiple_of(3) {
            self.save()?;
        }
        self.query(command)
    }

    fn query(&self, _query: &Bytes) -> Result<Bytes, MachineError> {
        Ok(Bytes::copy_from_slice(&self.number.to_le_bytes()))
    }

    fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
        let both = [self.index.to_le_bytes(), self.number.to_le_bytes()].concat();
        Ok(Box::new(std::iter::once(Ok(both.into()))))
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        let chunk = chunks.next().ok_or(BadSnapshot)?;
        let (index, number) = chunk.split_at_checked(8).ok_or(BadSnapshot)?;
        let read = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes);
        self.index = read(index).map_err(|_| BadSnapshot)?;
        self.number = read(number).map_err(|_| BadSnapshot)?;
        Ok(())
    }
}

struct Increments;

impl Workload for Increments {
    fn command(&mut self, _random: &mut Random) -> Bytes {
        Bytes::from_static(b"one more")
    }

    fn query(&mut self, _random: &mut Random) -> Bytes {
        Bytes::new()
    }
}

#[test]
fn resumed_commands_do_not_run_again() {
    let report = try_machine(SEEDS, command_counter(true), || Increments);
    assert_enough_happened(&report.unwrap_or_else(|failure| panic!("{failure}")));
}

/// If the node did not ask, or did not pass over what it was answered: this is what would
/// happen, and it is noticed.
#[test]
fn a_command_that_runs_twice_is_noticed() {
    let failure = try_machine(SEEDS, command_counter(false), || Increments).unwrap_err();
    let rule = failure.violation.rule;
    assert!(["I5", "R1", "replay"].contains(&rule), "{failure}");
}
