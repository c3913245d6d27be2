//! Runs committed entries on the machine.
//!
//! An [`Applier`] runs [`MachineJob`]s in order and returns their results. It keeps what is
//! needed to run the log in the same way on all members (the membership, the commands that
//! have run, the applied index) beside the machine's state, in snapshots too.

mod snapshots;

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use quorate_core::{Entries, Entry, Envelope, Index, MemberId, Membership, Payload, SnapshotMeta};
use quorate_storage::StoreIdentity;

use crate::cluster_version::{ClusterVersion, UnsupportedVersion, VersionChange, VersionRange};
use crate::command_id::{CommandDedup, CommandId, DedupDecision, LoggedBody};
use crate::machine::{Machine, MachineFailed, SnapshotChunks, WorkProgress};
use crate::request_table::RequestToken;

pub use snapshots::SnapshotInstallError;
#[cfg(feature = "runtime")]
pub(crate) use snapshots::{ApplierLoader, LoadedSnapshot};

/// A job for the machine. Jobs run in the order in which the driver hands them out.
#[derive(Clone, Debug)]
pub enum MachineJob {
    /// Run these entries.
    Apply(Entries),
    /// Run a query after all earlier jobs. Without a query it is a barrier: only report.
    Query(RequestToken, Option<Bytes>),
    /// Capture the current state, which is that of this entry.
    Snapshot(SnapshotMeta),
    /// Replace the state by this snapshot, which is on the disk.
    Install(SnapshotMeta),
    /// Send the current state ([`Applier::state_to_send`]), which is that of the entry in this
    /// message, to a peer, and report to
    /// [`Driver::snapshot_sent`](crate::driver::Driver::snapshot_sent) or
    /// [`Driver::snapshot_lost`](crate::driver::Driver::snapshot_lost). It does not have to be
    /// written to the disk.
    SendState {
        /// The message to the peer.
        envelope: Envelope,
        /// The index of the snapshot on the disk, which the peer gets if it cannot get the state.
        stored: Index,
    },
}

/// The result of a job, for [`Driver::job_done`](crate::driver::Driver::job_done).
#[must_use = "the driver waits for `Driver::job_done`"]
pub enum MachineJobDone {
    /// Everything up to `index` has run.
    Applied {
        /// The newest entry that has run.
        index: Index,
        /// Of the commands that this member proposed since it was started, by
        /// [`CommandId::sequence`].
        outcomes: Vec<(u64, CommandOutcome)>,
        /// This member was removed from the cluster: commands of it that have not run never
        /// will.
        removed: bool,
        /// The changes of the cluster version among the entries, with their indexes.
        versions: Vec<(Index, ClusterVersion)>,
        /// Whether there is a membership change among the entries.
        membership_changed: bool,
    },
    /// A query ran.
    Queried {
        /// The request that it belongs to.
        token: RequestToken,
        /// The newest entry whose effect the machine had.
        index: Index,
        /// The machine's reply; empty for a barrier.
        reply: Bytes,
    },
    /// The state as of `meta`. Write it to the disk, then call
    /// [`Driver::snapshot_saved`](crate::driver::Driver::snapshot_saved).
    Captured {
        /// The snapshot that [`MachineJob::Snapshot`] asked for.
        meta: SnapshotMeta,
        /// Its bytes: those of the machine and those of the applier.
        chunks: SnapshotChunks,
    },
    /// The machine resumed with a later state than that of `meta`, which can no longer be
    /// captured.
    TooLate(SnapshotMeta),
    /// The machine has the state of `meta`.
    Installed {
        /// The snapshot that was installed.
        meta: SnapshotMeta,
        /// Which commands have run, as of that snapshot.
        dedup: CommandDedup,
        /// The cluster version as of that snapshot.
        version: ClusterVersion,
        /// How many bytes it has.
        bytes: u64,
    },
}

impl MachineJobDone {
    /// A machine that keeps its state reads only the beginning of a snapshot.
    pub(crate) fn with_snapshot_bytes(mut self, all: u64) -> Self {
        if let Self::Installed { bytes, .. } = &mut self {
            *bytes = all;
        }
        self
    }

    /// Whether the driver has to know it soon, for a request or the membership. Otherwise it only
    /// advances the applied index and ends requests of commands and queries that ran, which the
    /// machine's task answers.
    #[cfg(feature = "runtime")]
    pub(crate) fn is_awaited(&self) -> bool {
        match self {
            Self::Applied { outcomes, removed, versions, membership_changed, .. } => {
                let ran = |outcome: &CommandOutcome| matches!(outcome, CommandOutcome::Ran { .. });
                let all_ran = outcomes.iter().all(|(_, outcome)| ran(outcome));
                !all_ran || !versions.is_empty() || *removed || *membership_changed
            }
            Self::Queried { .. } => false,
            _ => true,
        }
    }
}

/// The outcome of a command that this member proposed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the reply belongs to the request that proposed the command"]
pub enum CommandOutcome {
    /// It ran.
    Ran {
        /// The entry that carried it.
        index: Index,
        /// The machine's reply.
        reply: Bytes,
    },
    /// It was logged and did not run: this member is not in the membership, or the
    /// membership knows it by another disk.
    NotMember,
    /// It was logged and will never run: the log has a command in this member's name with
    /// later numbers, which this member did not propose. Later commands need numbers of a
    /// start after this one.
    Superseded {
        /// The newest start of this member that the log has.
        start: u64,
    },
    /// It was logged and did not run: its numbers are not plausible.
    Implausible,
}

/// A machine, with everything that is needed to run a log on it.
#[derive(Clone, Debug)]
pub struct Applier<M> {
    machine: M,
    own: OwnCommands,
    applied: Index,
    /// The machine had the effect of entries up to here when it was started: they are not run
    /// on it again.
    resumed: Index,
    membership: Arc<Membership>,
    dedup: CommandDedup,
    supported: VersionRange,
    version: ClusterVersion,
    /// The newest captures, the oldest first. One of them is on the disk.
    captures: VecDeque<snapshots::Capture>,
}

/// Recognises commands that this member proposed since it was started.
#[derive(Clone, Copy, Debug)]
struct OwnCommands {
    member: MemberId,
    incarnation: u64,
    start: u64,
}

impl<M: Machine> Applier<M> {
    /// Starts with a machine in its first state, before the first entry. `id` is that of
    /// [`Driver::command_id`](crate::driver::Driver::command_id).
    pub fn new(machine: M, id: CommandId) -> Self {
        let CommandId { member, incarnation, start, .. } = id;
        Self {
            machine,
            own: OwnCommands { member, incarnation, start },
            applied: 0,
            resumed: 0,
            membership: Arc::default(),
            dedup: CommandDedup::default(),
            supported: VersionRange::default(),
            version: ClusterVersion::default(),
            captures: VecDeque::new(),
        }
    }

    /// The cluster versions that the machine and its proposers support.
    #[must_use]
    pub fn with_versions(self, supported: VersionRange) -> Self {
        Self { supported, ..self }
    }

    /// Starts with a machine in any state, as if this snapshot had been installed on it.
    pub(crate) fn from_snapshot(
        machine: M,
        id: CommandId,
        meta: &SnapshotMeta,
        version: u32,
    ) -> Self {
        let membership = Arc::clone(&meta.membership);
        let version = ClusterVersion { version, ..ClusterVersion::default() };
        Self { applied: meta.id.index, membership, version, ..Self::new(machine, id) }
    }

    /// Lets the machine resume its own state. Call it before anything is installed or run.
    ///
    /// # Errors
    /// When the machine fails. The member must not start.
    pub fn resume(&mut self, owner: &StoreIdentity) -> Result<(), MachineFailed> {
        let resumed = self.machine.resume(owner);
        self.resumed = resumed.map_err(|error| MachineFailed::new(0, error))?;
        Ok(())
    }

    /// The machine as it is now.
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// The machine, without its applier.
    pub fn into_machine(self) -> M {
        self.machine
    }

    /// The machine, to change it. The change is not replicated: use it only for what does not
    /// belong to the replicated state.
    pub fn machine_mut(&mut self) -> &mut M {
        &mut self.machine
    }

    /// The newest entry that was run or skipped.
    pub fn applied(&self) -> Index {
        self.applied
    }

    /// The newest entry whose effect the machine had when it was started. It may be ahead of
    /// [`Applier::applied`], and even of the log on this disk.
    pub fn resumed(&self) -> Index {
        self.resumed
    }

    /// The cluster version after the newest entry that was run.
    pub fn cluster_version(&self) -> ClusterVersion {
        self.version
    }

    /// Which commands have run.
    pub fn dedup(&self) -> &CommandDedup {
        &self.dedup
    }

    /// Runs entries in order, and skips those that have run already.
    ///
    /// # Errors
    /// When the machine fails. Its state may then be that of any entry up to the one it failed
    /// at, so the applier must not be used again.
    pub fn apply(&mut self, entries: &Entries) -> Result<MachineJobDone, MachineFailed> {
        let mut outcomes = Vec::new();
        let mut versions = Vec::new();
        let mut membership_changed = false;
        let mut ahead = entries.chunks().flatten();
        for (number, entry) in entries.chunks().flatten().enumerate() {
            if number % PREPARED_AT_ONCE == 0 {
                self.prepare(ahead.by_ref().take(PREPARED_AT_ONCE));
            }
            let index = entry.id.index;
            if index <= self.applied {
                continue;
            }
            assert!(index == self.applied + 1, "entry {index} runs after {}", self.applied);
            self.applied = index;
            match &entry.payload {
                Payload::Command(command) => {
                    let before = self.version;
                    if let Some(outcome) = self.run(index, command)? {
                        outcomes.push(outcome);
                    }
                    if self.version != before {
                        versions.push((index, self.version));
                    }
                }
                Payload::Change(change) => {
                    membership_changed = true;
                    self.membership = Arc::clone(&change.membership);
                    self.dedup.keep_members(&self.membership);
                    self.machine.on_membership(index, &self.membership);
                }
            }
        }
        let own = self.own.member;
        let removed = self.membership.removed().contains(&own) && !self.membership.contains(own);
        let index = self.applied;
        Ok(MachineJobDone::Applied { index, outcomes, removed, versions, membership_changed })
    }

    /// Tells the machine which commands come next.
    fn prepare<'a>(&mut self, entries: impl Iterator<Item = &'a Entry>) {
        let mut commands = [(0, &[][..]); PREPARED_AT_ONCE];
        let mut count = 0;
        let done = self.applied.max(self.resumed);
        let entries = entries.filter(|entry| entry.id.index > done);
        let logged = entries.filter_map(|entry| match &entry.payload {
            Payload::Command(logged) => Some((entry.id.index, CommandId::command_of(logged)?)),
            Payload::Change(_) => None,
        });
        for (place, command) in commands.iter_mut().zip(logged) {
            *place = command;
            count += 1;
        }
        // There is nothing to gain for a single one.
        if count > 1 {
            self.machine.prepare(&commands[..count]);
        }
    }

    fn run(
        &mut self,
        index: Index,
        logged: &Bytes,
    ) -> Result<Option<(u64, CommandOutcome)>, MachineFailed> {
        let Some((id, body)) = CommandId::split(logged) else { return Ok(None) };
        let own = self.is_own(id);
        let decision = self.dedup.admit(id, &self.membership);
        let command = match body {
            LoggedBody::Command(command) => command,
            LoggedBody::Version(change) if decision == DedupDecision::Run => {
                let reply = self.change_version(index, change)?;
                return Ok(own.then_some((id.sequence, CommandOutcome::Ran { index, reply })));
            }
            LoggedBody::Version(_) => Bytes::new(),
        };
        Ok(match decision {
            DedupDecision::Run if index <= self.resumed => {
                // A command that was proposed since the start cannot have run before the start.
                let resumed = self.resumed;
                assert!(!own, "entry {index} is new, but the machine resumed at {resumed}");
                None
            }
            DedupDecision::Run if own => {
                let ran = self.machine.apply(index, &command);
                let reply = ran.map_err(|error| MachineFailed::new(index, error))?;
                Some((id.sequence, CommandOutcome::Ran { index, reply }))
            }
            DedupDecision::Run => {
                let ran = self.machine.apply_without_reply(index, &command);
                ran.map_err(|error| MachineFailed::new(index, error))?;
                None
            }
            // A copy of a command that has run has no open request.
            DedupDecision::Repeated { start } => {
                own.then_some((id.sequence, CommandOutcome::Superseded { start }))
            }
            DedupDecision::Implausible => own.then_some((id.sequence, CommandOutcome::Implausible)),
            DedupDecision::NotMember => own.then_some((id.sequence, CommandOutcome::NotMember)),
        })
    }

    /// Applies a change of the cluster version, also for entries that a resumed machine has run
    /// already: the version is not part of its state. The reply says whether it had an effect.
    fn change_version(
        &mut self,
        index: Index,
        change: VersionChange,
    ) -> Result<Bytes, MachineFailed> {
        if change.from != self.version {
            return Ok(Bytes::from_static(VERSION_UNCHANGED));
        }
        let unsupported = |why: UnsupportedVersion| MachineFailed::new(index, why.into());
        self.supported.check(change.to.version).map_err(unsupported)?;
        self.version = change.to;
        self.machine.on_cluster_version(index, change.to.version);
        Ok(Bytes::from_static(VERSION_CHANGED))
    }

    fn is_own(&self, id: CommandId) -> bool {
        let OwnCommands { member, incarnation, start } = self.own;
        // After a forged command this member continues with the numbers of later starts.
        (id.member, id.incarnation) == (member, incarnation) && id.start >= start
    }

    /// Runs a query on the machine as it is now. No query is a barrier: the machine is not
    /// called.
    pub fn query(
        &self,
        token: RequestToken,
        query: Option<&Bytes>,
    ) -> Result<MachineJobDone, MachineFailed> {
        let index = self.applied.max(self.resumed);
        let failed = |error| MachineFailed::new(index, error);
        let reply = query.map(|query| self.machine.query(query).map_err(failed)).transpose()?;
        Ok(MachineJobDone::Queried { token, index, reply: reply.unwrap_or_default() })
    }

    /// Where the machine reports its progress.
    pub fn report_progress_to(&mut self, progress: WorkProgress) {
        self.machine.report_progress_to(progress);
    }

    /// Lets the machine make its own state durable.
    pub fn save(&mut self) -> Result<(), MachineFailed> {
        self.machine.save().map_err(|error| MachineFailed::new(self.applied, error))
    }
}

/// Enough for waits to overlap; what is fetched for them fits into the caches of a processor.
const PREPARED_AT_ONCE: usize = 16;
/// The reply to a change of the cluster version.
const VERSION_UNCHANGED: &[u8] = &[0];
pub(crate) const VERSION_CHANGED: &[u8] = &[1];
