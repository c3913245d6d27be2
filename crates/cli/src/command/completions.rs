//! `quorate completions`: what a shell needs to finish what is typed.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::failure::Failure;
use crate::print;

pub(crate) fn run(shell: Shell) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "quorate", &mut text);
    print::out(&String::from_utf8_lossy(&text));
    Ok(())
}
