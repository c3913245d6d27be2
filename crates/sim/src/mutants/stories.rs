//! Hunts by the stories of the core.

use std::path::{Path, PathBuf};

use super::hunt::{Effort, Hunter, Kill};
use super::mutant::{Means, Mutant};
use super::switch::{limit, switch};
use crate::scenario::{Complaint, ComplaintKind, Script, find};

/// Where the stories of the core are kept.
pub fn stories_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../core/tests/scenarios")
}

pub struct Stories {
    scripts: Vec<Script>,
}

/// A row of the catalogue of known problems with one of its mutants, played by the stories that
/// cover this row and no others.
pub struct CoveredRow<'a> {
    pub id: String,
    pub mutant: &'a Mutant,
    pub kill: Option<Kill>,
}

impl CoveredRow<'_> {
    /// A story of this row needs the rule.
    pub fn is_needed(&self) -> bool {
        self.kill.as_ref().is_some_and(|kill| kill.is_proof)
    }
}

impl Stories {
    /// Reads all stories, and checks that each passes without a mutant: otherwise it would notice
    /// every mutant.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let files = find(&[folder.to_owned()]).map_err(|why| why.to_string())?;
        let scripts = files.iter().map(|path| Script::read(path));
        let scripts: Vec<Script> = scripts.collect::<Result<_, _>>()?;
        for script in &scripts {
            let played = script.play();
            played.map_err(|why| format!("{} fails without a mutant: {why}", script.name()))?;
        }
        Ok(Self { scripts })
    }

    /// Every story that proves something with this mutant on.
    pub fn witnesses(&self, mutant: &Mutant) -> Vec<Kill> {
        let kills = self.scripts.iter().filter_map(|script| play(mutant, script));
        kills.filter(|kill| kill.is_proof).collect()
    }

    /// Each row whose id begins with the prefix, with each of its mutants.
    pub fn rows<'a>(&self, mutants: &'a [Mutant], prefix: &str) -> Vec<CoveredRow<'a>> {
        let mut rows: Vec<CoveredRow<'_>> = Vec::new();
        for mutant in mutants.iter().filter(|mutant| mutant.means() == Means::Stories) {
            for id in mutant.covers.iter().filter(|id| id.starts_with(prefix)) {
                let of_row = self.scripts.iter().filter(|script| covers(script, id));
                rows.push(CoveredRow { id: id.clone(), mutant, kill: best(mutant, of_row) });
            }
        }
        let number = |id: &str| id.trim_start_matches(|c: char| !c.is_ascii_digit()).parse::<u32>();
        rows.sort_by_key(|row| (number(&row.id).unwrap_or(0), row.mutant.number));
        rows
    }
}

impl Hunter for Stories {
    fn means(&self) -> Means {
        Means::Stories
    }

    /// The stories of the mutant's own rows come first.
    fn hunt(&self, mutant: &Mutant, _: Effort) -> Option<Kill> {
        let own = |script: &&Script| mutant.covers.iter().any(|id| covers(script, id));
        let first = self.scripts.iter().filter(own);
        let rest = self.scripts.iter().filter(|script| !own(script));
        best(mutant, first.chain(rest))
    }
}

/// The first complaint of the checker that must notice the mutant; otherwise the first that
/// proves something; otherwise any.
fn best<'a>(mutant: &Mutant, scripts: impl Iterator<Item = &'a Script>) -> Option<Kill> {
    let mut found: Option<Kill> = None;
    for script in scripts {
        let Some(kill) = play(mutant, script) else { continue };
        if kill.is_proof && mutant.checker() == Some(&kill.checker) {
            return Some(kill);
        }
        if found.as_ref().is_none_or(|old| kill.is_proof && !old.is_proof) {
            found = Some(kill);
        }
    }
    found
}

fn play(mutant: &Mutant, script: &Script) -> Option<Kill> {
    switch(Some(mutant.number));
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
