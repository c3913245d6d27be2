//! Everything one member keeps on disk, behind one door.
//!
//! The order of calls is the core's: [`Store::write`] each save, [`Store::sync`] when
//! one of them must be durable, then report it saved. The first failure is the last
//! thing that happens: what the disk holds after it is not known, so every later call
//! answers the same error, and the member ends.

use std::collections::BTreeSet;
use std::ops::Range;

use bytes::Bytes;
use quorate_core::{Boot, Entries, EntryId, Index, MemberId, Save, SnapshotMeta};

use crate::Disk;
use crate::error::{
    Corruption, CorruptionKind, CreateError, DiskFailure, DiskOperation, OpenError, StoreError,
};
use crate::names::FileName;
use crate::recover::{Listing, Recovered, read_identity, recover};
use crate::snapshots::{OpenSnapshotError, SealedSnapshot, SnapshotReader, SnapshotWriter};
use crate::wal::segment::{HEAD_BYTES, Head, Start};
use crate::wal::{AppendError, Wal};

/// Whose data it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StoreIdentity {
    pub cluster: u64,
    pub member: MemberId,
    /// Drawn at random when the store is created: another disk under the same member
    /// id is not the same member.
    pub incarnation: u64,
    /// The index of the entry that added the member: see
    /// [`Config::joined_at`](quorate_core::Config::joined_at), which belongs to the disk.
    pub joined_at: Index,
}

/// Whose data it has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StoreOwner {
    pub cluster: u64,
    pub member: MemberId,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// The size of a file of the log. A larger save gets a larger one.
    pub segment_bytes: u64,
    /// How much of the log's end is read into memory at the start.
    pub tail_bytes_max: u64,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self { segment_bytes: 64 << 20, tail_bytes_max: 16 << 20 }
    }
}

/// A member's log and snapshots.
#[derive(Clone, Debug)]
pub struct Store<D: Disk> {
    disk: D,
    wal: Wal<D::File>,
    /// Those that have their name.
    snapshots: BTreeSet<EntryId>,
    /// Names for snapshots in the making.
    snapshots_begun: u64,
    /// An installed snapshot is in the log: once that is durable, what was before goes.
    installed: Option<EntryId>,
    /// Those that a state machine is still to be made of.
    wanted: BTreeSet<EntryId>,
    failed: Option<StoreError>,
}

/// A store that was opened, and what a member starts from.
#[derive(Clone, Debug)]
pub struct OpenedStore<D: Disk> {
    pub store: Store<D>,
    pub boot: Boot,
    pub identity: StoreIdentity,
    /// How often it was opened, this time included; durable. No two lives of a member
    /// have the same number.
    pub boots: u64,
}

impl<D: Disk> Store<D> {
    /// Makes a directory the store of a member that starts with this, and has no log
    /// yet. Refuses one that is in use.
    pub fn create(
        disk: &mut D,
        identity: StoreIdentity,
        first: &Boot,
        config: &StoreConfig,
    ) -> Result<(), CreateError> {
        Self::create_from_snapshot(disk, identity, first, std::iter::empty(), config)
    }

    /// The same for a member whose state machine begins with this snapshot's bytes.
    pub fn create_from_snapshot(
        disk: &mut D,
        identity: StoreIdentity,
        first: &Boot,
        state: impl Iterator<Item = Bytes>,
        config: &StoreConfig,
    ) -> Result<(), CreateError> {
        lock(disk)?.map_err(|Locked| CreateError::Locked)?;
        let listing = Listing::read(disk)?;
        let meta = &first.snapshot;
        // A crash while creating may have left this snapshot, and nothing else.
        let snapshot = listing.snapshots.iter().find(|id| **id != meta.id);
        let used = snapshot.map(|id| FileName::Snapshot(*id));
        let used = used.or(listing.segments.first().map(|number| FileName::Segment(*number)));
        if let Some(file) = used.or(listing.has_mark.then_some(FileName::SyncMark)) {
            return Err(CreateError::InUse { file });
        }
        if meta.id != EntryId::ZERO {
            let name = FileName::NewSnapshot(0);
            let mut writer = SnapshotWriter::create(disk, name, identity.cluster, meta.clone())?;
            for bytes in state {
                writer.append(disk, &bytes)?;
            }
            writer.seal(disk)?.publish(disk)?;
        }
        // With the first segment the store is there.
        let head = Head {
            identity,
            number: 1,
            boots: 0,
            bytes: config.segment_bytes.max(HEAD_BYTES),
            first_sequence: 1,
            previous: 0,
            previous_end: 0,
            start: Start { hard_state: first.hard_state, floor: meta.id, last: meta.id },
        };
        head.create(disk, None)?;
        Ok(())
    }

    /// Whose data this is; nobody's as long as the store is not created. For who starts a
    /// member without knowing which one it is. Nothing is changed, nothing is locked.
    pub fn read_identity(disk: &mut D) -> Result<Option<StoreIdentity>, OpenError> {
        read_identity(disk)
    }

    /// Reads back what a member has saved; where there is nothing yet, as if it had been
    /// created with `first` before. What marks the disk is what it was created with.
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

    /// Reads back what a member has saved.
    pub fn open(
        mut disk: D,
        expected: StoreOwner,
        config: &StoreConfig,
    ) -> Result<OpenedStore<D>, OpenError> {
        lock(&mut disk)?.map_err(|Locked| OpenError::Locked)?;
        let Recovered { wal, boot } = recover(&mut disk, expected, config)?;
        let (identity, boots) = (wal.identity, wal.boots);
        let snapshot = Some(boot.snapshot.id).filter(|id| *id != EntryId::ZERO);
        let snapshots = snapshot.into_iter().collect();
        let store = Self {
            disk,
            wal,
            snapshots,
            snapshots_begun: 0,
            installed: None,
            wanted: BTreeSet::new(),
            failed: None,
        };
        Ok(OpenedStore { store, boot, identity, boots })
    }

    /// Writes a save: after a crash all of it is there, or nothing of it and of later
    /// ones. Durable only with the next [`Store::sync`].
    ///
    /// A snapshot to install has to be finished before, and is kept until the state machine
    /// was made of it: call [`Store::release_snapshot`] then. From this save on it is what
    /// the log continues: after a crash either the old log is there or the snapshot.
    pub fn write(&mut self, save: &Save) -> Result<(), StoreError> {
        self.check()?;
        let install = save.install.as_ref().map(|meta| meta.id);
        if let Some(id) = install
            && !self.snapshots.contains(&id)
        {
            return Err(StoreError::NoSuchSnapshot { id });
        }
        // What a snapshot holds is committed, and committed entries are never replaced.
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
        self.wanted.extend(install);
        self.installed = install.or(self.installed);
        Ok(())
    }

    /// Makes everything written so far durable, with one sync.
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

    /// Entries that were written, from the first one asked for on, until so many bytes
    /// are in hand; none where the log does not reach.
    pub fn load(&mut self, range: Range<Index>, bytes_max: u64) -> Result<Entries, StoreError> {
        self.check()?;
        let loaded = self.wal.load(&mut self.disk, range, bytes_max);
        Ok(self.guard(loaded)?.into())
    }

    /// Drops the files of the log that hold nothing above this entry. A snapshot has
    /// to cover it; those before the newest one go too.
    pub fn trim(&mut self, index: Index) -> Result<(), StoreError> {
        self.check()?;
        let newest = self.newest_snapshot();
        if index > newest.index {
            return Err(StoreError::NotSnapshotted { newest: newest.index });
        }
        // What replaced the dropped entries, and what the snapshot rests on, may be
        // written and not durable yet.
        let synced = self.wal.sync(&mut self.disk);
        self.guard(synced)?;
        let dropped = self.drop_covered(index, newest);
        self.guard(dropped)
    }

    /// The state machine has what it needs of a snapshot that was installed. It goes as
    /// soon as a newer one has taken its place.
    pub fn release_snapshot(&mut self, id: EntryId) {
        self.wanted.remove(&id);
    }

    /// The newest snapshot of an entry in the log, or just before it.
    pub fn newest_snapshot(&self) -> EntryId {
        let held = self.snapshots.iter().filter(|id| self.wal.log.holds(**id));
        held.max_by_key(|id| id.index).copied().unwrap_or_default()
    }

    fn drop_covered(&mut self, index: Index, newest: EntryId) -> Result<(), DiskFailure> {
        self.wal.drop_up_to(&mut self.disk, index)?;
        let old = self.snapshots.iter().copied().filter(|id| id.index < newest.index);
        let old: Vec<EntryId> = old.filter(|id| !self.wanted.contains(id)).collect();
        for id in old {
            let name = FileName::Snapshot(id);
            self.disk
                .remove(&name.to_string())
                .map_err(DiskFailure::when(DiskOperation::Remove, name))?;
            self.snapshots.remove(&id);
        }
        Ok(())
    }

    /// Begins a snapshot: of this member's own state, or one that a peer sends.
    pub fn begin_snapshot(
        &mut self,
        meta: SnapshotMeta,
    ) -> Result<SnapshotWriter<D::File>, StoreError> {
        self.check()?;
        self.snapshots_begun += 1;
        let name = FileName::NewSnapshot(self.snapshots_begun);
        let cluster = self.wal.identity.cluster;
        let begun = SnapshotWriter::create(&mut self.disk, name, cluster, meta);
        self.guard(begun)
    }

    pub fn append_snapshot(
        &mut self,
        writer: &mut SnapshotWriter<D::File>,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        self.check()?;
        let appended = writer.append(&mut self.disk, bytes);
        self.guard(appended)
    }

    /// Makes a snapshot durable and gives it its name.
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

    /// From now on there is this snapshot, which was sealed and published with another
    /// handle of the disk.
    pub fn adopt_snapshot(&mut self, id: EntryId) -> Result<(), StoreError> {
        self.check()?;
        self.snapshots.insert(id);
        Ok(())
    }

    /// Gives up a snapshot in the making.
    pub fn discard_snapshot(&mut self, writer: SnapshotWriter<D::File>) -> Result<(), StoreError> {
        self.check()?;
        let discarded = writer.discard(&mut self.disk);
        self.guard(discarded)
    }

    pub fn open_snapshot(&mut self, id: EntryId) -> Result<SnapshotReader<D::File>, StoreError> {
        self.check()?;
        if !self.snapshots.contains(&id) {
            return Err(StoreError::NoSuchSnapshot { id });
        }
        let opened = SnapshotReader::open(&mut self.disk, id, self.wal.identity.cluster);
        self.guard(opened.map_err(|why| match why {
            OpenSnapshotError::Unreadable(why) => why,
            // It was this version when it was finished or recovered.
            OpenSnapshotError::UnsupportedVersion(_) => {
                let file = FileName::Snapshot(id);
                Corruption { file, offset: 0, why: CorruptionKind::Inconsistent }.into()
            }
        }))
    }

    /// The next chunk of a snapshot, intact; none when all of it was read.
    pub fn read_snapshot(
        &mut self,
        reader: &mut SnapshotReader<D::File>,
    ) -> Result<Option<Bytes>, StoreError> {
        self.check()?;
        let read = reader.next_chunk(&mut self.disk);
        self.guard(read)
    }

    /// Ends in good order: also the note about how far the log is durable is.
    pub fn close(mut self) -> Result<D, StoreError> {
        self.sync()?;
        let synced = self.wal.marks.sync(&mut self.disk);
        self.guard(synced)?;
        Ok(self.disk)
    }

    /// The disk below, for whoever injects faults or counts.
    pub fn disk(&self) -> &D {
        &self.disk
    }

    pub fn disk_mut(&mut self) -> &mut D {
        &mut self.disk
    }

    /// Gives up the store as it is, as a process that ends does.
    pub fn into_disk(self) -> D {
        self.disk
    }

    /// Why this member has ended.
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

struct Locked;

fn lock<D: Disk>(disk: &mut D) -> Result<Result<(), Locked>, DiskFailure> {
    match disk.lock() {
        Ok(()) => Ok(Ok(())),
        Err(why) if why.kind() == std::io::ErrorKind::WouldBlock => Ok(Err(Locked)),
        Err(why) => Err(DiskFailure::when(DiskOperation::Lock, FileName::Lock)(why)),
    }
}
