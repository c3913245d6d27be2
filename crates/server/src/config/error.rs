//! Why a command line, variable or file cannot be understood.

use std::fmt;

use super::flags::UnsupportedFeature;

/// What is wrong with what was given. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// etcd has no such flag.
    UnknownFlag { found: String, nearest: &'static str },
    /// A word that belongs to no flag.
    UnexpectedWord { found: String },
    /// A flag without its value.
    NoValue { flag: String },
    /// A value that does not fit its flag.
    BadValue { flag: String, found: String, wanted: String },
    /// A flag whose neglect would do harm, and that is not served.
    NotServed { flag: String, found: String, missing: UnsupportedFeature },
    /// The file cannot be read, or is no YAML mapping.
    File { path: String, why: String },
}

impl ConfigError {
    pub(crate) fn value(flag: &str, found: &str, wanted: &str) -> Self {
        let (flag, found, wanted) = (flag.into(), found.into(), wanted.into());
        Self::BadValue { flag, found, wanted }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownFlag { found, nearest } => {
                write!(f, "unknown flag --{found}, the nearest is --{nearest}")
            }
            Self::UnexpectedWord { found } => write!(f, "{found:?} belongs to no flag"),
            Self::NoValue { flag } => write!(f, "--{flag} has no value, want one"),
            Self::BadValue { flag, found, wanted } => {
                write!(f, "--{flag} is {found:?}, want {wanted}")
            }
            Self::NotServed { flag, found, missing } => {
                write!(f, "--{flag} is {found:?}, but {missing}")
            }
            Self::File { path, why } => write!(f, "{path}: {why}"),
        }
    }
}

impl std::error::Error for ConfigError {}
