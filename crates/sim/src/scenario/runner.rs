//! Plays whole files: compares, rewrites, collects.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::{fs, io};

use quorate_core::config::Activation;

use crate::short_ids::short_ids;

use super::command::StoryCommand;
use super::story::{
    Plays, Story, StoryBlock, StoryError, StoryLine, StoryTranscript, activation_text,
};
use super::world::{CommandResult, StoryWorld};
use crate::checkers::panic_text;

/// The result of playing one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoryResult {
    Passed(Plays),
    /// Its transcripts were replaced by what happened.
    Rewritten(Plays),
    Failed {
        line: usize,
        why: String,
    },
}

/// A story as it went: what each line of each block printed, up to the line that
/// failed.
pub(super) struct Performance {
    pub(super) blocks: Vec<Vec<TranscriptPage>>,
    pub(super) failure: Option<StoryError>,
    /// What failed after that, where the story was played on.
    pub(super) later: Vec<StoryError>,
    /// Inputs that members were handed.
    pub(super) steps: u64,
}

/// What one line printed.
pub(super) type TranscriptPage = Vec<String>;

impl Performance {
    /// The transcript of each block.
    pub(super) fn transcripts(&self) -> Vec<Vec<String>> {
        self.blocks.iter().map(|pages| pages.concat()).collect()
    }
}

/// Plays a story from beginning to end, or to its first failure.
pub(super) fn perform(story: &Story, activation: Activation) -> Performance {
    let mut world = StoryWorld { activation, ..StoryWorld::default() };
    let mut blocks = Vec::new();
    let mut failure = None;
    for block in &story.blocks {
        let mut pages = Vec::new();
        failure = perform_block(&mut world, block, 0, &mut pages).err();
        blocks.push(pages);
        if failure.is_some() {
            break;
        }
    }
    Performance { blocks, failure, later: Vec::new(), steps: world.steps }
}

/// Plays a story to its end, whatever fails on the way: to see where that leads.
pub(super) fn perform_on(story: &Story, activation: Activation) -> Performance {
    let mut world = StoryWorld { activation, ..StoryWorld::default() };
    let mut failures = Vec::new();
    for block in &story.blocks {
        let mut from = 0;
        while let Err(wrong) = perform_block(&mut world, block, from, &mut Vec::new()) {
            from = 1 + block.lines.iter().take_while(|line| line.number != wrong.line).count();
            failures.push(wrong);
        }
    }
    let failure = (!failures.is_empty()).then(|| failures.remove(0));
    Performance { blocks: Vec::new(), failure, later: failures, steps: world.steps }
}

/// Plays the lines of a block from this one on.
fn perform_block(
    world: &mut StoryWorld,
    block: &StoryBlock,
    from: usize,
    pages: &mut Vec<TranscriptPage>,
) -> Result<(), StoryError> {
    for (at, line) in block.lines.iter().enumerate().skip(from) {
        let rest = block.lines.iter().skip(at + 1);
        let next = rest.filter_map(|line| line.command_under(world.activation)).next();
        let played = perform_line(world, line, next);
        pages.push(world.page.take_lines());
        played.map_err(|why| StoryError { line: line.number, why: short_ids(&why) })?;
    }
    Ok(())
}

/// Plays one line. When it was the last that set the stage, the members are shown.
pub(super) fn perform_line(
    world: &mut StoryWorld,
    line: &StoryLine,
    next: Option<&StoryCommand>,
) -> CommandResult {
    let Some(command) = line.command_under(world.activation) else { return Ok(()) };
    world.page.muted = line.silent;
    let played = catch_unwind(AssertUnwindSafe(|| {
        world.play(command)?;
        let stage_is_set = line.silent || !next.is_some_and(StoryCommand::is_setup);
        if stage_is_set { world.show_fresh() } else { Ok(()) }
    }));
    world.page.muted = false;
    played.unwrap_or_else(|panic| Err(format!("panic: {}", panic_text(panic.as_ref()))))
}

/// Plays a story for what it leads to, not for what it prints.
#[cfg(feature = "whole")]
pub(super) fn play_through(world: &mut StoryWorld, story: &Story) -> Result<(), StoryError> {
    story.blocks.iter().try_for_each(|block| perform_block(world, block, 0, &mut Vec::new()))
}

/// The story with the transcript of this performance, and how it failed, if it did.
#[cfg(feature = "whole")]
pub(super) fn transcribe(story: &Story, activation: Activation) -> (String, Option<String>) {
    let performance = perform(story, activation);
    let text = story.rewritten(&performance.transcripts(), &[]);
    let failure = performance.failure.map(|wrong| format!("line {}: {}", wrong.line, wrong.why));
    (text, failure)
}

/// Plays one file and compares its transcripts, or replaces them.
pub fn check(path: &Path, update: bool) -> StoryResult {
    let failed = |line, why: String| StoryResult::Failed { line, why };
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(why) => return failed(0, why.to_string()),
    };
    let story = match Story::parse(&text) {
        Ok(story) => story,
        Err(mistake) => return failed(mistake.line, mistake.why),
    };
    let mut both: Vec<Vec<Vec<String>>> = Vec::new();
    for activation in story.plays.activations() {
        let performance = perform(&story, activation);
        if let Some(StoryError { line, why }) = &performance.failure {
            let page = performance.blocks.last().map(|pages| so_far(&pages.concat()));
            return failed(
                *line,
                format!("{}{why}{}", under(&story, activation), page.unwrap_or_default()),
            );
        }
        both.push(performance.transcripts());
    }
    let mut both = both.into_iter();
    let (first, other) = (both.next().unwrap_or_default(), both.next().unwrap_or_default());
    let rewritten = story.rewritten(&first, &other);
    if update && rewritten != text {
        return match fs::write(path, rewritten) {
            Ok(()) => StoryResult::Rewritten(story.plays),
            Err(why) => failed(0, why.to_string()),
        };
    }
    match first_difference(&story, &first, &other) {
        Some((line, why)) => failed(line, why),
        None => StoryResult::Passed(story.plays),
    }
}

/// Which of two performances a complaint is about.
fn under(story: &Story, activation: Activation) -> String {
    match story.plays {
        Plays::Both => format!("{}: ", activation_text(activation)),
        Plays::Only(_) => String::new(),
    }
}

fn so_far(page: &[String]) -> String {
    let from = page.len().saturating_sub(LINES_SHOWN);
    page[from..].iter().map(|line| format!("\n    {line}")).collect()
}

const LINES_SHOWN: usize = 20;

pub(super) fn first_difference(
    story: &Story,
    first: &[Vec<String>],
    other: &[Vec<String>],
) -> Option<(usize, String)> {
    let mut blocks = story.blocks.iter().enumerate();
    blocks.find_map(|(at, block)| {
        let differs = |old: &StoryTranscript, new: &[Vec<String>]| difference(old, new.get(at)?);
        let second = block.on_append.as_ref().and_then(|old| differs(old, other));
        differs(&block.transcript, first).or(second)
    })
}

fn difference(old: &StoryTranscript, new: &[String]) -> Option<(usize, String)> {
    if old.text == new {
        return None;
    }
    let same = old.text.iter().zip(new).take_while(|(old, new)| old == new).count();
    let mut why = "the transcript differs (- file, + now)".to_owned();
    for line in diff(&old.text, new) {
        why.push_str("\n    ");
        why.push_str(&line);
    }
    Some((old.line + same, why))
}

/// Both texts as one, lines of only one of them marked.
fn diff(old: &[String], new: &[String]) -> Vec<String> {
    // longest[i][j]: how many lines old[i..] and new[j..] have in common, in order.
    let mut longest = vec![vec![0_usize; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            longest[i][j] = if old[i] == new[j] {
                longest[i + 1][j + 1] + 1
            } else {
                longest[i + 1][j].max(longest[i][j + 1])
            };
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            lines.push(format!("  {}", old[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || (i < old.len() && longest[i + 1][j] >= longest[i][j + 1]) {
            lines.push(format!("- {}", old[i]));
            i += 1;
        } else {
            lines.push(format!("+ {}", new[j]));
            j += 1;
        }
    }
    lines
}

/// All story files under these paths, in order of their names.
pub fn find(paths: &[PathBuf]) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            let inside: Result<Vec<PathBuf>, io::Error> =
                fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path())).collect();
            let is_story =
                |path: &PathBuf| path.is_dir() || path.extension().is_some_and(|ext| ext == "txt");
            let inside: Vec<PathBuf> = inside?.into_iter().filter(is_story).collect();
            files.extend(find(&inside)?);
        } else {
            fs::metadata(path)?;
            files.push(path.clone());
        }
    }
    files.sort();
    Ok(files)
}

/// Which files cover which ids of the catalogue, ids in their natural order.
pub(super) fn coverage(files: &[PathBuf]) -> Result<BTreeMap<CatalogueId, Vec<PathBuf>>, String> {
    let mut coverage: BTreeMap<CatalogueId, Vec<PathBuf>> = BTreeMap::new();
    for path in files {
        let at = |line| format!("{}:{line}", path.display());
        let text = fs::read_to_string(path).map_err(|why| format!("{}: {why}", at(0)))?;
        let story =
            Story::parse(&text).map_err(|wrong| format!("{}: {}", at(wrong.line), wrong.why))?;
        for id in story.covers {
            coverage.entry(CatalogueId::new(id)).or_default().push(path.clone());
        }
    }
    Ok(coverage)
}

/// An id of the catalogue, ordered as people count: S9 before S10.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CatalogueId {
    letters: String,
    number: u64,
    pub(super) text: String,
}

impl CatalogueId {
    fn new(text: String) -> Self {
        let rest = text.trim_start_matches(|c: char| !c.is_ascii_digit());
        let letters = text[..text.len() - rest.len()].to_owned();
        let number = rest.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0);
        Self { letters, number, text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_shown_where_it_is() {
        let lines = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(diff(&lines("a b c"), &lines("a x c d")), ["  a", "- b", "+ x", "  c", "+ d"]);
    }

    fn failure(commands: &str) -> Option<String> {
        let text = format!("# covers: S33\n# A story.\n\n{commands}");
        let story = Story::parse(&text).unwrap();
        perform(&story, Activation::OnApply)
            .failure
            .map(|mistake| format!("{}: {}", mistake.line, mistake.why))
    }

    /// m2 loses its disk and helps m3, which never saw x, to win.
    #[test]
    fn a_lost_entry_fails_the_story() {
        let lost = "cluster m1 m2 m3\ncampaign m1\nsettle\ncut m1 -> m3\npropose m1 x\nsettle\n\
                    crash m1 m2\nwipe m2\nrestart m2\ntick m3 10\ncampaign m3\nsettle\n";
        let why = failure(lost).unwrap();
        assert_eq!(why, "15: I4 violated: m3 leads term 3 without 2.3, committed in term 2");
    }

    #[test]
    fn a_claim_that_does_not_hold_fails_the_story() {
        let why = failure("cluster m1 m2\nexpect m1 leader").unwrap();
        assert!(why.starts_with("5: m1 is not leader: m1 follower term=1"), "{why}");
        let why = failure("cluster m1 m2\nexpect m1 m2 commit=1 not follower").unwrap();
        assert!(why.starts_with("5: m1 is follower"), "{why}");
        let why = failure("cluster m1 m2\nexpect m1 leader within 3 ticks").unwrap();
        assert!(why.starts_with("5: after 3 ticks still: m1 is not leader"), "{why}");
        let why = failure("cluster m1\nexpect no leader within 40 ticks").unwrap();
        assert!(why.contains("m1 leads term 2"), "{why}");
        assert_eq!(failure("cluster m1\nexpect leader m1 within 40 ticks"), None);
    }

    #[test]
    fn values_are_remembered() {
        let led = "cluster m1 m2 m3 learners m4\ncampaign m1\nsettle\n";
        let twice = "remember last m1 newest\nchange m1 v4 expecting=$last\nsettle ticks=2\n\
                     expect m1 voters=(1 2 3 4)\nchange m1 l4 expecting=$last\nexpect refused\n";
        assert_eq!(failure(&format!("{led}{twice}")), None);
        let why = failure("cluster m1\nexpect m1 commit>=$least").unwrap();
        assert!(why.starts_with("5: $least is not known"), "{why}");
    }

    #[test]
    fn a_fact_may_be_more_than_claimed() {
        assert_eq!(failure("cluster m1 m2\nexpect m1 commit>=1 term>=0 last>=1.1"), None);
        let why = failure("cluster m1 m2\nexpect m1 commit>=2").unwrap();
        assert!(why.starts_with("5: m1 has commit=1, expected at least 2"), "{why}");
        let why = failure("cluster m1 m2\nexpect m1 not commit>=1").unwrap();
        assert!(why.starts_with("5: m1 has commit=1, expected less than 1"), "{why}");
    }

    /// m2 gets an older disk back and helps m3, which never saw x, to win.
    #[test]
    fn an_older_disk_loses_what_was_saved_since() {
        let lost = "cluster m1 m2 m3\ncampaign m1\nsettle\nkeep-disk m2\ncut m1 -> m3\n\
                    propose m1 x\nsettle\ncrash m1 m2\nroll-back m2\nrestart m2\ntick m3 10\n\
                    campaign m3\nsettle\n";
        let why = failure(lost).unwrap();
        assert_eq!(why, "16: I4 violated: m3 leads term 3 without 2.3, committed in term 2");
        let why = failure("cluster m1 m2\ncrash m1\nroll-back m1").unwrap();
        assert_eq!(why, "6: no disk of m1 was kept; use `keep-disk`");
    }

    /// The leader hears that m3 did not get the snapshot, and sends it again.
    #[test]
    fn lost_snapshots_are_reported() {
        let story = "cluster m1 m2 m3 trim-keep=0\nreport-lost-snapshots\ncampaign m1\nsettle\n\
                     crash m3\npropose m1 a b c\nsettle\nsnapshot m1\ntrim m1 to 5\n\
                     cut m1 -> m3 Snapshot\nrestart m3\nsettle ticks=2\nheal\n\
                     expect same logs m1 m3 within 20 ticks\n";
        assert_eq!(failure(story), None);
        let text = format!("# covers: S33\n# A story.\n\n{story}");
        let played = perform(&Story::parse(&text).unwrap(), Activation::OnApply);
        let reported = played.blocks.iter().flatten().flatten();
        assert!(reported.into_iter().any(|line| line.contains("m1 lost a snapshot to m3")));
    }

    #[test]
    fn a_story_is_played_under_both_activations() {
        let text = "# covers: S33\n# A story.\n\ncluster m1 m2 learners m3\ncampaign m1\nsettle\n\
                    change m1 v3\n[on-apply] expect m1 voters=(1 2)\n\
                    [on-append] expect m1 voters=(1 2 3)\nexpect m1 voters=(1 2)\n";
        let story = Story::parse(text).unwrap();
        let failure = |activation| perform(&story, activation).failure.map(|wrong| wrong.line);
        assert_eq!(failure(Activation::OnApply), None);
        assert_eq!(failure(Activation::OnAppend), Some(10));
        assert_eq!(under(&story, Activation::OnAppend), "on-append: ");
    }

    #[test]
    fn ids_are_counted_as_people_count() {
        let mut ids = ["S10", "member.F2", "S9"].map(|id| CatalogueId::new(id.to_owned()));
        ids.sort();
        assert_eq!(ids.map(|id| id.text), ["S9", "S10", "member.F2"]);
    }
}
