//! Lines of text with colours, which can be cut and padded to a width.

/// A colour, or another emphasis. On a terminal without colours none of them is used, so each
/// meaning is also in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Bold,
    Dim,
    Good,
    Warning,
    Bad,
    Accent,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "\x1b[1m",
            Self::Dim => "\x1b[2m",
            Self::Good => "\x1b[32m",
            Self::Warning => "\x1b[33m",
            Self::Bad => "\x1b[31m",
            Self::Accent => "\x1b[36m",
        }
    }
}

/// Parts of a line from left to right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StyledLine {
    parts: Vec<(Style, String)>,
}

impl StyledLine {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn with(mut self, style: Style, text: impl Into<String>) -> Self {
        self.parts.push((style, text.into()));
        self
    }

    pub(super) fn plain(self, text: impl Into<String>) -> Self {
        self.with(Style::Plain, text)
    }

    pub(super) fn append(mut self, other: Self) -> Self {
        self.parts.extend(other.parts);
        self
    }

    /// The number of characters. Each one that the demo uses is one cell wide.
    pub(super) fn width(&self) -> usize {
        self.parts.iter().map(|(_, text)| text.chars().count()).sum()
    }

    /// Exactly this wide.
    pub(super) fn fitted(self, width: usize) -> Self {
        let missing = width.saturating_sub(self.width());
        self.cut(width).plain(" ".repeat(missing))
    }

    /// At most this wide; a cut line ends with `…`.
    pub(super) fn cut(self, width: usize) -> Self {
        if self.width() <= width {
            return self;
        }
        let mut left = width.saturating_sub(1);
        let mut line = Self::new();
        for (style, text) in self.parts {
            let text: String = text.chars().take(left).collect();
            left -= text.chars().count();
            line = line.with(style, text);
        }
        if width > 0 { line.plain("…") } else { line }
    }

    pub(super) fn text(&self, colours: bool) -> String {
        let mut text = String::new();
        for (style, part) in &self.parts {
            // A name from a server must not send control codes to the terminal.
            let part = part.replace(char::is_control, "?");
            match style.code() {
                code if colours && !code.is_empty() => {
                    text.push_str(&format!("{code}{part}\x1b[0m"));
                }
                _ => text.push_str(&part),
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_and_padded_to_a_width() {
        let line = || StyledLine::new().with(Style::Good, "häuser").plain(" one");
        assert_eq!(line().fitted(12).text(false), "häuser one  ");
        assert_eq!(line().fitted(10).text(false), "häuser one");
        assert_eq!(line().fitted(8).text(false), "häuser …");
        assert_eq!(line().fitted(3).text(true), "\x1b[32mhä\x1b[0m…");
        for width in 0..12 {
            assert_eq!(line().fitted(width).width(), width);
        }
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(StyledLine::new().plain("a\x1b[2Jb").text(true), "a?[2Jb");
    }
}
