//! A token is valid or is refused; a value of `--auth-token` likewise.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = quorate_server::fuzzing::check_jwt(text);
    quorate_server::fuzzing::parse_token_flag(text);
});
