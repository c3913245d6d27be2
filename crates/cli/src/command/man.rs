//! `quorate man`: manual pages, generated from the arguments, one per command.

use std::fs;
use std::path::Path;

use clap::CommandFactory;

use crate::arguments::Arguments;
use crate::error::CliError;

pub(crate) fn run(directory: &Path) -> Result<(), CliError> {
    let failed = |error: std::io::Error| {
        CliError::with_cause(
            &format!("cannot write manual pages to {}", directory.display()),
            &error,
        )
    };
    fs::create_dir_all(directory).map_err(failed)?;
    clap_mangen::generate_to(Arguments::command(), directory).map_err(failed)
}
