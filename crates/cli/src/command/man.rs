//! `quorate man`: manual pages from the arguments, one for each command.

use std::fs;
use std::path::Path;

use clap::CommandFactory;

use crate::arguments::Arguments;
use crate::failure::Failure;

pub(crate) fn run(directory: &Path) -> Result<(), Failure> {
    let failed = |why: std::io::Error| {
        Failure::because(&format!("cannot write manual pages to {}", directory.display()), &why)
    };
    fs::create_dir_all(directory).map_err(failed)?;
    clap_mangen::generate_to(Arguments::command(), directory).map_err(failed)
}
