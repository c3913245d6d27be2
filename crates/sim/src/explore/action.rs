//! What is done to a simulation from outside: faults, changes, requests.
//!
//! A run is a set of settings and a list of actions. Each action names its target in a way
//! that stays valid when others are left out, so that a list can be shortened.

use std::fmt;

use super::patterns;
use super::setting::{FOCUS_COMMITS, FOCUS_LEASES, RunSettings};
use crate::random::Random;

/// The member that an action is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionTarget {
    /// The leader of the newest term, else the first member that is up.
    Leader,
    /// This number modulo the count of all members that ever were.
    Member(u64),
}

macro_rules! actions {
    ($($(#[$doc:meta])* $variant:ident, $name:literal, $odds:literal, $kind:ident;)*) => {
        /// Something done to the simulation. Most actions use the action's number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ActionKind {
            $($(#[$doc])* $variant,)*
        }

        impl ActionKind {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// How often it is drawn, against the others.
            fn odds(self) -> u64 {
                match self { $(Self::$variant => $odds,)* }
            }

            pub fn kind(self) -> FaultKind {
                match self { $(Self::$variant => FaultKind::$kind,)* }
            }
        }
    };
}

/// Faults are drawn by kind: a run has some kinds and not others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    Process,
    Network,
    Disk,
    Clock,
    Members,
    Requests,
    /// Slow or standing still instead of dead.
    Gray,
    /// What storage and operators do more rarely.
    Rare,
    /// Disks that are copied, moved and restored. Only where disks tell their place.
    Copies,
    /// Programs that are replaced, and requests for the cluster version. Only where programs
    /// differ.
    Versions,
}

actions! {
    /// The process dies; what was not synced is lost in part.
    Crash, "crash", 12, Process;
    /// The process dies in the middle of the next operation of its disk.
    CrashInWrite, "crash-in-write", 8, Process;
    Restart, "restart", 12, Process;
    /// Nothing runs on this member for some ticks.
    Pause, "pause", 6, Process;
    Isolate, "isolate", 6, Network;
    /// Receives nothing, but its messages arrive.
    Deafen, "deafen", 3, Network;
    /// Its messages are lost; it receives all others.
    Mute, "mute", 3, Network;
    /// Two parts without connection; the number defines the parts.
    Split, "split", 4, Network;
    /// As a split, but this member is connected to both parts.
    Bridge, "bridge", 3, Network;
    /// One direction of one link.
    CutLink, "cut-link", 3, Network;
    Reconnect, "reconnect", 14, Network;
    /// The next write fails.
    FailWrite, "fail-write", 3, Disk;
    /// The next sync fails, and what it should have made durable is gone.
    FailSync, "fail-sync", 3, Disk;
    /// No space is left until the member is started again.
    FillDisk, "fill-disk", 2, Disk;
    /// A read fails, or one of its bits is wrong.
    BadRead, "bad-read", 2, Disk;
    SlowDisk, "slow-disk", 2, Disk;
    /// The process dies and one bit of its disk has another value.
    FlipBit, "flip-bit", 2, Disk;
    /// The process dies and its disk is lost.
    LoseDisk, "lose-disk", 1, Disk;
    /// The process dies, and is started again under its id with an empty disk.
    WipeDisk, "wipe-disk", 1, Disk;
    /// Two processes die and are started with each other's disk.
    SwapDisks, "swap-disks", 1, Disk;
    /// The clock goes forward at once.
    JumpClock, "jump-clock", 3, Clock;
    /// A new process joins as a learner.
    AddLearner, "add-learner", 4, Members;
    /// A learner is added that never starts.
    AddGhost, "add-ghost", 2, Members;
    /// A goal with these voters.
    Goal, "goal", 10, Members;
    /// A goal with new members in it.
    GoalWithNew, "goal-with-new", 8, Members;
    /// A goal without the leader.
    GoalWithoutLeader, "goal-without-leader", 4, Members;
    Cancel, "cancel", 6, Members;
    /// One operation, without a goal.
    RawChange, "raw-change", 6, Members;
    JointImplicit, "joint-implicit", 3, Members;
    JointExplicit, "joint-explicit", 3, Members;
    LeaveJoint, "leave-joint", 5, Members;
    SetVoters, "set-voters", 4, Members;
    Transfer, "transfer", 6, Requests;
    Campaign, "campaign", 3, Requests;
    /// Many writes at once.
    Burst, "burst", 4, Requests;
    /// Drop the log up to the newest snapshot.
    Trim, "trim", 2, Requests;
    /// The disk completes nothing until it is relieved.
    HangDisk, "hang-disk", 5, Gray;
    /// The state machine completes nothing until it is relieved.
    HangMachine, "hang-machine", 4, Gray;
    /// The process does nothing until it is relieved; its messages wait.
    Freeze, "freeze", 3, Gray;
    /// Every write takes longer than an election timeout, until it is relieved.
    CrawlDisk, "crawl-disk", 3, Gray;
    /// One direction of a link takes longer than an election timeout, until it is relieved.
    SlowLink, "slow-link", 4, Gray;
    /// Ends the gray faults of a member.
    Relieve, "relieve", 14, Gray;
    /// The next sync of the directory fails.
    FailDirSync, "fail-dir-sync", 3, Rare;
    /// Syncs report success and make nothing durable; a power loss then costs the disk.
    LieAboutSync, "lie-about-sync", 3, Rare;
    /// The next snapshot for this member breaks off halfway.
    TearSnapshot, "tear-snapshot", 5, Rare;
    /// A removed member is added again under its id, with an empty disk.
    ReuseId, "reuse-id", 6, Rare;
    /// A backup of the disk is made while the member runs.
    CopyDisk, "copy-disk", 12, Copies;
    /// The process ends, and is started with its disk in another place.
    MoveDisk, "move-disk", 8, Copies;
    /// The disk is lost, and its backup takes its place.
    RestoreDisk, "restore-disk", 8, Copies;
    /// A newer program is started on the same disk.
    NewerProgram, "newer-program", 16, Versions;
    /// An older program is started on the same disk, when the member's status allows it, or by
    /// mistake.
    OlderProgram, "older-program", 16, Versions;
    /// The operator asks for a downgrade of the cluster version.
    LowerVersion, "lower-version", 10, Versions;
    /// The operator cancels it.
    KeepVersion, "keep-version", 4, Versions;
}

/// One action at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    pub at: u64,
    pub what: ActionKind,
    pub who: ActionTarget,
    pub number: u64,
}

impl Action {
    /// All that happens in a run with this setting.
    pub fn draw(setting: &RunSettings) -> Vec<Self> {
        let mut random = Random::stream(setting.seed, 2);
        match setting.focus {
            FOCUS_LEASES => return patterns::about_leases(setting, &mut random),
            FOCUS_COMMITS => return patterns::about_commits(setting, &mut random),
            _ => {}
        }
        let kinds = draw_kinds(&mut random, setting);
        let drawable: Vec<ActionKind> =
            ActionKind::ALL.iter().copied().filter(|what| kinds.contains(&what.kind())).collect();
        let total: u64 = drawable.iter().map(|what| what.odds()).sum();
        let end = setting.ticks * super::setting::TICK;
        let pace = random.between(2, 40) * super::setting::TICK;
        let mut actions = Vec::new();
        let mut at = random.below(pace);
        while at < end && total > 0 {
            let mut left = random.below(total);
            let what = drawable.iter().copied().find(|what| {
                let found = left < what.odds();
                left = left.saturating_sub(what.odds());
                found
            });
            let who = if random.per_mille(350) {
                ActionTarget::Leader
            } else {
                ActionTarget::Member(random.below(12))
            };
            let number = random.below(1 << 16);
            actions.extend(what.map(|what| Self { at, what, who, number }));
            at += 1 + random.below(pace);
        }
        actions
    }
}

/// Requests are always there, the rest by chance. The later kinds are drawn from a source of
/// their own, so that a seed without them means the same as before.
fn draw_kinds(random: &mut Random, setting: &RunSettings) -> Vec<FaultKind> {
    let mut kinds = vec![FaultKind::Requests];
    for (kind, odds) in [
        (FaultKind::Members, 800),
        (FaultKind::Process, 700),
        (FaultKind::Network, 600),
        (FaultKind::Disk, 450),
        (FaultKind::Clock, 300),
    ] {
        if random.per_mille(odds) {
            kinds.push(kind);
        }
    }
    let mut later = Random::stream(setting.seed, 7);
    for (kind, odds) in [(FaultKind::Gray, 300), (FaultKind::Rare, 300)] {
        if later.per_mille(odds) {
            kinds.push(kind);
        }
    }
    if setting.places == 1 {
        kinds.push(FaultKind::Copies);
    }
    if setting.versions == 1 {
        kinds.push(FaultKind::Versions);
    }
    kinds
}

impl fmt::Display for ActionTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leader => write!(f, "leader"),
            Self::Member(number) => write!(f, "{number}"),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {} {} {} {}", self.at, self.what.name(), self.who, self.number)
    }
}

/// Reads back what [`Action`] prints.
pub(crate) fn parse_action(line: &str) -> Option<Action> {
    let mut words = line.split_whitespace();
    if words.next()? != "at" {
        return None;
    }
    let at = words.next()?.parse().ok()?;
    let name = words.next()?;
    let what = ActionKind::ALL.iter().copied().find(|what| what.name() == name)?;
    let who = match words.next()? {
        "leader" => ActionTarget::Leader,
        number => ActionTarget::Member(number.parse().ok()?),
    };
    let number = words.next()?.parse().ok()?;
    words.next().is_none().then_some(Action { at, what, who, number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_read_as_they_are_printed() {
        for seed in 0..50 {
            for action in Action::draw(&RunSettings::draw(seed)) {
                assert_eq!(parse_action(&action.to_string()), Some(action));
            }
        }
        assert_eq!(parse_action("at 5 dance leader 1"), None);
        assert_eq!(parse_action("at 5 crash leader 1 more"), None);
    }

    #[test]
    fn every_action_is_drawn_by_some_seed() {
        let mut left: Vec<ActionKind> = ActionKind::ALL.to_vec();
        for seed in 0..200 {
            for action in Action::draw(&RunSettings::draw(seed)) {
                left.retain(|what| *what != action.what);
            }
        }
        assert!(left.is_empty(), "{left:?}");
    }
}
