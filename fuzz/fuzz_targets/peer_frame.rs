//! Bytes of a peer connection never panic.

#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate::tcp::fuzzing;

fuzz_target!(|bytes: &[u8]| {
    fuzzing::decode_frames(bytes);
    fuzzing::decode_message(bytes);
});
