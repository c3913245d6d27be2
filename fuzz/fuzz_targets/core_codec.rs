//! Bytes that decode to a value of the core encode to the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    quorate_server::fuzzing::decode_core_values(bytes);
});
