//! Member ids as stories and checkers print them. The core prints sixteen hexadecimal
//! digits; here members are numbered from 1, so `m1` and `(1 2 3)` are easier to read.

/// Rewrites every member id in a text: `000000000000000a` becomes `m10`; inside a set such
/// as `(0000000000000001 0000000000000002)`, and after the letter of an operation such as
/// `v0000000000000004`, it becomes a plain number.
pub fn short_ids(text: &str) -> String {
    let mut short = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if let Some((set, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')'))
            && let Some(numbers) = numbers_of(set, short.ends_with("disks="))
        {
            short.push_str(&format!("({numbers})"));
            rest = after;
            continue;
        }
        let before = short.chars().next_back();
        if let Some((id, after)) = leading_id(rest)
            && !before.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
        {
            short.push_str(&format!("m{id}"));
            rest = after;
            continue;
        }
        if "vlru".contains(first)
            && !before.is_some_and(|c| c.is_ascii_alphanumeric())
            && let Some((id, after)) = leading_id(&rest[1..])
        {
            short.push_str(&format!("{first}{id}"));
            rest = after;
            continue;
        }
        short.push(first);
        rest = &rest[first.len_utf8()..];
    }
    short
}

/// The id that a text begins with, and what follows it.
fn leading_id(text: &str) -> Option<(u64, &str)> {
    let digits = text.get(..DIGITS)?;
    let hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    let ends = !text[DIGITS..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    let id = u64::from_str_radix(digits, 16).ok()?;
    (digits.bytes().all(hex) && ends).then_some((id, &text[DIGITS..]))
}

const DIGITS: usize = 16;

/// The inside of a set, `1 2 3`, or of a list of disks, `1:77 2:78`; none for other text.
fn numbers_of(set: &str, disks: bool) -> Option<String> {
    let number = |word| {
        let (id, after) = leading_id(word)?;
        (after.is_empty() || disks && after.starts_with(':')).then(|| format!("{id}{after}"))
    };
    let numbers: Option<Vec<String>> = set.split(' ').map(number).collect();
    numbers.map(|numbers| numbers.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_shortened_wherever_the_core_prints_them() {
        let id = |number: u64| format!("{number:016x}");
        let (one, two, ten) = (id(1), id(2), id(10));
        assert_eq!(short_ids(&format!("{one} -> {ten}: x{one}")), format!("m1 -> m10: x{one}"));
        assert_eq!(short_ids(&format!("voters=({one} {two})&&({ten})")), "voters=(1 2)&&(10)");
        assert_eq!(short_ids(&format!("2.3[v{two} r{one}]")), "2.3[v2 r1]");
        assert_eq!(short_ids(&format!("disks=({one}:77)")), "disks=(1:77)");
        assert_eq!(short_ids(&format!("match=({one}:7)")), "match=(m1:7)");
        assert_eq!(short_ids(&format!("(led by {one})")), "(led by m1)");
        assert_eq!(short_ids("() (é) term=3"), "() (é) term=3");
    }
}
