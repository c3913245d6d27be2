//! The stories to begin with: situations in which a cluster with enough live members elects no
//! leader, and what resolves each. `docs/membership.md` explains the conditions.

/// One situation, without and with the condition that resolves it.
pub(crate) struct Preset {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) condition: &'static str,
    /// No leader is elected.
    pub(crate) off: &'static str,
    /// A leader is elected.
    pub(crate) on: &'static str,
}

const VOTES_TELL_COMMIT: &str = "votes report the committed membership";

macro_rules! preset {
    ($id:literal, $title:literal, $condition:expr) => {
        Preset {
            id: $id,
            title: $title,
            condition: $condition,
            off: include_str!(concat!("../presets/", $id, "_off.txt")),
            on: include_str!(concat!("../presets/", $id, "_on.txt")),
        }
    };
}

pub(crate) const PRESETS: &[Preset] = &[
    preset!(
        "example_1",
        "Example 1: a joint change, and a promoted member that does not know it",
        VOTES_TELL_COMMIT
    ),
    preset!("example_2", "Example 2: the same with a change of one member", VOTES_TELL_COMMIT),
    preset!(
        "example_3",
        "Example 3: a joint that was left, and only the member without a vote knows it",
        VOTES_TELL_COMMIT
    ),
    preset!("example_4", "Example 4: the same with a change of one member", VOTES_TELL_COMMIT),
    preset!(
        "problem_2",
        "Problem 2: the old member is stopped when the change is committed",
        "a change is done when it is settled, not when it is committed"
    ),
];

#[cfg(test)]
mod tests {
    use quorate_sim::scenario::Playback;

    use super::*;

    /// Without the condition no leader is elected for fifty election timeouts, with it there is
    /// one; the stories claim it, and their transcripts are what happens.
    #[test]
    fn presets_are_stuck_without_the_condition_and_live_with_it() {
        for preset in PRESETS {
            for (story, leaders) in [(preset.off, 0), (preset.on, 1)] {
                let playback = Playback::play(story).unwrap();
                let last = playback.lines.last().unwrap();
                assert_eq!(last.failure, None, "{}", preset.id);
                assert_eq!(last.cluster.leaders().len(), leaders, "{}", preset.id);
                let claim = if leaders == 0 {
                    "expect no leader within 500 ticks"
                } else {
                    "expect leader"
                };
                assert!(story.contains(claim), "{}: no '{claim}'", preset.id);
                assert_eq!(Playback::compare(story), Ok(()), "{}", preset.id);
            }
        }
    }

    /// Both stories of a preset differ in the condition only.
    #[test]
    fn both_stories_of_a_preset_begin_alike() {
        for preset in PRESETS {
            let commands = |story: &'static str| {
                story.lines().filter(|line| line.starts_with("log ") || line.starts_with("change "))
            };
            assert!(commands(preset.off).eq(commands(preset.on)), "{}", preset.id);
        }
    }
}
