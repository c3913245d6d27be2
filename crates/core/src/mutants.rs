//! Wrong versions of single rules: what the checkers must notice (docs/mutants.md).
//!
//! Without the feature `mutants` every `mutant!(..)` is the constant `false` and
//! leaves no trace in the code. With it, one mutant at a time is switched on for the
//! current thread.

/// Whether this wrong version of a rule is switched on.
#[cfg(feature = "mutants")]
#[macro_export]
macro_rules! mutant {
    ($name:ident) => {
        $crate::mutants::is_on($crate::mutants::Mutant::$name)
    };
}

/// Whether this wrong version of a rule is switched on: never, without the feature.
#[cfg(not(feature = "mutants"))]
#[macro_export]
macro_rules! mutant {
    ($name:ident) => {
        false
    };
}

#[cfg(feature = "mutants")]
pub use switch::{Mutant, is_on, switch};

#[cfg(feature = "mutants")]
mod switch {
    use std::cell::Cell;

    /// One wrong version of one rule.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Mutant {
        /// A vote is granted to a log that is older than the voter's.
        VoteForOlderLog,

        // Driver.
        /// A command that was offered twice runs twice.
        RepeatedCommandRuns,
        /// A snapshot does not say which requests have run.
        SnapshotForgetsOrigins,
        /// Promises leave before the save that holds them is durable.
        SendBeforeSaved,
        /// A read is answered before the machine has what it must see.
        ReadBeforeApplied,
        /// A refusal of the newest offer is taken for one of all offers.
        RefusedAfterManyOffers,
        /// A membership change is offered again to the next leader.
        ChangeOfferedAgain,

        // Storage.
        /// Term and vote are written one after the other (mut.11).
        TermAndVoteApart,
        /// A sync is reported and not done (mut.12).
        SyncSkipped,
        /// Half of a save's entries are written, all are reported (mut.37).
        BatchPartlyWritten,
        /// A sync that failed is tried again and believed (mut.40).
        SyncRetried,
        /// Damage in the middle of the log is taken for its end (mut.40).
        DamageTakenForEnd,
        /// A new segment is used before its name is durable.
        SegmentNotInDirectory,
        /// A snapshot gets its name before its contents are durable.
        SnapshotRenamedUnsynced,
        /// A snapshot is installed before its name is durable.
        InstallBeforeSnapshot,
        /// The log goes before the snapshot that covers it is durable.
        TrimBeforeSnapshot,
        /// What a crash left behind a torn write stays, and is written up to.
        TornTailKept,
    }

    thread_local! {
        static ON: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    pub fn is_on(mutant: Mutant) -> bool {
        ON.get() == Some(mutant)
    }

    /// Switches to this mutant, or to none, on this thread.
    pub fn switch(to: Option<Mutant>) {
        ON.set(to);
    }
}
