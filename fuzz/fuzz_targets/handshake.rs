//! What strangers send to the peer port first never panics.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    quorate::tcp::fuzzing::decode_handshake(bytes);
});
