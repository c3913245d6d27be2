//! The demo, as somebody would run it: three processes, a fourth, and nothing left behind.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Place, Running, both, quorate, wait_until};

#[test]
fn a_member_is_replaced_under_load() {
    let place = made("demo-replace");
    let output = demo(&place.path, &["--once", "--seconds", "2"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let all = both(&output);
    assert!(output.status.success(), "{all}");
    assert!(text.contains("m4 has replaced m"), "{all}");
    assert!(text.contains("failed requests: 0\n"), "{all}");
    let found = number_after(&text, "acknowledged writes found again: ");
    let of = number_after(&text, &format!("found again: {found} of "));
    assert!(found > 0 && found == of, "{all}");
    assert!(text.contains("longest write gap: "), "{all}");
    assert!(text.ends_with("all members are stopped\nthe members' data is removed\n"), "{all}");
    assert_nothing_left(&place.path, &all);
}

#[test]
fn an_end_at_any_moment_leaves_nothing_behind() {
    for signal in ["-INT", "-TERM", "-HUP"] {
        let place = made("demo-start");
        let mut demo = started(&place.path);
        wait_until(|| !processes_in(&place.path).is_empty(), "the first member runs");
        end(&mut demo, signal);
        assert_nothing_left(&place.path, signal);
    }
    for signal in ["-INT", "-TERM"] {
        let place = made("demo-middle");
        let log = place.path.with_extension("log");
        let mut command = demo(&place.path, &["--seconds", "2"]);
        let mut running = Running::start(&mut command, &log);
        let replaces = || fs::read_to_string(&log).unwrap().contains("m4 is to replace");
        wait_until(replaces, "the replacement begins");
        end(&mut running, signal);
        let text = fs::read_to_string(&log).unwrap();
        fs::remove_file(&log).unwrap();
        assert!(
            text.ends_with("interrupted\nall members are stopped\nthe members' data is removed\n"),
            "{text}"
        );
        assert_nothing_left(&place.path, signal);
    }
}

#[test]
fn the_end_of_who_reads_is_the_end_of_the_demo() {
    let place = made("demo-pipe");
    let mut demo = Running(demo(&place.path, &[]).stdout(Stdio::piped()).spawn().unwrap());
    wait_until(|| processes_in(&place.path).len() >= 3, "three members run");
    drop(demo.0.stdout.take());
    assert!(demo.ended(), "the demo goes on for nobody");
    assert_nothing_left(&place.path, "after a closed pipe");
}

#[test]
fn members_end_with_a_demo_that_is_killed() {
    let place = made("demo-kill");
    let demo = started(&place.path);
    wait_until(|| processes_in(&place.path).len() >= 3, "three members run");
    drop(demo);
    wait_until(|| processes_in(&place.path).is_empty(), "the members end");
}

#[test]
fn a_directory_that_was_asked_for_stays() {
    let place = made("demo-given");
    let given = place.path.join("given");
    let mut command = demo(&place.path, &["--data-dir", given.to_str().unwrap()]);
    let mut running = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    wait_until(|| processes_in(&given).len() >= 4, "three members run");
    wait_until(|| given.join("m1").join("member").exists(), "the first one keeps its data there");
    end(&mut running, "-INT");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut running.0.stdout.take().unwrap(), &mut text).unwrap();
    assert!(text.contains(&format!("the members' data is in {}", given.display())), "{text}");
    assert!(given.join("m1").join("member").exists() && given.join("m1.log").exists());
    assert_eq!(processes_in(&given), Vec::<String>::new());

    // And what is there is not touched.
    let output = command.arg("--once").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("is not empty"), "{text}");
    assert!(given.join("m1.log").exists());
}

fn made(name: &str) -> Place {
    let place = Place::new(name);
    fs::create_dir_all(&place.path).unwrap();
    place
}

/// Its temporary directory is in this place.
fn demo(place: &Path, arguments: &[&str]) -> Command {
    let mut command = quorate();
    command.env("TMPDIR", place).arg("demo").args(arguments);
    command
}

fn started(place: &Path) -> Running {
    Running(demo(place, &[]).stdout(Stdio::null()).spawn().unwrap())
}

fn end(demo: &mut Running, signal: &str) {
    let id = demo.0.id().to_string();
    assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    assert!(demo.ended(), "the demo goes on after {signal}");
}

fn assert_nothing_left(place: &Path, what: &str) {
    assert_eq!(processes_in(place), Vec::<String>::new(), "{what}");
    let left: Vec<_> = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?} {what}");
}

/// Command lines that name this place: of the members.
fn processes_in(path: &Path) -> Vec<String> {
    let wanted = path.to_string_lossy().into_owned();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(&wanted)).collect()
}

fn number_after(text: &str, words: &str) -> u64 {
    let (_, rest) = text.split_once(words).unwrap_or_else(|| panic!("no '{words}' in\n{text}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}
