//! Why a command line, environment variable or file is not accepted.

use std::fmt;

use super::flags::UnsupportedFeature;

/// Why the configuration is not accepted. The server was not started.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerConfigError {
    /// etcd has no such flag.
    UnknownFlag { name: String, nearest: &'static str },
    /// An argument that belongs to no flag.
    UnexpectedArgument { argument: String },
    /// A flag without its value.
    MissingValue { flag: String },
    /// A value that the flag does not accept.
    BadValue { flag: String, value: String, expected: String },
    /// A flag that asks for a feature this server lacks, and that would be harmful to ignore.
    Unsupported { flag: String, value: String, feature: UnsupportedFeature },
    /// The file cannot be read, or is not a YAML mapping.
    File { path: String, reason: String },
}

impl ServerConfigError {
    pub(crate) fn value(flag: &str, value: &str, expected: &str) -> Self {
        let (flag, value, expected) = (flag.into(), value.into(), expected.into());
        Self::BadValue { flag, value, expected }
    }
}

impl fmt::Display for ServerConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownFlag { name, nearest } => {
                write!(f, "unknown flag --{name}, the nearest is --{nearest}")
            }
            Self::UnexpectedArgument { argument } => {
                write!(f, "{argument:?} does not belong to a flag")
            }
            Self::MissingValue { flag } => write!(f, "--{flag} needs a value"),
            Self::BadValue { flag, value, expected } => {
                write!(f, "--{flag} is {value:?}, expected {expected}")
            }
            Self::Unsupported { flag, value, feature } => {
                write!(f, "--{flag} is {value:?}, but {feature}")
            }
            Self::File { path, reason } => write!(f, "{path}: {reason}"),
        }
    }
}

impl std::error::Error for ServerConfigError {}
