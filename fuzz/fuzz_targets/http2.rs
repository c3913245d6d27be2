//! Bytes of an HTTP/2 client never panic, and end in a bounded number of responses.

#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_http2::fuzzing;

fuzz_target!(|bytes: &[u8]| {
    let piece = bytes.first().map_or(1, |first| usize::from(*first) * 4 + 1);
    fuzzing::receive(bytes.get(1..).unwrap_or_default(), piece);
});
