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
fn a_follower_is_replaced_on_request() {
    assert_replaces("demo-follower", &["--follower"]);
}

/// Another program goes through the same procedure; here it is the same one under another name.
#[test]
fn two_clusters_are_compared() {
    let directory = TestDirectory::new("demo-beside");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("demo-beside-program");
    let _ = fs::remove_dir_all(&program);
    fs::create_dir_all(&program).unwrap();
    // A program named `etcd` takes etcd's flags.
    let etcd = program.join("etcd");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_quorate"), &etcd).unwrap();
    let beside = ["--once", "--seconds", "2", "--beside", etcd.to_str().unwrap()];
    let output = demo(&directory.path, &beside).output().unwrap();
    let all = output_text(&output);
    assert!(output.status.success(), "{all}");
    for part in [
        "quorate | replacing the leader m",
        "etcd    | replacing the leader m",
        "| longest write gap ",
        "| failed requests          | 0 ",
        "| steps for the operator   | 2 ",
        "Throttled: 4 clients, each pauses 10 ms",
    ] {
        assert!(all.contains(part), "no '{part}' in {all}");
    }
    assert_nothing_left(&directory.path, &all);
    fs::remove_dir_all(&program).unwrap();
}

/// The other program does not watch its standard input, and must not outlive the demo either.
#[test]
fn the_other_program_ends_when_the_demo_is_killed() {
    let directory = TestDirectory::new("demo-beside-kill");
    let script = directory.path.join("sleeper");
    fs::write(&script, "#!/bin/sh\n[ \"$1\" = --version ] && exit 0\nexec tail -f \"$0\"\n")
        .unwrap();
    let mut permissions = fs::metadata(&script).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
    fs::set_permissions(&script, permissions).unwrap();
    let data = directory.path.join("data");
    fs::create_dir(&data).unwrap();
    let flags = ["--program", script.to_str().unwrap()];
    let demo = TestProcess(demo(&data, &flags).stdout(Stdio::null()).spawn().unwrap());
    let running = || processes_in(&script).iter().filter(|line| line.starts_with("tail ")).count();
    wait_until(|| running() == 3, "the program runs three times");
    drop(demo);
    wait_until(|| processes_in(&directory.path).is_empty(), "all processes exit");
}

#[test]
fn a_missing_program_is_reported_before_anything_is_started() {
    let directory = TestDirectory::new("demo-missing");
    let output = demo(&directory.path, &["--beside", "no-such-program"]).output().unwrap();
    let text = output_text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("cannot run no-such-program"), "{text}");
    assert_nothing_left(&directory.path, &text);
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
