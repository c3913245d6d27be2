//! A URL that is accepted prints as the same URL.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    quorate_server::fuzzing::parse_url(text);
});
