//! Any text is a configuration file or is refused.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = quorate_server::fuzzing::parse_config_file(text);
});
