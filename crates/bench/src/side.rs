//! Who is measured. The only place that knows whether the peers were built in.

use std::fmt;
use std::str::FromStr;

use crate::cluster::Cluster;
use crate::idle::Probes;
use crate::ours;
#[cfg(feature = "peers")]
use crate::raft_rs;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Ours,
    RaftRs,
}

impl Side {
    pub(crate) const ALL: [Self; 2] = [Self::Ours, Self::RaftRs];

    pub(crate) fn is_built(self) -> bool {
        self == Self::Ours || cfg!(feature = "peers")
    }

    pub(crate) fn cluster(self) -> Box<dyn Cluster> {
        match self {
            Self::Ours => Box::new(ours::Ours::new()),
            #[cfg(feature = "peers")]
            Self::RaftRs => Box::new(raft_rs::RaftRs::new()),
            #[cfg(not(feature = "peers"))]
            Self::RaftRs => unreachable!("a side that was not built is not asked for"),
        }
    }

    pub(crate) fn probes(self) -> Probes {
        match self {
            Self::Ours => ours::probes(),
            #[cfg(feature = "peers")]
            Self::RaftRs => raft_rs::probes(),
            #[cfg(not(feature = "peers"))]
            Self::RaftRs => unreachable!("a side that was not built is not asked for"),
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ours => "ours",
            Self::RaftRs => "raft-rs",
        })
    }
}

impl FromStr for Side {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|side| side.to_string() == name).ok_or(())
    }
}
