//! Settings from etcd's YAML file: the flags by name, and blocks for what concerns TLS.

use yaml_rust2::{Yaml, YamlLoader};

use super::error::ConfigError;
use super::flags::{Kind, kind};
use super::settings::{Settings, unknown};

/// What the file at this path says.
pub(crate) fn read(path: &str) -> Result<Settings, ConfigError> {
    let failed = |why: String| ConfigError::File { path: path.to_owned(), why };
    let text = std::fs::read_to_string(path).map_err(|why| failed(why.to_string()))?;
    let documents = YamlLoader::load_from_str(&text).map_err(|why| failed(why.to_string()))?;
    let mut settings = Settings::of_file();
    match documents.first() {
        None | Some(Yaml::Null) => {}
        Some(Yaml::Hash(entries)) => {
            for (name, value) in entries {
                let name = name.as_str().ok_or_else(|| failed("a name is no text".into()))?;
                add(&mut settings, name, value)?;
            }
        }
        Some(_) => return Err(failed("not a mapping from names to values".into())),
    }
    Ok(settings)
}

fn add(settings: &mut Settings, name: &str, value: &Yaml) -> Result<(), ConfigError> {
    match (name, value) {
        ("client-transport-security" | "peer-transport-security", Yaml::Null) => Ok(()),
        ("client-transport-security", Yaml::Hash(block)) => add_block(settings, "", block),
        ("peer-transport-security", Yaml::Hash(block)) => add_block(settings, "peer-", block),
        ("client-transport-security" | "peer-transport-security", _) => {
            Err(ConfigError::value(name, "a plain value", "a block of names and values"))
        }
        // Names that are blocks or gone, and decide nothing.
        _ if FILE_ONLY.contains(&name) => {
            settings.warn(format!("{name} has no effect"));
            Ok(())
        }
        _ => set(settings, name, value),
    }
}

/// In a block the flags stand without what the block says already.
fn add_block(
    settings: &mut Settings,
    prefix: &str,
    block: &yaml_rust2::yaml::Hash,
) -> Result<(), ConfigError> {
    for (name, value) in block {
        let given = name.as_str().unwrap_or_default();
        let name = given.strip_prefix("peer-").unwrap_or(given);
        let name = match name {
            "allowed-cn" | "allowed-hostname" if prefix.is_empty() => format!("client-cert-{name}"),
            "allowed-cn" | "allowed-hostname" => format!("{prefix}cert-{name}"),
            "skip-client-san-verification" => format!("peer-{name}"),
            _ => format!("{prefix}{name}"),
        };
        set(settings, &name, value)?;
    }
    Ok(())
}

fn set(settings: &mut Settings, name: &str, value: &Yaml) -> Result<(), ConfigError> {
    let kind = kind(name).ok_or_else(|| unknown(name))?;
    let takes_list = !matches!(kind, Kind::Value | Kind::Switch);
    let value = match value {
        Yaml::Null => return Ok(()),
        Yaml::Array(list) if takes_list => {
            let texts = list.iter().filter_map(plain);
            texts.collect::<Vec<_>>().join(",")
        }
        other => {
            let wrong = || ConfigError::value(name, "a list or block", "a plain value");
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

/// Stands in files for etcd, old or new, and is no flag.
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
