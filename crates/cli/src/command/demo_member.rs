//! A member of the demo. It exits when its standard input is closed, which happens even if the
//! demo is killed, so that no member outlives the demo.

use std::ffi::OsString;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::CliError;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Quorate's own server.
pub(crate) fn run(arguments: &[OsString]) -> Result<(), CliError> {
    std::thread::spawn(|| {
        wait_for_end_of_input();
        std::process::exit(0);
    });
    super::server::run(arguments)
}

/// Another program, the first of the arguments. It is killed when the input is closed.
pub(crate) fn run_program(arguments: &[OsString]) -> Result<(), CliError> {
    let Some((program, rest)) = arguments.split_first() else {
        return Err(CliError::usage("no program is given"));
    };
    let failed = |error: std::io::Error| {
        CliError::with_cause(&format!("cannot run {}", program.display()), &error)
    };
    let mut child =
        Command::new(program).args(rest).stdin(Stdio::null()).spawn().map_err(failed)?;
    let closed = Arc::new(AtomicBool::new(false));
    let closed_by_demo = closed.clone();
    std::thread::spawn(move || {
        wait_for_end_of_input();
        closed_by_demo.store(true, Ordering::Relaxed);
    });
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return match status.success() {
                true => Ok(()),
                false => Err(CliError::failed(format!("{} ended: {status}", program.display()))),
            };
        }
        if closed.load(Ordering::Relaxed) {
            child.kill().map_err(failed)?;
            child.wait().map_err(failed)?;
            return Ok(());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The demo holds the other end and never writes.
fn wait_for_end_of_input() {
    let mut buffer = [0; 64];
    while std::io::stdin().read(&mut buffer).is_ok_and(|read| read > 0) {}
}
