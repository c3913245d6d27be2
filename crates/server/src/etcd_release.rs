//! Which release of etcd this server says it is. Clients compare versions: some refuse a server
//! that is more than one minor version older than themselves.

use std::fmt;

/// A minor release of etcd whose answers about versions are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum EtcdRelease {
    V3_5,
    V3_6,
    #[default]
    V3_7,
}

impl EtcdRelease {
    /// All of them, oldest first.
    pub const ALL: [Self; 3] = [Self::V3_5, Self::V3_6, Self::V3_7];

    /// The release with this minor version, such as `3.7`.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|release| release.to_string() == text)
    }

    /// The version of the server.
    pub fn version(self) -> &'static str {
        match self {
            Self::V3_5 => "3.5.35",
            Self::V3_6 => "3.6.16",
            Self::V3_7 => "3.7.3",
        }
    }

    /// The version that all members have in common: the first release of the minor version.
    pub fn cluster_version(self) -> &'static str {
        match self {
            Self::V3_5 => "3.5.0",
            Self::V3_6 => "3.6.0",
            Self::V3_7 => "3.7.0",
        }
    }

    /// Whether a range of keys without values has no leases either.
    pub(crate) fn omits_leases_of_keys(self) -> bool {
        self == Self::V3_7
    }

    /// The version of the data. Releases before 3.6 do not report it.
    pub fn storage_version(self) -> Option<&'static str> {
        (self != Self::V3_5).then(|| self.cluster_version())
    }
}

impl fmt::Display for EtcdRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.cluster_version().trim_end_matches(".0"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_named_by_its_minor_version() {
        for release in EtcdRelease::ALL {
            let text = release.to_string();
            assert_eq!(EtcdRelease::parse(&text), Some(release));
            assert!(release.version().starts_with(&format!("{text}.")));
        }
        assert_eq!(EtcdRelease::parse("3.7.3"), None);
        assert_eq!(EtcdRelease::V3_5.storage_version(), None);
    }
}
