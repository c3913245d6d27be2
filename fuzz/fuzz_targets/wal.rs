//! A damaged write-ahead log is refused, or recovered with entries that were written.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use quorate_core::Payload;
use quorate_fuzz::{CONFIG, MemoryDisk, OWNER, sample_store};
use quorate_storage::{Store, fuzzing};

static SAMPLE: LazyLock<MemoryDisk> = LazyLock::new(sample_store);

fuzz_target!(|bytes: &[u8]| {
    fuzzing::decode_record_body(bytes);
    let disk = SAMPLE.copy();
    disk.damage("wal-", bytes);
    let Ok(mut opened) = Store::open(disk, OWNER, &CONFIG) else { return };
    let entries = opened.store.load(2..41, u64::MAX).unwrap_or_default();
    for entry in entries.iter() {
        assert_eq!(entry.id.term, 2);
        assert!(matches!(&entry.payload, Payload::Command(command) if command.len() == 100));
    }
});
