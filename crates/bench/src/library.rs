//! The libraries that are measured. Only this file knows which of them were built.

use std::fmt;
use std::str::FromStr;

use crate::cluster::BenchCluster;
use crate::idle::Probes;
use crate::ours;
#[cfg(feature = "peers")]
use crate::raft_rs;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    Ours,
    RaftRs,
}

impl Library {
    pub(crate) const ALL: [Self; 2] = [Self::Ours, Self::RaftRs];

    pub(crate) fn is_built(self) -> bool {
        self == Self::Ours || cfg!(feature = "peers")
    }

    pub(crate) fn cluster(self) -> Box<dyn BenchCluster> {
        match self {
            Self::Ours => Box::new(ours::Ours::new()),
            #[cfg(feature = "peers")]
            Self::RaftRs => Box::new(raft_rs::RaftRs::new()),
            #[cfg(not(feature = "peers"))]
            Self::RaftRs => unreachable!("a library that was not built is not measured"),
        }
    }

    pub(crate) fn probes(self) -> Probes {
        match self {
            Self::Ours => ours::probes(),
            #[cfg(feature = "peers")]
            Self::RaftRs => raft_rs::probes(),
            #[cfg(not(feature = "peers"))]
            Self::RaftRs => unreachable!("a library that was not built is not measured"),
        }
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ours => "ours",
            Self::RaftRs => "raft-rs",
        })
    }
}

impl FromStr for Library {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|library| library.to_string() == name).ok_or(())
    }
}
