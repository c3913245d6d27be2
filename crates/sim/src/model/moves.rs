//! Which steps lead out of a state.

use quorate_core::message::{AppendReply, Message};
use quorate_core::status::RoleKind;

use super::scope::NetworkModel;
use super::state::ModelState;
use super::transitions::{
    APPLIED, CAMPAIGN, CHANGES, FORGET, MESSAGES, PROPOSE, RESTART, RESTART_LOST, SAVED, SNAPSHOT,
    TICK, TRANSFERS, Transitions,
};
use crate::checkers::Violation;

/// One step of the cluster. Members by their places, the rest by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    Deliver(u32),
    /// It is lost, or late: nothing arrives.
    Lose(u32),
    Delay(u32),
    /// An act on one member.
    Act(u8, u32),
    /// A heartbeat from one to the other and its answer back.
    Beat(u8, u8),
}

/// A step that was taken, and where it may lead.
pub(super) struct Successors {
    pub(super) moves: Vec<(Move, usize)>,
    pub(super) states: Vec<ModelState>,
}

impl Successors {
    pub(super) fn new() -> Self {
        Self { moves: Vec::new(), states: Vec::new() }
    }

    /// Every state with the move that leads to it.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Move, &ModelState)> {
        let mut from = 0;
        self.moves.iter().flat_map(move |(step, to)| {
            let states = &self.states[from..*to];
            from = *to;
            states.iter().map(|state| (*step, state))
        })
    }
}

impl Transitions {
    /// All states one step away. A violation comes with the step that leads to it.
    pub(super) fn expand(
        &mut self,
        state: &ModelState,
        found: &mut Successors,
    ) -> Result<(), (Move, Violation)> {
        found.moves.clear();
        found.states.clear();
        if let Some(first) = state.fresh().first() {
            // Of a message that goes nowhere there is nothing to be said.
            for step in [Move::Deliver(*first), Move::Lose(*first), Move::Delay(*first)] {
                self.take(step, state, found)?;
            }
            return Ok(());
        }
        for message in state.messages() {
            let to = usize::from(self.links[*message as usize].to);
            if self.facts(state, to).view.up {
                self.take(Move::Deliver(*message), state, found)?;
            }
        }
        let mut moves = std::mem::take(&mut self.moves);
        moves.clear();
        for at in 0..self.count() {
            self.moves_of(state, at, &mut moves);
        }
        let taken = moves.iter().try_for_each(|step| self.take(*step, state, found));
        self.moves = moves;
        taken
    }

    fn take(
        &mut self,
        step: Move,
        state: &ModelState,
        found: &mut Successors,
    ) -> Result<(), (Move, Violation)> {
        self.follow(step, state, &mut found.states).map_err(|violation| (step, violation))?;
        found.moves.push((step, found.states.len()));
        Ok(())
    }

    /// Where one step leads.
    pub(super) fn follow(
        &mut self,
        step: Move,
        state: &ModelState,
        next: &mut Vec<ModelState>,
    ) -> Result<(), Violation> {
        match step {
            Move::Deliver(message) => {
                let mut state = *state;
                if state.fresh().first() == Some(&message) {
                    state.pop_fresh();
                } else {
                    state.remove(message);
                }
                let to = usize::from(self.links[message as usize].to);
                if self.facts(&state, to).view.up {
                    self.happen(&state, to, MESSAGES + message, next)?;
                }
                Ok(())
            }
            Move::Lose(_) => {
                let mut state = *state;
                state.pop_fresh();
                next.push(state);
                Ok(())
            }
            Move::Delay(message) => {
                self.delay(*state, message, next);
                Ok(())
            }
            Move::Act(at, act) => {
                let mut state = *state;
                state.restarts += u32::from(matches!(act, RESTART | RESTART_LOST));
                self.happen(&state, usize::from(at), act, next)
            }
            Move::Beat(from, to) => self.beat(state, usize::from(from), usize::from(to), next),
        }
    }

    fn moves_of(&self, state: &ModelState, at: usize, moves: &mut Vec<Move>) {
        let (facts, may, bounds) = (self.facts(state, at), &self.scope.may, self.scope.bounds);
        let place = at as u8;
        let mut act = |act| moves.push(Move::Act(place, act));
        if state.restarts < bounds.restarts {
            act(RESTART);
            if facts.unsynced {
                act(RESTART_LOST);
            }
        }
        if !facts.view.up {
            return;
        }
        if facts.saves > 0 {
            act(SAVED);
        }
        if facts.applies {
            act(APPLIED);
        }
        if !facts.leads && facts.view.term < bounds.terms {
            act(CAMPAIGN);
        }
        if may.forget && facts.view.role == RoleKind::Follower {
            act(FORGET);
        }
        if may.snapshot && facts.view.snapshot.id.index < facts.view.applied {
            act(SNAPSHOT);
        }
        if facts.leads {
            self.moves_of_leader(state, at, moves);
        }
    }

    fn moves_of_leader(&self, state: &ModelState, at: usize, moves: &mut Vec<Move>) {
        let (facts, may, bounds) = (self.facts(state, at), &self.scope.may, self.scope.bounds);
        let place = at as u8;
        let others = (0..self.count()).filter(|other| *other != at);
        if facts.last < bounds.log {
            moves.extend(may.propose.then_some(Move::Act(place, PROPOSE)));
            if facts.changes < bounds.changes {
                let changes = 0..self.changes.len() as u32;
                moves.extend(changes.map(|change| Move::Act(place, CHANGES + change)));
            }
        }
        if may.transfer {
            let to = others.clone().map(|other| Move::Act(place, TRANSFERS + other as u32));
            moves.extend(to);
        }
        if may.beat {
            let up = others.filter(|other| self.facts(state, *other).view.up);
            moves.extend(up.map(|other| Move::Beat(place, other as u8)));
        }
    }

    /// Three real steps in a row: the leader's clock ticks, one heartbeat arrives, its
    /// answer comes back. What else they lead to is sent as usual.
    fn beat(
        &mut self,
        state: &ModelState,
        from: usize,
        to: usize,
        next: &mut Vec<ModelState>,
    ) -> Result<(), Violation> {
        let mut state = *state;
        let outcome = self.outcome(from, state.members[from], TICK)?;
        self.change_member(&mut state, from, outcome)?;
        let sends = self.sends(outcome).to_vec();
        let is_beat = |transitions: &Self, message: u32| {
            matches!(transitions.messages.value(message).message, Message::Heartbeat(_))
        };
        let beat = sends.iter().copied().find(|message| {
            is_beat(self, *message) && usize::from(self.links[*message as usize].to) == to
        });
        let mut left: Vec<u32> =
            sends.into_iter().filter(|message| !is_beat(self, *message)).collect();
        if let Some(beat) = beat {
            let outcome = self.outcome(to, state.members[to], MESSAGES + beat)?;
            self.change_member(&mut state, to, outcome)?;
            for message in self.sends(outcome).to_vec() {
                if !self.answers_beat(message) {
                    left.push(message);
                    continue;
                }
                let outcome = self.outcome(from, state.members[from], MESSAGES + message)?;
                self.change_member(&mut state, from, outcome)?;
                left.extend(self.sends(outcome));
            }
        }
        if !self.is_beyond(&state, from) && !self.is_beyond(&state, to) {
            self.send(state, &left, next);
        }
        Ok(())
    }

    /// The first message in the queue is delayed. Only this many may be: one of those
    /// that do is lost for it.
    fn delay(&self, mut state: ModelState, message: u32, next: &mut Vec<ModelState>) {
        let NetworkModel::Prompt { delayed } = self.scope.bounds.network else { return };
        let to = usize::from(self.links[message as usize].to);
        state.pop_fresh();
        if delayed == 0 || !self.facts(&state, to).view.up {
            return;
        }
        if state.messages().len() < delayed {
            state.insert(message);
            next.push(state);
            return;
        }
        for lost in state.messages() {
            let mut state = state;
            state.remove(*lost);
            state.insert(message);
            next.push(state);
        }
    }

    fn answers_beat(&self, message: u32) -> bool {
        matches!(
            self.messages.value(message).message,
            Message::HeartbeatReply(_) | Message::AppendReply(AppendReply::OldTerm)
        )
    }
}
