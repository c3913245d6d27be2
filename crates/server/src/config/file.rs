//! Settings from etcd's YAML file: the flags by name, and blocks for TLS.

use yaml_rust2::{Yaml, YamlLoader};

use super::error::ServerConfigError;
use super::flags::{FlagKind, kind, present_name};
use super::settings::{Settings, unknown};

/// Reads the settings of this file.
pub(crate) fn read(path: &str) -> Result<Settings, ServerConfigError> {
    let failed = |reason: String| ServerConfigError::File { path: path.to_owned(), reason };
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    parse(path, &text)
}

/// The settings in the text of this file.
pub(crate) fn parse(path: &str, text: &str) -> Result<Settings, ServerConfigError> {
    let failed = |reason: String| ServerConfigError::File { path: path.to_owned(), reason };
    let documents = YamlLoader::load_from_str(text).map_err(|error| failed(error.to_string()))?;
    let mut settings = Settings::for_file();
    match documents.first() {
        None | Some(Yaml::Null) => {}
        Some(Yaml::Hash(entries)) => {
            for (name, value) in entries {
                let name = name.as_str().ok_or_else(|| failed("a name is not a string".into()))?;
                add(&mut settings, name, value)?;
            }
        }
        Some(_) => return Err(failed("not a mapping from names to values".into())),
    }
    Ok(settings)
}

fn add(settings: &mut Settings, name: &str, value: &Yaml) -> Result<(), ServerConfigError> {
    match (name, value) {
        ("client-transport-security" | "peer-transport-security", Yaml::Null) => Ok(()),
        ("client-transport-security", Yaml::Hash(block)) => add_block(settings, "", block),
        ("peer-transport-security", Yaml::Hash(block)) => add_block(settings, "peer-", block),
        ("client-transport-security" | "peer-transport-security", _) => {
            Err(ServerConfigError::value(name, "a plain value", "a block of names and values"))
        }
        // Names without effect, some of them blocks or removed from etcd.
        _ if FILE_ONLY.contains(&name) => {
            settings.warn(format!("{name} has no effect"));
            Ok(())
        }
        _ => set(settings, name, value),
    }
}

/// In a block, the names of flags lack the prefix that the block implies.
fn add_block(
    settings: &mut Settings,
    prefix: &str,
    block: &yaml_rust2::yaml::Hash,
) -> Result<(), ServerConfigError> {
    for (name, value) in block {
        let name = name.as_str().unwrap_or_default();
        let name = name.strip_prefix("peer-").unwrap_or(name);
        let name = match name {
            "allowed-cn" | "allowed-hostname" if prefix.is_empty() => format!("client-cert-{name}"),
            "allowed-cn" | "allowed-hostname" => format!("{prefix}cert-{name}"),
            "crl-file" | "client-crl-file" if prefix.is_empty() => "client-crl-file".to_owned(),
            "crl-file" | "client-crl-file" => "peer-crl-file".to_owned(),
            "skip-client-san-verification" => format!("peer-{name}"),
            _ => format!("{prefix}{name}"),
        };
        set(settings, &name, value)?;
    }
    Ok(())
}

fn set(settings: &mut Settings, name: &str, value: &Yaml) -> Result<(), ServerConfigError> {
    let name = present_name(name);
    let kind = kind(name).ok_or_else(|| unknown(name))?;
    let takes_list = LISTS.contains(&name) || !matches!(kind, FlagKind::Value | FlagKind::Switch);
    let value = match value {
        Yaml::Null => return Ok(()),
        Yaml::Array(list) if takes_list => {
            let wrong = || ServerConfigError::value(name, "a list", "a list of plain values");
            let texts: Option<Vec<String>> = list.iter().map(plain).collect();
            texts.ok_or_else(wrong)?.join(",")
        }
        other => {
            let wrong = || ServerConfigError::value(name, "a list or block", "a plain value");
            plain(other).ok_or_else(wrong)?
        }
    };
    settings.set(name, value);
    Ok(())
}

fn plain(value: &Yaml) -> Option<String> {
    match value {
        Yaml::String(text) | Yaml::Real(text) => Some(text.clone()),
        Yaml::Integer(number) => Some(number.to_string()),
        Yaml::Boolean(on) => Some(on.to_string()),
        _ => None,
    }
}

/// Settings that are lists: joined with commas, as on the command line.
const LISTS: &[&str] = &[
    "cipher-suites",
    "client-cert-allowed-cn",
    "client-cert-allowed-hostname",
    "log-outputs",
    "peer-cert-allowed-cn",
    "peer-cert-allowed-hostname",
];

/// Names in the files of old or new versions of etcd that are not flags.
const FILE_ONLY: &[&str] = &[
    "debug",
    "log-package-levels",
    "proxy",
    "proxy-dial-timeout",
    "proxy-failure-wait",
    "proxy-read-timeout",
    "proxy-refresh-interval",
    "proxy-write-timeout",
    "socket-options",
];
