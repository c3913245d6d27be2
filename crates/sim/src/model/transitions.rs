//! All steps that a cluster can take; no step is computed twice.
//!
//! Members and messages are values; each distinct one is kept once and known by a
//! number. What an input does to a member depends on nothing else in the cluster, so
//! the core is run once for every pair of a member and an input, and looked up from
//! then on. A state of the cluster is a handful of numbers.

use std::sync::Arc;

use quorate_core::message::Message;
use quorate_core::status::RoleKind;
use quorate_core::{Change, EntryId, Envelope, Index, MemberId, Membership, Term};

use super::intern::{Interner, Pairs, pair};
use super::member::{Act, ActResult, Fixed};
use super::moves::Move;
use super::scope::Scope;
use super::state::ModelState;
use crate::checkers::electable::{Elector, Rules};
use crate::checkers::{ClusterHistory, DiskRecord, MemberView, RaisedCommit, Violation};
use crate::cluster::{CoreMember, LogView};
use crate::scenario::stage::{self, StagedCluster};

pub(super) struct Transitions {
    pub(super) scope: Scope,
    pub(super) rules: Rules,
    pub(super) fixed: Vec<Fixed>,
    pub(super) changes: Vec<Change>,
    pub(super) locals: Interner<CoreMember>,
    pub(super) facts: Vec<MemberFacts>,
    pub(super) messages: Interner<Envelope>,
    pub(super) links: Vec<MessageLink>,
    pub(super) histories: Interner<ClusterHistory>,
    pub(super) electors: Interner<Elector>,
    logs: Interner<LogView>,
    pub(super) outcomes: Vec<ActOutcome>,
    /// What an act does to a member, by the numbers of both.
    known: Pairs<u32>,
    /// What a history becomes when it is shown a member.
    pub(super) noted: Pairs<u32>,
    /// Logs that were compared and match.
    pub(super) matching: Pairs<()>,
    /// Situations in which a leader can be elected.
    pub(super) electable: Pairs<()>,
    /// Situations in which the cores were left alone to elect.
    pub(super) executed: Pairs<()>,
    /// Kept to be filled again.
    pub(super) moves: Vec<Move>,
}

/// What is asked of a member over and over.
pub(super) struct MemberFacts {
    pub(super) view: MemberView,
    pub(super) disk: DiskRecord,
    pub(super) leads: bool,
    pub(super) last: Index,
    /// Requested changes in its log.
    pub(super) changes: usize,
    /// Term and commit index that no crash takes back.
    pub(super) floor: (Term, Index),
    pub(super) unsynced: bool,
    /// Saves that wait.
    pub(super) saves: usize,
    pub(super) applies: bool,
    pub(super) log: u32,
    pub(super) elector: u32,
}

/// Where a message goes, by places in the state.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct MessageLink {
    pub(super) from: u8,
    pub(super) to: u8,
}

/// What an act came to.
pub(super) struct ActOutcome {
    pub(super) local: u32,
    pub(super) sends: Box<[u32]>,
    pub(super) raised: Box<[(RaisedCommit, DiskRecord)]>,
    pub(super) settled: Box<[(EntryId, Arc<Membership>)]>,
}

impl Transitions {
    pub(super) fn new(
        scope: Scope,
        stage: &StagedCluster,
    ) -> Result<(Self, ModelState), Violation> {
        let words = &scope.may.changes;
        let changes: Result<Vec<Change>, String> =
            words.iter().map(|words| stage::change(words)).collect();
        let changes = changes.map_err(|why| Violation::new("stage", why))?;
        let configs = stage.members.iter().map(|member| &member.config);
        let rules = Rules {
            activation: configs.clone().next().map(|config| config.activation).unwrap_or_default(),
            votes_tell_commit: configs.clone().all(|config| config.liveness.votes_tell_commit),
            settles: configs.clone().all(|config| config.liveness.settle),
        };
        let fixed = stage.members.iter().map(|member| Fixed {
            config: member.config.clone(),
            holds_saves: member.holds_saves,
            holds_applies: member.holds_applies,
        });
        let mut transitions = Self {
            rules,
            fixed: fixed.collect(),
            changes,
            scope,
            locals: Interner::default(),
            facts: Vec::new(),
            messages: Interner::default(),
            links: Vec::new(),
            histories: Interner::default(),
            electors: Interner::default(),
            logs: Interner::default(),
            outcomes: Vec::new(),
            known: Pairs::default(),
            noted: Pairs::default(),
            matching: Pairs::default(),
            electable: Pairs::default(),
            executed: Pairs::default(),
            moves: Vec::new(),
        };
        let state = transitions.first_state(stage)?;
        Ok((transitions, state))
    }

    fn first_state(&mut self, stage: &StagedCluster) -> Result<ModelState, Violation> {
        let mut state = ModelState::new(stage.members.len());
        state.history = self.histories.number(ClusterHistory::default()).0;
        for (at, member) in stage.members.iter().enumerate() {
            let mut local = member.core.clone();
            local.make_canonical();
            let local = self.local_number(at, local);
            state.members[at] = local;
            state.history = self.note(state.history, local)?;
        }
        for envelope in &stage.flight {
            if let Some(message) = self.message_number(envelope) {
                state.insert(message);
            }
        }
        Ok(state)
    }

    pub(super) fn count(&self) -> usize {
        self.fixed.len()
    }

    pub(super) fn id(&self, at: usize) -> MemberId {
        self.fixed[at].config.id
    }

    pub(super) fn place(&self, id: MemberId) -> Option<usize> {
        self.fixed.iter().position(|fixed| fixed.config.id == id)
    }

    pub(super) fn facts(&self, state: &ModelState, at: usize) -> &MemberFacts {
        &self.facts[state.members[at] as usize]
    }

    /// Lets something happen to one member of a state. Adds the states it may lead to: more
    /// than one where a link is full and something has to be lost.
    pub(super) fn happen(
        &mut self,
        from: &ModelState,
        at: usize,
        act: u32,
        next: &mut Vec<ModelState>,
    ) -> Result<(), Violation> {
        let outcome = self.outcome(at, from.members[at], act)?;
        let mut state = *from;
        self.change_member(&mut state, at, outcome)?;
        if self.is_beyond(&state, at) {
            return Ok(());
        }
        self.send(state, self.sends(outcome), next);
        Ok(())
    }

    /// The member is where the scope does not reach.
    pub(super) fn is_beyond(&self, state: &ModelState, at: usize) -> bool {
        let (facts, bounds) = (self.facts(state, at), self.scope.bounds);
        facts.view.term > bounds.terms || facts.saves > bounds.saves
    }

    /// Puts the member where the outcome leaves it, and checks what that touches.
    pub(super) fn change_member(
        &mut self,
        state: &mut ModelState,
        at: usize,
        outcome: u32,
    ) -> Result<(), Violation> {
        let (before, after) = (state.members[at], self.outcomes[outcome as usize].local);
        self.check_disks(state, at, outcome)?;
        if before == after {
            return Ok(());
        }
        state.members[at] = after;
        let history = self.note(state.history, after)?;
        if history != state.history {
            state.history = history;
            for other in 0..self.count() {
                state.history = self.note(state.history, state.members[other])?;
            }
        }
        if self.facts[before as usize].log != self.facts[after as usize].log {
            self.check_logs(state, at)?;
        }
        self.forget_dead(state, at);
        Ok(())
    }

    /// The number of what an act makes of a member.
    pub(super) fn outcome(&mut self, at: usize, local: u32, act: u32) -> Result<u32, Violation> {
        if let Some(outcome) = self.known.get(&pair(local, act)) {
            return Ok(*outcome);
        }
        let performed = self.locals.value(local).perform(&self.fixed[at], &self.act(act))?;
        let ActResult { local: after, sends, raised, settled } = performed;
        let after = self.local_number(at, after);
        let mut numbers = Vec::new();
        for envelope in &sends {
            numbers.extend(self.message_number(envelope));
        }
        let Ok(number) = u32::try_from(self.outcomes.len()) else { panic!("too many outcomes") };
        self.outcomes.push(ActOutcome {
            local: after,
            sends: numbers.into(),
            raised: raised.into(),
            settled: settled.into(),
        });
        self.known.insert(pair(local, act), number);
        Ok(number)
    }

    pub(super) fn sends(&self, outcome: u32) -> &[u32] {
        &self.outcomes[outcome as usize].sends
    }

    pub(super) fn local_after(&self, outcome: u32) -> u32 {
        self.outcomes[outcome as usize].local
    }

    /// The act that completes the oldest work of a member.
    pub(super) fn work_left(&self, local: u32) -> Option<u32> {
        let facts = &self.facts[local as usize];
        if facts.saves > 0 {
            Some(SAVED)
        } else if facts.applies {
            Some(APPLIED)
        } else {
            None
        }
    }

    /// How often the core was really run.
    pub(super) fn core_runs(&self) -> usize {
        self.outcomes.len()
    }

    fn local_number(&mut self, at: usize, local: CoreMember) -> u32 {
        let view = local.view(&self.fixed[at].config);
        let (unsynced, saves) = (local.disk != local.synced, local.saves.len());
        let applies = !local.applies.is_empty();
        let hard_state = local.synced.hard_state;
        let floor = (hard_state.term, hard_state.commit.max(local.synced.snapshot.id.index));
        let (number, new) = self.locals.number(local);
        if new {
            let asked = |entry: &&quorate_core::Entry| {
                entry.change().is_some_and(|logged| self.changes.contains(&logged.change))
            };
            let facts = MemberFacts {
                leads: view.role == RoleKind::Leader,
                last: view.log.last().index,
                changes: view.log.entries.iter().filter(asked).count(),
                floor,
                unsynced,
                saves,
                applies,
                log: self.logs.number(view.log.clone()).0,
                elector: self.electors.number(Elector::of(&view)).0,
                disk: DiskRecord::of_view(&view.durable),
                view,
            };
            self.facts.push(facts);
        }
        number
    }

    /// Messages to unknown members have no number.
    pub(super) fn message_number(&mut self, envelope: &Envelope) -> Option<u32> {
        let (from, to) = (self.place(envelope.from)?, self.place(envelope.to)?);
        let mut envelope = envelope.clone();
        if let Message::HeartbeatReply(reply) = &mut envelope.message {
            // Only shown: no scope counts stalls.
            reply.applied = 0;
        }
        let (number, new) = self.messages.number(envelope);
        if new {
            self.links.push(MessageLink { from: from as u8, to: to as u8 });
        }
        Some(number)
    }

    pub(super) fn act(&self, act: u32) -> Act {
        match act {
            CAMPAIGN => Act::Campaign,
            FORGET => Act::ForgetLeader,
            PROPOSE => Act::Propose,
            TICK => Act::Tick,
            RESTART => Act::Restart { unsynced_lost: false },
            RESTART_LOST => Act::Restart { unsynced_lost: true },
            SNAPSHOT => Act::Snapshot,
            SAVED => Act::CompleteSave,
            APPLIED => Act::CompleteApply,
            _ if act >= MESSAGES => {
                Act::Receive(self.messages.value(act - MESSAGES).as_ref().clone())
            }
            _ if act >= TRANSFERS => Act::Transfer(self.id((act - TRANSFERS) as usize)),
            _ => Act::Change(self.changes[(act - CHANGES) as usize].clone()),
        }
    }
}

pub(super) const CAMPAIGN: u32 = 0;
pub(super) const FORGET: u32 = 1;
pub(super) const PROPOSE: u32 = 2;
pub(super) const TICK: u32 = 3;
pub(super) const RESTART: u32 = 4;
pub(super) const RESTART_LOST: u32 = 5;
pub(super) const SNAPSHOT: u32 = 6;
pub(super) const SAVED: u32 = 7;
pub(super) const APPLIED: u32 = 8;
/// From here on: changes, members to hand over to, messages, by their numbers.
pub(super) const CHANGES: u32 = 16;
pub(super) const TRANSFERS: u32 = 64;
pub(super) const MESSAGES: u32 = 128;
