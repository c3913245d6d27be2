//! Lines into words, and words into the things that commands are made of.
//!
//! A word ends at a space, unless it is inside `"…"`, `(…)` or `[…]`: so
//! `voters=(1 2 3)` and `2.4[v4 r1]` are one word each. Every complaint names the
//! word it is about and, where a word is unknown, the nearest one that is known.

use bytes::Bytes;
use quorate_core::MemberId;

/// What is wrong with a command, as a sentence for its author.
pub(super) type Parsed<T> = Result<T, String>;

/// The words of a line. A `#` that stands alone begins a remark.
pub(super) fn split(line: &str) -> Parsed<Vec<String>> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut closers: Vec<char> = Vec::new();
    for c in line.chars() {
        if closers.is_empty() && c.is_whitespace() {
            if word == "#" {
                return Ok(words);
            }
            if !word.is_empty() {
                words.push(std::mem::take(&mut word));
            }
            continue;
        }
        word.push(c);
        match c {
            _ if closers.last() == Some(&c) => {
                closers.pop();
            }
            _ if closers.last() == Some(&'"') => {}
            '"' => closers.push('"'),
            '(' => closers.push(')'),
            '[' => closers.push(']'),
            _ => {}
        }
    }
    if let Some(closer) = closers.pop() {
        return Err(format!("`{word}` has no closing `{closer}`"));
    }
    if !word.is_empty() && word != "#" {
        words.push(word);
    }
    Ok(words)
}

/// The words of one command, read from the left.
#[derive(Clone, Debug)]
pub(super) struct LineWords {
    words: Vec<String>,
    at: usize,
}

impl LineWords {
    pub(super) fn new(words: Vec<String>) -> Self {
        Self { words, at: 0 }
    }

    pub(super) fn of(text: &str) -> Parsed<Self> {
        split(text).map(Self::new)
    }

    pub(super) fn peek(&self) -> Option<&str> {
        self.words.get(self.at).map(String::as_str)
    }

    pub(super) fn next(&mut self) -> Option<String> {
        let word = self.words.get(self.at).cloned();
        self.at += usize::from(word.is_some());
        word
    }

    /// The next word, of which there must be one; `what` says what it should be.
    pub(super) fn expect_word(&mut self, what: &str) -> Parsed<String> {
        self.next().ok_or_else(|| format!("the line ends here, expected {what}"))
    }

    /// Takes the next word when it is this one.
    pub(super) fn take(&mut self, word: &str) -> bool {
        let is = self.peek() == Some(word);
        self.at += usize::from(is);
        is
    }

    pub(super) fn end(&self) -> Parsed<()> {
        match self.peek() {
            Some(word) => Err(format!("`{word}` is too much, expected the end of the line")),
            None => Ok(()),
        }
    }

    /// Cuts `within N ticks` off the end, where it stands there.
    pub(super) fn take_within(&mut self) -> Parsed<Option<u32>> {
        let Some(at) = self.words.iter().position(|word| word == "within") else {
            return Ok(None);
        };
        let tail = self.words.split_off(at);
        match &tail[1..] {
            [number, ticks] if ticks == "ticks" => self::number(number).map(Some),
            _ => Err("expected `within NUMBER ticks` at the end of the line".to_owned()),
        }
    }

    pub(super) fn member(&mut self) -> Parsed<MemberId> {
        member(&self.expect_word("a member such as m1")?)
    }

    /// As many members as follow, or `all`.
    pub(super) fn who(&mut self) -> Parsed<NamedMembers> {
        if self.take("all") {
            return Ok(NamedMembers::All);
        }
        let ids = self.members()?;
        if ids.is_empty() {
            let found = self.peek().map_or("nothing".to_owned(), |word| format!("`{word}`"));
            return Err(format!("found {found}, expected members such as `m1 m2`, or `all`"));
        }
        Ok(NamedMembers::These(ids))
    }

    /// As many members as follow, maybe none.
    pub(super) fn members(&mut self) -> Parsed<Vec<MemberId>> {
        let mut ids = Vec::new();
        while let Some(word) = self.peek().filter(|word| looks_like_member(word)) {
            ids.push(member(word)?);
            self.at += 1;
        }
        Ok(ids)
    }

    /// As [`LineWords::who`], but all members when none is named.
    pub(super) fn who_or_all(&mut self) -> Parsed<NamedMembers> {
        if self.peek().is_none() { Ok(NamedMembers::All) } else { self.who() }
    }
}

/// The members that a command speaks to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NamedMembers {
    All,
    These(Vec<MemberId>),
}

pub(super) fn looks_like_member(word: &str) -> bool {
    word.strip_prefix('m')
        .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
}

pub(super) fn member(word: &str) -> Parsed<MemberId> {
    let digits = word.strip_prefix('m').filter(|_| looks_like_member(word));
    digits
        .and_then(|digits| digits.parse().ok())
        .map(MemberId)
        .ok_or_else(|| format!("`{word}` is no member, expected one such as m1"))
}

/// `m1,m2`: several members in one word.
pub(super) fn member_list(word: &str) -> Parsed<Vec<MemberId>> {
    word.split(',').map(member).collect()
}

/// A number; `max` is the largest there is.
pub(super) fn number<T: std::str::FromStr>(word: &str) -> Parsed<T> {
    let digits = if word == "max" { "18446744073709551615" } else { word };
    digits.parse().map_err(|_| format!("`{word}` is no number that fits here"))
}

pub(super) fn switch(word: &str) -> Parsed<bool> {
    match word {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("`{word}` is no switch, expected on or off")),
    }
}

/// A client's bytes: a word, or anything in quotes.
pub(super) fn text(word: &str) -> Bytes {
    let inner = word.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(word);
    Bytes::copy_from_slice(inner.as_bytes())
}

/// `key=value`, cut at the first `=`.
pub(super) fn key_value(word: &str) -> Option<(&str, &str)> {
    let (key, value) = word.split_once('=')?;
    let named = !key.is_empty()
        && key.bytes().all(|b| b.is_ascii_lowercase() || b"-_.0123456789".contains(&b));
    named.then_some((key, value))
}

/// One of the known words, or a complaint that names the nearest of them.
pub(super) fn unknown<T>(what: &str, word: &str, known: &[&str]) -> Parsed<T> {
    let nearest = known.iter().min_by_key(|candidate| distance(word, candidate));
    match nearest {
        Some(near) if distance(word, near) <= 1 + near.len() / 3 => {
            Err(format!("`{word}` is no {what}; did you mean `{near}`?"))
        }
        _ => Err(format!("`{word}` is no {what}, expected one of: {}", known.join(" "))),
    }
}

/// How many letters must be put in, taken out, replaced or swapped with their
/// neighbour to get from one word to the other. Case counts for nothing.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.to_lowercase().chars().collect();
    let b: Vec<char> = b.to_lowercase().chars().collect();
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_and_quotes_hold_a_word_together() {
        let words = split(r#"log m1 voters=(1 2)&&(2 3) 2.3[v4 r1] 2.4"a b" # why"#).unwrap();
        assert_eq!(words[2..], ["voters=(1 2)&&(2 3)", "2.3[v4 r1]", "2.4\"a b\""]);
        assert!(split("log (1 2").unwrap_err().contains("closing `)`"));
    }

    #[test]
    fn a_typo_is_answered_with_the_nearest_word() {
        let known = ["campaign", "crash", "change"];
        let said = unknown::<()>("command", "campagin", &known).unwrap_err();
        assert_eq!(said, "`campagin` is no command; did you mean `campaign`?");
        let said = unknown::<()>("command", "zzz", &known).unwrap_err();
        assert_eq!(said, "`zzz` is no command, expected one of: campaign crash change");
    }

    #[test]
    fn within_stands_at_the_end() {
        let mut words = LineWords::of("leader within 20 ticks").unwrap();
        assert_eq!(words.take_within(), Ok(Some(20)));
        assert!(words.take("leader"));
        assert_eq!(words.end(), Ok(()));
    }
}
