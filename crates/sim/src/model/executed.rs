//! L1 by execution: the real cores of a set of members run alone, all messages between
//! them arrive, each campaigns in turn. The oracle must predict the result.

use std::collections::VecDeque;

use quorate_core::message::Message;
use quorate_core::{Envelope, Term};

use super::intern::fingerprint;
use super::state::ModelState;
use super::transitions::{CAMPAIGN, MESSAGES, TICK, Transitions};
use crate::checkers::Violation;
use crate::checkers::electable::{can_elect, members_of, sets};

impl Transitions {
    /// For every set of live members: the oracle says that one can be elected exactly
    /// if the cores elect one. Answers how many sets were tried.
    pub(super) fn check_executed(&mut self, state: &ModelState) -> Result<u64, Violation> {
        let up: Vec<usize> =
            (0..self.count()).filter(|at| self.facts(state, *at).view.up).collect();
        let key = fingerprint(up.iter().map(|at| state.members[*at]));
        if self.executed.insert(key, ()).is_some() {
            return Ok(0); // Messages in flight play no part in it.
        }
        let (_, live) = self.electors(state);
        let mut tried = 0;
        for chosen in sets(live.len()) {
            let set = members_of(&live, chosen);
            let predicted = can_elect(&set, self.rules);
            let places: Vec<usize> = up
                .iter()
                .enumerate()
                .filter(|(at, _)| chosen >> at & 1 == 1)
                .map(|(_, at)| *at)
                .collect();
            let elected = self.elects(state, &places)?;
            tried += 1;
            if predicted != elected {
                let names: Vec<String> = set.iter().map(|one| one.id.to_string()).collect();
                let says = |yes| if yes { "a leader" } else { "none" };
                let what = format!(
                    "with {} alive the oracle predicts {}, the cores elect {}",
                    names.join(" "),
                    says(predicted),
                    says(elected)
                );
                return Err(Violation::new("L1", what));
            }
        }
        Ok(tried)
    }

    /// Whether these, left alone, come to have a new leader that commits an entry of its
    /// term.
    fn elects(&mut self, state: &ModelState, places: &[usize]) -> Result<bool, Violation> {
        let mut members = state.members;
        let terms = places.iter().map(|at| self.facts[members[*at] as usize].view.term);
        let known = terms.max().unwrap_or(0);
        self.depose(&mut members, places, known + 1)?;
        for _ in 0..ROUNDS {
            if self.has_new_leader(&members, places, known) {
                return Ok(true);
            }
            for at in places {
                self.campaign(&mut members, places, *at)?;
                if self.has_new_leader(&members, places, known) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn has_new_leader(&self, members: &[u32], places: &[usize], known: Term) -> bool {
        places.iter().any(|at| {
            let facts = &self.facts[members[*at] as usize];
            let commit = facts.view.log.id_at(facts.view.commit);
            facts.leads && commit.is_some_and(|id| id.term > known)
        })
    }

    /// Campaigns until its term is above all others, in which no member has voted. Then
    /// the heartbeats of leaders arrive.
    fn campaign(
        &mut self,
        members: &mut [u32],
        places: &[usize],
        at: usize,
    ) -> Result<(), Violation> {
        for _ in 0..ATTEMPTS {
            let terms = places.iter().map(|at| self.facts[members[*at] as usize].view.term);
            let newest = terms.max().unwrap_or(0);
            self.tell(members, places, at, CAMPAIGN)?;
            for leader in places {
                if self.facts[members[*leader] as usize].leads {
                    self.tell(members, places, *leader, TICK)?;
                }
            }
            if self.facts[members[at] as usize].view.term > newest {
                break;
            }
        }
        Ok(())
    }

    /// Leaders hear of a newer term and are told to campaign in the next: they keep what they
    /// know, and have to win again.
    fn depose(
        &mut self,
        members: &mut [u32],
        places: &[usize],
        term: Term,
    ) -> Result<(), Violation> {
        for at in places {
            if !self.facts[members[*at] as usize].leads {
                continue;
            }
            let (to, from) = (self.id(*at), (0..self.count()).find(|other| other != at));
            let Some(from) = from.map(|from| self.id(from)) else { continue };
            let message = Message::TimeoutNow;
            let call = Envelope { from, to, term, incarnation: 0, joined_at: 0, message };
            if let Some(call) = self.message_number(&call) {
                self.tell(members, places, *at, MESSAGES + call)?;
            }
        }
        Ok(())
    }

    /// One act, and everything that follows from it among these.
    fn tell(
        &mut self,
        members: &mut [u32],
        places: &[usize],
        at: usize,
        act: u32,
    ) -> Result<(), Violation> {
        let mut queue = VecDeque::from([(at, act)]);
        for _ in 0..STEPS_MAX {
            let Some((at, act)) = queue.pop_front() else { return Ok(()) };
            let mut outcome = self.outcome(at, members[at], act)?;
            loop {
                members[at] = self.local_after(outcome);
                for message in self.sends(outcome) {
                    let to = usize::from(self.links[*message as usize].to);
                    if places.contains(&to) {
                        queue.push_back((to, MESSAGES + message));
                    }
                }
                // Work that is held back is done here: nothing fails any more.
                let Some(work) = self.work_left(members[at]) else { break };
                outcome = self.outcome(at, members[at], work)?;
            }
        }
        Err(Violation::new("L1", format!("it does not settle in {STEPS_MAX} steps")))
    }
}

/// Knowledge spreads by one member at least in each round, so this is enough for six.
const ROUNDS: usize = 8;
/// Terms within a scope lie no further apart.
const ATTEMPTS: usize = 10;
const STEPS_MAX: usize = 100_000;
