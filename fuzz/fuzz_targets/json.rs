//! A JSON request of the gateway is refused, or becomes a message that is written as the same
//! JSON; bytes that are no message are an error.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    quorate_server::fuzzing::parse_json(bytes);
    quorate_server::fuzzing::write_json(bytes);
});
