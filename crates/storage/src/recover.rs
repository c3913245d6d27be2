//! Recovery: reads a directory and returns what a member starts with.
//!
//! Recovery reads the whole log. A torn write at its end is dropped. Any other damage is an error
//! with file and offset, and nothing on disk is changed. On success recovery starts a new
//! segment, whose head records where the previous one ends: bytes behind that end are never read
//! again.

use std::sync::Arc;

use quorate_core::{Boot, Entry, EntryId, HardState, Index, Membership, SnapshotMeta};

use crate::error::{Corruption, CorruptionKind, DiskFailure, DiskOperation, OpenError, ReadError};
use crate::names::FileName;
use crate::snapshots::{OpenSnapshotError, SnapshotReader};
use crate::store::{StoreConfig, StoreOwner};
use crate::wal::index::{LogIndex, RecordPosition};
use crate::wal::mark::{SyncMark, SyncMarkFile};
use crate::wal::reader::{self, SegmentReader};
use crate::wal::record::Record;
use crate::wal::segment::{HEAD_BYTES, Segment, SegmentHead, SegmentStart};
use crate::wal::{OpenSegmentError, Wal};
use crate::{Disk, StoreIdentity};

/// The files of a store in a directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct DirectoryListing {
    /// The numbers of the segments, in order.
    pub(crate) segments: Vec<u64>,
    pub(crate) snapshots: Vec<EntryId>,
    pub(crate) unfinished: Vec<FileName>,
    pub(crate) has_mark: bool,
}

impl DirectoryListing {
    pub(crate) fn read<D: Disk>(disk: &mut D) -> Result<Self, DiskFailure> {
        let names =
            disk.list().map_err(DiskFailure::when(DiskOperation::List, FileName::Directory))?;
        let mut listing = Self::default();
        for name in names.iter().filter_map(|name| FileName::parse(name)) {
            match name {
                FileName::Segment(number) => listing.segments.push(number),
                FileName::Snapshot(id) => listing.snapshots.push(id),
                FileName::SyncMark => listing.has_mark = true,
                name if name.is_unfinished() => listing.unfinished.push(name),
                _ => {}
            }
        }
        listing.segments.sort_unstable();
        listing.snapshots.sort_unstable();
        Ok(listing)
    }
}

/// The recovered log, and what the member starts with.
pub(crate) struct RecoveredLog<F> {
    pub(crate) wal: Wal<F>,
    pub(crate) boot: Boot,
}

pub(crate) fn recover<D: Disk>(
    disk: &mut D,
    expected: StoreOwner,
    config: &StoreConfig,
) -> Result<RecoveredLog<D::File>, OpenError> {
    let listing = DirectoryListing::read(disk)?;
    let chain = open_chain(disk, &listing, expected)?;
    let Some(newest) = chain.last().map(|segment| segment.head) else {
        return Err(OpenError::NotCreated);
    };
    let identity = newest.identity;
    let marked = if listing.has_mark { Some(SyncMarkFile::open(disk, &identity)?) } else { None };
    let mark = marked.as_ref().map_or(SyncMark::default(), |(_, mark)| *mark);
    if mark.segment > newest.number {
        return Err(missing(FileName::Segment(mark.segment)).into());
    }
    let replay = replay(disk, &chain, mark)?;
    let snapshot = choose_snapshot(disk, &listing, &replay, identity)?;
    let marks = match marked {
        Some((marks, _)) => marks,
        None => SyncMarkFile::create(disk, &identity)?,
    };
    let mut wal = Wal {
        identity,
        boots: newest.boots.saturating_add(1),
        segment_bytes: config.segment_bytes,
        hard_state: replay.hard_state,
        log: replay.log,
        segments: chain.into_iter().map(|segment| (segment.head.number, segment)).collect(),
        end: replay.end,
        next_sequence: replay.next_sequence,
        synced: replay.next_sequence - 1,
        marks,
        spare: None,
        buffer: Vec::new(),
        unread: None,
    };
    let boot = boot(disk, &mut wal, snapshot, replay.memberships, config.tail_bytes_max)?;
    make_durable(disk, &wal, mark)?;
    for name in &listing.unfinished {
        disk.remove(&name.to_string()).map_err(DiskFailure::when(DiskOperation::Remove, *name))?;
    }
    start_segment(disk, &mut wal)?;
    clean_up(disk, &wal, &listing, boot.snapshot.id)?;
    Ok(RecoveredLog { wal, boot })
}

/// The identity of the store in a directory; `None` without a log.
pub(crate) fn read_identity<D: Disk>(disk: &mut D) -> Result<Option<StoreIdentity>, OpenError> {
    let listing = DirectoryListing::read(disk)?;
    match listing.segments.last() {
        Some(newest) => Ok(Some(open_segment(disk, *newest)?.head.identity)),
        None if listing.has_mark => Err(missing(FileName::Segment(1)).into()),
        None => Ok(None),
    }
}

/// The newest segment and all previous ones that exist, oldest first.
fn open_chain<D: Disk>(
    disk: &mut D,
    listing: &DirectoryListing,
    expected: StoreOwner,
) -> Result<Vec<Segment<D::File>>, OpenError> {
    let Some(newest) = listing.segments.last() else {
        // A sync mark without segments: the log was lost.
        let was_open = listing.has_mark;
        return if was_open { Err(missing(FileName::Segment(1)).into()) } else { Ok(Vec::new()) };
    };
    let segment = open_segment(disk, *newest)?;
    let identity = segment.head.identity;
    expected.check(identity)?;
    let mut oldest = segment.head;
    let mut chain = vec![segment];
    while oldest.previous < oldest.number
        && listing.segments.binary_search(&oldest.previous).is_ok()
    {
        let segment = open_segment(disk, oldest.previous)?;
        if segment.head.identity != identity {
            let file = segment.name();
            return Err(Corruption { file, offset: 0, why: CorruptionKind::Misplaced }.into());
        }
        oldest = segment.head;
        chain.push(segment);
    }
    chain.reverse();
    Ok(chain)
}

fn open_segment<D: Disk>(disk: &mut D, number: u64) -> Result<Segment<D::File>, OpenError> {
    reader::open(disk, number).map_err(|why| match why {
        OpenSegmentError::Unreadable(why) => why.into(),
        OpenSegmentError::UnsupportedVersion(found) => {
            OpenError::UnsupportedVersion { file: FileName::Segment(number), found }
        }
    })
}

fn missing(file: FileName) -> Corruption {
    Corruption { file, offset: 0, why: CorruptionKind::Missing }
}

/// The state after the records read so far.
struct LogReplay {
    hard_state: HardState,
    log: LogIndex,
    /// The memberships of all changes in the log.
    memberships: Vec<(EntryId, Arc<Membership>)>,
    next_sequence: u64,
    /// The offset at which the records of the newest segment end.
    end: u64,
}

fn replay<D: Disk>(
    disk: &mut D,
    chain: &[Segment<D::File>],
    mark: SyncMark,
) -> Result<LogReplay, ReadError> {
    let oldest = chain.first().map(|segment| (segment.head.start, segment.head.first_sequence));
    let (start, next_sequence) = oldest.unwrap_or_default();
    let mut replay = LogReplay {
        hard_state: start.hard_state,
        log: LogIndex::new(start.last, start.floor),
        memberships: Vec::new(),
        next_sequence,
        end: HEAD_BYTES,
    };
    for (number, segment) in chain.iter().enumerate() {
        let pinned_end = chain.get(number + 1).map(|next| next.head.previous_end);
        replay.read_segment(disk, segment, pinned_end, mark)?;
    }
    Ok(replay)
}

impl LogReplay {
    /// With `pinned_end` the records must end exactly there. Without, this is the newest segment,
    /// and its records end where the last write ended.
    fn read_segment<D: Disk>(
        &mut self,
        disk: &mut D,
        segment: &Segment<D::File>,
        pinned_end: Option<u64>,
        mark: SyncMark,
    ) -> Result<(), ReadError> {
        let mut reader = SegmentReader::new(disk, segment);
        if segment.head.start != self.start() || segment.head.first_sequence != self.next_sequence {
            return Err(reader.corrupt(0, CorruptionKind::Inconsistent).into());
        }
        let mut offset = HEAD_BYTES;
        while pinned_end.is_none_or(|end| offset < end) {
            let Some(intact) = reader.record(offset, self.next_sequence)? else {
                if pinned_end.is_some() {
                    return Err(reader.corrupt(offset, CorruptionKind::ChecksumMismatch).into());
                }
                reader.check_end(offset, self.next_sequence, mark)?;
                break;
            };
            let sequence = self.next_sequence;
            let position = RecordPosition { segment: segment.head.number, offset, sequence };
            let bytes = intact.header.record_bytes();
            let end = intact.end();
            let record = intact.decode(&reader)?;
            self.apply(record, position, bytes)
                .ok_or_else(|| reader.corrupt(offset, CorruptionKind::Inconsistent))?;
            self.next_sequence += 1;
            offset = end;
        }
        if pinned_end.is_some_and(|end| offset != end) {
            return Err(reader.corrupt(offset, CorruptionKind::Inconsistent).into());
        }
        self.end = offset;
        Ok(())
    }

    fn start(&self) -> SegmentStart {
        SegmentStart { hard_state: self.hard_state, floor: self.log.floor(), last: self.log.last() }
    }

    /// Returns `None` if the record does not continue the log.
    fn apply(&mut self, record: Record, position: RecordPosition, bytes: u64) -> Option<()> {
        self.hard_state = record.hard_state.unwrap_or(self.hard_state);
        if let Some(id) = record.install {
            self.log.restore(id);
            self.memberships.clear();
        }
        if let Some(appended) = record.entries {
            let ids = appended.entries.iter().map(|entry| entry.id);
            self.log.append(appended.prev, ids, position, bytes).ok()?;
            self.memberships.retain(|(id, _)| id.index <= appended.prev.index);
            let changes = appended.entries.iter().filter_map(|entry| {
                entry.change().map(|change| (entry.id, Arc::clone(&change.membership)))
            });
            self.memberships.extend(changes);
        }
        Some(())
    }
}

/// The newest snapshot whose entry is in the log. Others were received and never installed, or
/// captured after entries that the log lost. If it is damaged, an older one takes its place as
/// long as the log still reaches back to it: then nothing is lost.
fn choose_snapshot<D: Disk>(
    disk: &mut D,
    listing: &DirectoryListing,
    replay: &LogReplay,
    identity: StoreIdentity,
) -> Result<SnapshotMeta, OpenError> {
    let held = listing.snapshots.iter().filter(|id| replay.log.holds(**id));
    let mut held: Vec<EntryId> = held.copied().collect();
    held.sort_unstable_by_key(|id| id.index);
    while let [.., _, newest] = held[..] {
        match verify_snapshot(disk, newest, identity.cluster) {
            Err(OpenSnapshotError::Unreadable(ReadError::Corrupt(_))) => held.pop(),
            _ => break,
        };
    }
    let Some(id) = held.last() else {
        let base = replay.log.base();
        if base == EntryId::ZERO {
            return Ok(SnapshotMeta::default());
        }
        // The log starts after this entry, so a snapshot of it must exist.
        return Err(missing(FileName::Snapshot(base)).into());
    };
    match SnapshotReader::open(disk, *id, identity.cluster) {
        Ok(reader) => Ok(reader.meta().clone()),
        Err(OpenSnapshotError::Unreadable(why)) => Err(why.into()),
        Err(OpenSnapshotError::UnsupportedVersion(found)) => {
            Err(OpenError::UnsupportedVersion { file: FileName::Snapshot(*id), found })
        }
    }
}

/// Reads all of a snapshot.
fn verify_snapshot<D: Disk>(
    disk: &mut D,
    id: EntryId,
    cluster: u64,
) -> Result<(), OpenSnapshotError> {
    let mut reader = SnapshotReader::open(disk, id, cluster)?;
    while reader.next_chunk(disk)?.is_some() {}
    Ok(())
}

fn boot<D: Disk>(
    disk: &mut D,
    wal: &mut Wal<D::File>,
    snapshot: SnapshotMeta,
    memberships: Vec<(EntryId, Arc<Membership>)>,
    tail_bytes_max: u64,
) -> Result<Boot, OpenError> {
    let last = wal.log.last().index;
    let spans = wal.log.tail_first(tail_bytes_max);
    let mut tail = wal.load(disk, spans..last.saturating_add(1), u64::MAX)?;
    let mut bytes = 0;
    let fits = |entry: &&Entry| {
        bytes += entry.bytes();
        bytes <= tail_bytes_max || entry.id.index == last
    };
    let kept = tail.iter().rev().take_while(fits).count();
    tail.drain(..tail.len() - kept);
    let first: Index = tail.first().map_or(last.saturating_add(1), |entry| entry.id.index);
    let terms = wal.log.terms().iter().copied().filter(|start| start.index < first).collect();
    let below = |id: EntryId| id.index > snapshot.id.index && id.index < first;
    let memberships = memberships.into_iter().filter(|(id, _)| below(*id)).collect();
    Ok(Boot {
        hard_state: wal.hard_state,
        base: wal.log.base(),
        terms,
        memberships,
        tail: tail.into(),
        applied: snapshot.id.index,
        snapshot,
    })
}

/// Makes the recovered log durable. It may exist only in the page cache, if the process ended
/// before a sync or because of a failed one. Other members will rely on it, so everything that
/// the sync mark does not cover is written again and synced.
fn make_durable<D: Disk>(
    disk: &mut D,
    wal: &Wal<D::File>,
    mark: SyncMark,
) -> Result<(), DiskFailure> {
    let segment = wal.active();
    let name = segment.name();
    let proven = if mark.segment == segment.head.number { mark.end } else { HEAD_BYTES };
    let mut offset = proven.min(wal.end);
    let mut window = vec![0; (wal.end - offset).min(COPY_BYTES) as usize];
    while offset < wal.end {
        window.truncate((wal.end - offset) as usize);
        disk.read_at(&segment.file, offset, &mut window)
            .map_err(DiskFailure::when(DiskOperation::Read, name))?;
        disk.write_at(&segment.file, offset, &window)
            .map_err(DiskFailure::when(DiskOperation::Write, name))?;
        offset += window.len() as u64;
    }
    disk.sync(&segment.file).map_err(DiskFailure::when(DiskOperation::Sync, name))?;
    disk.sync_dir().map_err(DiskFailure::when(DiskOperation::Sync, FileName::Directory))
}

/// Starts a new segment, whose head records the end of the previous one. A previous segment
/// without records is replaced, so that restarts do not accumulate files.
fn start_segment<D: Disk>(disk: &mut D, wal: &mut Wal<D::File>) -> Result<(), DiskFailure> {
    let newest = wal.active().head;
    let is_empty = wal.end == HEAD_BYTES;
    let (previous, previous_end) =
        if is_empty { (newest.previous, newest.previous_end) } else { (newest.number, wal.end) };
    let head = SegmentHead {
        identity: wal.identity,
        number: newest.number.saturating_add(1),
        boots: wal.boots,
        bytes: wal.segment_bytes.max(HEAD_BYTES),
        first_sequence: wal.next_sequence,
        previous,
        previous_end,
        start: wal.start(),
    };
    let segment = head.create(disk, None)?;
    if is_empty {
        wal.segments.remove(&newest.number);
    } else {
        // The rest of the old segment is never written.
        let old = wal.active();
        disk.set_len(&old.file, wal.end)
            .map_err(DiskFailure::when(DiskOperation::Write, old.name()))?;
        let end = wal.end;
        if let Some(old) = wal.segments.get_mut(&newest.number) {
            old.bytes = end;
        }
    }
    wal.activate(segment);
    Ok(())
}

/// Removes files that a crash left behind or that are no longer needed.
fn clean_up<D: Disk>(
    disk: &mut D,
    wal: &Wal<D::File>,
    listing: &DirectoryListing,
    snapshot: EntryId,
) -> Result<(), DiskFailure> {
    let segments = listing.segments.iter().filter(|number| !wal.segments.contains_key(number));
    let segments = segments.map(|number| FileName::Segment(*number));
    let snapshots = listing.snapshots.iter().filter(|id| **id != snapshot);
    let snapshots = snapshots.map(|id| FileName::Snapshot(*id));
    for name in segments.chain(snapshots) {
        disk.remove(&name.to_string()).map_err(DiskFailure::when(DiskOperation::Remove, name))?;
    }
    Ok(())
}

/// How much is written again at once.
const COPY_BYTES: u64 = 1 << 20;
