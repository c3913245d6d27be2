//! A story as a text file: a header of comments, then blocks of commands, each
//! with the transcript of what they lead to.
//!
//! A block ends at an empty line. Its transcript stands below `---`; a block that
//! prints nothing has none. A story is played under both activations, unless a line
//! `# only: on-append` says otherwise; the transcript is that of on-apply, and that
//! of on-append may stand below it, behind `---- on-append`.

use std::fmt;

use quorate_core::config::Activation;

use super::command::StoryCommand;
use super::notation::activation;
use super::words::Parsed;

#[derive(Clone, Debug)]
pub(super) struct Story {
    /// Ids of the catalogue rows that this story plays.
    pub(super) covers: Vec<String>,
    pub(super) plays: Plays,
    pub(super) blocks: Vec<StoryBlock>,
}

/// Under which activations a story is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plays {
    Both,
    Only(Activation),
}

/// Commands that belong together, and what they print.
#[derive(Clone, Debug, Default)]
pub(super) struct StoryBlock {
    pub(super) lines: Vec<StoryLine>,
    /// What happens on-apply, or under the only activation of the story.
    pub(super) transcript: StoryTranscript,
    /// What happens on-append, where the author wants to see it.
    pub(super) on_append: Option<StoryTranscript>,
    /// Empty lines behind the block.
    blanks: usize,
}

#[derive(Clone, Debug, Default)]
pub(super) struct StoryTranscript {
    pub(super) text: Vec<String>,
    /// Where it begins in the file, or would begin.
    pub(super) line: usize,
}

/// A line above the transcript.
#[derive(Clone, Debug)]
pub(super) struct StoryLine {
    pub(super) number: usize,
    pub(super) raw: String,
    /// Nothing for a comment.
    pub(super) command: Option<StoryCommand>,
    /// It stands in parentheses: what it prints is not shown.
    pub(super) silent: bool,
    /// It begins with `[on-append]` or `[on-apply]`, and is played only then.
    pub(super) only: Option<Activation>,
}

/// A line that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoryError {
    pub line: usize,
    pub why: String,
}

impl Story {
    pub(super) fn parse(text: &str) -> Result<Self, StoryError> {
        let (covers, plays) = header(text)?;
        let mut blocks: Vec<StoryBlock> = Vec::new();
        let mut block = StoryBlock::default();
        let mut place = BlockPart::Commands;
        for (at, raw) in text.lines().enumerate() {
            let number = at + 1;
            let wrong = |why| StoryError { line: number, why };
            if raw.trim().is_empty() {
                block.blanks += 1;
                continue;
            }
            if block.blanks > 0 {
                blocks.push(std::mem::take(&mut block));
                place = BlockPart::Commands;
            }
            if raw.starts_with("---") {
                place = place.after(raw, &block, plays).map_err(wrong)?;
                if place == BlockPart::OnAppend {
                    block.on_append =
                        Some(StoryTranscript { line: number + 1, ..StoryTranscript::default() });
                } else {
                    block.transcript.line = number + 1;
                }
                continue;
            }
            match (place, &mut block.on_append) {
                (BlockPart::OnAppend, Some(other)) => other.text.push(raw.trim_end().to_owned()),
                (BlockPart::Commands, _) => {
                    block.lines.push(StoryLine::parse(number, raw).map_err(wrong)?);
                    block.transcript.line = number + 1;
                }
                _ => block.transcript.text.push(raw.trim_end().to_owned()),
            }
        }
        blocks.push(block);
        Ok(Self { covers, plays, blocks })
    }

    /// The comments that open the story, without the lines about the file itself.
    pub(super) fn prose(&self) -> impl Iterator<Item = &str> {
        let first = self.blocks.first().map_or(&[][..], |block| &block.lines);
        let head = if self.plays == Plays::Both { 1 } else { 2 };
        first.iter().skip(head).map_while(StoryLine::comment)
    }

    /// The file with these transcripts in place of the old ones. Those of on-append
    /// replace others, and are not put where there is none.
    pub(super) fn rewritten(&self, pages: &[Vec<String>], on_append: &[Vec<String>]) -> String {
        let mut text = String::new();
        for (at, block) in self.blocks.iter().enumerate() {
            let page = pages.get(at).map_or(&[][..], Vec::as_slice);
            let other = block.on_append.as_ref().and_then(|_| on_append.get(at));
            let mut lines: Vec<&str> = block.lines.iter().map(|line| line.raw.as_str()).collect();
            if !page.is_empty() || other.is_some() {
                lines.push("---");
            }
            lines.extend(page.iter().map(String::as_str));
            if let Some(other) = other {
                lines.push(ON_APPEND);
                lines.extend(other.iter().map(String::as_str));
            }
            for line in lines {
                text.push_str(line);
                text.push('\n');
            }
            text.push_str(&"\n".repeat(block.blanks));
        }
        let end = text.trim_end().len();
        text.truncate(end);
        text.push('\n');
        text
    }
}

const ON_APPEND: &str = "---- on-append";

impl Plays {
    /// The activations, that of the first transcripts first.
    pub(super) fn activations(self) -> Vec<Activation> {
        match self {
            Self::Both => vec![Activation::OnApply, Activation::OnAppend],
            Self::Only(one) => vec![one],
        }
    }
}

pub(super) fn activation_text(activation: Activation) -> &'static str {
    match activation {
        Activation::OnApply => "on-apply",
        Activation::OnAppend => "on-append",
    }
}

impl fmt::Display for Plays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Both => "both",
            Self::Only(one) => activation_text(*one),
        })
    }
}

/// Which part of a block a line belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockPart {
    Commands,
    Transcript,
    OnAppend,
}

impl BlockPart {
    /// The part that begins with this marker.
    fn after(self, raw: &str, block: &StoryBlock, plays: Plays) -> Parsed<Self> {
        match (raw.trim_end(), self) {
            ("---", _) if block.lines.is_empty() => {
                Err("a transcript without commands above it".to_owned())
            }
            ("---", Self::Commands) => Ok(Self::Transcript),
            ("---", _) => Err("a second transcript in one block; put an empty line before new \
                               commands"
                .to_owned()),
            (ON_APPEND, Self::Transcript) if plays == Plays::Both => Ok(Self::OnAppend),
            (ON_APPEND, Self::Transcript) => {
                Err("this story is played under one activation; it has one transcript".to_owned())
            }
            (ON_APPEND, _) => Err(format!("`{ON_APPEND}` follows a transcript below `---`")),
            (other, _) => Err(format!(
                "`{other}` is no line between commands and transcript, expected --- or {ON_APPEND}"
            )),
        }
    }
}

impl StoryLine {
    fn parse(number: usize, raw: &str) -> Parsed<Self> {
        let raw = raw.trim_end().to_owned();
        let mut line = Self { number, raw, command: None, silent: false, only: None };
        let text = line.raw.trim();
        if text.starts_with('#') {
            return Ok(line);
        }
        let guard = text.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let text = guard.map_or(text, |(_, rest)| rest.trim_start());
        line.only = guard.map(|(name, _)| activation(name)).transpose()?;
        let opened = text.strip_prefix('(');
        let inner = opened.and_then(|rest| rest.strip_suffix(')'));
        if opened.is_some() && inner.is_none() {
            return Err("a command in parentheses ends with `)`".to_owned());
        }
        line.silent = inner.is_some();
        line.command = Some(StoryCommand::parse(inner.unwrap_or(text))?);
        Ok(line)
    }

    /// What is played under this activation, if anything.
    pub(super) fn command_under(&self, activation: Activation) -> Option<&StoryCommand> {
        self.command.as_ref().filter(|_| self.only.is_none_or(|only| only == activation))
    }

    /// The words of a comment.
    pub(super) fn comment(&self) -> Option<&str> {
        let text = self.raw.trim().strip_prefix('#')?;
        Some(text.strip_prefix(' ').unwrap_or(text))
    }
}

/// `# covers: S08 member.F2` in the first line, maybe `# only: on-append` in the
/// second, then prose.
fn header(text: &str) -> Result<(Vec<String>, Plays), StoryError> {
    let mut lines = text.lines();
    let wrong = |line, why: &str| StoryError { line, why: why.to_owned() };
    let first = lines.next().unwrap_or_default();
    let Some(ids) = first.strip_prefix("# covers:") else {
        return Err(wrong(
            1,
            "the first line names what is covered, such as `# covers: S08 member.F2`",
        ));
    };
    let ids: Vec<String> = ids.split_whitespace().map(str::to_owned).collect();
    if ids.is_empty() || !ids.iter().all(|id| is_catalogue_id(id)) {
        return Err(wrong(1, "expected ids of the catalogue, such as S08, member.F2 or mut.7"));
    }
    let mut lines = lines.zip(2..).peekable();
    let mut plays = Plays::Both;
    if let Some((only, line)) = lines.next_if(|(line, _)| line.starts_with(ONLY)) {
        let name = only.trim_start_matches(ONLY).trim();
        let one = activation(name).map_err(|why| StoryError { line, why })?;
        plays = Plays::Only(one);
    }
    let cluster = text.lines().find(|line| line.starts_with("cluster "));
    let named = cluster.and_then(|line| line.split(" activation=").nth(1));
    if let Some(one) = named.and_then(|rest| activation(rest.split(' ').next()?).ok()) {
        plays = Plays::Only(one); // `cluster … activation=on-append` says the same.
    }
    if !lines.peek().is_some_and(|(line, _)| line.starts_with('#')) {
        let line = if plays == Plays::Both { 2 } else { 3 };
        return Err(wrong(
            line,
            "expected some lines of prose: what happens, and what would go wrong",
        ));
    }
    Ok((ids, plays))
}

const ONLY: &str = "# only:";

/// Letters, maybe with a dot among them, then a number, then maybe a letter.
fn is_catalogue_id(id: &str) -> bool {
    let rest = id.trim_start_matches(|c: char| c.is_ascii_alphabetic() || c == '.');
    let digits = rest.trim_end_matches(|c: char| c.is_ascii_lowercase());
    rest.len() < id.len() && !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# covers: S08 member.F2\n# A story.\n\ncluster m1\n---\nm1 old\n\n\n\
                        # Why.\n(campaign m1)\nexpect m1 leader\n";

    fn pages(story: &Story) -> (Vec<Vec<String>>, Vec<Vec<String>>) {
        let text = |transcript: &StoryTranscript| transcript.text.clone();
        let other = |block: &StoryBlock| block.on_append.as_ref().map(text).unwrap_or_default();
        let blocks = || story.blocks.iter();
        (blocks().map(|block| text(&block.transcript)).collect(), blocks().map(other).collect())
    }

    #[test]
    fn a_story_is_read_and_written_back() {
        let story = Story::parse(TEXT).unwrap();
        assert_eq!(story.covers, ["S08", "member.F2"]);
        assert_eq!(story.plays, Plays::Both);
        assert_eq!(story.prose().collect::<Vec<_>>(), ["A story."]);
        assert_eq!(story.blocks[1].transcript.text, ["m1 old"]);
        assert_eq!(story.blocks[1].transcript.line, 6);
        assert!(story.blocks[2].lines[1].silent);
        let (first, other) = pages(&story);
        assert_eq!(story.rewritten(&first, &other), TEXT);
    }

    #[test]
    fn a_block_may_hold_both_transcripts() {
        let text = TEXT.replace("m1 old", "m1 old\n---- on-append\nm1 new");
        let text = text.replace("(campaign m1)", "[on-append] (campaign m1)");
        let story = Story::parse(&text).unwrap();
        let other = story.blocks[1].on_append.clone().unwrap();
        assert_eq!((other.text, other.line), (vec!["m1 new".to_owned()], 8));
        let line = &story.blocks[2].lines[1];
        assert!(line.silent && line.command_under(Activation::OnAppend).is_some());
        assert!(line.command_under(Activation::OnApply).is_none());
        let (first, other) = pages(&story);
        assert_eq!(story.rewritten(&first, &other), text);
    }

    #[test]
    fn a_story_may_be_about_one_activation() {
        let text = TEXT.replace("# A story.", "# only: on-append\n# A story.");
        let story = Story::parse(&text).unwrap();
        assert_eq!(story.plays, Plays::Only(Activation::OnAppend));
        assert_eq!(story.prose().collect::<Vec<_>>(), ["A story."]);
        let twice = text.replace("m1 old", "m1 old\n---- on-append");
        assert!(Story::parse(&twice).is_err());
        assert_eq!(Story::parse(&text.replace("on-append", "on-appendix")).unwrap_err().line, 2);
    }

    proptest::proptest! {
        /// Whatever an author types, the answer is a story or a mistake.
        #[test]
        fn any_text_is_answered(text in "(([a-z]{2,8}|m[0-9]|[0-9]{1,3}[.][0-9]|->|[(]|[)]|=|\"|\\[|,|\n|---|#) ?){0,40}") {
            for prefix in ["", "# covers: S1\n# Prose.\n\n", "# covers: S1\n#\n\nlog m1 "] {
                let _ = Story::parse(&format!("{prefix}{text}"));
            }
        }
    }

    #[test]
    fn mistakes_name_their_line() {
        let said = |text: &str| Story::parse(text).map(|_| ()).unwrap_err();
        assert_eq!(said("cluster m1\n").line, 1);
        let text = TEXT.replace("expect", "expetc");
        assert_eq!(said(&text).line, 11);
        assert!(said(&text).why.contains("did you mean `expect`"));
        let text = TEXT.replace("m1 old", "m1 old\n---- elsewhere");
        assert_eq!(said(&text).line, 7);
        let text = TEXT.replace("expect", "[on-apend] expect");
        assert!(said(&text).why.contains("did you mean `on-append`"));
    }
}
