//! A story played line by line, with the state of the cluster after each line: for displays that
//! step forwards and backwards.

use std::collections::{BTreeMap, BTreeSet};

use quorate_core::config::Activation;
use quorate_core::{Index, MemberSet, Term};

use super::member::StoryMember;
use super::message::{envelope_text, kind};
use super::notation::entry_text;
use super::runner::{first_difference, perform, perform_line};
use super::story::{Story, StoryError, activation_text};
use super::world::StoryWorld;
use crate::short_ids::short_ids;

/// A story and where it led. It ends at the first line that failed.
#[derive(Clone, Debug)]
pub struct Playback {
    /// `on-apply` or `on-append`.
    pub activation: &'static str,
    pub lines: Vec<PlayedLine>,
}

/// One command and what it led to.
#[derive(Clone, Debug)]
pub struct PlayedLine {
    /// Its number in the text, from 1.
    pub number: usize,
    pub text: String,
    pub printed: Vec<String>,
    pub failure: Option<String>,
    pub cluster: ClusterPicture,
}

/// All members, and the messages between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterPicture {
    pub members: Vec<MemberPicture>,
    pub messages: Vec<MessagePicture>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberPicture {
    pub id: u64,
    /// `down`, or its role.
    pub role: String,
    pub term: Term,
    pub vote: Option<u64>,
    pub leader: Option<u64>,
    /// The membership that counts for this member.
    pub membership: String,
    pub majorities: Vec<Vec<u64>>,
    pub learners: Vec<u64>,
    /// The entry before the first one of its log.
    pub base: String,
    pub log: Vec<EntryPicture>,
    pub commit: Index,
    pub applied: Index,
    pub settled: Index,
    /// Ticks since it heard of a leader, and after how many it campaigns.
    pub elapsed_ticks: u32,
    pub timeout_ticks: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryPicture {
    pub index: Index,
    pub term: Term,
    pub text: String,
    pub is_change: bool,
    /// Some member has committed this entry; this one may not know it.
    pub committed: bool,
    /// This member knows that it is committed.
    pub known: bool,
    /// A membership that is settled, as far as this member knows.
    pub settled: bool,
    /// On this member's disk.
    pub saved: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessagePicture {
    pub from: u64,
    pub to: u64,
    pub kind: &'static str,
    pub text: String,
    pub held: bool,
}

impl Playback {
    /// Plays a story under its first activation.
    pub fn play(text: &str) -> Result<Self, StoryError> {
        let story = Story::parse(text)?;
        let activation = first_activation(&story);
        let mut world = StoryWorld { activation, ..StoryWorld::default() };
        let mut committed = Committed::default();
        let mut played = Vec::new();
        'story: for block in &story.blocks {
            for (at, line) in block.lines.iter().enumerate() {
                if line.command_under(activation).is_none() {
                    continue;
                }
                let rest = block.lines.iter().skip(at + 1);
                let next = rest.filter_map(|line| line.command_under(activation)).next();
                let failure = perform_line(&mut world, line, next).err();
                committed.learn(&world);
                let has_failed = failure.is_some();
                played.push(PlayedLine {
                    number: line.number,
                    text: line.raw.trim().to_owned(),
                    printed: world.page.take_lines(),
                    failure: failure.map(|why| short_ids(&why)),
                    cluster: picture(&world, &committed),
                });
                if has_failed {
                    break 'story;
                }
            }
        }
        Ok(Self { activation: activation_text(activation), lines: played })
    }

    /// The story with the transcripts of what happens, as `UPDATE=1` writes them. Fails at the
    /// line that fails.
    pub fn transcribe(text: &str) -> Result<String, StoryError> {
        let story = Story::parse(text)?;
        let mut transcripts = Vec::new();
        for activation in story.plays.activations() {
            let performance = perform(&story, activation);
            if let Some(failure) = performance.failure {
                return Err(failure);
            }
            transcripts.push(performance.transcripts());
        }
        let mut transcripts = transcripts.into_iter();
        let first = transcripts.next().unwrap_or_default();
        let other = transcripts.next().unwrap_or_default();
        Ok(story.rewritten(&first, &other))
    }

    /// Whether the transcripts of the text are what happens. Names the line and the difference.
    pub fn compare(text: &str) -> Result<(), StoryError> {
        let rewritten = Self::transcribe(text)?;
        let (story, now) = (Story::parse(text)?, Story::parse(&rewritten)?);
        let lines = |append: bool| -> Vec<Vec<String>> {
            let text = now.blocks.iter().map(|block| match append {
                false => block.transcript.text.clone(),
                true => block.on_append.as_ref().map(|it| it.text.clone()).unwrap_or_default(),
            });
            text.collect()
        };
        match first_difference(&story, &lines(false), &lines(true)) {
            Some((line, why)) => Err(StoryError { line, why }),
            None => Ok(()),
        }
    }
}

fn first_activation(story: &Story) -> Activation {
    story.plays.activations().first().copied().unwrap_or_default()
}

/// The entries that some member has known to be committed.
#[derive(Debug, Default)]
struct Committed(BTreeMap<Index, Term>);

impl Committed {
    fn learn(&mut self, world: &StoryWorld) {
        for member in world.members.values() {
            let (view, commit) = (member.view(), commit_index(member));
            let known = view.log.entries.iter().filter(|entry| entry.id.index <= commit);
            self.0.extend(known.map(|entry| (entry.id.index, entry.id.term)));
        }
    }

    fn contains(&self, index: Index, term: Term) -> bool {
        self.0.get(&index) == Some(&term)
    }
}

fn commit_index(member: &StoryMember) -> Index {
    match &member.core.raft {
        Some(raft) => raft.log_status().commit,
        None => member.core.disk.hard_state.commit,
    }
}

fn picture(world: &StoryWorld, committed: &Committed) -> ClusterPicture {
    let message = |held| {
        move |envelope: &quorate_core::Envelope| MessagePicture {
            from: envelope.from.0,
            to: envelope.to.0,
            kind: kind(&envelope.message),
            text: short_ids(&envelope_text(envelope)),
            held,
        }
    };
    let flight = world.network.flight().iter().map(message(false));
    let held = world.network.held().iter().map(message(true));
    ClusterPicture {
        members: world.members.values().map(|member| member_picture(member, committed)).collect(),
        messages: flight.chain(held).collect(),
    }
}

fn member_picture(member: &StoryMember, committed: &Committed) -> MemberPicture {
    let status = member.core.raft.as_ref().map(|raft| raft.status());
    let (view, disk) = (member.view(), &member.core.disk);
    let commit = commit_index(member);
    let settled = status.as_ref().map_or(0, |status| status.settled);
    let log = view.log.entries.iter().map(|entry| EntryPicture {
        index: entry.id.index,
        term: entry.id.term,
        text: short_ids(&entry_text(entry)),
        is_change: entry.change().is_some(),
        committed: committed.contains(entry.id.index, entry.id.term),
        known: entry.id.index <= commit,
        settled: entry.change().is_some() && entry.id.index <= settled,
        saved: disk.log.entry(entry.id.index) == Some(entry),
    });
    let ids = |set: &MemberSet| set.iter().map(|id| id.0).collect::<Vec<_>>();
    let membership = status.as_ref().map(|status| status.membership.clone());
    MemberPicture {
        id: member.config.id.0,
        role: status.as_ref().map_or("down".to_owned(), |status| status.role.to_string()),
        term: status.as_ref().map_or(disk.hard_state.term, |status| status.term),
        vote: disk.hard_state.vote.map(|id| id.0),
        leader: status.as_ref().and_then(|status| status.leader).map(|id| id.0),
        membership: membership.as_ref().map_or(String::new(), |it| short_ids(&it.to_string())),
        majorities: membership
            .as_ref()
            .map_or(Vec::new(), |it| it.majorities().iter().map(&ids).collect()),
        learners: membership.as_ref().map_or(Vec::new(), |it| ids(it.learners())),
        base: view.log.base.to_string(),
        log: log.collect(),
        commit,
        applied: status.as_ref().map_or(disk.applied, |status| status.log.applied),
        settled,
        elapsed_ticks: status.as_ref().map_or(0, |status| status.elapsed_ticks),
        timeout_ticks: status.as_ref().map_or(0, |status| status.timeout_ticks),
    }
}

/// The ids of the members of a picture.
impl ClusterPicture {
    pub fn leaders(&self) -> BTreeSet<u64> {
        let leaders = self.members.iter().filter(|member| member.role == "leader");
        leaders.map(|member| member.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORY: &str = "# covers: S01\n# only: on-apply\n# A story.\n\n\
                         cluster m1 m2 m3\ncampaign m1\nsettle\npropose m1 x\nexpect m1 leader\n";

    #[test]
    fn each_command_has_the_cluster_after_it() {
        let playback = Playback::play(STORY).unwrap();
        let numbers: Vec<_> = playback.lines.iter().map(|line| line.number).collect();
        assert_eq!(numbers, [5, 6, 7, 8, 9]);
        let [started, campaigned, settled, proposed, _] = &playback.lines[..] else {
            panic!("five lines");
        };
        assert_eq!(started.cluster.members.len(), 3);
        assert!(campaigned.cluster.messages.iter().all(|message| message.kind == "PreVote"));
        assert_eq!(campaigned.cluster.messages.len(), 2);
        assert_eq!(settled.cluster.leaders(), BTreeSet::from([1]));
        assert!(settled.cluster.messages.is_empty());
        let [one, two, _] = &proposed.cluster.members[..] else { panic!("three members") };
        let last = one.log.last().unwrap();
        assert!(last.text.contains("\"x\"") && last.saved && !last.known && !last.committed);
        assert_eq!(two.log.len() + 1, one.log.len());
    }

    #[test]
    fn an_entry_may_be_committed_and_not_known() {
        let text = format!("{STORY}deliver m1 -> m2\ncut m1 -> *\ndeliver m2 -> m1\n");
        let last = Playback::play(&text).unwrap().lines.pop().unwrap();
        assert_eq!(last.failure, None);
        let entry = |at: usize| last.cluster.members[at].log.last().unwrap().clone();
        assert!(entry(0).committed && entry(0).known);
        assert!(entry(1).committed && !entry(1).known);
    }

    #[test]
    fn it_ends_at_the_line_that_fails() {
        let text = format!("{STORY}expect m2 leader\ntick all\n");
        let last = Playback::play(&text).unwrap().lines.pop().unwrap();
        assert_eq!(last.number, 10);
        assert!(last.failure.unwrap().starts_with("m2 is not leader"));
        assert_eq!(Playback::transcribe(&text).unwrap_err().line, 10);
        assert_eq!(Playback::play("cluster m1\n").unwrap_err().line, 1);
    }

    #[test]
    fn a_transcribed_story_passes() {
        let whole = Playback::transcribe(STORY).unwrap();
        assert!(whole.contains("---\nm1 follower term=1"), "{whole}");
        assert_eq!(Playback::compare(&whole), Ok(()));
        let wrong = whole.replace("m1 commit=2", "m1 commit=3");
        assert!(Playback::compare(&wrong).unwrap_err().why.contains("the transcript differs"));
    }
}
