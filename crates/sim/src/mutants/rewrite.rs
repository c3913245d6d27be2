//! Puts the switches of all mutants into one source file.
//!
//! An expression `a` becomes `(if SWITCH { b } else { a })`, statements the same without
//! parentheses. A replacement that contains `$on` is inserted as it is, with the switch in place
//! of `$on`: for match arms, fields and `let`. `$old` stands for the original.

use std::ops::Range;

use super::mutant::{Edit, Mutant};
use super::quote::Source;

/// An edit, and where it applies.
struct Placed<'a> {
    mutant: &'a Mutant,
    edit: &'a Edit,
    range: Range<usize>,
}

/// The text of a file with the switches of all mutants. `switch` is the path of the function that
/// says whether a mutant is on.
pub fn rewrite(file: &str, text: &str, mutants: &[Mutant], switch: &str) -> Result<String, String> {
    let source = Source::new(text);
    let mut placed = Vec::new();
    for mutant in mutants {
        for edit in mutant.edits.iter().filter(|edit| edit.file == file) {
            check(mutant, edit)?;
            let range = source.find(&edit.original, edit.function.as_deref());
            let range =
                range.map_err(|why| format!("mutant {}: crates/{file} {why}", mutant.name))?;
            placed.push(Placed { mutant, edit, range });
        }
    }
    // What encloses others comes before them.
    placed.sort_by_key(|edit| (edit.range.start, std::cmp::Reverse(edit.range.end)));
    Rewriter { text, switch }.render(0..text.len(), &placed)
}

fn check(mutant: &Mutant, edit: &Edit) -> Result<(), String> {
    let is_let = edit.original.starts_with("let ");
    if is_let && !edit.replacement.contains("$on") {
        let name = &mutant.name;
        return Err(format!("mutant {name}: quote the value after `let … =`, or use `$on`"));
    }
    Ok(())
}

struct Rewriter<'a> {
    text: &'a str,
    switch: &'a str,
}

impl Rewriter<'_> {
    fn render(&self, range: Range<usize>, mut edits: &[Placed<'_>]) -> Result<String, String> {
        let (mut out, mut at) = (String::new(), range.start);
        while let Some(outer) = edits.first() {
            let end = outer.range.end;
            let count = edits.iter().take_while(|edit| edit.range.start < end).count();
            let (group, rest) = edits.split_at(count);
            if let Some(crossing) = group.iter().find(|edit| edit.range.end > end) {
                let (a, b) = (&outer.mutant.name, &crossing.mutant.name);
                return Err(format!(
                    "mutants {a} and {b}: the quotes overlap, neither in the other"
                ));
            }
            let same = group.iter().take_while(|edit| edit.range == outer.range).count();
            let (same, inner) = group.split_at(same);
            out.push_str(&self.text[at..outer.range.start]);
            let mut old = self.render(outer.range.clone(), inner)?;
            for (index, placed) in same.iter().enumerate() {
                let hides = !inner.is_empty() || index > 0;
                old = self.switched(placed, &old, hides)?;
            }
            out.push_str(&old);
            (at, edits) = (end, rest);
        }
        out.push_str(&self.text[at..range.end]);
        Ok(out)
    }

    fn switched(&self, placed: &Placed<'_>, old: &str, hides: bool) -> Result<String, String> {
        let on = format!("{}({})", self.switch, placed.mutant.number);
        let replacement = placed.edit.replacement.replace("$on", &on);
        let is_template = replacement != placed.edit.replacement;
        if is_template && hides && !replacement.contains("$old") {
            let name = &placed.mutant.name;
            return Err(format!("mutant {name}: another mutant is within its quote: use `$old`"));
        }
        let new = replacement.replace("$old", old);
        if is_template {
            return Ok(new);
        }
        // The line breaks end a comment that may stand last.
        let whole = format!("if {on} {{ {new}\n}} else {{ {old}\n}}");
        let is_statement = placed.edit.original.trim_end().ends_with([';', '}']);
        Ok(if is_statement { whole } else { format!("({whole})") })
    }
}

#[cfg(test)]
mod tests {
    use super::super::mutant::parse_mutants;
    use super::*;

    const TEXT: &str = "fn f() { if a && b { go(); } match x { _ => 0 } }";

    fn rewritten(entries: &[(&str, &str)]) -> Result<String, String> {
        let mut text = "[f.rs]\n".to_owned();
        for (at, (old, new)) in entries.iter().enumerate() {
            text += &format!("\nm{at}: Wrong.\nnoticed: stories I1\n- {old}\n+ {new}\n");
        }
        let mut mutants = parse_mutants(&text)?;
        for (number, mutant) in (0..).zip(&mut mutants) {
            mutant.number = number;
        }
        let text = rewrite("f.rs", TEXT, &mutants, "on")?;
        Ok(text.replace('\n', ""))
    }

    #[test]
    fn expressions_and_statements_get_a_switch() {
        let text = rewritten(&[("a && b", "a"), ("go();", "")]).unwrap();
        let expected = "fn f() { if (if on(0) { a} else { a && b}) \
                        { if on(1) { } else { go();} } match x { _ => 0 } }";
        assert_eq!(text, expected);
    }

    #[test]
    fn quotes_may_be_the_same_or_nested() {
        let text = rewritten(&[("b", "c"), ("a && b", "$old || d"), ("a && b", "true")]).unwrap();
        let b = "(if on(0) { c} else { b})";
        let ab = format!("(if on(1) {{ a && {b} || d}} else {{ a && {b}}})");
        let whole = format!("fn f() {{ if (if on(2) {{ true}} else {{ {ab}}}) {{ go(); }}");
        assert!(text.starts_with(&whole), "{text}");
    }

    #[test]
    fn a_template_is_inserted_as_it_is() {
        let text = rewritten(&[("_ => 0", "1 if $on => 2, $old"), ("0", "3")]).unwrap();
        assert!(text.ends_with("match x { 1 if on(0) => 2, _ => (if on(1) { 3} else { 0}) } }"));
        let hidden = rewritten(&[("_ => 0", "1 if $on => 2"), ("0", "3")]);
        assert!(hidden.unwrap_err().contains("use `$old`"));
    }

    #[test]
    fn a_quote_that_does_not_match_says_which() {
        let why = rewritten(&[("a || b", "a")]).unwrap_err();
        assert_eq!(why, "mutant m0: crates/f.rs does not contain `a || b`");
        let crossing = rewritten(&[("a && b", "a"), ("b { go();", "c")]).unwrap_err();
        assert!(crossing.contains("m0 and m1"), "{crossing}");
    }
}
