//! The known problems and capabilities that stories stand for, by the ids under which
//! the project keeps them. What is not listed here may still be covered: `goal.3`,
//! `flow.1` and the like are ids of our own.

/// Problems that were seen elsewhere.
const SCENARIOS: &[u32] = &[
    1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 17, 18, 19, 20, 21, 22, 23, 25, 26, 27, 28, 30,
    31, 32, 33, 34, 35, 36, 37, 38, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50,
];

/// Capabilities of membership change: a letter, and how many rows it has.
const CAPABILITIES: &[(char, u32)] = &[
    ('A', 7),
    ('B', 5),
    ('C', 6),
    ('D', 7),
    ('P', 8),
    ('F', 6),
    ('G', 3),
    ('H', 9),
    ('I', 7),
    ('J', 5),
    ('K', 5),
    ('L', 8),
    ('M', 9),
];

/// Tests that an exhaustive search over the membership rules asked for.
const SEARCHED: u32 = 9;

/// Not for stories of the core: storage, server, left out on purpose, or shown by the
/// random worlds (`member.K5`).
const ELSEWHERE: &[&str] = &[
    "S32",
    "S47",
    "S48",
    "S49",
    "S50",
    "member.P7",
    "member.P8",
    "member.H9",
    "member.I2",
    "member.J5",
    "member.K5",
    "member.L8",
];

/// Every id of the catalogue that stories of the core should cover.
fn wanted() -> Vec<String> {
    let scenarios = SCENARIOS.iter().map(|number| format!("S{number:02}"));
    let capabilities = CAPABILITIES
        .iter()
        .flat_map(|(letter, rows)| (1..=*rows).map(move |row| format!("member.{letter}{row}")));
    let searched = (1..=SEARCHED).map(|number| format!("T{number}"));
    scenarios
        .chain(capabilities)
        .chain(searched)
        .filter(|id| !ELSEWHERE.contains(&id.as_str()))
        .collect()
}

/// The ids that none of these covers. `member.K1a` covers `member.K1`.
pub(super) fn missing<'a>(covered: impl Iterator<Item = &'a str> + Clone) -> Vec<String> {
    let has = |id: &str| {
        covered
            .clone()
            .any(|covered| covered.trim_end_matches(|c: char| c.is_ascii_lowercase()) == id)
    };
    wanted().into_iter().filter(|id| !has(id)).collect()
}

/// The ids that are shown elsewhere.
pub(super) fn elsewhere() -> &'static [&'static str] {
    ELSEWHERE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_story_covers_is_named() {
        let covered: Vec<String> =
            wanted().into_iter().filter(|id| id != "S07" && id != "member.K1").collect();
        let mut covered: Vec<&str> = covered.iter().map(String::as_str).collect();
        assert_eq!(missing(covered.iter().copied()), ["S07", "member.K1"]);
        covered.push("member.K1c");
        assert_eq!(missing(covered.iter().copied()), ["S07"]);
    }
}
