//! A run as a text file: one line per setting, then one line per action.

use std::fmt;

use super::action::{Action, parse_action};
use super::setting::Setting;

/// Everything that determines a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    pub setting: Setting,
    pub actions: Vec<Action>,
}

impl Replay {
    pub fn of_seed(seed: u64) -> Self {
        let setting = Setting::draw(seed);
        let actions = Action::draw(&setting);
        Self { setting, actions }
    }

    /// The same run with hints: see [`Setting::with_hints`].
    pub fn of_seed_with_hints(seed: u64) -> Self {
        let setting = Setting::draw(seed).with_hints();
        let actions = Action::draw(&setting);
        Self { setting, actions }
    }

    /// Parses the text that [`Replay`] prints. Lines that start with `#` are comments.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut setting = Setting::draw(0);
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

impl fmt::Display for Replay {
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
        let replay = Replay::of_seed(11);
        assert_eq!(Replay::parse(&replay.to_string()), Ok(replay));
        assert!(Replay::parse("voters many").is_err());
        assert!(Replay::parse("ghosts 3").is_err());
        assert!(Replay::parse("at noon crash leader 1").is_err());
    }
}
