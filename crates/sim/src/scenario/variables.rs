//! Values that a story remembers: `remember last m1 newest`, then `expecting=$last`.

use std::collections::BTreeMap;

use quorate_core::MemberId;

use super::command::StoryCommand;
use super::expect::{VALUES, value_of_status};
use super::words::{LineWords, Parsed, unknown};
use super::world::{CommandResult, StoryWorld};
use crate::short_ids::short_ids;

/// The remembered values, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Variables(BTreeMap<String, String>);

/// Whether a line has a `$name` in it.
pub(super) fn occur_in(line: &str) -> bool {
    let is_name = |rest: &str| rest.starts_with(|c: char| c.is_ascii_lowercase());
    line.split('$').skip(1).any(is_name)
}

/// Reads the line with an entry, a number or a member in place of each variable.
pub(super) fn check(line: &str) -> Parsed<()> {
    let read = |sample: &str| {
        let filled = fill(line, |_| Ok(sample.to_owned()))?;
        StoryCommand::parse(&filled).map(drop)
    };
    read("1.1").or_else(|why| read("1").or_else(|_| read("m1")).map_err(|_| why))
}

/// A name of lower-case letters, digits, `-` and `_`.
pub(super) fn name(word: &str) -> Parsed<String> {
    let valid = occur_in(&format!("${word}")) && word.chars().all(is_part_of_name);
    if valid {
        Ok(word.to_owned())
    } else {
        Err(format!("`{word}` is no name, expected one such as `last`"))
    }
}

/// The fact whose value is remembered.
pub(super) fn fact(words: &mut LineWords) -> Parsed<&'static str> {
    let word = words.expect_word("what to remember, such as newest")?;
    match VALUES.iter().find(|fact| **fact == word) {
        Some(fact) => Ok(fact),
        None => unknown("value of a member", &word, VALUES),
    }
}

fn is_part_of_name(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_'
}

/// The line with a value in place of every variable.
fn fill(line: &str, value: impl Fn(&str) -> Result<String, String>) -> Result<String, String> {
    let mut parts = line.split('$');
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c| !is_part_of_name(c)).unwrap_or(part.len());
        let (name, rest) = part.split_at(end);
        filled.push_str(&value(name)?);
        filled.push_str(rest);
    }
    Ok(filled)
}

impl StoryWorld {
    pub(super) fn remember(&mut self, name: &str, id: MemberId, fact: &str) -> CommandResult {
        let member = self.member(id)?;
        let value = match fact {
            "settled" => member.settled.map_or("none".to_owned(), |entry| entry.to_string()),
            _ => value_of_status(&self.running(id)?.status(), fact),
        };
        self.variables.0.insert(name.to_owned(), short_ids(&value));
        Ok(())
    }

    /// Plays a line with the present values of its variables.
    pub(super) fn play_filled(&mut self, line: &str) -> CommandResult {
        let known = &self.variables.0;
        let value = |name: &str| {
            let missing = || format!("${name} is not known; use `remember {name} m1 newest`");
            known.get(name).cloned().ok_or_else(missing)
        };
        let command = StoryCommand::parse(&fill(line, value)?)?;
        self.play(&command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_found_and_filled() {
        assert!(occur_in("change m1 v4 expecting=$last") && !occur_in("propose m1 a$ $5"));
        let two = |name: &str| Ok(format!("<{name}>"));
        assert_eq!(fill("expect m1 last=$a,$b-2 x", two).unwrap(), "expect m1 last=<a>,<b-2> x");
        assert!(check("change m1 v4 expecting=$last").is_ok());
        assert!(check("expect m1 commit>=$x").is_ok());
        assert!(check("chang m1 v4 expecting=$last").is_err());
        assert!(name("Last").is_err() && name("last-2").is_ok());
    }
}
