//! A redb table after a crash holds the complete state after some earlier command; replaying
//! the log restores the rest.

use bytes::Bytes;
use quorate_kv::{Command, Compact, Kv, MemoryTable, Put, RedbTable, TableError};

use crate::disk::MemoryDisk;
use crate::generate::Generator;

fn open(disk: &MemoryDisk) -> Kv<RedbTable> {
    Kv::open(RedbTable::open(disk.clone(), "kv", 1 << 20).unwrap()).unwrap()
}

#[test]
fn crash_leaves_an_earlier_state_and_the_log_restores_the_rest() {
    let mut generator = Generator(7);
    let disk = MemoryDisk::default();
    let mut redb = open(&disk);
    let mut memory = Kv::open(MemoryTable::default()).unwrap();
    let mut log: Vec<Bytes> = Vec::new();
    // The hash of the state after each command, and before the first.
    let mut hashes = vec![memory.hash().unwrap()];
    let mut syncs_of_saves = 0;
    for step in 1..=40u64 {
        for _ in 0..450 {
            // Without alarms and quotas, which would refuse most commands.
            let command = loop {
                match generator.command(memory.revision()) {
                    Command::AlarmActivate(_) | Command::SetQuota(_) => {}
                    command => break command.encode(),
                }
            };
            log.push(command.clone());
            let index = log.len() as u64;
            let applied = memory.apply_bytes(index, &command).unwrap();
            assert_eq!(redb.apply_bytes(index, &command).unwrap(), applied);
            hashes.push(memory.hash().unwrap());
        }
        if step % 9 == 0 {
            let before = disk.syncs();
            redb.save().unwrap();
            syncs_of_saves += disk.syncs() - before;
            assert_eq!(open(&disk.crashed()).applied(), log.len() as u64);
        }
        let mut crashed = open(&disk.crashed());
        let applied = crashed.applied() as usize;
        assert!(applied <= log.len());
        assert_eq!(crashed.hash().unwrap(), hashes[applied], "after {applied} of {}", log.len());
        // The log may be replayed from the start or from the applied index of the table.
        let from = if step % 2 == 0 { 0 } else { applied };
        for (index, command) in log.iter().enumerate().skip(from) {
            let _ = crashed.apply_bytes(index as u64 + 1, command).unwrap();
        }
        assert_eq!(crashed.hash().unwrap(), hashes[log.len()]);
    }
    // 18,000 commands: few durable commits except the explicit saves.
    let automatic = disk.syncs() - syncs_of_saves;
    assert!(automatic < 20, "{automatic} syncs");
}

#[test]
fn crash_during_installation_leaves_the_old_state() {
    let mut generator = Generator(9);
    let mut source = Kv::open(MemoryTable::default()).unwrap();
    for index in 1..300 {
        let command = generator.command(source.revision());
        let _ = source.apply(index, &command).unwrap();
    }
    let value = Bytes::from(vec![1; 3 << 20]);
    let large = Put { key: "large".into(), value, ..Default::default() };
    let _ = source.apply(300, &Command::Put(large)).unwrap();
    let chunks: Vec<Bytes> = source.snapshot().unwrap().collect();
    let disk = MemoryDisk::default();
    let mut redb = open(&disk);
    let _ = redb.apply(1, &generator.command(1)).unwrap();
    redb.save().unwrap();
    let old = redb.hash().unwrap();
    // The crash comes with the last chunk, when all rows are staged.
    let last = chunks.len() - 1;
    let mut crashed = MemoryDisk::default();
    let mut watched = chunks.iter().cloned().enumerate().map(|(position, chunk)| {
        if position == last {
            crashed = disk.crashed();
        }
        chunk
    });
    redb.install(&mut watched).unwrap();
    assert_eq!(open(&crashed).hash().unwrap(), old);
    assert_eq!(redb.hash().unwrap(), source.hash().unwrap());
    // A finished installation is durable.
    assert_eq!(open(&disk.crashed()).hash().unwrap(), source.hash().unwrap());
}

#[test]
fn defragmentation_returns_space_unless_a_snapshot_is_read() {
    let disk = MemoryDisk::default();
    let mut kv = open(&disk);
    let value = Bytes::from(vec![1; 10_000]);
    for index in 1..=1_000 {
        let put = Put { key: "key".into(), value: value.clone(), ..Put::default() };
        let _ = kv.apply(index, &Command::Put(put)).unwrap();
    }
    let compact = Compact { revision: kv.revision() };
    let _ = kv.apply(1_001, &Command::Compact(compact)).unwrap();
    // The hash of the compaction reads a view.
    let mut applied = 1_001;
    while kv.is_compacting() {
        applied += 1;
        let _ = kv.apply(applied, &Command::Noop).unwrap();
    }
    kv.save().unwrap();
    let before = kv.bytes_total().unwrap();
    assert!(kv.bytes_in_use() < 20_000 && before > 5_000_000, "{before}");
    let snapshot = kv.snapshot().unwrap();
    assert!(matches!(kv.defragment(), Err(TableError::Busy)));
    // The snapshot and new commands still work.
    let _ = kv.apply(applied + 1, &Command::Noop).unwrap();
    assert!(snapshot.count() > 2);
    kv.defragment().unwrap();
    assert!(kv.bytes_total().unwrap() < before / 2);
    drop(kv);
    let kv = open(&disk);
    assert_eq!(kv.applied(), applied + 1);
    let mut other = Kv::open(MemoryTable::default()).unwrap();
    other.install(&mut kv.snapshot().unwrap()).unwrap();
    assert_eq!(other.hash().unwrap(), kv.hash().unwrap());
}
