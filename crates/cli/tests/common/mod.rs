//! Processes of the binary, and what they print.

#![allow(dead_code, reason = "each test uses what it needs")]

pub(crate) mod cluster;
pub(crate) mod member;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Long enough for the slowest machine; only a hang takes so long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

pub(crate) fn quorate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
    // What the caller's shell says about clusters is not about this one.
    command.env_remove("QUORATE_ENDPOINTS").env_remove("ETCDCTL_ENDPOINTS");
    command
}

/// Runs a command that has to succeed, and gives what it printed.
pub(crate) fn run(arguments: &[&str]) -> String {
    let output = quorate().args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", both(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that has to fail, and gives its code and what it said.
pub(crate) fn run_refused(arguments: &[&str]) -> (Option<i32>, String) {
    let output = quorate().args(arguments).output().unwrap();
    assert!(!output.status.success(), "{arguments:?}: {}", both(&output));
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

pub(crate) fn both(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}", text(&output.stdout), text(&output.stderr))
}

/// A path for one test, gone with it.
pub(crate) struct Place {
    pub(crate) path: PathBuf,
}

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&path);
        Self { path }
    }

    pub(crate) fn text(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A process that ends with the test.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn start(command: &mut Command, log: &Path) -> Self {
        let log = fs::File::create(log).unwrap();
        let child = command.stdin(Stdio::piped()).stdout(log.try_clone().unwrap()).stderr(log);
        Self(child.spawn().unwrap())
    }

    pub(crate) fn interrupt(&self) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    }

    pub(crate) fn ended(&mut self) -> bool {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if self.0.try_wait().unwrap().is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ports that were free a moment ago, none of them twice.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    let held: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    held.iter().map(|one| one.local_addr().unwrap().port()).collect()
}

pub(crate) fn wait_until(holds: impl FnMut() -> bool, what: &str) {
    let mut holds = holds;
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until all of these have said where clients find them: servers say so as soon as there
/// is a leader, after they have begun to serve.
pub(crate) fn wait_published(clients: &[String]) {
    let said = || {
        let arguments = ["member", "list", "-w", "json", "--endpoints", &clients[0]];
        let list = quorate().args(arguments).output().unwrap();
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        clients.iter().all(|client| list.contains(client))
    };
    wait_until(said, "all have said where they are");
}
