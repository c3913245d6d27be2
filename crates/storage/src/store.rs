//! The store: the log and the snapshots of one member.
//!
//! Callers follow the core's order: [`Store::write`] each save, [`Store::sync`] when one of them
//! must be durable, then report it saved. After the first failure the contents of the disk are
//! unknown, so every later call returns the same error, and the member must stop.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use quorate_core::{Boot, Entries, EntryId, Index, MemberId, Save, SnapshotMeta};

use crate::Disk;
use crate::error::{
    Corruption, CorruptionKind, CreateError, DiskFailure, DiskOperation, OpenError, StoreError,
};
use crate::names::FileName;
use crate::place::{self, MovedDirectory};
use crate::recover::{DirectoryListing, RecoveredLog, read_identity, recover};
use crate::snapshots::{OpenSnapshotError, SealedSnapshot, SnapshotReader, SnapshotWriter};
use crate::wal::segment::{HEAD_BYTES, SegmentHead, SegmentStart};
use crate::wal::{AppendError, Wal};

/// The owner of a store: one disk of one member of one cluster.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreIdentity {
    /// The cluster.
    pub cluster: u64,
    /// The member.
    pub member: MemberId,
    /// A random number chosen when the store is created. Another disk with the same member id
    /// is not the same member.
    pub incarnation: u64,
    /// The index of the entry that added the member; see
    /// [`Config::joined_at`](quorate_core::Config::joined_at).
    pub joined_at: Index,
}

/// The member whose store is expected in a directory.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreOwner {
    /// The cluster.
    pub cluster: u64,
    /// The member.
    pub member: MemberId,
}

/// Clusters are printed as everywhere: with 16 hex digits.
impl fmt::Debug for StoreIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreIdentity")
            .field("cluster", &format_args!("{:016x}", self.cluster))
            .field("member", &self.member)
            .field("incarnation", &self.incarnation)
            .field("joined_at", &self.joined_at)
            .finish()
    }
}

impl fmt::Debug for StoreOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreOwner")
            .field("cluster", &format_args!("{:016x}", self.cluster))
            .field("member", &self.member)
            .finish()
    }
}

impl StoreOwner {
    pub(crate) fn check(self, found: StoreIdentity) -> Result<(), OpenError> {
        if found.cluster != self.cluster {
            let expected = self.cluster;
            return Err(OpenError::OtherCluster { found: found.cluster, expected });
        }
        if found.member != self.member {
            let expected = self.member;
            return Err(OpenError::OtherMember { found: found.member, expected });
        }
        Ok(())
    }
}

/// The settings of a store.
///
/// ```
/// use quorate_storage::StoreConfig;
///
/// let config = StoreConfig::new().segment_bytes(16 << 20);
/// assert_eq!(config.segment_bytes, 16 << 20);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreConfig {
    /// The size of a segment of the log. A larger save gets a larger segment.
    pub segment_bytes: u64,
    /// The size of the end of the log that is loaded into memory at startup.
    pub tail_bytes_max: u64,
    /// What to do with a directory that was copied or restored.
    pub moved: MovedDirectory,
}

impl StoreConfig {
    /// The defaults: segments of 64 MiB, a tail of 16 MiB.
    pub const fn new() -> Self {
        let moved = MovedDirectory::Refuse;
        Self { segment_bytes: 64 << 20, tail_bytes_max: 16 << 20, moved }
    }

    /// Sets [`Self::segment_bytes`].
    #[must_use]
    pub const fn segment_bytes(self, segment_bytes: u64) -> Self {
        Self { segment_bytes, ..self }
    }

    /// Sets [`Self::tail_bytes_max`].
    #[must_use]
    pub const fn tail_bytes_max(self, tail_bytes_max: u64) -> Self {
        Self { tail_bytes_max, ..self }
    }

    /// Sets [`Self::moved`].
    #[must_use]
    pub const fn moved(self, moved: MovedDirectory) -> Self {
        Self { moved, ..self }
    }
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// The log and the snapshots of one member.
#[derive(Clone, Debug)]
pub struct Store<D: Disk> {
    disk: D,
    wal: Wal<D::File>,
    /// All published snapshots.
    snapshots: BTreeSet<EntryId>,
    /// The number of snapshots started, for temporary names.
    snapshots_started: u64,
    /// A save with this snapshot to install was written. Once it is durable, older files are
    /// removed.
    installed: Option<EntryId>,
    /// Installed snapshots that the state machine has not been restored from yet.
    needed: BTreeSet<EntryId>,
    failed: Option<StoreError>,
}

/// An open store, and what the member starts with.
#[derive(Clone, Debug)]
#[must_use]
pub struct OpenedStore<D: Disk> {
    /// The store.
    pub store: Store<D>,
    /// What the core starts with.
    pub boot: Boot,
    /// The identity that the store was created with.
    pub identity: StoreIdentity,
    /// How often the store was opened, including this time. The count is durable, so no two
    /// runs of a member have the same number.
    pub boots: u64,
}

impl<D: Disk> Store<D> {
    /// Creates the store of a member that starts with `first` and has no log yet. Refuses a
    /// directory that is in use.
    pub fn create(
        disk: &mut D,
        identity: StoreIdentity,
        first: &Boot,
        config: &StoreConfig,
    ) -> Result<(), CreateError> {
        let state = std::iter::empty::<Result<Bytes, Infallible>>();
        let Ok(()) = Self::create_from_snapshot(disk, identity, first, state, config)?;
        Ok(())
    }

    /// Creates the store of a member whose state machine starts with the bytes of a snapshot. The
    /// inner error is one of these bytes: then no store exists, and creating it again is possible.
    pub fn create_from_snapshot<E>(
        disk: &mut D,
        identity: StoreIdentity,
        first: &Boot,
        state: impl Iterator<Item = Result<Bytes, E>>,
        config: &StoreConfig,
    ) -> Result<Result<(), E>, CreateError> {
        lock(disk)?.map_err(|Locked| CreateError::Locked)?;
        let listing = DirectoryListing::read(disk)?;
        let meta = &first.snapshot;
        // A crash during creation may have left this snapshot and nothing else.
        let snapshot = listing.snapshots.iter().find(|id| **id != meta.id);
        let used = snapshot.map(|id| FileName::Snapshot(*id));
        let used = used.or(listing.segments.first().map(|number| FileName::Segment(*number)));
        if let Some(file) = used.or(listing.has_mark.then_some(FileName::SyncMark)) {
            return Err(CreateError::InUse { file });
        }
        place::record(disk)?;
        if meta.id != EntryId::ZERO {
            let name = FileName::NewSnapshot(0);
            let mut writer = SnapshotWriter::create(disk, name, identity.cluster, meta.clone())?;
            for bytes in state {
                match bytes {
                    Ok(bytes) => writer.append(disk, &bytes)?,
                    Err(why) => return Ok(Err(why)),
                }
            }
            writer.seal(disk)?.publish(disk)?;
        }
        // The store exists once its first segment exists.
        let head = SegmentHead {
            identity,
            number: 1,
            boots: 0,
            bytes: config.segment_bytes.max(HEAD_BYTES),
            first_sequence: 1,
            previous: 0,
            previous_end: 0,
            start: SegmentStart { hard_state: first.hard_state, floor: meta.id, last: meta.id },
        };
        head.create(disk, None)?;
        Ok(Ok(()))
    }

    /// The identity of the store in a directory, or `None` if there is no store. Changes and
    /// locks nothing.
    pub fn read_identity(disk: &mut D) -> Result<Option<StoreIdentity>, OpenError> {
        read_identity(disk)
    }

    /// Opens the store of a member, or creates it with `first` if there is none. An existing
    /// store keeps the identity that it was created with.
    pub fn open_or_create(
        mut disk: D,
        identity: StoreIdentity,
        first: &Boot,
        config: &StoreConfig,
    ) -> Result<OpenedStore<D>, OpenError> {
        match Self::create(&mut disk, identity, first, config) {
            Ok(()) | Err(CreateError::InUse { .. }) => {}
            Err(CreateError::Locked) => return Err(OpenError::Locked),
            Err(CreateError::Failed(why)) => return Err(OpenError::Failed(why)),
        }
        let StoreIdentity { cluster, member, .. } = identity;
        Self::open(disk, StoreOwner { cluster, member }, config)
    }

    /// Opens the store of a member and recovers what it has saved.
    pub fn open(
        mut disk: D,
        expected: StoreOwner,
        config: &StoreConfig,
    ) -> Result<OpenedStore<D>, OpenError> {
        lock(&mut disk)?.map_err(|Locked| OpenError::Locked)?;
        place::check(&mut disk, config.moved)?;
        let RecoveredLog { wal, boot } = recover(&mut disk, expected, config)?;
        let (identity, boots) = (wal.identity, wal.boots);
        let snapshot = Some(boot.snapshot.id).filter(|id| *id != EntryId::ZERO);
        let snapshots = snapshot.into_iter().collect();
        let store = Self {
            disk,
            wal,
            snapshots,
            snapshots_started: 0,
            installed: None,
            needed: BTreeSet::new(),
            failed: None,
        };
        Ok(OpenedStore { store, boot, identity, boots })
    }

    /// Writes a save. After a crash either all of it is there, or nothing of it and of later
    /// saves. It becomes durable with the next [`Store::sync`].
    ///
    /// A snapshot to install must be finished before, and is kept until the state machine was
    /// restored from it: call [`Store::release_snapshot`] then. The log continues after the
    /// snapshot: after a crash either the old log is there or the snapshot.
    pub fn write(&mut self, save: &Save) -> Result<(), StoreError> {
        self.check()?;
        let install = save.install.as_ref().map(|meta| meta.id);
        if let Some(id) = install
            && !self.snapshots.contains(&id)
        {
            return Err(StoreError::NoSuchSnapshot { id });
        }
        // Entries that a snapshot covers are committed, and committed entries are never replaced.
        let first = save.entries.first().map_or(Index::MAX, |entry| entry.id.index);
        if install.is_none() && first <= self.newest_snapshot().index {
            return Err(StoreError::NotContiguous { last: self.wal.log.last() });
        }
        match self.wal.append(&mut self.disk, save) {
            Ok(()) => {}
            Err(AppendError::Failed(why)) => return self.fail(why),
            Err(AppendError::NotContiguous) => {
                return Err(StoreError::NotContiguous { last: self.wal.log.last() });
            }
            Err(AppendError::TooLarge) => return Err(StoreError::TooLarge),
        }
        self.needed.extend(install);
        self.installed = install.or(self.installed);
        Ok(())
    }

    /// Makes all saves written so far durable, with one sync.
    pub fn sync(&mut self) -> Result<(), StoreError> {
        self.check()?;
        let synced = self.wal.sync(&mut self.disk);
        self.guard(synced)?;
        if let Some(id) = self.installed.take() {
            let dropped = self.drop_covered(id.index, id);
            self.guard(dropped)?;
        }
        Ok(())
    }

    /// The entries of a range, up to `bytes_max`, but at least one. Empty if the log does not
    /// contain the first one.
    pub fn load(&mut self, range: Range<Index>, bytes_max: u64) -> Result<Entries, StoreError> {
        self.check()?;
        let loaded = self.wal.load(&mut self.disk, range, bytes_max);
        Ok(self.guard(loaded)?.into())
    }

    /// Removes segments of the log without entries after this index, and snapshots older than
    /// the newest one. A snapshot must cover the index.
    pub fn trim(&mut self, index: Index) -> Result<(), StoreError> {
        self.check()?;
        let newest = self.newest_snapshot();
        if index > newest.index {
            return Err(StoreError::NotSnapshotted { newest: newest.index });
        }
        // The entries that replaced the dropped ones, and those that the snapshot covers, may
        // not be durable yet.
        let synced = self.wal.sync(&mut self.disk);
        self.guard(synced)?;
        let dropped = self.drop_covered(index, newest);
        self.guard(dropped)
    }

    /// Reports that the state machine was restored from an installed snapshot. The snapshot is
    /// removed once a newer one replaces it.
    pub fn release_snapshot(&mut self, id: EntryId) {
        self.needed.remove(&id);
    }

    /// The entry of the newest snapshot in the log, or just before its start.
    pub fn newest_snapshot(&self) -> EntryId {
        let held = self.snapshots.iter().filter(|id| self.wal.log.holds(**id));
        held.max_by_key(|id| id.index).copied().unwrap_or_default()
    }

    fn drop_covered(&mut self, index: Index, newest: EntryId) -> Result<(), DiskFailure> {
        self.wal.drop_up_to(&mut self.disk, index)?;
        let old = self.snapshots.iter().copied().filter(|id| id.index < newest.index);
        let old: Vec<EntryId> = old.filter(|id| !self.needed.contains(id)).collect();
        for id in old {
            let name = FileName::Snapshot(id);
            self.disk
                .remove(&name.to_string())
                .map_err(DiskFailure::when(DiskOperation::Remove, name))?;
            self.snapshots.remove(&id);
        }
        Ok(())
    }

    /// Starts writing a snapshot: of this member's state, or one received from a peer.
    pub fn begin_snapshot(
        &mut self,
        meta: SnapshotMeta,
    ) -> Result<SnapshotWriter<D::File>, StoreError> {
        self.check()?;
        self.snapshots_started += 1;
        let name = FileName::NewSnapshot(self.snapshots_started);
        let cluster = self.wal.identity.cluster;
        let writer = SnapshotWriter::create(&mut self.disk, name, cluster, meta);
        self.guard(writer)
    }

    /// Appends bytes of the state machine to a snapshot.
    pub fn append_snapshot(
        &mut self,
        writer: &mut SnapshotWriter<D::File>,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        self.check()?;
        let appended = writer.append(&mut self.disk, bytes);
        self.guard(appended)
    }

    /// Makes a snapshot durable and publishes it.
    pub fn finish_snapshot(&mut self, writer: SnapshotWriter<D::File>) -> Result<(), StoreError> {
        self.check()?;
        let sealed = writer.seal(&mut self.disk);
        let sealed = self.guard(sealed)?;
        self.publish_snapshot(sealed)
    }

    fn publish_snapshot(&mut self, sealed: SealedSnapshot) -> Result<(), StoreError> {
        self.check()?;
        let published = sealed.publish(&mut self.disk);
        let id = self.guard(published)?;
        self.adopt_snapshot(id)
    }

    /// Adds a snapshot that was sealed and published through another handle of the disk.
    pub fn adopt_snapshot(&mut self, id: EntryId) -> Result<(), StoreError> {
        self.check()?;
        self.snapshots.insert(id);
        Ok(())
    }

    /// Removes an unfinished snapshot.
    pub fn discard_snapshot(&mut self, writer: SnapshotWriter<D::File>) -> Result<(), StoreError> {
        self.check()?;
        let discarded = writer.discard(&mut self.disk);
        self.guard(discarded)
    }

    /// Opens a published snapshot for reading.
    pub fn open_snapshot(&mut self, id: EntryId) -> Result<SnapshotReader<D::File>, StoreError> {
        self.check()?;
        if !self.snapshots.contains(&id) {
            return Err(StoreError::NoSuchSnapshot { id });
        }
        let opened = SnapshotReader::open(&mut self.disk, id, self.wal.identity.cluster);
        self.guard(opened.map_err(|why| match why {
            OpenSnapshotError::Unreadable(why) => why,
            // The version was supported when the snapshot was finished or recovered.
            OpenSnapshotError::UnsupportedVersion(_) => {
                let file = FileName::Snapshot(id);
                Corruption { file, offset: 0, why: CorruptionKind::Inconsistent }.into()
            }
        }))
    }

    /// The next chunk of a snapshot, verified; `None` after the last one.
    pub fn read_snapshot(
        &mut self,
        reader: &mut SnapshotReader<D::File>,
    ) -> Result<Option<Bytes>, StoreError> {
        self.check()?;
        let read = reader.next_chunk(&mut self.disk);
        self.guard(read)
    }

    /// Closes the store gracefully: makes all saves and the sync mark durable.
    pub fn close(mut self) -> Result<D, StoreError> {
        self.sync()?;
        let synced = self.wal.marks.sync(&mut self.disk);
        self.guard(synced)?;
        Ok(self.disk)
    }

    /// The underlying disk.
    pub fn disk(&self) -> &D {
        &self.disk
    }

    /// The underlying disk, for fault injection and maintenance.
    pub fn disk_mut(&mut self) -> &mut D {
        &mut self.disk
    }

    /// Drops the store without a sync, as a process that ends, and returns the disk.
    pub fn into_disk(self) -> D {
        self.disk
    }

    /// The failure after which every call fails, if there was one.
    pub fn failed(&self) -> Option<StoreError> {
        self.failed
    }

    fn check(&self) -> Result<(), StoreError> {
        self.failed.map_or(Ok(()), Err)
    }

    fn guard<T, E: Into<StoreError>>(&mut self, result: Result<T, E>) -> Result<T, StoreError> {
        result.map_err(Into::into).or_else(|why| self.fail(why))
    }

    fn fail<T>(&mut self, why: impl Into<StoreError>) -> Result<T, StoreError> {
        let why = why.into();
        self.failed = Some(why);
        Err(why)
    }
}

/// Another process holds the lock.
struct Locked;

fn lock<D: Disk>(disk: &mut D) -> Result<Result<(), Locked>, DiskFailure> {
    match disk.lock() {
        Ok(()) => Ok(Ok(())),
        Err(why) if why.kind() == std::io::ErrorKind::WouldBlock => Ok(Err(Locked)),
        Err(why) => Err(DiskFailure::when(DiskOperation::Lock, FileName::Lock)(why)),
    }
}
