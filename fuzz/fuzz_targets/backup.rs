//! A damaged backup is refused, or installed as far as its checksums allow.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    quorate_server::fuzzing::restore_backup(bytes);
});
