//! Runs committed entries on the machine.
//!
//! An [`Applier`] runs [`MachineJob`]s in order and returns their results. It keeps what is
//! needed to run the log in the same way on all members (the membership, the commands that
//! have run, the applied index) beside the machine's state, in snapshots too.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
#[cfg(feature = "runtime")]
use quorate_core::EntryId;
use quorate_core::message::Message;
use quorate_core::{Entries, Envelope, Index, MemberId, Membership, Payload, SnapshotMeta};
use quorate_storage::StoreIdentity;

use crate::cluster_version::{ClusterVersion, UnsupportedVersion, VersionChange, VersionRange};
use crate::command_id::{CommandDedup, CommandId, DedupDecision, ExecutedCounts, LoggedBody};
#[cfg(feature = "runtime")]
use crate::machine::LoadedState;
use crate::machine::{Machine, MachineError, MachineFailed, SnapshotChunks, WorkProgress};
use crate::request_table::RequestToken;

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
        /// How many bytes of it were read: all of them, unless the machine has kept its state.
        bytes: u64,
    },
}

impl MachineJobDone {
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
    captures: VecDeque<Capture>,
}

/// Which commands had run when the state was captured.
#[derive(Clone, Debug)]
struct Capture {
    index: Index,
    executed: ExecutedCounts,
}

/// Captures that are remembered: the one on the disk, and later ones that are being written or failed.
const CAPTURES_MAX: usize = 4;

/// Recognises commands that this member proposed since it was started.
#[derive(Clone, Copy, Debug)]
struct OwnCommands {
    member: MemberId,
    incarnation: u64,
    start: u64,
}

/// The head of a snapshot at the first cluster version.
const FORMAT_FIRST: u8 = 1;
/// The head of a snapshot at a later one, which it names.
const FORMAT_VERSIONED: u8 = 2;

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
        for entry in entries.chunks().flatten() {
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

    /// Captures everything that a member needs to continue from here, unless the machine is
    /// ahead.
    pub fn capture(&mut self, meta: SnapshotMeta) -> Result<MachineJobDone, MachineFailed> {
        assert!(meta.id.index == self.applied, "captured at {}, not {}", self.applied, meta.id);
        if self.applied < self.resumed {
            return Ok(MachineJobDone::TooLate(meta));
        }
        // Entries up to here may be trimmed: the machine's own state should not need them.
        self.save()?;
        self.note_capture(meta.id.index);
        Ok(MachineJobDone::Captured { meta, chunks: self.capture_chunks()? })
    }

    /// The bytes of the current state for a peer, which [`MachineJob::SendState`] asked for. None if
    /// the machine is ahead of the entry in the message, or if commands of the peer ran since the
    /// snapshot on the disk was captured: their callers may still wait for the replies, which the
    /// peer has only if it runs these entries itself.
    pub fn state_to_send(
        &mut self,
        message: &Envelope,
        stored: Index,
    ) -> Result<Option<SnapshotChunks>, MachineFailed> {
        let Message::Snapshot(SnapshotMeta { id, .. }) = &message.message else { return Ok(None) };
        assert!(id.index == self.applied, "sent at {}, not {id}", self.applied);
        while self.captures.front().is_some_and(|capture| capture.index < stored) {
            self.captures.pop_front();
        }
        let capture = self.captures.front().filter(|capture| capture.index == stored);
        let has_all_replies =
            capture.is_some_and(|capture| !self.dedup.has_run_since(message.to, &capture.executed));
        if self.applied < self.resumed || !has_all_replies {
            return Ok(None);
        }
        self.capture_chunks().map(Some)
    }

    /// The state at this index is captured, or was installed.
    fn note_capture(&mut self, index: Index) {
        if self.captures.len() >= CAPTURES_MAX {
            self.captures.pop_front();
        }
        self.captures.push_back(Capture { index, executed: self.dedup.executed_counts() });
    }

    /// Where the machine reports its progress.
    pub fn report_progress_to(&mut self, progress: WorkProgress) {
        self.machine.report_progress_to(progress);
    }

    /// Lets the machine make its own state durable.
    pub fn save(&mut self) -> Result<(), MachineFailed> {
        self.machine.save().map_err(|error| MachineFailed::new(self.applied, error))
    }

    /// The bytes that [`Applier::install`] reads.
    pub(crate) fn capture_chunks(&self) -> Result<SnapshotChunks, MachineFailed> {
        let mut head = BytesMut::new();
        // The format that the members of the cluster know, which may be older than this program.
        if self.version == ClusterVersion::default() {
            head.put_u8(FORMAT_FIRST);
        } else {
            head.put_u8(FORMAT_VERSIONED);
            self.version.encode(&mut head);
        }
        head.put_u64_le(self.applied);
        self.dedup.encode(&mut head);
        let head = std::iter::once(Ok(framed(&head.freeze())));
        let state = self.machine.snapshot();
        let state = state.map_err(|error| MachineFailed::new(self.applied, error))?;
        Ok(Box::new(head.chain(state.flat_map(framed_parts))))
    }

    /// Continues from a snapshot. Its bytes come in pieces of any size. The first snapshot of a
    /// cluster has none: the machine is in its first state.
    ///
    /// A machine that resumed with this state or a later one keeps it, and most of the bytes
    /// are not read.
    pub fn install(
        &mut self,
        meta: &SnapshotMeta,
        pieces: impl Iterator<Item = Bytes>,
    ) -> Result<MachineJobDone, SnapshotInstallError> {
        let mut chunks = Unframed::new(pieces);
        let keeps_state = meta.id.index <= self.resumed;
        let mut head = SnapshotHead::default();
        match chunks.next() {
            Some(first) => {
                head = read_head(meta, first)?;
                self.check_version(&head)?;
                if !keeps_state {
                    let installed = self.machine.install(&mut chunks);
                    installed.map_err(|why| SnapshotInstallError::Machine(why.into()))?;
                }
            }
            None if self.applied == 0 => {}
            None => return Err(SnapshotInstallError::Incomplete),
        }
        if !keeps_state && (chunks.next().is_some() || !chunks.rest.is_empty()) {
            return Err(SnapshotInstallError::Incomplete);
        }
        Ok(self.continue_from(meta, head, chunks.read))
    }

    /// As [`Applier::install`], with a snapshot that [`Applier::snapshot_loader`] has read.
    #[cfg(feature = "runtime")]
    pub(crate) fn install_loaded(
        &mut self,
        meta: &SnapshotMeta,
        loaded: LoadedSnapshot,
    ) -> Result<MachineJobDone, SnapshotInstallError> {
        let LoadedSnapshot { head, bytes, state, .. } = loaded;
        self.check_version(&head)?;
        if meta.id.index > self.resumed {
            let installed = self.machine.install_loaded(state);
            installed.map_err(|why| SnapshotInstallError::Machine(why.into()))?;
        }
        Ok(self.continue_from(meta, head, bytes))
    }

    fn check_version(&self, head: &SnapshotHead) -> Result<(), SnapshotInstallError> {
        Ok(self.supported.check(head.version.version)?)
    }

    /// The machine has the state of this snapshot.
    fn continue_from(
        &mut self,
        meta: &SnapshotMeta,
        head: SnapshotHead,
        bytes: u64,
    ) -> MachineJobDone {
        let (index, SnapshotHead { dedup, version, .. }) = (meta.id.index, head);
        self.machine.on_membership(index, &meta.membership);
        self.machine.on_cluster_version(index, version.version);
        self.membership = Arc::clone(&meta.membership);
        self.applied = index;
        self.dedup = dedup.clone();
        self.version = version;
        self.captures.clear();
        self.note_capture(index);
        MachineJobDone::Installed { meta: meta.clone(), dedup, version, bytes }
    }

    /// Reads snapshots while they arrive, and refuses those that [`Applier::install`] would not
    /// accept, as far as the machine can tell.
    #[cfg(feature = "runtime")]
    pub(crate) fn snapshot_loader(&self) -> ApplierLoader
    where
        M: 'static,
    {
        let load = self.machine.snapshot_loader();
        Arc::new(move |meta, pieces| {
            let mut chunks = Unframed::new(pieces);
            let Some(first) = chunks.next() else {
                let is_first = meta.id.index <= 1 && chunks.rest.is_empty();
                return if is_first { Ok(None) } else { Err(SnapshotInstallError::Incomplete) };
            };
            let head = read_head(meta, first)?;
            let loaded = load(&mut chunks);
            let loaded = loaded.map_err(|why| SnapshotInstallError::Machine(why.into()))?;
            if chunks.next().is_some() || !chunks.rest.is_empty() {
                return Err(SnapshotInstallError::Incomplete);
            }
            let (id, bytes) = (meta.id, chunks.read);
            Ok(loaded.map(|state| LoadedSnapshot { id, head, bytes, state }))
        })
    }
}

/// The head of a snapshot, which must be that of `meta`.
fn read_head(meta: &SnapshotMeta, head: Bytes) -> Result<SnapshotHead, SnapshotInstallError> {
    let head = decode_head(head).ok_or(SnapshotInstallError::Incomplete)?;
    let (captured, expected) = (head.applied, meta.id.index);
    if captured != expected {
        return Err(SnapshotInstallError::OtherIndex { captured, expected });
    }
    Ok(head)
}

/// A snapshot that was read while it arrived.
#[cfg(feature = "runtime")]
pub(crate) struct LoadedSnapshot {
    pub(crate) id: EntryId,
    head: SnapshotHead,
    bytes: u64,
    state: LoadedState,
}

/// Reads the bytes of a snapshot, in pieces of any size. Without a result the machine has to read
/// them again.
#[cfg(feature = "runtime")]
pub(crate) type ApplierLoader = Arc<
    dyn Fn(
            &SnapshotMeta,
            &mut dyn Iterator<Item = Bytes>,
        ) -> Result<Option<LoadedSnapshot>, SnapshotInstallError>
        + Send
        + Sync,
>;

/// Why a snapshot cannot be installed. The member cannot continue without it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SnapshotInstallError {
    /// It is too short or too long, or has a format that this version does not know.
    Incomplete,
    /// It was captured at another index than that in its name.
    OtherIndex {
        /// The index in the bytes of the snapshot.
        captured: Index,
        /// The index in its name.
        expected: Index,
    },
    /// The machine rejected it ([`BadSnapshot`](crate::BadSnapshot)), or failed meanwhile.
    Machine(Arc<dyn std::error::Error + Send + Sync>),
    /// It was captured at a cluster version that this program does not support.
    Version(UnsupportedVersion),
}

impl From<UnsupportedVersion> for SnapshotInstallError {
    fn from(why: UnsupportedVersion) -> Self {
        Self::Version(why)
    }
}

impl fmt::Display for SnapshotInstallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Incomplete => write!(f, "snapshot is incomplete or of an unknown format"),
            Self::OtherIndex { captured, expected } => {
                write!(f, "snapshot was captured at index {captured}, expected {expected}")
            }
            Self::Machine(why) => write!(f, "{why}"),
            Self::Version(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for SnapshotInstallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Machine(why) => Some(&**why),
            Self::Version(why) => Some(why),
            Self::Incomplete | Self::OtherIndex { .. } => None,
        }
    }
}

/// The reply to a change of the cluster version.
const VERSION_UNCHANGED: &[u8] = &[0];
pub(crate) const VERSION_CHANGED: &[u8] = &[1];

/// The applier's part of a snapshot.
#[derive(Default)]
struct SnapshotHead {
    applied: Index,
    dedup: CommandDedup,
    version: ClusterVersion,
}

fn decode_head(mut head: Bytes) -> Option<SnapshotHead> {
    let version = match head.try_get_u8().ok()? {
        FORMAT_FIRST => ClusterVersion::default(),
        FORMAT_VERSIONED => ClusterVersion::decode(&mut head)?,
        _ => return None,
    };
    let applied = head.try_get_u64_le().ok()?;
    let dedup = CommandDedup::decode(&mut head)?;
    head.is_empty().then_some(SnapshotHead { applied, dedup, version })
}

fn framed_parts(chunk: Result<Bytes, MachineError>) -> Vec<Result<Bytes, MachineError>> {
    match chunk {
        Ok(chunk) => split(chunk).map(|part| Ok(framed(&part))).collect(),
        Err(error) => vec![Err(error)],
    }
}

/// Splits a chunk whose length does not fit into its length field.
fn split(mut chunk: Bytes) -> impl Iterator<Item = Bytes> {
    let parts = chunk.len().div_ceil(CHUNK_BYTES_MAX).max(1);
    (0..parts).map(move |_| chunk.split_to(chunk.len().min(CHUNK_BYTES_MAX)))
}

const CHUNK_BYTES_MAX: usize = 1 << 30;

/// A chunk with its length in front, so that chunks keep their boundaries when their bytes are
/// stored or sent in other pieces.
fn framed(chunk: &Bytes) -> Bytes {
    let mut framed = BytesMut::with_capacity(4 + chunk.len());
    framed.put_u32_le(chunk.len() as u32);
    framed.put_slice(chunk);
    framed.freeze()
}

struct Unframed<I> {
    pieces: I,
    rest: BytesMut,
    /// The bytes of all pieces so far.
    read: u64,
}

impl<I> Unframed<I> {
    fn new(pieces: I) -> Self {
        Self { pieces, rest: BytesMut::new(), read: 0 }
    }
}

impl<I: Iterator<Item = Bytes>> Iterator for Unframed<I> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(length) = self.rest.first_chunk::<4>() {
                let length = u32::from_le_bytes(*length) as usize;
                if length > CHUNK_BYTES_MAX {
                    return None; // Not a snapshot: the rest tells the caller.
                }
                let end = 4 + length;
                if self.rest.len() >= end {
                    let mut chunk = self.rest.split_to(end).freeze();
                    chunk.advance(4);
                    return Some(chunk);
                }
            }
            let piece = self.pieces.next()?;
            self.read += piece.len() as u64;
            self.rest.extend_from_slice(&piece);
        }
    }
}
