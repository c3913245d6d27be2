//! Every disk image that a crash of a short workload can leave, and long random workloads.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use quorate_core::{
    Boot, Entry, EntryId, HardState, MemberId, Membership, Save, SaveId, SnapshotMeta,
};
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

/// A received snapshot was checked and is durable, and the save that replaces the log by it has
/// yet to come. A crash in between changes nothing: the member continues from its log, and can
/// receive the snapshot again.
#[test]
fn a_crash_between_a_received_snapshot_and_its_save_keeps_the_log() {
    let expected = StoreOwner { cluster: 1, member: MemberId(1) };
    let open = |disk| Store::open(disk, expected, &CONFIG).unwrap();
    let OpenedStore { mut store, boot: first, .. } = open(created());
    store.write(&save(2, &[7; 100])).unwrap();
    store.sync().unwrap();
    let membership = Arc::new(Membership::new([MemberId(1), MemberId(2)], []));
    let meta = SnapshotMeta { id: EntryId::new(3, 50), membership };
    let receive = |store: &mut Store<FaultyDisk>| {
        let mut writer = store.begin_snapshot(meta.clone()).unwrap();
        for _ in 0..3 {
            store.append_snapshot(&mut writer, &[9; 1_000]).unwrap();
        }
        store.finish_snapshot(writer).unwrap();
    };
    let mut images = store.disk().crash_images().count();
    receive(&mut store);
    let received: Vec<FaultyDisk> = store.disk().crash_images().collect();
    images += received.len();
    for image in received {
        let OpenedStore { mut store, boot, .. } = open(image);
        assert_eq!(boot.snapshot.id, first.snapshot.id);
        assert_eq!(boot.tail, save(2, &[7; 100]).entries);
        assert_eq!(boot.hard_state.term, 2);
        receive(&mut store);
        let hard_state = Some(HardState { term: 3, vote: None, commit: 50 });
        let install = Some(meta.clone());
        store.write(&Save { hard_state, install, ..save(3, &[]) }).unwrap();
        store.sync().unwrap();
        for image in store.disk().crash_images() {
            let boot = open(image).boot;
            assert_eq!((boot.snapshot.id, boot.hard_state.term), (meta.id, 3));
            assert!(boot.tail.is_empty());
        }
    }
    assert!(images > 2, "{images}");
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
