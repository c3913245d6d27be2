//! etcd's data model in simulated worlds, on both tables; and redb on a disk that
//! crashes at every moment.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod crashes;
mod damage;
mod resumed_machine;

use std::cell::Cell;

use quorate::Machine;
use quorate_kv::{BatchConfig, Kv, MemoryTable, RedbTable};
use quorate_sim::explore::{EtcdClients, RunReport, try_machine};
use quorate_sim::faulty_disk::SharedDisk;

const SEEDS: std::ops::Range<u64> = 0..30;

fn memory() -> Kv<MemoryTable> {
    Kv::open(MemoryTable::default()).unwrap()
}

fn redb() -> Kv<RedbTable> {
    let table = RedbTable::open(SharedDisk::default(), "kv", 1 << 20).unwrap();
    Kv::open(table).unwrap().with_batch_config(BatchConfig::default().commands(7).durable_every(3))
}

fn assert_enough_happened(report: &RunReport) {
    assert!(report.requests_done > 800, "{report}");
    assert!(report.snapshots_installed > 5 && report.elections > 30, "{report}");
}

#[test]
fn in_memory() {
    let report = try_machine(SEEDS, memory, EtcdClients::default).unwrap();
    assert_enough_happened(&report);
    // The same seeds are the same runs.
    assert_eq!(try_machine(SEEDS, memory, EtcdClients::default).unwrap(), report);
}

#[test]
fn on_redb() {
    let report = try_machine(SEEDS, redb, EtcdClients::default).unwrap();
    assert_enough_happened(&report);
    // What happens does not depend on the table.
    assert_eq!(try_machine(SEEDS, memory, EtcdClients::default).unwrap(), report);
}

/// A cluster in which every other start of a member uses the other table: snapshots
/// of one are installed into the other, and all must come to the same.
#[test]
fn on_both_at_once() {
    let started = Cell::new(0);
    let either = move || -> Box<dyn Machine> {
        started.set(started.get() + 1);
        if started.get() % 2 == 0 { Box::new(memory()) } else { Box::new(redb()) }
    };
    let report = try_machine(SEEDS, either, EtcdClients::default).unwrap();
    assert_enough_happened(&report);
}
