//! Commands, queries and replies round-trip, and applying a command never panics.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    quorate_server::fuzzing::run_command(bytes);
});
