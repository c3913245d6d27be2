//! Settings by name, from arguments, environment variables or a file, and their typed values.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::error::ServerConfigError;
use super::flags::{FlagKind, kind, nearest, present_name};
use super::{AutoCompaction, ClusterState, LogFormat, LogOutput, TableKind};
use crate::auth::{AuthConfig, AuthTokenConfig};
use crate::etcd_release::EtcdRelease;
use crate::url::Url;

/// Values by the name of their flag.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    values: BTreeMap<String, String>,
    warnings: Vec<String>,
    /// In files, durations may be plain numbers of nanoseconds.
    from_file: bool,
}

impl Settings {
    pub(super) fn for_file() -> Self {
        Self { from_file: true, ..Self::default() }
    }

    /// Parses arguments as etcd does: one dash or two, the value after `=` or as the next
    /// argument.
    pub(crate) fn from_args(
        args: impl IntoIterator<Item = String>,
    ) -> Result<Self, ServerConfigError> {
        let mut settings = Self::default();
        let mut args = args.into_iter().peekable();
        while let Some(arg) = args.next() {
            let Some(flag) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else {
                return Err(ServerConfigError::UnexpectedArgument { argument: arg });
            };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (flag, None),
            };
            let name = if name == "h" { "help" } else { present_name(name) };
            let kind = kind(name).ok_or_else(|| unknown(name))?;
            let value = match (value, kind) {
                (Some(value), _) => value,
                (None, FlagKind::Switch) => "true".to_owned(),
                // Some of them have values: an argument without a dash can only be one.
                (None, FlagKind::SwitchWithoutEffect) => {
                    let value = args.next_if(|next| !next.starts_with('-'));
                    value.unwrap_or_else(|| "true".to_owned())
                }
                (None, _) => args
                    .next()
                    .ok_or_else(|| ServerConfigError::MissingValue { flag: name.into() })?,
            };
            settings.set(name, value);
        }
        Ok(settings)
    }

    /// Environment variables are names of flags in capitals. An unknown one is only a warning:
    /// other programs may use it.
    pub(crate) fn add_env(&mut self, env: impl IntoIterator<Item = (String, String)>) {
        for (variable, value) in env {
            let Some(name) = variable.strip_prefix("ETCD_") else { continue };
            let name = name.to_lowercase().replace('_', "-");
            let name = present_name(&name).to_owned();
            if kind(&name).is_none() {
                self.warn(format!("unrecognized environment variable {variable}"));
            } else if self.values.contains_key(&name) {
                self.warn(format!("{variable} is ignored, as --{name} is given"));
            } else if !value.is_empty() {
                self.set(&name, value);
            }
        }
    }

    /// Stores a value without checking it.
    pub(super) fn set(&mut self, name: &str, value: String) {
        match kind(name) {
            Some(FlagKind::WithoutEffect | FlagKind::SwitchWithoutEffect) if !value.is_empty() => {
                self.warn(format!("{name} has no effect"));
            }
            _ => {}
        }
        self.values.insert(name.to_owned(), value);
    }

    pub(super) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    /// Whether another setting than this one is given.
    pub(super) fn has_other_than(&self, name: &str) -> bool {
        self.values.keys().any(|other| other != name)
    }

    /// Refuses flags that ask for protection that this server does not give.
    pub(super) fn check_supported(&self) -> Result<(), ServerConfigError> {
        for name in self.values.keys() {
            let Some(value) = self.text(name) else { continue };
            let Some(FlagKind::Refused(feature)) = kind(name) else { continue };
            let (flag, value) = (name.clone(), value.to_owned());
            return Err(ServerConfigError::Unsupported { flag, value, feature });
        }
        Ok(())
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    pub(crate) fn is_on(&self, name: &str) -> Result<bool, ServerConfigError> {
        self.switch(name, false)
    }

    pub(crate) fn switch(&self, name: &str, default: bool) -> Result<bool, ServerConfigError> {
        match self.text(name) {
            None => Ok(default),
            Some("true" | "1" | "t" | "T" | "TRUE" | "True") => Ok(true),
            Some("false" | "0" | "f" | "F" | "FALSE" | "False") => Ok(false),
            Some(other) => Err(ServerConfigError::value(name, other, "true or false")),
        }
    }

    pub(crate) fn number<T: FromStr>(
        &self,
        name: &str,
        default: T,
    ) -> Result<T, ServerConfigError> {
        let Some(text) = self.text(name) else { return Ok(default) };
        text.parse().map_err(|_| ServerConfigError::value(name, text, "a number"))
    }

    /// Zero is etcd's word for the default, which is no limit here.
    pub(crate) fn snapshot_count(&self) -> Result<Option<u64>, ServerConfigError> {
        Ok(Some(self.number("snapshot-count", 0)?).filter(|count| *count > 0))
    }

    pub(crate) fn millis(
        &self,
        name: &str,
        default: Duration,
    ) -> Result<Duration, ServerConfigError> {
        let default = u64::try_from(default.as_millis()).unwrap_or(u64::MAX);
        self.number(name, default).map(Duration::from_millis)
    }

    pub(crate) fn duration(
        &self,
        name: &str,
        default: Duration,
    ) -> Result<Duration, ServerConfigError> {
        let Some(text) = self.text(name) else { return Ok(default) };
        let nanos = text.parse().ok().filter(|nanos| self.from_file || *nanos == 0);
        let duration = nanos.map(Duration::from_nanos).or_else(|| duration(text));
        duration
            .ok_or_else(|| ServerConfigError::value(name, text, "a duration such as 10m or 1h30m"))
    }

    /// 0 means etcd's default; a negative number, no limit.
    pub(crate) fn quota(&self) -> Result<u64, ServerConfigError> {
        let bytes: i64 = self.number("quota-backend-bytes", 0)?;
        Ok(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// The client URLs to publish; by default, those of the listeners.
    pub(crate) fn advertised_to_clients(
        &self,
        listen: &[Url],
    ) -> Result<Vec<Url>, ServerConfigError> {
        let name = "advertise-client-urls";
        let urls = self.urls(name, listen)?;
        let is_given = self.text(name).is_some();
        match urls.iter().find(|url| url.is_unspecified()) {
            Some(url) if !is_given => {
                let expected = "an address that clients can connect to";
                Err(ServerConfigError::value(name, &url.to_string(), expected))
            }
            _ => Ok(urls),
        }
    }

    pub(crate) fn urls(&self, name: &str, default: &[Url]) -> Result<Vec<Url>, ServerConfigError> {
        let Some(text) = self.text(name) else { return Ok(default.to_vec()) };
        // Members connect to each other over TCP only.
        let parse = match name {
            "listen-client-urls"
            | "listen-client-http-urls"
            | "listen-metrics-urls"
            | "listen-console-urls"
            | "advertise-client-urls" => Url::parse_for_clients,
            _ => Url::parse,
        };
        let url = |one: &str| {
            parse(one).map_err(|error| ServerConfigError::value(name, one, &error.to_string()))
        };
        text.split(',').map(str::trim).map(url).collect()
    }

    /// A list of names, separated by commas.
    pub(crate) fn names(&self, name: &str) -> Vec<String> {
        let parts = self.text(name).unwrap_or_default().split(',').map(str::trim);
        parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    pub(crate) fn initial_cluster(&self) -> Result<Vec<(String, Url)>, ServerConfigError> {
        let name = "initial-cluster";
        let Some(text) = self.text(name) else { return Ok(Vec::new()) };
        let member = |one: &str| {
            let bad = |expected: &str| ServerConfigError::value(name, one, expected);
            let (member, url) = one.split_once('=').ok_or_else(|| bad("name=http://host:port"))?;
            let url = Url::parse(url).map_err(|error| bad(&error.to_string()))?;
            Ok((member.to_owned(), url))
        };
        text.split(',').map(str::trim).map(member).collect()
    }

    pub(crate) fn cluster_state(&self) -> Result<ClusterState, ServerConfigError> {
        match self.text("initial-cluster-state") {
            None | Some("new") => Ok(ClusterState::New),
            Some("existing") => Ok(ClusterState::Existing),
            Some(other) => {
                Err(ServerConfigError::value("initial-cluster-state", other, "new or existing"))
            }
        }
    }

    pub(crate) fn extensive_metrics(&self) -> Result<bool, ServerConfigError> {
        match self.text("metrics") {
            None | Some("basic") => Ok(false),
            Some("extensive") => Ok(true),
            Some(other) => Err(ServerConfigError::value("metrics", other, "basic or extensive")),
        }
    }

    pub(crate) fn log_format(&self) -> Result<LogFormat, ServerConfigError> {
        match self.text("log-format") {
            None | Some("json") => Ok(LogFormat::Json),
            Some("console") => Ok(LogFormat::Console),
            Some(other) => Err(ServerConfigError::value("log-format", other, "json or console")),
        }
    }

    pub(crate) fn etcd_release(&self) -> Result<EtcdRelease, ServerConfigError> {
        let name = "etcd-release";
        let Some(text) = self.text(name) else { return Ok(EtcdRelease::default()) };
        EtcdRelease::parse(text)
            .ok_or_else(|| ServerConfigError::value(name, text, "3.5, 3.6 or 3.7"))
    }

    /// As in etcd, `default` is standard error.
    pub(crate) fn log_outputs(&self) -> Result<Vec<LogOutput>, ServerConfigError> {
        let name = "log-outputs";
        let text = self.text(name).unwrap_or("default");
        let mut outputs: Vec<LogOutput> = Vec::new();
        for one in text.split(',').map(str::trim) {
            let output = match one {
                "default" | "stderr" => LogOutput::Stderr,
                "stdout" => LogOutput::Stdout,
                "" | "systemd/journal" => {
                    let expected = "stderr, stdout, default, or paths of files";
                    return Err(ServerConfigError::value(name, one, expected));
                }
                path => LogOutput::File(path.into()),
            };
            if !outputs.contains(&output) {
                outputs.push(output);
            }
        }
        Ok(outputs)
    }

    pub(crate) fn table(&self) -> Result<TableKind, ServerConfigError> {
        match self.text("table") {
            None | Some("memory") => Ok(TableKind::Memory),
            Some("redb") => Ok(TableKind::Redb),
            Some(other) => Err(ServerConfigError::value("table", other, "memory or redb")),
        }
    }

    pub(crate) fn auth(&self) -> Result<AuthConfig, ServerConfigError> {
        let default = AuthConfig::default();
        let token = match self.text("auth-token") {
            None => default.token,
            Some(text) => AuthTokenConfig::parse(text, duration).map_err(|error| {
                ServerConfigError::value("auth-token", text, &format!("another value: {error}"))
            })?,
        };
        let seconds = self.number("auth-token-ttl", 0)?;
        let token_ttl = if seconds == 0 { default.token_ttl } else { Duration::from_secs(seconds) };
        let bcrypt_cost = self.number("bcrypt-cost", default.bcrypt_cost)?;
        if !(4..=31).contains(&bcrypt_cost) {
            let value = bcrypt_cost.to_string();
            return Err(ServerConfigError::value("bcrypt-cost", &value, "4 to 31"));
        }
        let audit_log = self.text("audit-log").map(PathBuf::from);
        Ok(AuthConfig { token, token_ttl, bcrypt_cost, audit_log })
    }

    /// A retention without a unit is in hours or in revisions.
    pub(crate) fn auto_compaction(&self) -> Result<Option<AutoCompaction>, ServerConfigError> {
        let name = "auto-compaction-retention";
        let text = self.text(name).unwrap_or("0");
        let number = text.parse::<u32>().ok();
        match self.text("auto-compaction-mode") {
            None | Some("periodic") => {
                let hours = number.map(|hours| Duration::from_secs(u64::from(hours) * 3600));
                let bad =
                    || ServerConfigError::value(name, text, "hours, or a duration such as 30m");
                let period = hours.or_else(|| duration(text)).ok_or_else(bad)?;
                Ok((!period.is_zero()).then_some(AutoCompaction::Periodic(period)))
            }
            Some("revision") => {
                let kept = text.parse::<i64>().ok().filter(|kept| *kept >= 0);
                let bad =
                    || ServerConfigError::value(name, text, "the number of revisions to keep");
                let kept = kept.ok_or_else(bad)?;
                Ok((kept > 0).then_some(AutoCompaction::Revision(kept)))
            }
            Some(other) => {
                Err(ServerConfigError::value("auto-compaction-mode", other, "periodic or revision"))
            }
        }
    }
}

pub(super) fn unknown(name: &str) -> ServerConfigError {
    ServerConfigError::UnknownFlag { name: name.to_owned(), nearest: nearest(name) }
}

/// A duration as Go writes it: `1h30m`, `250ms`, `1.5h`.
fn duration(text: &str) -> Option<Duration> {
    let (mut rest, mut total) = (text, 0_u128);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let is_number = |letter: char| letter.is_ascii_digit() || letter == '.';
        let (number, tail) = rest.split_at(rest.find(|letter| !is_number(letter))?);
        let (unit, tail) = tail.split_at(tail.find(is_number).unwrap_or(tail.len()));
        let nanos: u128 = match unit {
            "ns" => 1,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let has_digits = !whole.is_empty() || !part.is_empty();
        if !has_digits || part.contains('.') || whole.len() > DIGITS_MAX || part.len() > DIGITS_MAX
        {
            return None;
        }
        let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u128>().ok() };
        total += digits(whole)? * nanos + digits(part)? * nanos / 10_u128.pow(part.len() as u32);
        rest = tail;
    }
    u64::try_from(total).ok().map(Duration::from_nanos)
}

/// More digits would overflow, and no sensible duration has them.
const DIGITS_MAX: usize = 18;
