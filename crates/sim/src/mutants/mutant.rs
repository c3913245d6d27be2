//! The mutants as data: text files in `crates/sim/mutants`, one entry for each mutant.
//!
//! ```text
//! [core/src/election.rs]                      the file that the entries below quote
//!
//! vote-for-older-log: A vote is granted to a log that is older than the voter's.
//! covers: mut.13                              rows of the catalogue of known problems
//! noticed: stories I4                         by which means, and by which checker
//! worlds: leases                              which simulated clusters are tried, if not all
//! in: fn is_up_to_date                        where a quote is not unique in its file
//! - last >= self.log.last()                   the original source text
//! + true                                      what replaces it
//! ```
//!
//! A long line continues on the next one, indented. `equivalent: reason` stands in place of
//! `noticed` for a mutant that does no harm. `in: FILE`, `in: FILE fn NAME` quotes another file.
//! Several pairs of `-` and `+` lines are several edits of one mutant.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A way of looking for faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Means {
    /// The stories of the core.
    Stories,
    /// A search through every state of a small cluster.
    Model,
    /// Random runs.
    Explore,
    /// Crashes of the log and the snapshots on disk.
    Disks,
}

impl Means {
    pub fn named(name: &str) -> Result<Self, String> {
        match name {
            "stories" => Ok(Self::Stories),
            "model" => Ok(Self::Model),
            "explore" => Ok(Self::Explore),
            "disks" => Ok(Self::Disks),
            _ => Err(format!("`{name}` must be stories, model, explore or disks")),
        }
    }
}

/// Which simulated clusters can notice a mutant: others would only take time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Worlds {
    #[default]
    All,
    /// Those about leader leases.
    Leases,
    /// Those about what members know of commits.
    Commits,
    /// Those with etcd's data model.
    Etcd,
    /// Those in which programs of several versions run.
    Versions,
}

impl Worlds {
    fn named(name: &str) -> Result<Self, String> {
        match name {
            "leases" => Ok(Self::Leases),
            "commits" => Ok(Self::Commits),
            "etcd" => Ok(Self::Etcd),
            "versions" => Ok(Self::Versions),
            _ => Err(format!("`{name}` must be leases, commits, etcd or versions")),
        }
    }
}

/// What the checkers must make of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Noticed by this checker: the id of an invariant, `claim` for what a story expects, `assert`
    /// for a panic or a failed check of a member's own state.
    Noticed { means: Means, checker: String },
    /// Not noticed, because it does no harm; with the reason.
    Equivalent(String),
}

/// One wrong version of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// Its switch in the mutated build.
    pub number: u16,
    /// In kebab-case.
    pub name: String,
    /// What is wrong, in one sentence.
    pub wrong: String,
    /// Rows of the catalogue of known problems; empty for a rule that has none.
    pub covers: Vec<String>,
    pub expected: Expected,
    pub worlds: Worlds,
    pub edits: Vec<Edit>,
}

/// A piece of source text and what replaces it while the mutant is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Below `crates/`.
    pub file: String,
    /// The beginning of the function that holds the quote, where it is not unique in the file.
    pub function: Option<String>,
    pub original: String,
    pub replacement: String,
}

impl Mutant {
    /// The means that must notice it. Equivalent ones are looked for by the stories first.
    pub fn means(&self) -> Means {
        match &self.expected {
            Expected::Noticed { means, .. } => *means,
            Expected::Equivalent(_) => Means::Stories,
        }
    }

    /// The checker that must notice it; none for one that does no harm.
    pub fn checker(&self) -> Option<&str> {
        match &self.expected {
            Expected::Noticed { checker, .. } => Some(checker),
            Expected::Equivalent(_) => None,
        }
    }

    pub fn is_equivalent(&self) -> bool {
        matches!(self.expected, Expected::Equivalent(_))
    }
}

/// Where the data is.
pub fn mutants_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("mutants")
}

/// Reads all mutants, in the order of the files' names.
pub fn read_mutants(folder: &Path) -> Result<Vec<Mutant>, String> {
    let list = std::fs::read_dir(folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    let paths = list.filter_map(|found| found.ok().map(|found| found.path()));
    let is_text = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "txt");
    let paths: BTreeSet<PathBuf> = paths.filter(is_text).collect();
    let mut mutants = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path);
        let text = text.map_err(|why| format!("{}: {why}", path.display()))?;
        let parsed = parse_mutants(&text).map_err(|why| format!("{}: {why}", path.display()))?;
        mutants.extend(parsed);
    }
    let mut names = BTreeSet::new();
    for (number, mutant) in (0..).zip(&mut mutants) {
        mutant.number = number;
        if !names.insert(mutant.name.clone()) {
            return Err(format!("two mutants are named `{}`", mutant.name));
        }
    }
    Ok(mutants)
}

/// Reads the text of one file. All mutants get the number 0.
pub fn parse_mutants(text: &str) -> Result<Vec<Mutant>, String> {
    let (mut file, mut mutants) = (None, Vec::new());
    for block in blocks(text) {
        if let Some(named) = block[0].1.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            file = Some(named.to_owned());
            continue;
        }
        mutants.push(Block { file: file.clone(), ..Block::default() }.read(&block)?);
    }
    Ok(mutants)
}

/// Lines with their numbers, separated by empty lines; without comments, and with lines that
/// continue the one before joined to it.
fn blocks(text: &str) -> Vec<Vec<(usize, String)>> {
    let (mut blocks, mut block): (Vec<_>, Vec<(usize, String)>) = (Vec::new(), Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim().is_empty() {
            blocks.push(std::mem::take(&mut block));
        } else if let (Some(more), Some((_, last))) = (line.strip_prefix("  "), block.last_mut()) {
            last.push(' ');
            last.push_str(more.trim());
        } else if !line.starts_with('#') {
            block.push((number, line.to_owned()));
        }
    }
    blocks.push(block);
    blocks.retain(|block| !block.is_empty());
    blocks
}

/// An entry while it is read.
#[derive(Debug, Default)]
struct Block {
    file: Option<String>,
    function: Option<String>,
    covers: Vec<String>,
    expected: Option<Expected>,
    worlds: Worlds,
    edits: Vec<Edit>,
    /// The last line was of the replacement: another original begins a new edit.
    is_replaced: bool,
}

impl Block {
    fn read(mut self, lines: &[(usize, String)]) -> Result<Mutant, String> {
        let (first, head) = &lines[0];
        let (name, wrong) = head.split_once(": ").unwrap_or((head, ""));
        let is_kebab = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || !name.chars().all(is_kebab) || !wrong.ends_with('.') {
            return Err(format!("line {first}: expected `name-of-mutant: What is wrong.`"));
        }
        for (number, line) in &lines[1..] {
            self.read_line(line).map_err(|why| format!("line {number}, {name}: {why}"))?;
        }
        let expected = self.expected.ok_or(format!("{name}: `noticed:` is missing"))?;
        if self.edits.is_empty() || !self.is_replaced {
            return Err(format!("{name}: an edit needs `-` lines, then `+` lines"));
        }
        Ok(Mutant {
            number: 0,
            name: name.to_owned(),
            wrong: wrong.to_owned(),
            covers: self.covers,
            expected,
            worlds: self.worlds,
            edits: self.edits,
        })
    }

    fn read_line(&mut self, line: &str) -> Result<(), String> {
        if let Some(text) = line.strip_prefix('-') {
            return self.read_original(text);
        }
        if let Some(text) = line.strip_prefix('+') {
            let edit = self.edits.last_mut().ok_or("`+` without `-`")?;
            self.is_replaced = true;
            push_line(&mut edit.replacement, text);
            return Ok(());
        }
        let (key, value) = line.split_once(':').ok_or(format!("`{line}` has no `key:`"))?;
        let value = value.trim();
        match key {
            "covers" => self.covers = value.split_whitespace().map(str::to_owned).collect(),
            "noticed" => {
                let (means, checker) = value.split_once(' ').ok_or("expected MEANS CHECKER")?;
                let (means, checker) = (Means::named(means)?, checker.to_owned());
                self.expected = Some(Expected::Noticed { means, checker });
            }
            "worlds" => self.worlds = Worlds::named(value)?,
            "equivalent" => self.expected = Some(Expected::Equivalent(value.to_owned())),
            "in" => {
                let (file, function) = match value.find("fn ") {
                    Some(at) => (value[..at].trim(), Some(value[at..].to_owned())),
                    None => (value, None),
                };
                if !file.is_empty() {
                    self.file = Some(file.to_owned());
                }
                self.function = function;
            }
            _ => return Err(format!("`{key}` must be covers, noticed, worlds, equivalent or in")),
        }
        Ok(())
    }

    fn read_original(&mut self, text: &str) -> Result<(), String> {
        if self.is_replaced || self.edits.is_empty() {
            let file = self.file.clone().ok_or("no file is named before it")?;
            let function = self.function.clone();
            let (original, replacement) = (String::new(), String::new());
            self.edits.push(Edit { file, function, original, replacement });
            self.is_replaced = false;
        }
        if let Some(edit) = self.edits.last_mut() {
            push_line(&mut edit.original, text);
        }
        Ok(())
    }
}

fn push_line(text: &mut String, line: &str) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(line.strip_prefix(' ').unwrap_or(line));
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# A comment.
[core/src/a.rs]

first-one: It is wrong in a way that needs a
  second line.
covers: S1 T2
noticed: stories I4
worlds: leases
- old();
- older();
+
in: core/src/b.rs fn go
- x
+ y

second-one: It is wrong.
equivalent: It does no
  harm.
in: fn stay
- a
+ if a {
+     b
+ }
";

    #[test]
    fn entries_are_read() {
        let mutants = parse_mutants(TEXT).unwrap();
        assert_eq!(mutants.len(), 2);
        assert_eq!(mutants[0].wrong, "It is wrong in a way that needs a second line.");
        assert_eq!(mutants[0].covers, ["S1", "T2"]);
        assert_eq!((mutants[0].worlds, mutants[1].worlds), (Worlds::Leases, Worlds::All));
        assert_eq!((mutants[0].means(), mutants[0].checker()), (Means::Stories, Some("I4")));
        let [first, second] = &mutants[0].edits[..] else { panic!("two edits") };
        assert_eq!(
            (first.file.as_str(), first.original.as_str()),
            ("core/src/a.rs", "old();\nolder();")
        );
        assert_eq!((first.function.as_deref(), first.replacement.as_str()), (None, ""));
        assert_eq!(
            (second.file.as_str(), second.function.as_deref()),
            ("core/src/b.rs", Some("fn go"))
        );
        assert_eq!(mutants[1].expected, Expected::Equivalent("It does no harm.".to_owned()));
        assert_eq!(mutants[1].edits[0].file, "core/src/a.rs");
        assert_eq!(mutants[1].edits[0].replacement, "if a {\n    b\n}");
    }

    #[test]
    fn incomplete_entries_are_refused() {
        let refused = |entry: &str| parse_mutants(&format!("[f.rs]\n\n{entry}")).unwrap_err();
        assert!(refused("Not Kebab: It is wrong.").contains("line 3"));
        assert!(refused("name: It is wrong.\n- a\n+ b").contains("`noticed:` is missing"));
        assert!(refused("name: It is wrong.\nnoticed: stories I1").contains("needs `-` lines"));
        assert!(refused("name: It is wrong.\nnoticed: stories I1\n- a").contains("then `+` lines"));
        assert!(refused("name: It is wrong.\nnoticed: luck I1").contains("`luck` must be"));
        assert!(parse_mutants("name: Wrong.\nnoticed: stories I1\n- a\n+ b").is_err());
    }
}
