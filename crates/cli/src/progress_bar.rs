//! A progress bar of fixed width.

const WIDTH: u64 = 20;

/// The share of `part` in `whole`, as `[#####-----]`. An empty whole is complete.
pub(crate) fn progress_bar(part: u64, whole: u64) -> String {
    let part = part.min(whole);
    // In 128 bits: the product of a 64-bit index and the width may overflow.
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
    fn the_bar_fills_in_proportion() {
        assert_eq!(progress_bar(0, 10), format!("[{}]", "-".repeat(20)));
        assert_eq!(progress_bar(5, 10), format!("[{}{}]", "#".repeat(10), "-".repeat(10)));
        assert_eq!(progress_bar(10, 10), format!("[{}]", "#".repeat(20)));
        assert_eq!(
            progress_bar(99, 100),
            format!("[{}-]", "#".repeat(19)),
            "full only when complete"
        );
    }

    #[test]
    fn extreme_values_are_valid() {
        assert_eq!(progress_bar(0, 0), format!("[{}]", "#".repeat(20)));
        assert_eq!(progress_bar(7, 3), format!("[{}]", "#".repeat(20)));
        assert_eq!(progress_bar(u64::MAX, u64::MAX), format!("[{}]", "#".repeat(20)));
    }
}
