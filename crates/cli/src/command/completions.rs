//! `quorate completions`: completion scripts for shells.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::error::CliError;
use crate::print;

pub(crate) fn run(shell: Shell) -> Result<(), CliError> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "quorate", &mut text);
    print::out(&String::from_utf8_lossy(&text));
    Ok(())
}
