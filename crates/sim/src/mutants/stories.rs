//! Hunting by the stories of the core.

use std::path::Path;

use quorate_core::mutants::{Means, Mutant, limit, switch};

use super::hunt::{Effort, Hunter, Kill};
use crate::scenario::{Complaint, ComplaintKind, Script, find};

pub struct Stories {
    scripts: Vec<Script>,
}

/// A row of the catalogue, and how its stories fare when its rule is switched off.
pub struct Rule {
    pub id: String,
    pub mutant: Mutant,
    pub kill: Option<Kill>,
}

impl Stories {
    /// Reads all stories, and makes sure that each is right as long as no rule is wrong:
    /// otherwise it would notice everything.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let files = find(&[folder.to_owned()]).map_err(|why| why.to_string())?;
        let scripts = files.iter().map(|path| Script::read(path));
        let scripts: Vec<Script> = scripts.collect::<Result<_, _>>()?;
        for script in &scripts {
            script.play().map_err(|wrong| format!("{} fails by itself: {wrong}", script.name()))?;
        }
        Ok(Self { scripts })
    }

    pub fn scripts(&self) -> &[Script] {
        &self.scripts
    }

    /// Every story that proves something with this mutant on.
    pub fn witnesses(&self, mutant: Mutant) -> Vec<Kill> {
        let kills = self.scripts.iter().filter_map(|script| notices(mutant, script));
        kills.filter(|kill| kill.is_proof).collect()
    }

    /// Each row whose id begins so, with each of its mutants, played by the stories that
    /// cover that row and no others.
    pub fn rules(&self, prefix: &str) -> Vec<Rule> {
        let mut rules: Vec<Rule> = Vec::new();
        for mutant in Mutant::ALL {
            if mutant.means() != Means::Stories {
                continue;
            }
            for id in mutant.ids().split_whitespace().filter(|id| id.starts_with(prefix)) {
                let of_rule = self.scripts.iter().filter(|script| covers(script, id));
                let kill = best(*mutant, of_rule);
                rules.push(Rule { id: id.to_owned(), mutant: *mutant, kill });
            }
        }
        let number = |id: &str| id.trim_start_matches(|c: char| !c.is_ascii_digit()).parse::<u32>();
        rules.sort_by_key(|rule| (number(&rule.id).unwrap_or(0), rule.mutant));
        rules
    }
}

impl Hunter for Stories {
    fn means(&self) -> Means {
        Means::Stories
    }

    /// The stories of the mutant's own rows come first.
    fn hunt(&self, mutant: Mutant, _: Effort) -> Option<Kill> {
        let about = |script: &&Script| mutant.ids().split_whitespace().any(|id| covers(script, id));
        let first = self.scripts.iter().filter(about);
        let rest = self.scripts.iter().filter(|script| !about(script));
        best(mutant, first.chain(rest))
    }
}

/// The first complaint by the checker that is expected to notice; otherwise the first
/// that proves something; otherwise any.
fn best<'a>(mutant: Mutant, scripts: impl Iterator<Item = &'a Script>) -> Option<Kill> {
    let mut found: Option<Kill> = None;
    for script in scripts {
        let Some(kill) = notices(mutant, script) else { continue };
        if kill.is_proof && kill.checker == mutant.checker() {
            return Some(kill);
        }
        if found.as_ref().is_none_or(|old| kill.is_proof && !old.is_proof) {
            found = Some(kill);
        }
    }
    found
}

fn notices(mutant: Mutant, script: &Script) -> Option<Kill> {
    switch(Some(mutant));
    limit(QUESTIONS_MAX);
    let played = script.play();
    switch(None);
    played.err().map(|complaint| kill(script, &complaint))
}

fn kill(script: &Script, complaint: &Complaint) -> Kill {
    let checker = match &complaint.kind {
        ComplaintKind::Invariant(id) => id.clone(),
        ComplaintKind::Claim => "claim".to_owned(),
        ComplaintKind::Assertion => "assert".to_owned(),
        ComplaintKind::Endless => "endless".to_owned(),
        ComplaintKind::Course => "course".to_owned(),
        ComplaintKind::Transcript => "transcript".to_owned(),
    };
    Kill {
        means: Means::Stories,
        checker,
        is_proof: complaint.kind.is_proof(),
        place: script.name(),
        detail: complaint.to_string(),
        events: complaint.steps,
    }
}

/// More than ten times what the longest story needs.
const QUESTIONS_MAX: u64 = 300_000;

fn covers(script: &Script, id: &str) -> bool {
    script.covers().iter().any(|covered| covered == id)
}
