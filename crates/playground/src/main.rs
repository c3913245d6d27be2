//! The program of the playground page. Reads one request from standard input, and writes the
//! answer as JSON to standard output.
//!
//! The page runs it in the browser, as WebAssembly (`scripts/playground.sh` builds that); a
//! terminal can run it as well. The first line of the input is the request, the rest is a story:
//!
//! - `presets`: the stories to begin with
//! - `play`: each command, with the cluster after it
//! - `export`: the story with its transcripts, which `quorate-sim scenario` plays and compares
//!
//! Every request plays from the beginning: a story leads to the same cluster each time, so going
//! back needs no memory.

#![forbid(unsafe_code)]

mod answer;
mod presets;

use std::io::{Read, Write};

fn main() -> std::io::Result<()> {
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input)?;
    let answer = answer::answer(&input);
    std::io::stdout().write_all(answer.to_string().as_bytes())
}
