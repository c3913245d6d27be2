//! Requests of clients never panic, whatever they contain.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    quorate_server::fuzzing::run_requests(bytes);
});
