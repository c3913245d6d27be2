//! The commands of a story, read from its lines. What they do stands in
//! [`play`](super::play) and [`setup`](super::setup).

use bytes::Bytes;
use quorate_core::{Change, EntryId, Index, Input, MemberId, Term};

use super::expect::Expectation;
use super::grammar as read;
use super::message::ByHand;
use super::network::Filter;
use super::notation::{self, Draft, MembershipText};
use super::setting::ConfigSetting;
use super::variables;
use super::words::{LineWords, NamedMembers, Parsed, number, unknown};
use crate::cluster::WorkKind;

#[derive(Clone, Debug)]
pub(super) enum StoryCommand {
    Cluster(ClusterCommand),
    Empty(Vec<MemberId>),
    Log(NamedMembers, LogByHand),
    Config(NamedMembers, Vec<ConfigSetting>),
    Hide(Vec<&'static str>),
    Show(Vec<&'static str>),
    /// Hands each of these members one input.
    Tell(NamedMembers, &'static str, Input),
    Tick(NamedMembers, u32),
    Timeout(NamedMembers, u32),
    Propose(MemberId, Vec<Bytes>),
    Change(MemberId, Change),
    Read(MemberId),
    /// At this index, or at what is applied.
    Snapshot(MemberId, Option<Index>),
    Crash(NamedMembers, Unsynced),
    Restart(NamedMembers, Restart),
    Wipe(NamedMembers),
    HoldWork(WorkKind, NamedMembers),
    Complete(WorkKind, NamedMembers, usize),
    ReleaseWork(WorkKind, NamedMembers),
    Partition(Vec<Vec<MemberId>>),
    Cut(Filter),
    Heal(Filter),
    Hold(Filter),
    Release(Filter),
    Drop(Filter),
    Duplicate(Filter),
    Reorder(Filter),
    Deliver(Filter),
    Settle(Ticks),
    Inject(Box<ByHand>),
    Expect(Box<Expectation>),
    Status(NamedMembers),
    Logs(NamedMembers),
    Disks(NamedMembers),
    Messages,
    /// Keeps a value of a member under a name.
    Remember(String, MemberId, &'static str),
    /// A line with `$names`, read when it is played.
    WithVariables(String),
    KeepDisk(NamedMembers),
    RollBack(NamedMembers),
    /// From now on the transport reports snapshots that are lost.
    ReportLostSnapshots,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ClusterCommand {
    pub(super) voters: Vec<MemberId>,
    pub(super) learners: Vec<MemberId>,
    pub(super) parts: MembershipText,
    pub(super) term: Option<Term>,
    pub(super) settings: Vec<ConfigSetting>,
}

/// A disk laid out by hand. What is not named keeps a value that fits the rest.
#[derive(Clone, Debug, Default)]
pub(super) struct LogByHand {
    pub(super) entries: Vec<Draft>,
    pub(super) term: Option<Term>,
    pub(super) vote: Option<MemberId>,
    pub(super) commit: Option<Index>,
    pub(super) applied: Option<Index>,
    pub(super) base: Option<EntryId>,
    pub(super) snapshot: Option<EntryId>,
    pub(super) parts: Option<MembershipText>,
}

/// What a crash does to writes that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsynced {
    Kept,
    Lost,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Restart {
    pub(super) applied: Option<Index>,
    pub(super) tail: Option<usize>,
    pub(super) settings: Vec<ConfigSetting>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ticks {
    Number(u32),
    Heartbeat,
    Election,
}

/// Every command, for completion of mistyped ones.
pub(super) const COMMANDS: &[&str] = &[
    "cluster",
    "empty",
    "log",
    "config",
    "hide",
    "show",
    "campaign",
    "forget-leader",
    "applying",
    "propose",
    "change",
    "read",
    "transfer",
    "snapshot",
    "trim",
    "report",
    "tick",
    "timeout",
    "crash",
    "restart",
    "wipe",
    "hold",
    "complete",
    "release",
    "partition",
    "cut",
    "heal",
    "drop",
    "duplicate",
    "reorder",
    "deliver",
    "settle",
    "inject",
    "expect",
    "status",
    "logs",
    "disk",
    "messages",
    "remember",
    "keep-disk",
    "roll-back",
    "report-lost-snapshots",
];

impl StoryCommand {
    pub(super) fn parse(line: &str) -> Parsed<Self> {
        if variables::occur_in(line) {
            variables::check(line)?;
            return Ok(Self::WithVariables(line.to_owned()));
        }
        let mut words = LineWords::of(line)?;
        let name = words.expect_word("a command")?;
        let command = Self::named(&name, &mut words)?;
        words.end()?;
        Ok(command)
    }

    fn named(name: &str, words: &mut LineWords) -> Parsed<Self> {
        Ok(match name {
            "cluster" => Self::Cluster(read::cluster(words)?),
            "empty" => Self::Empty(read::some_members(words)?),
            "log" => Self::Log(words.who()?, read::log_by_hand(words)?),
            "config" => Self::Config(words.who()?, read::settings(words)?),
            "hide" => Self::Hide(read::shown(words)?),
            "show" => Self::Show(read::shown(words)?),
            "tick" => Self::Tick(words.who()?, read::count_or_one(words)?),
            "timeout" => {
                Self::Timeout(words.who()?, number(&words.expect_word("a number of ticks")?)?)
            }
            "propose" => Self::Propose(words.member()?, read::commands(words)?),
            "change" => Self::Change(words.member()?, notation::change(words)?),
            "read" => Self::Read(words.member()?),
            "snapshot" => Self::Snapshot(words.member()?, read::optional_index(words)?),
            "crash" => Self::Crash(words.who()?, read::unsynced(words)?),
            "restart" => Self::Restart(words.who()?, read::restart(words)?),
            "wipe" => Self::Wipe(words.who()?),
            "complete" => {
                let what = words.expect_word("saves, applies or loads")?;
                Self::Complete(read::work(&what)?, words.who()?, read::count_or_one(words)?)
            }
            "expect" => Self::Expect(Box::new(Expectation::parse(words)?)),
            "status" => Self::Status(words.who_or_all()?),
            "logs" => Self::Logs(words.who_or_all()?),
            "disk" => Self::Disks(words.who_or_all()?),
            "remember" => {
                let name = variables::name(&words.expect_word("a name such as last")?)?;
                Self::Remember(name, words.member()?, variables::fact(words)?)
            }
            "keep-disk" => Self::KeepDisk(words.who()?),
            "roll-back" => Self::RollBack(words.who()?),
            "report-lost-snapshots" => Self::ReportLostSnapshots,
            _ => match Self::parse_input(name, words)? {
                Some(input) => input,
                None => Self::on_network(name, words)?,
            },
        })
    }

    /// Commands that hand a member one input and nothing more.
    fn parse_input(name: &str, words: &mut LineWords) -> Parsed<Option<Self>> {
        let (who, what, input) = match name {
            "campaign" => (words.who()?, "campaign", Input::Campaign),
            "forget-leader" => (words.who()?, "forget-leader", Input::ForgetLeader),
            "applying" => (words.who()?, "applying", Input::Applying),
            "transfer" => {
                let at = NamedMembers::These(vec![words.member()?]);
                words.take("to");
                (at, "transfer", Input::Transfer(words.member()?))
            }
            "trim" => {
                let at = words.who()?;
                words.take("to");
                (at, "trim", Input::Trim(number(&words.expect_word("an index")?)?))
            }
            "report" => {
                let at = NamedMembers::These(vec![words.member()?]);
                let (what, input) = read::report(words)?;
                (at, what, input)
            }
            _ => return Ok(None),
        };
        Ok(Some(Self::Tell(who, what, input)))
    }

    fn on_network(name: &str, words: &mut LineWords) -> Parsed<Self> {
        Ok(match name {
            "hold" => match read::held_work(words)? {
                Some((work, who)) => Self::HoldWork(work, who),
                None => Self::Hold(Filter::parse(words)?),
            },
            "release" => match read::held_work(words)? {
                Some((work, who)) => Self::ReleaseWork(work, who),
                None => Self::Release(Filter::parse(words)?),
            },
            "partition" => Self::Partition(read::sides(words)?),
            "cut" => {
                let filter = Filter::parse(words)?;
                if !filter.names_a_link() || filter.picks() {
                    return Err(
                        "expected a link to cut, such as `m1 -> m2` or `m1 <-> *`".to_owned()
                    );
                }
                Self::Cut(filter)
            }
            "heal" => Self::Heal(Filter::parse(words)?),
            "drop" => Self::Drop(Filter::parse(words)?),
            "duplicate" => Self::Duplicate(Filter::parse(words)?),
            "reorder" => Self::Reorder(Filter::parse(words)?),
            "deliver" => Self::Deliver(Filter::parse(words)?),
            "settle" => Self::Settle(read::ticks(words)?),
            "inject" => read::inject(words)?,
            "messages" => Self::Messages,
            _ => return unknown("command", name, COMMANDS),
        })
    }

    /// Claims something.
    pub(super) fn is_claim(&self) -> bool {
        match self {
            Self::Expect(_) => true,
            Self::WithVariables(line) => line.starts_with("expect"),
            _ => false,
        }
    }

    /// Lays out the stage; nothing happens yet.
    pub(super) fn is_setup(&self) -> bool {
        matches!(
            self,
            Self::Cluster(_)
                | Self::Empty(_)
                | Self::Log(..)
                | Self::Config(..)
                | Self::Hide(_)
                | Self::Show(_)
        )
    }
}
