//! Finds a quote in source text. Whitespace, comments and trailing commas do not count, so that
//! formatting a file or rewriting its comments does not change what is found.

use std::ops::Range;

/// A character that counts, and where it begins.
#[derive(Clone, Copy, Debug)]
struct Token {
    char: char,
    start: usize,
    /// Inside a string or character literal.
    is_literal: bool,
}

/// Source text, prepared for searching.
pub(super) struct Source<'a> {
    text: &'a str,
    tokens: Vec<Token>,
}

impl<'a> Source<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, tokens: tokens(text) }
    }

    /// Where the quote is: exactly once in the function, or in the whole text.
    pub(super) fn find(&self, quote: &str, function: Option<&str>) -> Result<Range<usize>, String> {
        let within = match function {
            Some(begin) => self.body(begin)?,
            None => 0..self.tokens.len(),
        };
        let found = self.only(quote, within)?;
        let last = self.tokens[found.end - 1];
        Ok(self.tokens[found.start].start..last.start + last.char.len_utf8())
    }

    /// The tokens from the beginning of a function to the end of its body.
    fn body(&self, begin: &str) -> Result<Range<usize>, String> {
        let head = self.only(begin, 0..self.tokens.len())?;
        let mut depth = 0;
        for (at, token) in self.tokens.iter().enumerate().skip(head.end) {
            match token.char {
                '{' if !token.is_literal => depth += 1,
                '}' if !token.is_literal => depth -= 1,
                _ => continue,
            }
            if depth == 0 {
                return Ok(head.start..at + 1);
            }
        }
        Err(format!("`{begin}` has no body"))
    }

    fn only(&self, quote: &str, within: Range<usize>) -> Result<Range<usize>, String> {
        let quoted: Vec<char> = tokens(quote).iter().map(|token| token.char).collect();
        if quoted.is_empty() {
            return Err("the quote is empty".to_owned());
        }
        let starts = within.start..(within.end + 1).saturating_sub(quoted.len()).max(within.start);
        let mut found = starts.filter(|start| self.is_at(&quoted, *start));
        match (found.next(), found.count()) {
            (Some(start), 0) => Ok(start..start + quoted.len()),
            (None, _) => Err(format!("does not contain `{quote}`")),
            (Some(_), more) => Err(format!("contains `{quote}` {} times", more + 1)),
        }
    }

    /// Whether the quote stands here, and does not begin or end within a word.
    fn is_at(&self, quoted: &[char], start: usize) -> bool {
        let found = &self.tokens[start..start + quoted.len()];
        if !found.iter().zip(quoted).all(|(token, char)| token.char == *char) {
            return false;
        }
        let (first, last) = (found[0], found[found.len() - 1]);
        let before = self.text[..first.start].chars().next_back();
        let after = self.text[last.start + last.char.len_utf8()..].chars().next();
        let joins = |a: char, b: Option<char>| is_word(a) && b.is_some_and(is_word);
        !joins(first.char, before) && !joins(last.char, after)
    }
}

fn is_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

fn tokens(text: &str) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    let mut at = 0;
    while let Some(char) = text[at..].chars().next() {
        let rest = &text[at..];
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
            continue;
        }
        let literal = literal_bytes(rest);
        let (bytes, is_literal) = match literal {
            0 => (char.len_utf8(), false),
            bytes => (bytes, true),
        };
        for (offset, char) in rest[..bytes].char_indices() {
            if is_literal || !char.is_whitespace() {
                tokens.push(Token { char, start: at + offset, is_literal });
            }
        }
        at += bytes;
    }
    let closes = |token: Option<&Token>| token.is_some_and(|token| ")]}".contains(token.char));
    let trailing = |at: usize| tokens[at].char == ',' && closes(tokens.get(at + 1));
    let kept = (0..tokens.len()).filter(|at| tokens[*at].is_literal || !trailing(*at));
    kept.map(|at| tokens[at]).collect()
}

/// How long the string or character literal is with which the text begins; 0 without one.
fn literal_bytes(text: &str) -> usize {
    let mut chars = text.char_indices();
    let quote = match chars.next() {
        Some((_, '"')) => '"',
        // A lifetime has no quote at its end.
        Some((_, '\'')) => match (chars.next(), chars.next()) {
            (Some((_, '\\')), _) => '\'',
            (Some(_), Some((at, '\''))) => return at + 1,
            _ => return 0,
        },
        _ => return 0,
    };
    let mut escaped = false;
    for (at, char) in text.char_indices().skip(1) {
        if !escaped && char == quote {
            return at + 1;
        }
        escaped = !escaped && char == '\\';
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
fn one(&self) -> bool {
    // It holds: self.a > 1
    let text = \"a } {\";
    self.a
        > 1 && call(
            self.b, // A comment.
        )
}

fn two<'a>(c: &'a str) -> bool {
    self.a > 12 && self.a > 1 && c == '}'
}
";

    fn found(quote: &str, function: Option<&str>) -> Result<&'static str, String> {
        Source::new(TEXT).find(quote, function).map(|range| &TEXT[range])
    }

    #[test]
    fn formatting_comments_and_trailing_commas_do_not_count() {
        assert_eq!(found("self.a > 1", Some("fn one")).unwrap(), "self.a\n        > 1");
        assert!(found("call(self.b)", None).unwrap().starts_with("call("));
    }

    #[test]
    fn a_quote_stands_once_in_its_function_and_ends_with_a_word() {
        assert_eq!(found("self.a > 1", Some("fn two")).unwrap(), "self.a > 1");
        assert!(found("self.a > 1", None).unwrap_err().contains("2 times"));
        assert!(found("self.a > 123", None).unwrap_err().contains("does not contain"));
        assert!(found("self.a > 1", Some("fn three")).unwrap_err().contains("fn three"));
        assert!(found("let text = \"a } {\";", Some("fn one")).is_ok());
    }
}
