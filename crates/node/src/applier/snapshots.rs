//! The state of an [`Applier`] as a snapshot: captured, sent to a peer, and installed.

use std::fmt;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
#[cfg(feature = "runtime")]
use quorate_core::EntryId;
use quorate_core::message::Message;
use quorate_core::{Envelope, Index, SnapshotMeta};

use super::{Applier, MachineJobDone};
use crate::cluster_version::{ClusterVersion, UnsupportedVersion};
use crate::command_id::{CommandDedup, ExecutedCounts};
#[cfg(feature = "runtime")]
use crate::machine::LoadedState;
use crate::machine::{Machine, MachineError, MachineFailed, SnapshotChunks};

/// Which commands had run when the state was captured.
#[derive(Clone, Debug)]
pub(super) struct Capture {
    index: Index,
    executed: ExecutedCounts,
}

/// Captures that are remembered: the one on the disk, and later ones that are being written or failed.
const CAPTURES_MAX: usize = 4;

/// The head of a snapshot at the first cluster version.
const FORMAT_FIRST: u8 = 1;
/// The head of a snapshot at a later one, which it names.
const FORMAT_VERSIONED: u8 = 2;

impl<M: Machine> Applier<M> {
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

    /// The bytes of the current state for a peer, which
    /// [`MachineJob::SendState`](super::MachineJob::SendState) asked for. None if the machine is
    /// ahead of the entry in the message, or if commands of the peer ran since the snapshot on the
    /// disk was captured: their callers may still wait for the replies, which the peer has only if it
    /// runs these entries itself.
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
