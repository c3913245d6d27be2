//! A story as a text file: a header of comments, then blocks of commands, each
//! with the transcript of what they lead to.
//!
//! A block ends at an empty line. Its transcript stands below `---`; a block that
//! prints nothing has none. Under a rule of activation with another outcome, a
//! second transcript will stand below `---- RULE`; today there is one rule, and
//! such a line is refused.

use super::command::Command;
use super::words::Parsed;

#[derive(Clone, Debug)]
pub(super) struct Story {
    /// Ids of the catalogue rows that this story plays.
    pub(super) covers: Vec<String>,
    pub(super) blocks: Vec<Block>,
}

/// Commands that belong together, and what they print.
#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    pub(super) lines: Vec<Line>,
    pub(super) transcript: Vec<String>,
    /// Where the transcript begins in the file, or would begin.
    pub(super) transcript_line: usize,
    /// Empty lines behind the block.
    blanks: usize,
}

/// A line above the transcript.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) number: usize,
    pub(super) raw: String,
    /// Nothing for a comment.
    pub(super) command: Option<Command>,
    /// It stands in parentheses: what it prints is not shown.
    pub(super) silent: bool,
}

/// A line that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    pub(super) line: usize,
    pub(super) why: String,
}

impl Story {
    pub(super) fn parse(text: &str) -> Result<Self, Mistake> {
        let covers = header(text)?;
        let mut blocks: Vec<Block> = Vec::new();
        let mut block = Block::default();
        let mut below = false;
        for (at, raw) in text.lines().enumerate() {
            let number = at + 1;
            let wrong = |why| Mistake { line: number, why };
            if raw.trim().is_empty() {
                block.blanks += 1;
                continue;
            }
            if block.blanks > 0 {
                blocks.push(std::mem::take(&mut block));
                below = false;
            }
            if raw.starts_with("---") {
                below = true;
                marker(raw, &block).map_err(wrong)?;
            } else if below {
                block.transcript.push(raw.trim_end().to_owned());
            } else {
                block.lines.push(Line::parse(number, raw).map_err(wrong)?);
            }
            if block.transcript.is_empty() {
                block.transcript_line = number + 1;
            }
        }
        blocks.push(block);
        Ok(Self { covers, blocks })
    }

    /// The comments that open the story, without the line of ids.
    pub(super) fn prose(&self) -> impl Iterator<Item = &str> {
        let first = self.blocks.first().map_or(&[][..], |block| &block.lines);
        first.iter().skip(1).map_while(Line::comment)
    }

    /// The file with these transcripts in place of the old ones.
    pub(super) fn rewritten(&self, pages: &[Vec<String>]) -> String {
        let mut text = String::new();
        for (block, page) in self.blocks.iter().zip(pages) {
            let above = block.lines.iter().map(|line| &line.raw);
            let marker = "---".to_owned();
            let below = page.iter().take(1).map(|_| &marker).chain(page);
            for line in above.chain(below) {
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

impl Line {
    fn parse(number: usize, raw: &str) -> Parsed<Self> {
        let raw = raw.trim_end().to_owned();
        let mut line = Self { number, raw, command: None, silent: false };
        let text = line.raw.trim();
        if text.starts_with('#') {
            return Ok(line);
        }
        let opened = text.strip_prefix('(');
        let inner = opened.and_then(|rest| rest.strip_suffix(')'));
        if opened.is_some() && inner.is_none() {
            return Err("a command in parentheses ends with `)`".to_owned());
        }
        line.silent = inner.is_some();
        line.command = Some(Command::parse(inner.unwrap_or(text))?);
        Ok(line)
    }

    /// The words of a comment.
    pub(super) fn comment(&self) -> Option<&str> {
        let text = self.raw.trim().strip_prefix('#')?;
        Some(text.strip_prefix(' ').unwrap_or(text))
    }
}

fn marker(raw: &str, block: &Block) -> Parsed<()> {
    match raw.trim_end() {
        "---" if block.lines.is_empty() => Err("a transcript without commands above it".to_owned()),
        "---" if !block.transcript.is_empty() => {
            Err("a second transcript in one block; put an empty line before new commands"
                .to_owned())
        }
        "---" => Ok(()),
        other => match other.strip_prefix("---- ") {
            Some(rule) => Err(format!("no rule `{rule}` is known; a block has one transcript")),
            None => Err(format!("`{other}` is no line between commands and transcript, want ---")),
        },
    }
}

/// `# covers: S08 member.F2` in the first line, then prose.
fn header(text: &str) -> Result<Vec<String>, Mistake> {
    let mut lines = text.lines();
    let wrong = |line, why: &str| Mistake { line, why: why.to_owned() };
    let first = lines.next().unwrap_or_default();
    let Some(ids) = first.strip_prefix("# covers:") else {
        return Err(wrong(
            1,
            "the first line names what is covered, such as `# covers: S08 member.F2`",
        ));
    };
    let ids: Vec<String> = ids.split_whitespace().map(str::to_owned).collect();
    if ids.is_empty() || !ids.iter().all(|id| is_catalogue_id(id)) {
        return Err(wrong(1, "want ids of the catalogue, such as S08, member.F2 or mut.7"));
    }
    if !lines.next().is_some_and(|line| line.starts_with('#')) {
        return Err(wrong(2, "want some lines of prose: what happens, and what would go wrong"));
    }
    Ok(ids)
}

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

    #[test]
    fn a_story_is_read_and_written_back() {
        let story = Story::parse(TEXT).unwrap();
        assert_eq!(story.covers, ["S08", "member.F2"]);
        assert_eq!(story.prose().collect::<Vec<_>>(), ["A story."]);
        assert_eq!(story.blocks[1].transcript, ["m1 old"]);
        assert_eq!(story.blocks[1].transcript_line, 6);
        assert!(story.blocks[2].lines[1].silent);
        let pages: Vec<Vec<String>> =
            story.blocks.iter().map(|block| block.transcript.clone()).collect();
        assert_eq!(story.rewritten(&pages), TEXT);
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
        let text = TEXT.replace("m1 old", "m1 old\n---- on-append");
        assert!(said(&text).why.contains("`on-append`"));
    }
}
