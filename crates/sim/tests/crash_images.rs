//! Every disk image that a crash of a short workload can leave, and long random workloads.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use quorate_core::{Boot, Entry, HardState, MemberId, Membership, Save, SaveId};
use quorate_sim::faulty_disk::FaultyDisk;
use quorate_sim::storage_check::{explore, walk};
use quorate_storage::{OpenedStore, Store, StoreConfig, StoreIdentity, StoreOwner};

#[test]
fn every_crash_of_every_short_workload_leaves_a_valid_disk() {
    let mut images = 0;
    // One large save fills a segment of the first size; the second size takes several
    // saves before a sync.
    for segment_bytes in [2560, 4096] {
        let report = explore(3, segment_bytes).unwrap_or_else(|violation| panic!("{violation}"));
        println!("segments of {segment_bytes} bytes: {report}");
        images += report.images;
    }
    assert!(images > 200_000, "{images}");
}

#[test]
fn long_workloads_survive_crashes_at_any_moment() {
    let (mut actions, mut crashes, mut faults) = (0, 0, 0);
    for seed in 0..300 {
        let report = walk(seed, 200).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        actions += report.actions;
        crashes += report.crashes;
        faults += report.faults;
    }
    println!("{actions} actions, {crashes} crashes, {faults} failures survived");
    assert!(crashes > 5_000 && faults > 500, "{crashes} {faults}");
}

/// Small segments, because every image is a copy.
const CONFIG: StoreConfig = StoreConfig::new().segment_bytes(8 << 10).tail_bytes_max(8 << 10);

/// Two saves are written and not synced. The first is torn, the second is whole. Then a
/// new record of the same length replaces the first: the old second record must not be
/// read after it.
#[test]
fn records_after_a_torn_write_never_reappear() {
    let expected = StoreOwner { cluster: 1, member: MemberId(1) };
    let open = |disk| Store::open(disk, expected, &CONFIG).unwrap();
    let OpenedStore { mut store, .. } = open(created());
    store.write(&save(2, &[7; 2000])).unwrap();
    store.write(&save(9, &[])).unwrap();
    let mut torn = 0;
    for image in store.disk().crash_images() {
        let OpenedStore { mut store, boot, .. } = open(image);
        if boot.hard_state.term > 1 {
            continue;
        }
        torn += 1;
        store.write(&save(3, &[8; 2000])).unwrap();
        store.sync().unwrap();
        let boot = open(store.into_disk()).boot;
        assert_eq!(boot.hard_state.term, 3);
        assert_eq!(boot.tail, save(3, &[8; 2000]).entries);
    }
    assert!(torn > 10, "{torn}");
}

fn created() -> FaultyDisk {
    let identity = StoreIdentity { cluster: 1, member: MemberId(1), incarnation: 1, joined_at: 0 };
    let mut disk = FaultyDisk::new();
    let boot = Boot::first(Membership::new([MemberId(1)], []));
    Store::create(&mut disk, identity, &boot, &CONFIG).unwrap();
    disk
}

fn save(term: u64, command: &[u8]) -> Save {
    let entry = (!command.is_empty()).then(|| Entry::command(term, 2, command.to_vec()));
    Save {
        id: SaveId(1),
        hard_state: Some(HardState { term, vote: None, commit: 1 }),
        entries: entry.into_iter().collect(),
        install: None,
        must_sync: true,
        then_send: Vec::new(),
    }
}
