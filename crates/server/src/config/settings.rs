//! Settings by name, wherever they were given, and their values as what they mean.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use yaml_rust2::{Yaml, YamlLoader};

use super::error::ConfigError;
use super::flags::{Kind, kind, nearest};
use super::{AutoCompaction, ClusterState, TableKind};
use crate::url::Url;

/// What was given, by the name of its flag.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    values: BTreeMap<String, String>,
    warnings: Vec<String>,
}

impl Settings {
    /// As etcd reads them: one dash or two, the value after `=` or as the next word.
    pub(crate) fn from_args(args: impl IntoIterator<Item = String>) -> Result<Self, ConfigError> {
        let mut settings = Self::default();
        let mut args = args.into_iter().peekable();
        while let Some(arg) = args.next() {
            let Some(flag) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else {
                return Err(ConfigError::UnexpectedWord { found: arg });
            };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (flag, None),
            };
            let name = if name == "h" { "help" } else { name };
            let kind = kind(name).ok_or_else(|| unknown(name))?;
            let value = match (value, kind) {
                (Some(value), _) => value,
                (None, Kind::Switch) => "true".to_owned(),
                // Some of them have values; a word can be nothing else here.
                (None, Kind::SwitchWithoutEffect) => {
                    args.next_if(|next| !next.starts_with('-')).unwrap_or_default()
                }
                (None, _) => {
                    args.next().ok_or_else(|| ConfigError::NoValue { flag: name.into() })?
                }
            };
            settings.set(name, value);
        }
        Ok(settings)
    }

    /// Variables are settings in capitals. Those of no flag are only warned about: others
    /// than us may have use for them.
    pub(crate) fn add_env(&mut self, env: impl IntoIterator<Item = (String, String)>) {
        for (variable, value) in env {
            let Some(name) = variable.strip_prefix("ETCD_") else { continue };
            let name = name.to_lowercase().replace('_', "-");
            if kind(&name).is_none() {
                self.warnings.push(format!("unrecognized environment variable {variable}"));
            } else if !value.is_empty() && !self.values.contains_key(&name) {
                self.set(&name, value);
            }
        }
    }

    /// The file counts alone.
    pub(crate) fn from_file(path: &str, given: &Self) -> Result<Self, ConfigError> {
        let failed = |why: String| ConfigError::File { path: path.to_owned(), why };
        let text = std::fs::read_to_string(path).map_err(|why| failed(why.to_string()))?;
        let documents = YamlLoader::load_from_str(&text).map_err(|why| failed(why.to_string()))?;
        let mut settings = Self::default();
        if given.values.len() > 1 {
            let text = "a configuration file was given: flags and variables are ignored";
            settings.warnings.push(text.to_owned());
        }
        match documents.first() {
            None | Some(Yaml::Null) => {}
            Some(Yaml::Hash(entries)) => {
                for (name, value) in entries {
                    let name = name.as_str().ok_or_else(|| failed("a name is no text".into()))?;
                    settings.set_yaml(name, value)?;
                }
            }
            Some(_) => return Err(failed("not a mapping from names to values".into())),
        }
        Ok(settings)
    }

    fn set_yaml(&mut self, name: &str, value: &Yaml) -> Result<(), ConfigError> {
        let value = match value {
            Yaml::String(text) | Yaml::Real(text) => text.clone(),
            Yaml::Integer(number) => number.to_string(),
            Yaml::Boolean(on) => on.to_string(),
            Yaml::Null => return Ok(()),
            // Of TLS and of log outputs, neither of which has an effect.
            Yaml::Hash(_) | Yaml::Array(_) => {
                self.warnings.push(format!("{name} has no effect"));
                return Ok(());
            }
            _ => return Err(ConfigError::value(name, "an alias", "a plain value")),
        };
        kind(name).ok_or_else(|| unknown(name))?;
        self.set(name, value);
        Ok(())
    }

    fn set(&mut self, name: &str, value: String) {
        match kind(name) {
            Some(Kind::Value | Kind::Switch) => {
                self.values.insert(name.to_owned(), value);
            }
            _ => self.warnings.push(format!("{name} has no effect")),
        }
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    pub(crate) fn is_on(&self, name: &str) -> Result<bool, ConfigError> {
        self.switch(name, false)
    }

    pub(crate) fn switch(&self, name: &str, default: bool) -> Result<bool, ConfigError> {
        match self.text(name) {
            None => Ok(default),
            Some("true" | "1" | "t" | "T" | "TRUE" | "True") => Ok(true),
            Some("false" | "0" | "f" | "F" | "FALSE" | "False") => Ok(false),
            Some(other) => Err(ConfigError::value(name, other, "true or false")),
        }
    }

    pub(crate) fn number<T: FromStr>(&self, name: &str, default: T) -> Result<T, ConfigError> {
        let Some(text) = self.text(name) else { return Ok(default) };
        text.parse().map_err(|_| ConfigError::value(name, text, "a number"))
    }

    pub(crate) fn millis(&self, name: &str, default: Duration) -> Result<Duration, ConfigError> {
        let default = u64::try_from(default.as_millis()).unwrap_or(u64::MAX);
        self.number(name, default).map(Duration::from_millis)
    }

    pub(crate) fn duration(&self, name: &str, default: Duration) -> Result<Duration, ConfigError> {
        let Some(text) = self.text(name) else { return Ok(default) };
        duration(text).ok_or_else(|| ConfigError::value(name, text, "a time as 10m or 1h30m"))
    }

    pub(crate) fn urls(&self, name: &str, default: &[Url]) -> Result<Vec<Url>, ConfigError> {
        let Some(text) = self.text(name) else { return Ok(default.to_vec()) };
        let url = |one: &str| {
            Url::parse(one).map_err(|why| ConfigError::value(name, one, &why.to_string()))
        };
        text.split(',').map(str::trim).map(url).collect()
    }

    pub(crate) fn initial_cluster(&self) -> Result<Vec<(String, Url)>, ConfigError> {
        let name = "initial-cluster";
        let Some(text) = self.text(name) else { return Ok(Vec::new()) };
        let member = |one: &str| {
            let wrong = |why: &str| ConfigError::value(name, one, why);
            let (member, url) =
                one.split_once('=').ok_or_else(|| wrong("name=http://host:port"))?;
            let url = Url::parse(url).map_err(|why| wrong(&why.to_string()))?;
            Ok((member.to_owned(), url))
        };
        text.split(',').map(str::trim).map(member).collect()
    }

    pub(crate) fn cluster_state(&self) -> Result<ClusterState, ConfigError> {
        match self.text("initial-cluster-state") {
            None | Some("new") => Ok(ClusterState::New),
            Some("existing") => Ok(ClusterState::Existing),
            Some(other) => {
                Err(ConfigError::value("initial-cluster-state", other, "new or existing"))
            }
        }
    }

    pub(crate) fn table(&self) -> Result<TableKind, ConfigError> {
        match self.text("table") {
            None | Some("memory") => Ok(TableKind::Memory),
            Some("redb") => Ok(TableKind::Redb),
            Some(other) => Err(ConfigError::value("table", other, "memory or redb")),
        }
    }

    /// Without a unit, the retention is in hours or in revisions.
    pub(crate) fn auto_compaction(&self) -> Result<Option<AutoCompaction>, ConfigError> {
        let name = "auto-compaction-retention";
        let Some(text) = self.text(name).filter(|text| *text != "0") else { return Ok(None) };
        match self.text("auto-compaction-mode") {
            None | Some("periodic") => {
                let hours = text.parse().ok().map(|hours: u64| Duration::from_secs(hours * 3600));
                let period = hours.or_else(|| duration(text)).filter(|period| !period.is_zero());
                let wrong = || ConfigError::value(name, text, "hours, or a time as 30m");
                Ok(Some(AutoCompaction::Periodic(period.ok_or_else(wrong)?)))
            }
            Some("revision") => {
                let kept = text.parse().ok().filter(|kept| *kept > 0);
                let wrong = || ConfigError::value(name, text, "how many revisions to keep");
                Ok(Some(AutoCompaction::Revision(kept.ok_or_else(wrong)?)))
            }
            Some(other) => {
                Err(ConfigError::value("auto-compaction-mode", other, "periodic or revision"))
            }
        }
    }
}

fn unknown(name: &str) -> ConfigError {
    ConfigError::UnknownFlag { found: name.to_owned(), nearest: nearest(name) }
}

/// `1h30m`, `250ms`; a bare number counts nanoseconds, as in etcd's file.
fn duration(text: &str) -> Option<Duration> {
    if let Ok(nanos) = text.parse() {
        return Some(Duration::from_nanos(nanos));
    }
    let (mut rest, mut total) = (text, Duration::ZERO);
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit())?;
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|letter: char| letter.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let nanos = match unit {
            "ns" => 1,
            "us" | "µs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000_u64,
            _ => return None,
        };
        let nanos = number.parse::<u64>().ok()?.checked_mul(nanos)?;
        total = total.checked_add(Duration::from_nanos(nanos))?;
        rest = tail;
    }
    Some(total)
}
