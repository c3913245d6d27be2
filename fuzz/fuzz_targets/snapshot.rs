//! A damaged snapshot file is refused, or read with the bytes that were written.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use quorate_fuzz::{CONFIG, MemoryDisk, OWNER, SNAPSHOT, sample_store};
use quorate_storage::Store;

static SAMPLE: LazyLock<MemoryDisk> = LazyLock::new(sample_store);

fuzz_target!(|bytes: &[u8]| {
    let disk = SAMPLE.copy();
    disk.damage("snapshot-", bytes);
    let Ok(mut opened) = Store::open(disk, OWNER, &CONFIG) else { return };
    let Ok(mut reader) = opened.store.open_snapshot(SNAPSHOT) else { return };
    let mut state = Vec::new();
    while let Ok(Some(chunk)) = opened.store.read_snapshot(&mut reader) {
        state.extend_from_slice(&chunk);
    }
    let expected = [&b"state"[..], &[7; 300], b"more"].concat();
    assert!(expected.starts_with(&state));
});
