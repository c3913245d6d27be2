//! Faults of a server's disk and wall clock, injected by a library that is loaded into its process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::server::TestServer;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskFault {
    /// Syncs do not return.
    Hung,
    /// Each sync takes 100 ms longer.
    Slow,
    /// Syncs and writes fail with an I/O error.
    Failing,
    /// Writes fail because no space is left.
    Full,
}

/// Makes it possible to inject faults into these servers when they are started. False without a
/// C compiler.
pub(crate) fn prepare(servers: &mut [TestServer], directory: &Path) -> bool {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/faulty_disk.c");
    let library = directory.join("faulty_disk.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl");
    let Ok(compiled) = compiler.output() else { return false };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    for server in servers {
        clear_disk(server);
        set_clock(server, 0);
        server.environment = [
            ("LD_PRELOAD", library.clone()),
            ("FAULTY_DISK", disk_file(server)),
            ("WRONG_CLOCK", clock_file(server)),
        ]
        .map(|(name, path)| (name.to_string(), path.to_str().unwrap().to_string()))
        .to_vec();
    }
    true
}

pub(crate) fn set_disk(server: &TestServer, fault: DiskFault) {
    let letter = match fault {
        DiskFault::Hung => "h",
        DiskFault::Slow => "s",
        DiskFault::Failing => "f",
        DiskFault::Full => "n",
    };
    fs::write(disk_file(server), letter).unwrap();
}

pub(crate) fn clear_disk(server: &TestServer) {
    let _ = fs::remove_file(disk_file(server));
}

/// Sets the wall clock of the server to this many seconds after the true time.
pub(crate) fn set_clock(server: &TestServer, seconds: i64) {
    match seconds {
        0 => drop(fs::remove_file(clock_file(server))),
        _ => fs::write(clock_file(server), seconds.to_string()).unwrap(),
    }
}

fn disk_file(server: &TestServer) -> PathBuf {
    server.log.with_extension("disk")
}

fn clock_file(server: &TestServer) -> PathBuf {
    server.log.with_extension("clock")
}
