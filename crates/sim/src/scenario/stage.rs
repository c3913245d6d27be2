//! The cluster at the end of a story, from which the model checker starts.

use std::panic::{AssertUnwindSafe, catch_unwind};

use quorate_core::config::Activation;
use quorate_core::{Change, Config, Envelope, MemberId};

use super::command::StoryCommand;
use super::message::{envelope_text, kind};
use super::runner;
use super::story::{Story, StoryError};
use super::world::StoryWorld;
use crate::cluster::CoreMember;
use crate::short_ids::short_ids;

/// The members and what is on its way between them.
#[derive(Clone, Debug)]
pub(crate) struct StagedCluster {
    pub(crate) members: Vec<StagedMember>,
    pub(crate) flight: Vec<Envelope>,
}

/// One member where the story left it.
#[derive(Clone, Debug)]
pub(crate) struct StagedMember {
    pub(crate) config: Config,
    pub(crate) core: CoreMember,
}

/// Plays a whole story. The complaint names the line.
pub(crate) fn play(text: &str, activation: Activation) -> Result<StagedCluster, String> {
    let located = |wrong: StoryError| format!("line {}: {}", wrong.line, wrong.why);
    let story = Story::parse(text).map_err(located)?;
    let mut world = StoryWorld { activation, ..StoryWorld::default() };
    runner::play_through(&mut world, &story).map_err(located)?;
    Ok(StagedCluster::of(&world))
}

/// Under which activations a story is played.
pub(crate) fn activations(text: &str) -> Result<Vec<Activation>, String> {
    let located = |wrong: StoryError| format!("line {}: {}", wrong.line, wrong.why);
    Ok(Story::parse(text).map_err(located)?.plays.activations())
}

/// The story with the transcript of what happens, up to the line that fails.
pub(crate) fn transcribe(text: &str, activation: Activation) -> (String, Option<String>) {
    match Story::parse(text) {
        Ok(story) => runner::transcribe(&story, activation),
        Err(wrong) => (text.to_owned(), Some(format!("line {}: {}", wrong.line, wrong.why))),
    }
}

/// A change in the words of a story: `v4`, `goal (1 2 4)`, `leave`.
pub(crate) fn change(words: &str) -> Result<Change, String> {
    match StoryCommand::parse(&format!("change m1 {words}"))? {
        StoryCommand::Change(_, change) => Ok(change),
        _ => Err(format!("`{words}` is no change")),
    }
}

/// Writes a story while it is played, so that each line says exactly what is meant.
pub(crate) struct StoryWriter {
    world: StoryWorld,
    lines: Vec<String>,
    /// A line has failed: the story ends there.
    failure: Option<String>,
}

impl StoryWriter {
    /// Begins with these lines, which are not repeated in what is written.
    pub(crate) fn after(text: &str, activation: Activation) -> Result<Self, String> {
        let located = |wrong: StoryError| format!("line {}: {}", wrong.line, wrong.why);
        let story = Story::parse(text).map_err(located)?;
        let mut world = StoryWorld { activation, ..StoryWorld::default() };
        runner::play_through(&mut world, &story).map_err(located)?;
        Ok(Self { world, lines: Vec::new(), failure: None })
    }

    /// Plays and writes one command.
    pub(crate) fn command(&mut self, line: String) {
        if self.failure.is_some() {
            return;
        }
        let line = short_ids(&line);
        let played = StoryCommand::parse(&line).and_then(|command| {
            let world = &mut self.world;
            catch_unwind(AssertUnwindSafe(|| world.play(&command)))
                .unwrap_or_else(|_| Err("an assertion of the core".to_owned()))
        });
        self.lines.push(line);
        self.failure = played.err();
    }

    /// Delivers this very message, wherever it stands among those like it.
    pub(crate) fn deliver(&mut self, envelope: &Envelope) {
        let alike = self.alike(envelope);
        let words = format!("{} -> {} {}", envelope.from, envelope.to, kind(&envelope.message));
        match alike.iter().position(|other| other == envelope) {
            Some(0) => self.command(format!("deliver {words} first")),
            Some(at) if at + 1 == alike.len() => self.command(format!("deliver {words} last")),
            Some(at) => {
                self.command(format!("hold {words} first {at}"));
                self.command(format!("deliver {words} first"));
                self.command(format!("release {words}"));
            }
            None => {
                let text = short_ids(&envelope_text(envelope));
                self.lines.push(format!("# not in flight: {text}"));
                self.failure = Some("a message is not in flight".to_owned());
            }
        }
    }

    /// Loses what is in flight between these two of this kind, if anything is.
    pub(crate) fn lose(&mut self, from: MemberId, to: MemberId, kind_name: &str) {
        let lost = |envelope: &&Envelope| {
            (envelope.from, envelope.to) == (from, to) && kind(&envelope.message) == kind_name
        };
        if self.world.network.flight().iter().any(|envelope| lost(&envelope)) {
            self.command(format!("drop {from} -> {to} {kind_name}"));
        }
    }

    /// The newest message on this link.
    pub(crate) fn newest(&self, from: MemberId, to: MemberId) -> Option<Envelope> {
        let mut flight = self.world.network.flight().iter().rev();
        flight.find(|envelope| (envelope.from, envelope.to) == (from, to)).cloned()
    }

    /// Whether anything is on its way to this member.
    pub(crate) fn is_expected(&self, to: MemberId) -> bool {
        self.world.network.flight().iter().any(|envelope| envelope.to == to)
    }

    pub(crate) fn finish(self) -> (Vec<String>, Option<String>) {
        (self.lines, self.failure)
    }

    fn alike(&self, envelope: &Envelope) -> Vec<Envelope> {
        let same = |other: &&Envelope| {
            (other.from, other.to, kind(&other.message))
                == (envelope.from, envelope.to, kind(&envelope.message))
        };
        self.world.network.flight().iter().filter(same).cloned().collect()
    }
}

impl StagedCluster {
    fn of(world: &StoryWorld) -> Self {
        let members = world.members.values().map(|member| StagedMember {
            config: member.config.clone(),
            core: member.core.clone(),
        });
        let flight = world.network.flight().iter().chain(world.network.held());
        Self { members: members.collect(), flight: flight.cloned().collect() }
    }
}
