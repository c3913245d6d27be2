//! A member that must not outlive the demo: it ends when its standard input does, which
//! happens also when the demo is killed.

use std::ffi::OsString;
use std::io::Read;

use crate::failure::Failure;

pub(crate) fn run(arguments: &[OsString]) -> Result<(), Failure> {
    std::thread::spawn(|| {
        let mut nothing = [0; 64];
        // Whoever holds the other end never writes.
        while std::io::stdin().read(&mut nothing).is_ok_and(|read| read > 0) {}
        std::process::exit(0);
    });
    super::server::run(arguments)
}
