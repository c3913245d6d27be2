//! Machines that keep their state on disks of their own, through every crash of their
//! members: what they have kept does not run again, and what they have lost does.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use quorate::{BadSnapshot, Machine, MachineError, SnapshotChunks, StoreIdentity};
use quorate_kv::{AnyTable, BatchConfig, Kv, RedbTable};
use quorate_sim::explore::{Workload, try_machine};
use quorate_sim::faulty_disk::{FaultyDisk, SharedDisk};
use quorate_sim::random::Random;

use crate::workload::EtcdClients;
use crate::{memory, was_put_to_the_test};

const SEEDS: std::ops::Range<u64> = 100..160;

/// The disks of all members, by their ids: an id that comes back in another world, or on a
/// new disk, finds what another owner has left.
#[derive(Clone, Default)]
struct Drawer {
    disks: Rc<RefCell<BTreeMap<u64, FaultyDisk>>>,
    seen: Rc<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Starts that continued from a state, and those that found another owner's.
    resumed: Cell<u64>,
    foreign: Cell<u64>,
    installed: Cell<u64>,
}

fn count(number: &Cell<u64>) {
    number.set(number.get() + 1);
}

/// In memory until a member starts with it, then on redb.
struct Kept {
    kv: Kv<AnyTable>,
    drawer: Drawer,
    member: u64,
    disk: SharedDisk,
}

impl Kept {
    fn new(drawer: &Drawer) -> Self {
        let kv = Kv::open(AnyTable::default()).unwrap();
        Self { kv, drawer: drawer.clone(), member: 0, disk: SharedDisk::default() }
    }
}

impl Machine for Kept {
    fn resume(&mut self, owner: &StoreIdentity) -> u64 {
        self.member = owner.member.0;
        let found = self.drawer.disks.borrow_mut().remove(&self.member);
        self.disk = SharedDisk::new(found.unwrap_or_default());
        let table = RedbTable::open(self.disk.clone(), "kv", 1 << 20).unwrap();
        let kv = Kv::open(table.into()).unwrap();
        self.kv = kv.with_batch_config(BatchConfig::default().commands(2).durable_every(2));
        let had = self.kv.applied();
        let kept = Machine::resume(&mut self.kv, owner);
        if had > 0 {
            count(if kept > 0 { &self.drawer.seen.resumed } else { &self.drawer.seen.foreign });
        }
        assert_eq!(kept, self.kv.applied());
        kept
    }

    fn save(&mut self) -> Result<(), MachineError> {
        Machine::save(&mut self.kv)
    }

    fn apply(&mut self, index: u64, command: &Bytes) -> Result<Bytes, MachineError> {
        assert!(index > self.kv.applied(), "command {index} runs again");
        Machine::apply(&mut self.kv, index, command)
    }

    fn query(&self, question: &Bytes) -> Result<Bytes, MachineError> {
        Machine::query(&self.kv, question)
    }

    fn snapshot(&self) -> SnapshotChunks {
        Machine::snapshot(&self.kv)
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), BadSnapshot> {
        if self.member != 0 {
            count(&self.drawer.seen.installed);
        }
        let before = self.kv.applied();
        Machine::install(&mut self.kv, chunks)?;
        assert!(self.kv.applied() >= before, "a snapshot takes back what was kept");
        Ok(())
    }
}

/// The power fails: of what redb has not synced, anything may be there.
impl Drop for Kept {
    fn drop(&mut self) {
        if self.member != 0 {
            self.disk.inner().stop_after(Some(0));
            let mut left = self.disk.inner().clone();
            left.crash(&mut Random::new(self.kv.applied()));
            self.drawer.disks.borrow_mut().insert(self.member, left);
        }
    }
}

#[test]
fn redb_goes_on_where_it_was() {
    let drawer = Drawer::default();
    let seen = Rc::clone(&drawer.seen);
    let report = try_machine(SEEDS, move || Kept::new(&drawer), EtcdClients::default);
    let report = report.unwrap_or_else(|failure| panic!("{failure}"));
    was_put_to_the_test(&report);
    // What clients see does not depend on what is kept.
    assert_eq!(try_machine(SEEDS, memory, EtcdClients::default).unwrap(), report);
    let [resumed, foreign, installed] =
        [&seen.resumed, &seen.foreign, &seen.installed].map(Cell::get);
    assert!(resumed > 50 && foreign > 20, "{resumed} resumed, {foreign} foreign");
    assert!(installed > 5, "{installed} installed");
}

/// Counts commands, and would count one twice that runs twice. Notes the number now and
/// then, with the entry that it is the number of.
struct Tally {
    notes: Rc<RefCell<BTreeMap<Owner, (u64, u64)>>>,
    owner: Owner,
    index: u64,
    number: u64,
    /// Whether it reports that it continues from what it has recorded.
    says_so: bool,
}

type Owner = (u64, u64);

fn tally(says_so: bool) -> impl Fn() -> Tally {
    let notes = Rc::default();
    move || Tally { notes: Rc::clone(&notes), owner: (0, 0), index: 0, number: 0, says_so }
}

impl Machine for Tally {
    fn resume(&mut self, owner: &StoreIdentity) -> u64 {
        self.owner = (owner.member.0, owner.incarnation);
        let noted = self.notes.borrow().get(&self.owner).copied();
        (self.index, self.number) = noted.unwrap_or_default();
        if self.says_so { self.index } else { 0 }
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

    fn query(&self, _question: &Bytes) -> Result<Bytes, MachineError> {
        Ok(Bytes::copy_from_slice(&self.number.to_le_bytes()))
    }

    fn snapshot(&self) -> SnapshotChunks {
        let both = [self.index.to_le_bytes(), self.number.to_le_bytes()].concat();
        Box::new(std::iter::once(both.into()))
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), BadSnapshot> {
        let chunk = chunks.next().ok_or(BadSnapshot)?;
        let (index, number) = chunk.split_at_checked(8).ok_or(BadSnapshot)?;
        let read = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes);
        self.index = read(index).map_err(|_| BadSnapshot)?;
        self.number = read(number).map_err(|_| BadSnapshot)?;
        Ok(())
    }
}

struct Steps;

impl Workload for Steps {
    fn command(&mut self, _random: &mut Random) -> Bytes {
        Bytes::from_static(b"one more")
    }

    fn question(&mut self, _random: &mut Random) -> Bytes {
        Bytes::new()
    }
}

#[test]
fn what_was_kept_does_not_run_again() {
    let report = try_machine(SEEDS, tally(true), || Steps);
    was_put_to_the_test(&report.unwrap_or_else(|failure| panic!("{failure}")));
}

/// If the node did not ask, or did not pass over what it was answered: this is what would
/// happen, and it is noticed.
#[test]
fn a_command_that_runs_twice_is_noticed() {
    let failure = try_machine(SEEDS, tally(false), || Steps).unwrap_err();
    let rule = failure.violation.rule;
    assert!(["I5", "R1", "replay"].contains(&rule), "{failure}");
}
