//! The text in a file that a person reads: comments and strings of Rust and of protocol files,
//! the comment lines of a story, the descriptions of mutants, comments and strings of manifests
//! and scripts, a whole document. Line breaks become spaces, so that an idiom across two lines is found.

/// Kind of file, which decides what counts as prose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// Also protocol files, whose comments look the same.
    Rust,
    Story,
    Mutants,
    /// Manifests and scripts: comments start with `#`.
    Script,
    Document,
}

pub(crate) fn prose(kind: FileKind, text: &str) -> String {
    match kind {
        FileKind::Rust => rust_prose(text),
        FileKind::Story => {
            let comments = text.lines().filter_map(|line| line.strip_prefix('#'));
            comments.collect::<Vec<_>>().join(" ")
        }
        FileKind::Mutants => {
            let is_code = |line: &&str| !line.starts_with(['-', '+', '[']);
            let is_field = |line: &&str| {
                ["in: ", "covers: ", "noticed: "].iter().any(|field| line.starts_with(field))
            };
            let lines = text.lines().filter(is_code).filter(|line| !is_field(line));
            lines.collect::<Vec<_>>().join(" ")
        }
        FileKind::Script => {
            let comment = |line: &str| line.split_once('#').map(|(_, comment)| comment.to_owned());
            let strings =
                |line: &str| line.split('"').skip(1).step_by(2).collect::<Vec<_>>().join(" ");
            let lines = text.lines();
            lines
                .map(|line| comment(line).unwrap_or_else(|| strings(line)))
                .collect::<Vec<_>>()
                .join(" ")
        }
        FileKind::Document => text.replace('\n', " "),
    }
}

/// Comments and string literals. A small lexer: it knows line and block comments, strings,
/// raw strings, and character literals (so that `'"'` does not open a string).
fn rust_prose(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut prose = String::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let (start, end, next) = if rest.starts_with("//") {
            let line = rest.find('\n').unwrap_or(rest.len());
            let marks = rest.len() - rest.trim_start_matches(['/', '!']).len();
            (marks.min(line), line, line)
        } else if rest.starts_with("/*") {
            let end = rest.find("*/").unwrap_or(rest.len());
            (2.min(end), end, (end + 2).min(rest.len()))
        } else if let Some(hashes) = raw_string(text, at) {
            let open = 2 + hashes;
            let close = format!("\"{}", "#".repeat(hashes));
            let end = rest[open..].find(&close).map_or(rest.len(), |found| open + found);
            (open, end, (end + close.len()).min(rest.len()))
        } else if rest.starts_with('"') {
            let end = string_end(rest);
            (1, end, (end + 1).min(rest.len()))
        } else if rest.starts_with('\'') {
            let next = char_literal_length(rest).unwrap_or(1);
            (0, 0, next)
        } else {
            let width = rest.chars().next().map_or(1, char::len_utf8);
            (0, 0, width)
        };
        if end > start {
            prose.push_str(&rest[start..end].replace('\n', " "));
            prose.push(' ');
        }
        at += next.max(1);
    }
    prose
}

/// The number of `#` of a raw string that starts here. An `r` inside a word starts none.
fn raw_string(text: &str, at: usize) -> Option<usize> {
    let rest = text[at..].strip_prefix('r')?;
    let before = text[..at].chars().next_back();
    if before.is_some_and(|letter| letter.is_alphanumeric() && letter != 'b' || letter == '_') {
        return None;
    }
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    rest[hashes..].starts_with('"').then_some(hashes)
}

/// Where the string that starts with the first byte ends.
fn string_end(rest: &str) -> usize {
    let mut escaped = false;
    for (at, letter) in rest.char_indices().skip(1) {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at,
            _ => {}
        }
    }
    rest.len()
}

/// Length of the character literal that starts here; none for a lifetime.
fn char_literal_length(rest: &str) -> Option<usize> {
    let inside = rest.get(1..)?;
    if let Some(escape) = inside.strip_prefix('\\') {
        return escape.get(1..)?.find('\'').map(|end| end + 4);
    }
    let letter = inside.chars().next()?;
    let end = 1 + letter.len_utf8();
    rest.get(end..)?.starts_with('\'').then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rust(text: &str) -> String {
        prose(FileKind::Rust, text).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn rust_prose_is_comments_and_strings() {
        assert_eq!(rust("//! one\nlet x = \"two\"; // three"), "one two three");
        assert_eq!(rust("/* four\nfive */ let x = r#\"six \"\"#;"), "four five six \"");
        assert_eq!(rust(r#"let q = '"'; let s = "a\"b"; let l: &'static str;"#), "a\\\"b");
        assert_eq!(rust("for r in x { \"y\" }"), "y");
        assert_eq!(rust(r"let c = '\''; // quote"), "quote");
        assert_eq!(rust("let b = br\"raw\";"), "raw");
    }

    #[test]
    fn mutant_prose_is_descriptions() {
        let text = "# About\n[core/src/x.rs]\na-b-c: It does\n  so.\ncovers: S1\n- old\n+ new";
        let words: Vec<String> =
            prose(FileKind::Mutants, text).split_whitespace().map(str::to_owned).collect();
        assert_eq!(words.join(" "), "# About a-b-c: It does so.");
    }

    #[test]
    fn script_prose_is_comments_and_strings() {
        let text = "# why\nname = \"what\" # more\necho \"said\"";
        assert_eq!(prose(FileKind::Script, text), " why  more said");
    }

    #[test]
    fn story_prose_is_its_comment_lines() {
        assert_eq!(prose(FileKind::Story, "# why\ncampaign m1\n# then").trim(), "why  then");
    }
}
