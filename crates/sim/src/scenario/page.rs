//! The transcript being written: lines, and which of them the author wants to see.

use std::collections::BTreeSet;

use crate::short_ids::short_ids;

/// Lines since the page was last torn off.
#[derive(Clone, Debug)]
pub(super) struct TranscriptPage {
    lines: Vec<String>,
    /// What `hide` named.
    hidden: BTreeSet<&'static str>,
    /// A command in parentheses is running.
    pub(super) muted: bool,
}

impl Default for TranscriptPage {
    /// Every election ends with replies that come too late to matter.
    fn default() -> Self {
        Self { lines: Vec::new(), hidden: BTreeSet::from(["late"]), muted: false }
    }
}

impl TranscriptPage {
    /// A line that `hide` cannot hide.
    pub(super) fn say(&mut self, line: String) {
        if !self.muted {
            self.lines.push(short_ids(&line));
        }
    }

    /// A line about one of the things that can be hidden.
    pub(super) fn print_about(&mut self, about: &'static str, line: String) {
        if !self.hidden.contains(about) {
            self.say(line);
        }
    }

    /// A line about a message that goes by these names.
    pub(super) fn tell_message(&mut self, names: [&'static str; 2], line: String) {
        if !names.iter().chain(&["messages"]).any(|name| self.hidden.contains(name)) {
            self.say(line);
        }
    }

    pub(super) fn hide(&mut self, things: &[&'static str]) {
        self.hidden.extend(things);
    }

    pub(super) fn show(&mut self, things: &[&'static str]) {
        self.hidden.retain(|thing| !things.contains(thing));
    }

    pub(super) fn take_lines(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }
}
