//! The demo, as somebody would run it: three processes, a fourth, and nothing left behind.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Place, Running, both, quorate, wait_until};

#[test]
fn a_member_is_replaced_under_load() {
    let place = Place::new("demo-replace");
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
    assert!(!place.path.exists(), "the directory is still there\n{all}");
    assert_eq!(processes_in(&place.path), Vec::<String>::new(), "{all}");
}

#[test]
fn an_interruption_leaves_nothing_behind() {
    let place = Place::new("demo-interrupt");
    let mut demo = Running(demo(&place.path, &[]).stdout(Stdio::null()).spawn().unwrap());
    wait_until(|| processes_in(&place.path).len() >= 4, "three members run");
    demo.interrupt();
    assert!(demo.ended(), "the demo goes on after an interruption");
    assert_eq!(processes_in(&place.path), Vec::<String>::new());
    assert!(!place.path.exists());
}

#[test]
fn members_end_with_a_demo_that_is_killed() {
    let place = Place::new("demo-kill");
    let demo = Running(demo(&place.path, &[]).stdout(Stdio::null()).spawn().unwrap());
    wait_until(|| processes_in(&place.path).len() >= 4, "three members run");
    drop(demo);
    wait_until(|| processes_in(&place.path).is_empty(), "the members end");
}

#[test]
fn a_directory_in_use_is_not_touched() {
    let place = Place::new("demo-used");
    fs::create_dir(&place.path).unwrap();
    fs::write(place.path.join("precious"), "data").unwrap();
    let output = demo(&place.path, &["--once"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("is not empty"), "{text}");
    assert_eq!(fs::read_to_string(place.path.join("precious")).unwrap(), "data");
}

fn demo(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = quorate();
    command.arg("demo").arg("--dir").arg(directory).args(arguments);
    command
}

/// Command lines that name this place: the demo and its members.
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
