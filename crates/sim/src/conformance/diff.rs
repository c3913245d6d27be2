//! Shows where two texts part: expected lines marked `-`, printed ones `+`.

/// Lines that agree on both sides of a difference are shown this far around it.
const CONTEXT: usize = 3;

/// Above this product of lengths the lines are compared one by one: a readable diff
/// of two huge texts is not worth its time.
const CELLS_MAX: usize = 4_000_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum DiffSide {
    Both,
    Expected,
    Printed,
}

/// The differences with a little around them, one line each, ready to print.
pub(super) fn diff(expected: &[String], printed: &[String]) -> String {
    let lines = align(expected, printed);
    let mut text = String::new();
    let mut skipped = false;
    for (at, (side, line)) in lines.iter().enumerate() {
        let around = at.saturating_sub(CONTEXT)..(at + CONTEXT + 1).min(lines.len());
        if lines[around].iter().all(|(side, _)| *side == DiffSide::Both) {
            if !skipped {
                text.push_str("    …\n");
            }
            skipped = true;
            continue;
        }
        skipped = false;
        let mark = match side {
            DiffSide::Both => ' ',
            DiffSide::Expected => '-',
            DiffSide::Printed => '+',
        };
        text.push_str(&format!("  {mark} {line}\n"));
    }
    text
}

/// Pairs up as many equal lines as possible, in order.
fn align<'a>(expected: &'a [String], printed: &'a [String]) -> Vec<(DiffSide, &'a str)> {
    let width = printed.len() + 1;
    if (expected.len() + 1).saturating_mul(width) > CELLS_MAX {
        let all = |side, lines: &'a [String]| lines.iter().map(move |line| (side, line.as_str()));
        return all(DiffSide::Expected, expected).chain(all(DiffSide::Printed, printed)).collect();
    }
    // common[row * width + column]: equal lines in what follows row and column.
    let mut common = vec![0u32; (expected.len() + 1) * width];
    for row in (0..expected.len()).rev() {
        for column in (0..printed.len()).rev() {
            common[row * width + column] = if expected[row] == printed[column] {
                common[(row + 1) * width + column + 1] + 1
            } else {
                common[(row + 1) * width + column].max(common[row * width + column + 1])
            };
        }
    }
    let (mut row, mut column) = (0, 0);
    let mut lines = Vec::new();
    while row < expected.len() || column < printed.len() {
        let more = row < expected.len() && column < printed.len();
        if more && expected[row] == printed[column] {
            lines.push((DiffSide::Both, expected[row].as_str()));
            row += 1;
            column += 1;
        } else if column == printed.len()
            || more && common[(row + 1) * width + column] >= common[row * width + column + 1]
        {
            lines.push((DiffSide::Expected, expected[row].as_str()));
            row += 1;
        } else {
            lines.push((DiffSide::Printed, printed[column].as_str()));
            column += 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn only_what_differs_is_marked() {
        let text = diff(&lines("a b c d e f g h"), &lines("a b x c d e f h"));
        assert_eq!(text, "    a\n    b\n  + x\n    c\n    d\n    e\n    f\n  - g\n    h\n");
        assert_eq!(diff(&lines("a"), &lines("")), "  - a\n");
    }

    #[test]
    fn long_agreement_is_left_out() {
        let text = diff(&lines("1 2 3 4 5 6 7 8 x"), &lines("1 2 3 4 5 6 7 8 y"));
        assert_eq!(text, "    …\n    6\n    7\n    8\n  - x\n  + y\n");
    }
}
