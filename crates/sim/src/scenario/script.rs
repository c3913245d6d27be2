//! A story read once and played often, to find out how it fails.

use std::fs;
use std::path::{Path, PathBuf};

use quorate_core::config::Activation;

use super::command::StoryCommand;
use super::runner::{Performance, first_difference, perform, perform_on};
use super::story::{Story, activation_text};

#[derive(Clone, Debug)]
pub struct Script {
    pub path: PathBuf,
    story: Story,
}

/// How a story failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    pub kind: ComplaintKind,
    pub line: usize,
    pub activation: Activation,
    pub why: String,
    /// Inputs that members were handed until then.
    pub steps: u64,
}

/// What noticed the failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComplaintKind {
    /// The invariant of this id.
    Invariant(String),
    /// A claim of the story.
    Claim,
    /// The core itself, by a panic.
    Assertion,
    /// It did not end.
    Endless,
    /// A command found nothing to do: the story took another course.
    Course,
    /// What was printed was not what the file says; nothing else was wrong.
    Transcript,
}

impl ComplaintKind {
    /// The worst comes first: what must hold of every cluster, then what this story says.
    fn weight(&self) -> u8 {
        match self {
            Self::Invariant(_) | Self::Assertion => 0,
            Self::Claim => 1,
            Self::Endless => 2,
            Self::Course => 3,
            Self::Transcript => 4,
        }
    }

    /// Something that must hold did not.
    pub fn is_proof(&self) -> bool {
        !matches!(self, Self::Course | Self::Transcript)
    }

    fn of(command: Option<&StoryCommand>, why: &str) -> Self {
        if why.contains("panic: ") {
            Self::Assertion
        } else if why.contains(" violated: ") {
            // A claim with time puts a preface before it.
            let id = why.split(" violated: ").next().and_then(|text| text.split(' ').next_back());
            Self::Invariant(id.unwrap_or_default().to_owned())
        } else if why.contains(" is broken: ") {
            Self::Invariant("own".to_owned())
        } else if why.contains("it does not settle") || why.contains("has been asking for more") {
            Self::Endless
        } else if command.is_some_and(StoryCommand::is_claim) {
            Self::Claim
        } else {
            Self::Course
        }
    }
}

impl Script {
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|why| format!("{}: {why}", path.display()))?;
        let story = Story::parse(&text)
            .map_err(|wrong| format!("{}:{}: {}", path.display(), wrong.line, wrong.why))?;
        Ok(Self { path: path.to_owned(), story })
    }

    /// The name of the file, without its ending.
    pub fn name(&self) -> String {
        self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Ids of the catalogue that the story stands for.
    pub fn covers(&self) -> &[String] {
        &self.story.covers
    }

    /// Plays the story under each of its activations. Once something is wrong it is played
    /// to its end, and the worst violation is reported.
    pub fn play(&self) -> Result<(), Complaint> {
        let (mut pages, mut wrongs, mut steps) = (Vec::new(), Vec::new(), 0);
        for activation in self.story.plays.activations() {
            let performance = perform(&self.story, activation);
            if performance.failure.is_some() {
                let whole = perform_on(&self.story, activation);
                steps += whole.steps;
                wrongs.extend(self.complaints(whole, activation, steps));
            } else {
                steps += performance.steps;
                pages.push(performance.transcripts());
            }
        }
        if let Some(worst) = wrongs.into_iter().min_by_key(|wrong| wrong.kind.weight()) {
            return Err(worst);
        }
        let activation = self.story.plays.activations().first().copied().unwrap_or_default();
        let mut pages = pages.into_iter();
        let (first, other) = (pages.next().unwrap_or_default(), pages.next().unwrap_or_default());
        match first_difference(&self.story, &first, &other) {
            Some((line, why)) => {
                Err(Complaint { kind: ComplaintKind::Transcript, line, activation, why, steps })
            }
            None => Ok(()),
        }
    }

    fn complaints(
        &self,
        performance: Performance,
        activation: Activation,
        steps: u64,
    ) -> impl Iterator<Item = Complaint> {
        let wrongs = performance.failure.into_iter().chain(performance.later);
        wrongs.map(move |wrong| {
            let kind = ComplaintKind::of(self.command_at(wrong.line), &wrong.why);
            Complaint { kind, line: wrong.line, activation, why: wrong.why, steps }
        })
    }

    fn command_at(&self, line: usize) -> Option<&StoryCommand> {
        let mut lines = self.story.blocks.iter().flat_map(|block| &block.lines);
        lines.find(|there| there.number == line).and_then(|there| there.command.as_ref())
    }
}

impl std::fmt::Display for Complaint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let first = self.why.lines().next().unwrap_or_default();
        write!(f, "line {} ({}): {first}", self.line, activation_text(self.activation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_classified() {
        let kind = |command: Option<&str>, why: &str| {
            let command = command.map(|text| StoryCommand::parse(text).unwrap());
            ComplaintKind::of(command.as_ref(), why)
        };
        let claim = Some("expect m1 leader");
        assert_eq!(kind(claim, "m1 is not leader: m1 follower"), ComplaintKind::Claim);
        assert_eq!(kind(Some("settle"), "no message in flight"), ComplaintKind::Course);
        assert_eq!(kind(claim, "panic: no"), ComplaintKind::Assertion);
        let invariant = |id: &str| ComplaintKind::Invariant(id.to_owned());
        assert_eq!(kind(Some("settle"), "I4 violated: m3 leads"), invariant("I4"));
        assert_eq!(kind(claim, "after 3 ticks: I1 violated: m3"), invariant("I1"));
        assert_eq!(kind(claim, "m1 is broken: applied 3"), invariant("own"));
        assert_eq!(kind(claim, "it does not settle: 9 messages"), ComplaintKind::Endless);
    }
}
