//! Mutants that no checker can notice, each with the reason.

use quorate_core::mutants::Mutant;

/// Wrong versions that do no harm, and why.
pub const EQUIVALENT: &[(Mutant, &str)] = &[
    (
        Mutant::PreVoteWonSkipsTheDoor,
        "whatever bars a campaign while a pre-vote runs also ends it: a snapshot, a leader \
         that is heard and a membership that is learned make a follower of the pre-candidate",
    ),
    (
        Mutant::VoteBesideLeader,
        "the leader of this term was elected by a quorum that voted in it, and every quorum \
         that a second candidate of the term could win by shares a voter with that one",
    ),
    (
        Mutant::LeaderIsTaught,
        "what votes tell is committed, also for a leader; it would find out by itself a \
         little later. That it does not listen keeps the rule simple",
    ),
    (
        Mutant::SettledBeforeOwnCommit,
        "the report is true all the same: it rests on what the disks of a quorum know, and \
         what follows from it waits for an entry of the leader's own by other rules",
    ),
];

/// Why this mutant does no harm, if it does none.
pub fn reason(mutant: Mutant) -> Option<&'static str> {
    EQUIVALENT.iter().find(|(harmless, _)| *harmless == mutant).map(|(_, reason)| *reason)
}
