//! Shared by the tests: runs the binary, starts and stops servers, waits for conditions.

#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod cluster;
pub(crate) mod messages;
pub(crate) mod proxy;
pub(crate) mod server;

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Long enough for the slowest machine: only a hang takes this long.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(180);
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) fn quorate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
    // The variables of the caller's shell name other clusters.
    command.env_remove("QUORATE_ENDPOINTS").env_remove("ETCDCTL_ENDPOINTS");
    for name in ["QUORATE_USER", "ETCDCTL_USER", "QUORATE_PASSWORD", "ETCDCTL_PASSWORD"] {
        command.env_remove(name);
    }
    command
}

/// Runs a command that must succeed. Returns its standard output.
pub(crate) fn run(arguments: &[&str]) -> String {
    let output = quorate().args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", output_text(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail. Returns its exit code and its standard error.
pub(crate) fn run_failing(arguments: &[&str]) -> (Option<i32>, String) {
    let output = quorate().args(arguments).output().unwrap();
    assert!(!output.status.success(), "{arguments:?}: {}", output_text(&output));
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Standard output and standard error.
pub(crate) fn output_text(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}", text(&output.stdout), text(&output.stderr))
}

/// An empty directory of one test, removed when dropped.
pub(crate) struct TestDirectory {
    pub(crate) path: PathBuf,
    kept: bool,
}

impl TestDirectory {
    pub(crate) fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self { path, kept: false }
    }

    /// A directory for several runs, which is neither emptied nor removed.
    pub(crate) fn keep(path: &Path) -> Self {
        fs::create_dir_all(path).unwrap();
        Self { path: fs::canonicalize(path).unwrap(), kept: true }
    }

    /// The path of a file in it, as an argument of a command.
    pub(crate) fn file(&self, name: &str) -> String {
        self.path.join(name).to_str().unwrap().to_string()
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        if !self.kept {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// A process that is killed when dropped.
pub(crate) struct TestProcess(pub(crate) Child);

impl TestProcess {
    /// Starts a command with both of its outputs in this file.
    pub(crate) fn start(command: &mut Command, log: &Path) -> Self {
        let log = fs::File::create(log).unwrap();
        let child = command.stdin(Stdio::piped()).stdout(log.try_clone().unwrap()).stderr(log);
        Self(child.spawn().unwrap())
    }

    /// Sends a signal, such as `INT`.
    pub(crate) fn signal(&self, signal: &str) {
        let id = self.0.id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &id]).status().unwrap();
        assert!(sent.success(), "kill -{signal} {id}");
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// Waits until the process exits by itself. Returns its exit code.
    pub(crate) fn wait_exit(&mut self, name: &str) -> Option<i32> {
        wait_until(|| !self.is_running(), &format!("{name} exits"));
        self.0.wait().unwrap().code()
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Different ports that were free a moment ago.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    quorate_server::free_ports(count).unwrap()
}

/// Different URLs on this machine whose ports were free a moment ago.
pub(crate) fn free_urls<const N: usize>() -> [String; N] {
    let mut ports = free_ports(N).into_iter();
    std::array::from_fn(|_| format!("http://127.0.0.1:{}", ports.next().unwrap()))
}

pub(crate) fn wait_until(mut condition: impl FnMut() -> bool, description: &str) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < TEST_TIMEOUT, "timed out: {description}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

pub(crate) fn wait_for_text(file: &Path, text: &str) {
    let contains = || fs::read_to_string(file).is_ok_and(|content| content.contains(text));
    wait_until(contains, &format!("'{text}' is in {}", file.display()));
}

/// Fetches a page over HTTP/1, on a new connection, with its head.
pub(crate) fn http_page(address: impl ToSocketAddrs, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TEST_TIMEOUT))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    Ok(page)
}
