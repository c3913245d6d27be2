//! Asks the checkers what only several members together show, each question once.

use super::intern::{fingerprint, pair};
use super::state::ModelState;
use super::transitions::Transitions;
use crate::checkers::electable::{self, Elector};
use crate::checkers::{
    ClusterHistory, Violation, commit_is_on_quorum, logs_match, settled_is_known,
};

impl Transitions {
    /// I1, I4 and I5: shows a member to a history.
    pub(super) fn note(&mut self, history: u32, local: u32) -> Result<u32, Violation> {
        if let Some(noted) = self.noted.get(&pair(history, local)) {
            return Ok(*noted);
        }
        let mut grown = ClusterHistory::clone(self.histories.value(history));
        grown.note(&self.facts[local as usize].view)?;
        let (noted, _) = self.histories.number(grown);
        self.noted.insert(pair(history, local), noted);
        Ok(noted)
    }

    /// I10 and I13, against the disks of all other members.
    pub(super) fn check_disks(
        &self,
        state: &ModelState,
        at: usize,
        outcome: u32,
    ) -> Result<(), Violation> {
        let outcome = &self.outcomes[outcome as usize];
        let disk = |id| Some(&self.facts(state, self.place(id)?).disk);
        let history = self.histories.value(state.history);
        for (raised, own) in &outcome.raised {
            history.commit_is_of_own_term(raised)?;
            commit_is_on_quorum(raised, |id| if id == raised.by { Some(own) } else { disk(id) })?;
        }
        let own = &self.facts[outcome.local as usize].disk;
        for (entry, membership) in &outcome.settled {
            let by = self.id(at);
            let disk = |id| if id == by { Some(own) } else { disk(id) };
            settled_is_known(by, *entry, membership, disk)?;
        }
        Ok(())
    }

    /// I2, one log against all others.
    pub(super) fn check_logs(&mut self, state: &ModelState, at: usize) -> Result<(), Violation> {
        for other in (0..self.count()).filter(|other| *other != at) {
            let (ours, theirs) = (self.facts(state, at), self.facts(state, other));
            let key = pair(ours.log.min(theirs.log), ours.log.max(theirs.log));
            if self.matching.contains_key(&key) {
                continue;
            }
            let [ours, theirs] = [ours, theirs].map(|facts| (facts.view.id, &facts.view.log));
            logs_match(ours, theirs)?;
            self.matching.insert(key, ());
        }
        Ok(())
    }

    /// L1 for this state.
    pub(super) fn check_electable(&mut self, state: &ModelState) -> Result<(), Violation> {
        let places = 0..self.count();
        let words = places.map(|at| self.facts(state, at).elector).chain([state.history]);
        let ups = (0..self.count()).map(|at| u32::from(self.facts(state, at).view.up));
        let key = fingerprint(words.chain(ups));
        if self.electable.contains_key(&key) {
            return Ok(());
        }
        let (all, live) = self.electors(state);
        let history = self.histories.value(state.history);
        electable::check(&live, &all, history, self.rules)?;
        self.electable.insert(key, ());
        Ok(())
    }

    /// All members, and those that run, as electors.
    pub(super) fn electors(&self, state: &ModelState) -> (Vec<Elector>, Vec<Elector>) {
        let elector = |at| Elector::clone(self.electors.value(self.facts(state, at).elector));
        let all = (0..self.count()).map(elector).collect();
        let live = (0..self.count()).filter(|at| self.facts(state, *at).view.up).map(elector);
        (all, live.collect())
    }
}
