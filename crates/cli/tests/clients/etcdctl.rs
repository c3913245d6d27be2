//! Runs etcd's `etcdctl`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;

use crate::support::{TEST_TIMEOUT, wait_until};

/// Whether the program is installed; prints a message if not.
pub(crate) fn installed(program: &str) -> bool {
    let installed = Command::new(program).arg("--version").output().is_ok();
    if !installed {
        eprintln!("skipped: {program} is not installed");
    }
    installed
}

/// `etcdctl` for these endpoints, without a command.
pub(crate) fn etcdctl(endpoints: &str) -> Command {
    let mut command = Command::new("etcdctl");
    let variables = std::env::vars().filter(|(name, _)| name.starts_with("ETCDCTL_"));
    variables.for_each(|(name, _)| {
        command.env_remove(name);
    });
    command.env("ETCDCTL_API", "3").arg("--endpoints").arg(endpoints);
    // Only a hang takes this long.
    command.args(["--command-timeout=120s", "--dial-timeout=60s"]);
    command
}

/// Runs it to the end, with this input.
pub(crate) fn run(mut command: Command, input: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It may exit without reading.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// Runs a command that must succeed. Returns its output.
pub(crate) fn succeed(endpoints: &str, line: &str) -> String {
    let mut command = etcdctl(endpoints);
    command.args(words(line));
    let output = run(command, "");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "etcdctl {line}: {error}");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// Runs a command that must fail. Returns its error without log lines.
pub(crate) fn refused(endpoints: &str, line: &str) -> String {
    let mut command = etcdctl(endpoints);
    command.args(words(line));
    let output = run(command, "");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "etcdctl {line}: {text}");
    without_logs(&String::from_utf8_lossy(&output.stderr))
}

/// Removes etcdctl's own log lines, which differ from run to run.
pub(crate) fn without_logs(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with("{\"level\""));
    lines.collect::<Vec<_>>().join("\n")
}

/// A running command, such as a watch.
pub(crate) struct CommandStream {
    command: String,
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl CommandStream {
    pub(crate) fn start(mut command: Command, input: &str) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        // It may exit without reading.
        let _ = child.stdin.as_mut().unwrap().write_all(input.as_bytes());
        let arguments: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        let command = arguments.join(" ");
        let (sender, lines) = mpsc::channel();
        let output = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { command, child, lines }
    }

    pub(crate) fn write(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(line.as_bytes()).unwrap();
    }

    pub(crate) fn line(&self) -> String {
        let line = self.lines.recv_timeout(TEST_TIMEOUT);
        line.unwrap_or_else(|_| panic!("timed out: a line of etcdctl {}", self.command))
    }

    /// Whether there is another line at the moment.
    pub(crate) fn has_line(&self) -> bool {
        self.lines.try_recv().is_ok()
    }

    /// Waits until the command ends by itself.
    pub(crate) fn wait_ended(&mut self) {
        let Self { child, command, .. } = self;
        let what = format!("etcdctl {command} ends");
        wait_until(|| child.try_wait().unwrap().is_some(), &what);
    }

    pub(crate) fn lines(&self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.line()).collect()
    }
}

impl Drop for CommandStream {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Splits a line like a shell that supports only single quotes.
pub(crate) fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    for (index, part) in line.split('\'').enumerate() {
        let quoted = index % 2 == 1;
        if quoted {
            word.get_or_insert_default().push_str(part);
            continue;
        }
        for character in part.chars() {
            match character {
                ' ' => words.extend(word.take()),
                _ => word.get_or_insert_default().push(character),
            }
        }
    }
    words.extend(word);
    words
}
