//! The picture of the demo: from the state of its columns and the size of the terminal to lines.

use std::time::Duration;

use super::column::{ColumnState, DisplayedMajority, DisplayedMember, DisplayedRole};
use super::styled::{Style, StyledLine};

/// Between two columns.
const SEPARATOR: &str = " │ ";
/// Bars of the write rate, from nothing to much.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// A gap longer than this is emphasized.
const LONG_GAP: Duration = Duration::from_millis(500);

/// What is drawn of a column.
pub(super) struct ColumnPicture {
    pub(super) title: String,
    pub(super) state: ColumnState,
}

/// At most `height` lines of at most `width` characters.
pub(super) fn render(
    columns: &[ColumnPicture],
    [subtitle, footer]: [&str; 2],
    elapsed: Duration,
    (width, height): (usize, usize),
) -> Vec<StyledLine> {
    let clock = format!("{:.0} s ", elapsed.as_secs_f64());
    let title = StyledLine::new().with(Style::Bold, " quorate demo ");
    let title = title.with(Style::Dim, subtitle);
    let room = width.saturating_sub(clock.chars().count());
    let mut lines = vec![
        title.fitted(room).with(Style::Dim, clock).cut(width),
        StyledLine::new().with(Style::Dim, "─".repeat(width)),
    ];
    let count = columns.len().max(1);
    let body_width = width.saturating_sub(SEPARATOR.chars().count() * (count - 1)) / count;
    let body_height = height.saturating_sub(lines.len() + 1);
    let bodies: Vec<_> =
        columns.iter().map(|column| body(column, body_width, body_height)).collect();
    for row in 0..body_height {
        let mut line = StyledLine::new();
        for (number, body) in bodies.iter().enumerate() {
            if number > 0 {
                line = line.with(Style::Dim, SEPARATOR);
            }
            let cell = body.get(row).cloned().unwrap_or_default();
            line = line.append(cell.fitted(body_width));
        }
        lines.push(line.cut(width));
    }
    lines.push(StyledLine::new().with(Style::Dim, format!(" {footer}")).cut(width));
    lines.truncate(height);
    lines
}

fn body(column: &ColumnPicture, width: usize, height: usize) -> Vec<StyledLine> {
    let state = &column.state;
    let mut lines = vec![heading(&column.title, state)];
    lines.extend(state.members.iter().map(|member| member_line(member, state, width)));
    lines.push(StyledLine::new());
    lines.extend(majority_lines(state));
    lines.push(StyledLine::new());
    lines.extend(write_lines(state, width));
    lines.push(StyledLine::new());
    // The newest events that fit.
    let room = height.saturating_sub(lines.len());
    let skipped = state.timeline.len().saturating_sub(room);
    lines.extend(state.timeline.iter().skip(skipped).map(|entry| {
        let time = format!(" {:5.1} s  ", entry.at.as_secs_f64());
        StyledLine::new().with(Style::Dim, time).plain(entry.text.trim_start())
    }));
    lines.into_iter().map(|line| line.cut(width)).collect()
}

fn heading(title: &str, state: &ColumnState) -> StyledLine {
    let line = StyledLine::new().with(Style::Accent, format!(" {title}"));
    if state.finished { line.with(Style::Good, "  finished") } else { line }
}

fn member_line(member: &DisplayedMember, state: &ColumnState, width: usize) -> StyledLine {
    let votes = state.majorities.iter().any(|one| one.voters.contains(&member.name));
    let (mark, style) = match member.role {
        DisplayedRole::Leader => ("★", Style::Good),
        DisplayedRole::Follower => ("●", Style::Plain),
        DisplayedRole::Learner => ("○", Style::Warning),
        DisplayedRole::NoLeader => ("?", Style::Bad),
        DisplayedRole::Down if votes => ("✕", Style::Bad),
        DisplayedRole::Down => ("·", Style::Dim),
    };
    let role = match member.role {
        DisplayedRole::Down if votes => "down",
        role => role.name(),
    };
    let line = StyledLine::new().with(style, format!(" {mark} {:3} {role:10}", member.name));
    if member.role == DisplayedRole::Down {
        return line;
    }
    let text = format!("{:>5} behind", member.behind);
    let bar_width = width.saturating_sub(line.width() + text.len() + 2).min(24);
    line.with(Style::Dim, lag_bar(member.behind, bar_width)).plain(format!(" {text}"))
}

/// Full without lag; each doubling of the lag takes one cell.
fn lag_bar(behind: u64, width: usize) -> String {
    let missing = (u64::BITS - behind.leading_zeros()) as usize;
    let filled = width.saturating_sub(missing);
    format!("{}{}", "━".repeat(filled), " ".repeat(width - filled))
}

/// Each majority with its voters: those that answer, and how many of them it needs.
fn majority_lines(state: &ColumnState) -> Vec<StyledLine> {
    let is_up = |name: &String| {
        let member = state.members.iter().find(|member| member.name == *name);
        member.is_some_and(|member| member.role != DisplayedRole::Down)
    };
    let joint = state.majorities.len() > 1;
    let line = |(number, majority): (usize, &DisplayedMajority)| {
        let label = match (joint, number) {
            (false, _) => " quorum",
            (true, 0) => " new   ",
            (true, _) => " old   ",
        };
        let mut line = StyledLine::new().with(Style::Bold, label);
        for name in &majority.voters {
            let (mark, style) =
                if is_up(name) { ("■", Style::Good) } else { ("□", Style::Bad) };
            line = line.with(style, format!(" {mark} ")).plain(name.clone());
        }
        let voters = majority.voters.len();
        line.with(Style::Dim, format!("  any {} of {voters}", majority.quorum))
    };
    let mut lines: Vec<_> = state.majorities.iter().enumerate().map(line).collect();
    if joint {
        lines.push(StyledLine::new().with(Style::Warning, " joint: a decision needs both"));
    }
    lines
}

fn write_lines(state: &ColumnState, width: usize) -> Vec<StyledLine> {
    let rate = state.rates.last().copied().unwrap_or(0.0);
    let gap_style = if state.gap > LONG_GAP { Style::Bad } else { Style::Good };
    let failed_style = if state.failed > 0 { Style::Bad } else { Style::Good };
    vec![
        StyledLine::new().with(Style::Bold, " writes").plain(format!(
            "  {rate:.0} per second, p99 {:.1} ms",
            state.p99.as_secs_f64() * 1000.0
        )),
        rate_bars(&state.rates, width.saturating_sub(2)),
        StyledLine::new()
            .plain(" worst gap ")
            .with(gap_style, format!("{:.0} ms", state.gap.as_secs_f64() * 1000.0))
            .plain(", failed requests ")
            .with(failed_style, state.failed.to_string()),
    ]
}

/// A bar for each of the newest intervals; an interval without a write is a cross.
fn rate_bars(rates: &[f64], width: usize) -> StyledLine {
    let shown = &rates[rates.len().saturating_sub(width)..];
    let highest = shown.iter().copied().fold(1.0, f64::max);
    let mut line = StyledLine::new().plain(" ");
    for rate in shown {
        line = match rate {
            rate if *rate <= 0.0 => line.with(Style::Bad, "×"),
            rate => {
                let top = BARS.len() - 1;
                let level = (rate / highest * top as f64).round() as usize;
                line.with(Style::Accent, BARS[level.min(top)].to_string())
            }
        };
    }
    line
}

#[cfg(test)]
mod tests {
    use super::super::column::TimelineEntry;
    use super::*;

    fn member(name: &str, role: DisplayedRole, behind: u64) -> DisplayedMember {
        DisplayedMember { name: name.into(), role, behind }
    }

    fn majority(voters: &[&str]) -> DisplayedMajority {
        let voters: Vec<_> = voters.iter().map(|name| (*name).to_owned()).collect();
        DisplayedMajority { quorum: voters.len() / 2 + 1, voters }
    }

    /// In the middle of a replacement: m1 leaves, m4 comes.
    fn joint() -> ColumnPicture {
        let entry = |seconds, text: &str| TimelineEntry {
            at: Duration::from_secs(seconds),
            text: text.to_owned(),
        };
        ColumnPicture {
            title: "quorate 0.1.0".to_owned(),
            state: ColumnState {
                members: vec![
                    member("m1", DisplayedRole::Leader, 0),
                    member("m2", DisplayedRole::Follower, 3),
                    member("m3", DisplayedRole::Down, 0),
                    member("m4", DisplayedRole::Learner, 900),
                ],
                majorities: vec![majority(&["m2", "m3", "m4"]), majority(&["m1", "m2", "m3"])],
                rates: vec![300.0, 350.0, 0.0, 320.0],
                p99: Duration::from_millis(2),
                gap: Duration::from_millis(12),
                failed: 0,
                timeline: (0..40).map(|number| entry(number, &format!("event {number}"))).collect(),
                ..ColumnState::default()
            },
        }
    }

    fn texts(columns: &[ColumnPicture], size: (usize, usize)) -> Vec<String> {
        let lines = render(columns, ["subtitle", "footer"], Duration::from_secs(9), size);
        lines.iter().map(|line| line.text(false)).collect()
    }

    #[test]
    fn the_picture_shows_members_quorums_writes_and_the_newest_events() {
        let lines = texts(&[joint()], (80, 24));
        let text = lines.join("\n");
        for part in [
            "★ m1  leader",
            "○ m4  learner",
            "✕ m3  down",
            "900 behind",
            "new    ■ m2 □ m3 ■ m4  any 2 of 3",
            "old    ■ m1 ■ m2 □ m3  any 2 of 3",
            "joint: a decision needs both",
            "320 per second",
            "▇█×▇",
            "worst gap 12 ms, failed requests 0",
            "39.0 s  event 39",
            "9 s",
            "subtitle",
            "footer",
        ] {
            assert!(text.contains(part), "no '{part}' in\n{text}");
        }
        assert!(!text.contains("event 3\n"), "old events make room for new ones:\n{text}");
    }

    #[test]
    fn no_size_of_the_terminal_breaks_the_picture() {
        for columns in [vec![joint()], vec![joint(), joint()], vec![]] {
            for width in (0..30).chain([40, 80, 132, 250]) {
                for height in (0..12).chain([24, 60]) {
                    let lines = texts(&columns, (width, height));
                    assert!(lines.len() <= height, "{} lines of {height}", lines.len());
                    for line in lines {
                        let found = line.chars().count();
                        assert!(found <= width, "{found} of {width}: {line}");
                    }
                }
            }
        }
    }

    #[test]
    fn two_clusters_are_side_by_side() {
        let mut other = joint();
        other.title = "etcd 3.4.23".to_owned();
        let lines = texts(&[joint(), other], (100, 24));
        let heading = &lines[2];
        assert!(heading.contains("quorate 0.1.0"), "{heading}");
        let (_, right) = heading.split_once('│').unwrap();
        assert!(right.contains("etcd 3.4.23"), "{heading}");
    }

    #[test]
    fn lag_is_drawn_logarithmically() {
        assert_eq!(lag_bar(0, 4), "━━━━");
        assert_eq!(lag_bar(1, 4), "━━━ ");
        assert_eq!(lag_bar(u64::MAX, 4), "    ");
    }
}
