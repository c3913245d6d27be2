//! A bar of fixed width that fills up.

const WIDTH: u64 = 20;

/// How much of `whole` is there, as `[#####-----]`. Nothing of nothing is all of it.
pub(crate) fn bar(part: u64, whole: u64) -> String {
    let part = part.min(whole);
    // In 128 bits, since indexes may be anything that fits into 64.
    let filled = if whole == 0 {
        WIDTH
    } else {
        (u128::from(part) * u128::from(WIDTH) / u128::from(whole)) as u64
    };
    format!("[{}{}]", "#".repeat(filled as usize), "-".repeat((WIDTH - filled) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_fills_up() {
        assert_eq!(bar(0, 10), format!("[{}]", "-".repeat(20)));
        assert_eq!(bar(5, 10), format!("[{}{}]", "#".repeat(10), "-".repeat(10)));
        assert_eq!(bar(10, 10), format!("[{}]", "#".repeat(20)));
        assert_eq!(bar(99, 100), format!("[{}-]", "#".repeat(19)), "not full before it is");
    }

    #[test]
    fn odd_numbers_do_no_harm() {
        assert_eq!(bar(0, 0), format!("[{}]", "#".repeat(20)));
        assert_eq!(bar(7, 3), format!("[{}]", "#".repeat(20)));
        assert_eq!(bar(u64::MAX, u64::MAX), format!("[{}]", "#".repeat(20)));
    }
}
