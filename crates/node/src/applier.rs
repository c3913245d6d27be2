//! Runs committed entries on the machine: the one place that does.
//!
//! It takes [`Job`]s in order and reports each one done. Whatever is needed to run
//! the log the same way everywhere (who is a member, which requests have run, how
//! far it is) is kept here, next to the machine's state, and travels with it in
//! snapshots.

use std::fmt;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate_core::{Entries, Index, MemberId, Membership, Payload, SnapshotMeta};
use quorate_storage::StoreIdentity;

use crate::command_id::{CommandDedup, CommandId, Verdict};
use crate::machine::{BadSnapshot, Machine, MachineFailed, SnapshotChunks};
use crate::requests::RequestToken;

/// Something for the machine to do. Jobs are done in the order in which the driver
/// hands them out.
#[derive(Clone, Debug)]
pub enum MachineJob {
    /// Run these entries.
    Apply(Entries),
    /// RequestOutcome a question, with everything applied that came before.
    Query(RequestToken, Option<Bytes>),
    /// Capture the state as it is, as of this entry.
    Snapshot(SnapshotMeta),
    /// Replace the state by this snapshot, which is on the disk.
    Install(SnapshotMeta),
}

/// What became of a job.
pub enum MachineJobDone {
    /// Everything up to `index` has run. The outcomes are those of this member's own
    /// requests.
    Applied {
        /// The newest entry that has run.
        index: Index,
        /// By [`CommandId::number`].
        outcomes: Vec<(u64, CommandOutcome)>,
        /// This member is out of the cluster for good: what has not run by now never will.
        removed: bool,
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
    /// The state as of `meta`. Write it to the disk, then tell the driver.
    Captured {
        /// The snapshot that [`MachineJob::Snapshot`] asked for.
        meta: SnapshotMeta,
        /// Its bytes: those of the machine, and what the applier keeps beside them.
        chunks: SnapshotChunks,
    },
    /// The machine has kept a later state than that of `meta`, which cannot be captured any
    /// more. Tell the driver that it was given up.
    TooLate(SnapshotMeta),
    /// The state is that of `meta`, and these requests are part of it.
    Installed {
        /// The snapshot that was installed.
        meta: SnapshotMeta,
        /// Which requests have run, as of that snapshot.
        origins: CommandDedup,
    },
}

/// What became of one of this member's own requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    /// It ran, and this is what the machine said.
    Ran {
        /// The entry that carried it.
        index: Index,
        /// The machine's reply.
        reply: Bytes,
    },
    /// It was logged and did not run: this member is not in the membership, or the
    /// membership knows it by another disk.
    NotMember,
}

/// A machine and what has to be known to run a log on it.
#[derive(Clone, Debug)]
pub struct Applier<M> {
    machine: M,
    own: Own,
    applied: Index,
    /// Up to here the machine had the state already when it was started: entries are
    /// followed, but run on it no more.
    kept: Index,
    membership: Arc<Membership>,
    origins: CommandDedup,
}

/// How to recognise requests that were asked here, since this start.
#[derive(Clone, Copy, Debug)]
struct Own {
    member: MemberId,
    incarnation: u64,
    boot: u64,
}

const FORMAT: u8 = 1;

impl<M: Machine> Applier<M> {
    /// Starts with a machine in its first state, at the start of the log or, once
    /// [`Applier::install`] was called, at a snapshot.
    pub fn new(machine: M, origin: CommandId) -> Self {
        let CommandId { member, incarnation, boot, .. } = origin;
        Self {
            machine,
            own: Own { member, incarnation, boot },
            applied: 0,
            kept: 0,
            membership: Arc::default(),
            origins: CommandDedup::default(),
        }
    }

    /// Starts with a machine in any state, as if it had come there by this snapshot.
    pub(crate) fn at(machine: M, origin: CommandId, meta: &SnapshotMeta) -> Self {
        let membership = Arc::clone(&meta.membership);
        Self { applied: meta.id.index, membership, ..Self::new(machine, origin) }
    }

    /// Asks the machine what it has kept for this owner. Before anything is installed or run.
    pub fn resume(&mut self, owner: &StoreIdentity) {
        self.kept = self.machine.resume(owner);
    }

    /// The machine as it is now, to look at.
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// The machine, for good.
    pub fn into_machine(self) -> M {
        self.machine
    }

    /// The machine itself. Whatever is changed past the log is changed on this member
    /// alone: only for what does not belong to the replicated state.
    pub fn machine_mut(&mut self) -> &mut M {
        &mut self.machine
    }

    /// The newest entry that has run, as far as this member's log tells.
    pub fn applied(&self) -> Index {
        self.applied
    }

    /// Up to where the machine had kept its state when it was started; may be further than
    /// [`Applier::applied`], and even than the log on this disk.
    pub fn kept(&self) -> Index {
        self.kept
    }

    /// Which requests have run.
    pub fn origins(&self) -> &CommandDedup {
        &self.origins
    }

    /// Runs entries in order, and skips those that have run already.
    ///
    /// # Errors
    /// When the machine fails. Its state may then be that of any entry up to the one it failed
    /// at, so the applier must not be used again.
    pub fn apply(&mut self, entries: &Entries) -> Result<MachineJobDone, MachineFailed> {
        let mut outcomes = Vec::new();
        for entry in entries.chunks().flatten() {
            let index = entry.id.index;
            if index <= self.applied {
                continue;
            }
            assert!(index == self.applied + 1, "entry {index} runs after {}", self.applied);
            self.applied = index;
            match &entry.payload {
                Payload::Command(command) => {
                    if let Some(outcome) = self.run(index, command)? {
                        outcomes.push(outcome);
                    }
                }
                Payload::Change(change) => {
                    self.membership = Arc::clone(&change.membership);
                    self.origins.keep_members(&self.membership);
                    self.machine.on_membership(index, &self.membership);
                }
            }
        }
        let own = self.own.member;
        let removed = self.membership.removed().contains(&own) && !self.membership.contains(own);
        Ok(MachineJobDone::Applied { index: self.applied, outcomes, removed })
    }

    fn run(
        &mut self,
        index: Index,
        logged: &Bytes,
    ) -> Result<Option<(u64, CommandOutcome)>, MachineFailed> {
        let Some((origin, command)) = CommandId::open(logged) else { return Ok(None) };
        let own = self.is_own(origin);
        Ok(match self.origins.admit(origin, &self.membership) {
            Verdict::Run if index <= self.kept => {
                // It was asked after the machine had been closed with its effect.
                assert!(!own, "entry {index} is new, and the machine has kept up to {}", self.kept);
                None
            }
            Verdict::Run => {
                let ran = self.machine.apply(index, &command);
                let reply = ran.map_err(|error| MachineFailed::new(index, error))?;
                own.then_some((origin.number, CommandOutcome::Ran { index, reply }))
            }
            Verdict::Repeated => None,
            Verdict::Foreign => own.then_some((origin.number, CommandOutcome::NotMember)),
        })
    }

    fn is_own(&self, origin: CommandId) -> bool {
        let Own { member, incarnation, boot } = self.own;
        (origin.member, origin.incarnation, origin.boot) == (member, incarnation, boot)
    }

    /// Runs a query on the machine as it is now. No query is a barrier: the machine is not
    /// called.
    pub fn query(
        &self,
        token: RequestToken,
        query: Option<&Bytes>,
    ) -> Result<MachineJobDone, MachineFailed> {
        let index = self.applied.max(self.kept);
        let failed = |error| MachineFailed::new(index, error);
        let reply = query.map(|query| self.machine.query(query).map_err(failed)).transpose()?;
        Ok(MachineJobDone::Queried { token, index, reply: reply.unwrap_or_default() })
    }

    /// Captures everything that a member needs to continue from here, unless the machine is
    /// ahead.
    pub fn capture(&mut self, meta: SnapshotMeta) -> Result<MachineJobDone, MachineFailed> {
        assert!(meta.id.index == self.applied, "captured at {}, not {}", self.applied, meta.id);
        if self.applied < self.kept {
            return Ok(MachineJobDone::TooLate(meta));
        }
        // Entries up to here may be trimmed: the machine's own state should not need them.
        self.save()?;
        Ok(MachineJobDone::Captured { meta, chunks: self.capture_chunks() })
    }

    /// Lets the machine make its own state durable.
    pub fn save(&mut self) -> Result<(), MachineFailed> {
        self.machine.save().map_err(|error| MachineFailed::new(self.applied, error))
    }

    /// What [`Applier::install`] goes on from.
    pub(crate) fn capture_chunks(&self) -> SnapshotChunks {
        let mut head = BytesMut::new();
        head.put_u8(FORMAT);
        head.put_u64_le(self.applied);
        self.origins.encode(&mut head);
        let head = std::iter::once(framed(&head.freeze()));
        let state = self.machine.snapshot().flat_map(split).map(|chunk| framed(&chunk));
        Box::new(head.chain(state))
    }

    /// Goes on from a snapshot instead. Its bytes come in pieces of any size. The
    /// snapshot with which a cluster begins has none: the machine is in its first state.
    ///
    /// A machine that has kept this state or a later one stays as it is, and most of the
    /// bytes are not read.
    pub fn install(
        &mut self,
        meta: &SnapshotMeta,
        pieces: impl Iterator<Item = Bytes>,
    ) -> Result<MachineJobDone, SnapshotInstallError> {
        let mut chunks = Unframed { pieces, rest: BytesMut::new() };
        let index = meta.id.index;
        let keeps_state = index <= self.kept;
        let mut origins = CommandDedup::default();
        match chunks.next() {
            Some(head) => {
                let (captured, ran) = decode_head(head).ok_or(SnapshotInstallError::Incomplete)?;
                if captured != index {
                    return Err(SnapshotInstallError::OtherIndex { captured, wanted: index });
                }
                origins = ran;
                if !keeps_state {
                    self.machine.install(&mut chunks).map_err(SnapshotInstallError::Machine)?;
                }
            }
            None if self.applied == 0 => {}
            None => return Err(SnapshotInstallError::Incomplete),
        }
        if !keeps_state && (chunks.next().is_some() || !chunks.rest.is_empty()) {
            return Err(SnapshotInstallError::Incomplete);
        }
        self.machine.on_membership(index, &meta.membership);
        self.membership = Arc::clone(&meta.membership);
        self.applied = index;
        self.origins = origins;
        Ok(MachineJobDone::Installed { meta: meta.clone(), origins: self.origins.clone() })
    }
}

/// Why a snapshot cannot be installed. The member cannot go on without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SnapshotInstallError {
    /// It ends too early, too late, or is of a format that this version does not know.
    Incomplete,
    /// It was captured at another index than the log says.
    OtherIndex {
        /// What the snapshot says of itself.
        captured: Index,
        /// What the log says of it.
        wanted: Index,
    },
    /// The machine does not take it.
    Machine(BadSnapshot),
}

impl fmt::Display for SnapshotInstallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Incomplete => write!(f, "snapshot is incomplete or of an unknown format"),
            Self::OtherIndex { captured, wanted } => {
                write!(f, "snapshot was captured at {captured}, want {wanted}")
            }
            Self::Machine(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for SnapshotInstallError {}

fn decode_head(mut head: Bytes) -> Option<(Index, CommandDedup)> {
    let format = head.try_get_u8().ok()?;
    let applied = head.try_get_u64_le().ok()?;
    let origins = CommandDedup::decode(&mut head)?;
    (format == FORMAT && head.is_empty()).then_some((applied, origins))
}

/// A chunk whose length does not fit in front of it becomes several.
fn split(mut chunk: Bytes) -> impl Iterator<Item = Bytes> {
    let parts = chunk.len().div_ceil(CHUNK_BYTES_MAX).max(1);
    (0..parts).map(move |_| chunk.split_to(chunk.len().min(CHUNK_BYTES_MAX)))
}

const CHUNK_BYTES_MAX: usize = 1 << 30;

/// A chunk with its length in front, so that chunks come out as they went in,
/// whatever pieces they travelled in.
fn framed(chunk: &Bytes) -> Bytes {
    let mut framed = BytesMut::with_capacity(4 + chunk.len());
    framed.put_u32_le(chunk.len() as u32);
    framed.put_slice(chunk);
    framed.freeze()
}

struct Unframed<I> {
    pieces: I,
    rest: BytesMut,
}

impl<I: Iterator<Item = Bytes>> Iterator for Unframed<I> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(length) = self.rest.first_chunk::<4>() {
                let end = 4 + u32::from_le_bytes(*length) as usize;
                if self.rest.len() >= end {
                    let mut chunk = self.rest.split_to(end).freeze();
                    chunk.advance(4);
                    return Some(chunk);
                }
            }
            self.rest.extend_from_slice(&self.pieces.next()?);
        }
    }
}
