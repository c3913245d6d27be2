//! Any text is a story or is refused.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = quorate_sim::fuzzing::parse_story(text);
});
