//! A run as a text file: the setting, then what is done, a line each.

use std::fmt;

use super::action::{Action, parse_action};
use super::setting::RunSettings;

/// Everything that a run follows from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunReplay {
    pub setting: RunSettings,
    pub actions: Vec<Action>,
}

impl RunReplay {
    pub fn of_seed(seed: u64) -> Self {
        let setting = RunSettings::draw(seed);
        let actions = Action::draw(&setting);
        Self { setting, actions }
    }

    /// The same run with hints: see [`RunSettings::with_hints`].
    pub fn of_seed_with_hints(seed: u64) -> Self {
        let setting = RunSettings::draw(seed).with_hints();
        let actions = Action::draw(&setting);
        Self { setting, actions }
    }

    /// Reads what [`RunReplay`] prints. Lines that begin with `#` are for people.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut setting = RunSettings::before_a_file();
        let mut actions = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            let wrong = || format!("line {}: cannot read '{line}'", number + 1);
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if line.starts_with("at ") {
                actions.push(parse_action(line).ok_or_else(wrong)?);
                continue;
            }
            let (name, value) = line.split_once(' ').ok_or_else(wrong)?;
            let place = setting.value_mut(name).ok_or_else(wrong)?;
            *place = value.trim().parse().map_err(|_| wrong())?;
        }
        Ok(Self { setting, actions })
    }
}

impl fmt::Display for RunReplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.setting.values() {
            writeln!(f, "{name} {value}")?;
        }
        self.actions.iter().try_for_each(|action| writeln!(f, "{action}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_is_read_as_it_is_printed() {
        let replay = RunReplay::of_seed(11);
        assert_eq!(RunReplay::parse(&replay.to_string()), Ok(replay));
        assert!(RunReplay::parse("voters many").is_err());
        assert!(RunReplay::parse("ghosts 3").is_err());
        assert!(RunReplay::parse("at noon crash leader 1").is_err());
    }
}
