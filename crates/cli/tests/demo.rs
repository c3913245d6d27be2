//! `quorate demo`: it replaces a member and leaves no process or directory behind.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use support::{TestDirectory, TestProcess, output_text, quorate, wait_for_text, wait_until};

#[test]
fn a_member_is_replaced_under_load() {
    assert_replaces("demo-replace", &[]);
}

/// All connections use mutual TLS; certificates are removed with the data.
#[test]
fn a_member_is_replaced_over_tls() {
    assert_replaces("demo-tls", &["--tls"]);
}

/// The demo with these flags replaces a member, loses nothing and leaves nothing behind.
fn assert_replaces(directory: &str, flags: &[&str]) {
    let directory = TestDirectory::new(directory);
    let arguments = [&["--once", "--seconds", "2"][..], flags].concat();
    let output = demo(&directory.path, &arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let all = output_text(&output);
    assert!(output.status.success(), "{all}");
    assert!(text.contains("m4 has replaced m"), "{all}");
    assert!(text.contains("failed requests: 0\n"), "{all}");
    let read_back = number_after(&text, "acknowledged writes read back: ");
    let total = number_after(&text, &format!("read back: {read_back} of "));
    assert!(read_back > 0 && read_back == total, "{all}");
    assert!(text.contains("longest write gap: "), "{all}");
    assert!(text.ends_with("all members are stopped\nthe members' data is removed\n"), "{all}");
    assert_nothing_left(&directory.path, &all);
}

#[test]
fn signals_at_any_moment_leave_nothing_behind() {
    for signal in ["INT", "TERM", "HUP"] {
        let directory = TestDirectory::new("demo-start");
        let mut demo = started(&directory.path);
        wait_until(|| !processes_in(&directory.path).is_empty(), "the first member runs");
        end(&mut demo, signal);
        assert_nothing_left(&directory.path, signal);
    }
    for signal in ["INT", "TERM"] {
        let directory = TestDirectory::new("demo-middle");
        let log = directory.path.with_extension("log");
        let mut command = demo(&directory.path, &["--seconds", "2"]);
        let mut demo = TestProcess::start(&mut command, &log);
        wait_for_text(&log, "with m4");
        end(&mut demo, signal);
        let text = fs::read_to_string(&log).unwrap();
        fs::remove_file(&log).unwrap();
        assert!(
            text.ends_with("interrupted\nall members are stopped\nthe members' data is removed\n"),
            "{text}"
        );
        assert_nothing_left(&directory.path, signal);
    }
}

#[test]
fn a_closed_output_pipe_ends_the_demo() {
    let directory = TestDirectory::new("demo-pipe");
    let mut demo = TestProcess(demo(&directory.path, &[]).stdout(Stdio::piped()).spawn().unwrap());
    wait_until(|| processes_in(&directory.path).len() >= 3, "three members run");
    drop(demo.0.stdout.take());
    demo.wait_exit("the demo");
    assert_nothing_left(&directory.path, "after a closed pipe");
}

#[test]
fn members_exit_when_the_demo_is_killed() {
    let directory = TestDirectory::new("demo-kill");
    let demo = started(&directory.path);
    wait_until(|| processes_in(&directory.path).len() >= 3, "three members run");
    drop(demo);
    wait_until(|| processes_in(&directory.path).is_empty(), "the members exit");
}

#[test]
fn a_given_directory_is_kept() {
    let directory = TestDirectory::new("demo-given");
    let given = directory.path.join("given");
    let mut command = demo(&directory.path, &["--data-dir", given.to_str().unwrap()]);
    let mut demo = TestProcess(command.stdout(Stdio::piped()).spawn().unwrap());
    wait_until(|| processes_in(&given).len() >= 4, "three members run");
    wait_until(|| given.join("m1").join("member").exists(), "the first member has data there");
    end(&mut demo, "INT");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut demo.0.stdout.take().unwrap(), &mut text).unwrap();
    assert!(text.contains(&format!("the members' data is in {}", given.display())), "{text}");
    assert!(given.join("m1").join("member").exists() && given.join("m1.log").exists());
    assert_eq!(processes_in(&given), Vec::<String>::new());

    // A directory with files is refused and not changed.
    let output = command.arg("--once").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("is not empty"), "{text}");
    assert!(given.join("m1.log").exists());
}

/// With this directory for temporary files.
fn demo(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = quorate();
    command.env("TMPDIR", directory).arg("demo").args(arguments);
    command
}

fn started(directory: &Path) -> TestProcess {
    TestProcess(demo(directory, &[]).stdout(Stdio::null()).spawn().unwrap())
}

fn end(demo: &mut TestProcess, signal: &str) {
    demo.signal(signal);
    demo.wait_exit("the demo");
}

fn assert_nothing_left(directory: &Path, after: &str) {
    assert_eq!(processes_in(directory), Vec::<String>::new(), "{after}");
    let left: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?} {after}");
}

/// The command lines of the processes that name this directory.
fn processes_in(path: &Path) -> Vec<String> {
    let path = path.to_string_lossy().into_owned();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(&path)).collect()
}

fn number_after(text: &str, label: &str) -> u64 {
    let (_, rest) = text.split_once(label).unwrap_or_else(|| panic!("no '{label}' in\n{text}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}
