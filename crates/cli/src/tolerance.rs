//! How many more failures a cluster tolerates, computed from the members' replies: for servers
//! that do not report it. Quorate's leader reports it, with joint memberships and zones.

use quorate_server::quorum_size;

use crate::print::counted;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VoterCount {
    pub(crate) voters: u64,
    /// Voters that answered and know a leader.
    pub(crate) live: u64,
}

impl VoterCount {
    pub(crate) fn quorum(self) -> u64 {
        quorum_size(self.voters as usize) as u64
    }

    pub(crate) fn has_quorum(self) -> bool {
        self.voters > 0 && self.live >= self.quorum()
    }

    pub(crate) fn failures(self) -> u64 {
        if self.has_quorum() { self.live - self.quorum() } else { 0 }
    }

    pub(crate) fn text(self) -> String {
        let voters = counted(self.voters, "voter", "voters");
        format!("{voters}, quorum {}, live {}", self.quorum(), self.live)
    }
}

/// The sentence at the end of `quorate status`.
pub(crate) fn sentence(has_quorum: bool, failures: u64) -> String {
    match (has_quorum, failures) {
        (false, _) => "no quorum: the cluster accepts no writes".to_string(),
        (true, 0) => "no further failure is tolerated right now".to_string(),
        (true, more) => {
            format!("{} tolerated right now", counted(more, "more failure is", "more failures are"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerated_failures() {
        let failures = |voters, live| VoterCount { voters, live }.failures();
        assert_eq!(failures(1, 1), 0);
        assert_eq!(failures(2, 2), 0);
        assert_eq!(failures(3, 3), 1);
        assert_eq!(failures(3, 2), 0);
        assert_eq!(failures(4, 4), 1);
        assert_eq!(failures(5, 5), 2);
        assert_eq!(failures(5, 4), 1);
        assert_eq!(failures(5, 2), 0);
        assert!(!VoterCount { voters: 5, live: 2 }.has_quorum());
        assert!(!VoterCount { voters: 0, live: 0 }.has_quorum());
        assert!(VoterCount { voters: 4, live: 3 }.has_quorum());
    }

    #[test]
    fn sentences_agree_with_counts() {
        assert_eq!(sentence(true, 1), "1 more failure is tolerated right now");
        assert_eq!(sentence(true, 2), "2 more failures are tolerated right now");
        assert_eq!(sentence(true, 0), "no further failure is tolerated right now");
        assert!(sentence(false, 0).starts_with("no quorum"));
        assert_eq!(VoterCount { voters: 1, live: 0 }.text(), "1 voter, quorum 1, live 0");
    }
}
