//! What a run explores: where it begins, what may happen, how far it goes.

use quorate_core::config::Activation;
use quorate_core::{Index, Term};

/// A bounded space of states. Everything that may happen within the bounds does.
#[derive(Clone, Debug)]
pub struct Scope {
    pub name: String,
    /// One line for the list.
    pub about: String,
    /// The beginning, in the language of scenarios (docs/scenarios.md).
    pub stage: String,
    pub activations: Vec<Activation>,
    pub bounds: ScopeBounds,
    pub may: ScopeActions,
    pub checks: Checks,
    pub expects: ScopeExpectation,
}

/// How far. A state beyond a bound is not explored further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScopeBounds {
    /// No member enters a higher term.
    pub terms: Term,
    /// No command is proposed, and no change, beyond this index.
    pub log: Index,
    /// Changes asked for, in one log. Those that follow by themselves do not count.
    pub changes: usize,
    pub network: NetworkModel,
    /// Saves that wait at one member, where disks are slow.
    pub saves: usize,
    /// Restarts, all members together.
    pub restarts: u32,
    /// Steps from the beginning.
    pub depth: u32,
}

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkModel {
    /// Any message may take any time. At most this many are in flight from one member to
    /// another; one more, and one of them is lost: every choice of it is explored.
    Free { link: usize },
    /// A message arrives before anything else happens, in the order of sending, or is
    /// lost, or is one of so few, in the whole network, that may take any time.
    Prompt { delayed: usize },
}

/// What may happen besides campaigns and the delivery or loss of messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScopeActions {
    /// A leader is given a command.
    pub propose: bool,
    /// Changes that a leader may be asked for, in the words of scenarios: `v4`.
    pub changes: Vec<String>,
    /// A leader's heartbeat goes to one member and its answer back, in one step; the
    /// heartbeats to the others are lost.
    pub beat: bool,
    /// A leader is asked to transfer leadership to any member.
    pub transfer: bool,
    /// A member captures its state machine and trims its log.
    pub snapshot: bool,
    /// A follower stops believing in its leader. Needed with check-quorum, where votes
    /// are ignored while a leader is known: no time passes here.
    pub forget: bool,
}

/// What is looked at besides safety.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// L1 in every state, for every set of live members.
    pub electable: bool,
    /// Where L1 is looked at, let the cores themselves try: both must agree.
    pub executed: bool,
}

/// What a run is known to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ScopeExpectation {
    /// No violation.
    #[default]
    Clean,
    /// This rule is broken: a condition is switched off to show that it is needed.
    Broken(&'static str),
    /// No violation, and a new leader is reached.
    Leader,
    /// No violation, and no new leader, however long one waits.
    NoLeader,
}

impl Default for ScopeBounds {
    fn default() -> Self {
        Self {
            terms: 2,
            log: 3,
            changes: 0,
            network: NetworkModel::Prompt { delayed: 0 },
            saves: 2,
            restarts: 0,
            depth: u32::MAX,
        }
    }
}
