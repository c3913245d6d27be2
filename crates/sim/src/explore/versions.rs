//! Programs of several versions in one cluster, upgraded and downgraded while it runs.
//!
//! A program supports the cluster versions from 1 to its own. The leader's decisions are the
//! node's ([`SupportedVersions`]); what its tasks do around them is done here. Clients use
//! commands of newer versions as soon as their member says that the cluster has that version.
//!
//! V1: all members agree on the version at each entry, no command runs before the cluster has
//! its version, and no program runs at a version that it does not support. V2: with newer
//! programs everywhere, the version rises.

use std::collections::BTreeMap;
use std::error::Error;

use bytes::Bytes;
use quorate::driver::{MachineJobDone, SupportedVersions};
use quorate::{ClusterVersion, UnsupportedVersion, VersionRange};
use quorate_core::status::RoleKind;
use quorate_core::{Index, MemberId};

use super::action::ActionKind;
use super::machine::RanCommand;
use super::setting::TICK;
use super::simulation::{SimEvent, Simulation, place_of};
use crate::checkers::{Checked, Violation, ensure};
use crate::random::Random;

/// The newest program.
pub(crate) const NEWEST: u32 = 3;

/// What is known of the versions of the cluster.
#[derive(Default)]
pub(crate) struct AgreedVersions {
    /// From this entry on.
    changes: BTreeMap<Index, ClusterVersion>,
    /// Whether the command at an entry ran or came too early.
    ran: BTreeMap<Index, bool>,
}

/// The questions of a leader.
#[derive(Default)]
pub(crate) struct VersionPoll {
    round: u64,
    ticks_left: u64,
    answers: SupportedVersions,
}

impl AgreedVersions {
    fn at(&self, index: Index) -> ClusterVersion {
        self.changes.range(..=index).next_back().map(|(_, version)| *version).unwrap_or_default()
    }

    pub(crate) fn newest(&self) -> ClusterVersion {
        self.at(Index::MAX)
    }

    /// A member's machine has reached this version with this entry.
    fn changed(&mut self, id: MemberId, index: Index, version: ClusterVersion) -> Checked {
        let known = *self.changes.entry(index).or_insert(version);
        agree(id, index, known, version)
    }

    /// A member's machine continues from a state as of this entry.
    fn continued(&self, id: MemberId, index: Index, version: ClusterVersion) -> Checked {
        agree(id, index, self.at(index), version)
    }

    fn ran(&mut self, id: MemberId, supported: VersionRange, command: &RanCommand) -> Checked {
        let RanCommand { index, needs, too_early, .. } = *command;
        let known = *self.ran.entry(index).or_insert(!too_early);
        ensure(known != too_early, "V1", || {
            format!("{id} and another member do not agree whether the command at {index} runs")
        })?;
        let agreed = self.at(index).version;
        let may_run = needs <= agreed && supported.contains(needs);
        ensure(too_early || may_run, "V1", || {
            format!(
                "{id}, which supports {supported}, runs a command of version {needs} at {index}, \
                 where the cluster has version {agreed}"
            )
        })
    }
}

fn agree(id: MemberId, index: Index, known: ClusterVersion, version: ClusterVersion) -> Checked {
    ensure(known == version, "V1", || {
        format!("{id} has version {version} at {index}, another member {known}")
    })
}

/// The version that a program would have to support, if that is why it failed.
pub(crate) fn needed_version(error: &(dyn Error + 'static)) -> Option<u32> {
    let mut error = Some(error);
    while let Some(found) = error {
        if let Some(unsupported) = found.downcast_ref::<UnsupportedVersion>() {
            return Some(unsupported.needs);
        }
        error = found.source();
    }
    None
}

/// The program of a member at its first start.
pub(crate) fn first_program(seed: u64, id: MemberId) -> u32 {
    1 + Random::stream(seed, 1 << 42 | id.0).below(2) as u32
}

impl Simulation {
    fn has_versions(&self) -> bool {
        self.setting.versions == 1
    }

    /// What the program of a member supports.
    pub(crate) fn supported_by(&self, place: usize) -> VersionRange {
        match self.has_versions() {
            true => VersionRange::new(ClusterVersion::FIRST, self.members[place].program),
            false => VersionRange::default(),
        }
    }

    /// A client may use what its member's version allows.
    pub(crate) fn with_version(&mut self, place: usize, command: Bytes) -> Bytes {
        let Some(process) = self.members[place].process.as_ref().filter(|_| self.has_versions())
        else {
            return command;
        };
        let needs = process.driver.cluster_version().version;
        match self.clients.draw(2) {
            0 => command,
            _ => super::machine::needing(needs, &command),
        }
    }

    /// A machine has done something: what it shows of versions.
    pub(crate) fn note_versions(&mut self, place: usize, done: &MachineJobDone) -> Checked {
        let (id, supported) = (self.members[place].id, self.supported_by(place));
        let supports = |index: Index, version: u32| {
            ensure(supported.contains(version), "V1", || {
                format!("{id} supports {supported} and runs at version {version} of {index}")
            })
        };
        match done {
            MachineJobDone::Applied { versions, .. } => {
                for (index, version) in versions {
                    supports(*index, version.version)?;
                    self.versions.changed(id, *index, *version)?;
                    self.report.count("cluster version changed");
                }
                Ok(())
            }
            MachineJobDone::Installed { meta, version, .. } => {
                supports(meta.id.index, version.version)?;
                self.versions.continued(id, meta.id.index, *version)
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn note_version_at_start(&mut self, place: usize) -> Checked {
        let id = self.members[place].id;
        let Some(process) = self.members[place].process.as_ref().filter(|_| self.has_versions())
        else {
            return Ok(());
        };
        let (applied, version) = (process.applier.applied(), process.applier.cluster_version());
        self.versions.continued(id, applied, version)
    }

    pub(crate) fn note_command(&mut self, place: usize, command: &RanCommand) -> Checked {
        if !self.has_versions() {
            return Ok(());
        }
        if command.too_early {
            self.report.count("command came too early");
        }
        self.versions.ran(self.members[place].id, self.supported_by(place), command)
    }

    /// A program ends, or does not start, because it does not support this version. The operator
    /// starts a newer one.
    pub(crate) fn needs_newer_program(&mut self, place: usize, needs: u32) -> Checked {
        let (id, supported) = (self.members[place].id, self.supported_by(place));
        ensure(self.has_versions() && !supported.contains(needs), "V1", || {
            format!("{id} supports {supported} and stops at version {needs}")
        })?;
        self.report.count("member needs a newer program");
        self.replace_program(place, needs.min(NEWEST))
    }

    /// The process ends, and another program is started on the same disk.
    fn replace_program(&mut self, place: usize, program: u32) -> Checked {
        let id = self.members[place].id;
        let before = self.members[place].program;
        self.say(|| format!("-- {id} had program {before}, gets program {program}"));
        self.stop(place)?;
        self.members[place].program = program;
        let at = self.now + 1 + self.random.below(5 * TICK);
        self.schedule(at, SimEvent::Starts { place });
        Ok(())
    }

    /// After the faults all members that stay have the newest program.
    pub(crate) fn upgrade_before_healing(&mut self, place: usize) -> Checked {
        if self.has_versions() && self.members[place].program < NEWEST {
            self.stop(place)?;
            self.members[place].program = NEWEST;
        }
        Ok(())
    }

    /// A joining member's program supports the version of the cluster: a server checks that
    /// before it joins.
    pub(crate) fn prepare_program(&mut self, place: usize) {
        let newest = self.versions.newest().version;
        let member = &mut self.members[place];
        member.program = member.program.max(newest);
    }

    pub(crate) fn operate_versions(
        &mut self,
        kind: ActionKind,
        place: usize,
        number: u64,
    ) -> Result<bool, Violation> {
        if !self.has_versions() {
            return Ok(false);
        }
        let program = self.members[place].program;
        let Some(process) = &mut self.members[place].process else { return Ok(false) };
        let now = process.driver.cluster_version();
        match kind {
            ActionKind::NewerProgram if program < NEWEST => {
                self.replace_program(place, program + 1)?;
            }
            ActionKind::OlderProgram if program > 1 => {
                // The operator looks at the status first, or sometimes does not.
                let is_ready = process.driver.storage_version() < program;
                if !is_ready && !number.is_multiple_of(8) {
                    return Ok(false);
                }
                self.replace_program(place, program - 1)?;
            }
            ActionKind::LowerVersion | ActionKind::KeepVersion => {
                let target =
                    (kind == ActionKind::LowerVersion).then(|| now.version.saturating_sub(1));
                let raft = process.driver.raft();
                let (leads, term) = (raft.role() == RoleKind::Leader, raft.term());
                let answers = &process.version_poll.answers;
                let Some(change) = answers.downgrade(now, target).ok().filter(|_| leads) else {
                    return Ok(false);
                };
                let _ = process.driver.propose_version(term, change);
                self.pump(place)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// A leader asks which versions its members support while it may raise the version, and every
    /// member captures its machine when the version has changed.
    pub(crate) fn poll_versions(&mut self, place: usize) -> Checked {
        if !self.has_versions() {
            return Ok(());
        }
        let (own, supported) = (self.members[place].id, self.supported_by(place));
        let every = self.setting.election_ticks;
        let Some(process) = &mut self.members[place].process else { return Ok(()) };
        if !process.driver.is_version_captured() {
            process.driver.capture();
        }
        let now = process.driver.cluster_version();
        let leads = process.driver.raft().role() == RoleKind::Leader;
        let poll = &mut process.version_poll;
        poll.ticks_left = poll.ticks_left.saturating_sub(1);
        let due = leads && (supported.max > now.version || now.downgrading);
        if due && poll.ticks_left == 0 {
            poll.round += 1;
            poll.ticks_left = every;
            poll.answers = SupportedVersions::default();
            poll.answers.insert(own, supported);
            let round = poll.round;
            let members: Vec<MemberId> =
                process.driver.raft().membership().members().iter().collect();
            for to in members.into_iter().map(place_of).filter(|to| *to != place) {
                if to < self.members.len()
                    && let [Some(at), _] = self.network.send(place, to, self.now)
                {
                    self.schedule(at, SimEvent::VersionAsked { place: to, from: place, round });
                }
            }
            self.propose_next_version(place);
        }
        self.pump(place)
    }

    pub(crate) fn on_version_asked(&mut self, place: usize, from: usize, round: u64) {
        if !self.members[place].is_up() {
            return;
        }
        let supported = self.supported_by(place);
        if let [Some(at), _] = self.network.send(place, from, self.now) {
            let answer = SimEvent::VersionAnswered { place: from, from: place, round, supported };
            self.schedule(at, answer);
        }
    }

    pub(crate) fn on_version_answered(
        &mut self,
        place: usize,
        from: usize,
        round: u64,
        supported: VersionRange,
    ) -> Checked {
        let from = self.members[from].id;
        let Some(process) = &mut self.members[place].process else { return Ok(()) };
        let poll = &mut process.version_poll;
        if round == poll.round && poll.answers.of(from).is_none() {
            poll.answers.insert(from, supported);
            self.propose_next_version(place);
        }
        self.pump(place)
    }

    fn propose_next_version(&mut self, place: usize) {
        let Some(process) = &mut self.members[place].process else { return };
        let raft = process.driver.raft();
        let (leads, term) = (raft.role() == RoleKind::Leader, raft.term());
        let members: Vec<MemberId> = raft.membership().members().iter().collect();
        let now = process.driver.cluster_version();
        if let Some(change) = process.version_poll.answers.next_change(now, &members)
            && leads
        {
            let _ = process.driver.propose_version(term, change);
        }
    }

    /// The version is the highest that all programs support, or is held by a downgrade.
    pub(crate) fn version_has_risen(&self) -> bool {
        let members = self.membership().members();
        let programs = members.iter().filter_map(|id| self.members.get(place_of(id)));
        let highest = programs.map(|member| member.program).min().unwrap_or(NEWEST);
        let process = self.leader().and_then(|place| self.members[place].process.as_ref());
        process.is_some_and(|process| {
            let now = process.driver.cluster_version();
            now.version >= highest || now.downgrading
        })
    }
}
