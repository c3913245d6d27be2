//! A member of the demo. It exits when its standard input is closed, which happens even if the
//! demo is killed, so that no member outlives the demo.

use std::ffi::OsString;
use std::io::Read;

use crate::error::CliError;

pub(crate) fn run(arguments: &[OsString]) -> Result<(), CliError> {
    std::thread::spawn(|| {
        let mut buffer = [0; 64];
        // The demo holds the other end and never writes.
        while std::io::stdin().read(&mut buffer).is_ok_and(|read| read > 0) {}
        std::process::exit(0);
    });
    super::server::run(arguments)
}
