//! etcd's log: files of checksummed records.
//!
//! As etcd does it, a record that was being written when the machine stopped ends the log, if it
//! is in the last file; any other damage is an error.

use std::io::Read;

use bytes::Bytes;

use crate::error::{DamagePlace, EtcdFileError};
use crate::protobuf::{ProtobufField, ProtobufFields};

/// Reads the files of a log, in order.
#[derive(Debug, Default)]
pub struct WalReader {
    /// Entries up to this index are not kept.
    after: u64,
    checksum: u32,
    tail: WalTail,
}

/// What a log holds behind an index.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct WalTail {
    /// The id of the member; 0 if no record names it.
    pub member_id: u64,
    /// The id of the cluster.
    pub cluster_id: u64,
    /// The last entry that the log knows to be committed.
    pub committed: u64,
    /// The index of the newest snapshot that is not ahead of the log.
    pub snapshot: u64,
    /// The entries behind the index, without gaps.
    pub entries: Vec<WalEntry>,
    /// Where the log ended within a record, if it did: the last write was interrupted.
    pub torn_at: Option<DamagePlace>,
    snapshots: Vec<u64>,
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalEntry {
    /// 0 for a request, 1 and 2 for a change of the members.
    pub kind: u64,
    /// Its term.
    pub term: u64,
    /// Its index.
    pub index: u64,
    /// The request.
    pub data: Bytes,
}

/// A record as it is in the file.
struct WalRecord<'a> {
    kind: u64,
    checksum: u32,
    data: &'a [u8],
}

impl WalReader {
    /// A reader that keeps the entries behind this index.
    pub fn new(after: u64) -> Self {
        Self { after, ..Self::default() }
    }

    /// Reads the next file. Only the last one may end within a record.
    pub fn read(
        &mut self,
        name: &str,
        mut file: impl Read,
        is_last: bool,
    ) -> Result<(), EtcdFileError> {
        let mut offset = 0;
        let mut frame = Vec::new();
        loop {
            let place = DamagePlace::Log { file: name.to_owned(), offset };
            let damaged = |problem: &str| EtcdFileError::damaged(place.clone(), problem);
            let mut field = [0; 8];
            let read = read_up_to(&mut file, &mut field)?;
            let length = i64::from_le_bytes(field);
            // The rest of the file was never written.
            if read == 0 || read == 8 && length == 0 {
                return Ok(());
            }
            let padding = if length < 0 { (length >> 56) & 7 } else { 0 } as u64;
            let bytes = (length & 0x00ff_ffff_ffff_ffff) as u64;
            frame.clear();
            if read == 8 && bytes <= RECORD_BYTES_MAX {
                (&mut file).take(bytes + padding).read_to_end(&mut frame)?;
            }
            if read < 8 || (frame.len() as u64) < bytes + padding {
                return match is_last {
                    true => {
                        self.tail.torn_at = Some(place);
                        Ok(())
                    }
                    false => Err(damaged("a record is cut off, and other files follow")),
                };
            }
            let record = frame.get(..bytes as usize).and_then(WalRecord::decode);
            let checked = record.filter(|record| self.check(record));
            let Some(record) = checked else {
                if is_last && is_torn(&frame, offset + 8) {
                    self.tail.torn_at = Some(place);
                    return Ok(());
                }
                return Err(damaged("a record does not match its checksum"));
            };
            self.add(&record).map_err(|problem| damaged(&problem))?;
            offset += 8 + bytes + padding;
        }
    }

    /// What was read.
    pub fn finish(mut self) -> WalTail {
        let committed = self.tail.committed;
        let valid = self.tail.snapshots.iter().filter(|index| **index <= committed);
        self.tail.snapshot = valid.max().copied().unwrap_or_default();
        self.tail.snapshots.clear();
        self.tail
    }

    /// Checksums run through all records of all files.
    fn check(&mut self, record: &WalRecord<'_>) -> bool {
        if record.kind == CHECKSUM {
            // The first file that is read may not be the first one of the log.
            let matches = self.checksum == 0 || self.checksum == record.checksum;
            self.checksum = record.checksum;
            return matches;
        }
        let checksum = crc32c::crc32c_append(self.checksum, record.data);
        let matches = checksum == record.checksum;
        if matches {
            self.checksum = checksum;
        }
        matches
    }

    fn add(&mut self, record: &WalRecord<'_>) -> Result<(), String> {
        match record.kind {
            METADATA => {
                let [member, cluster] = numbers(record.data, [1, 2])?;
                let tail = &mut self.tail;
                let known = (tail.member_id, tail.cluster_id);
                if known != (0, 0) && known != (member, cluster) {
                    return Err("the record is one of another member".to_owned());
                }
                (tail.member_id, tail.cluster_id) = (member, cluster);
            }
            ENTRY => self.add_entry(WalEntry::decode(record.data)?)?,
            HARD_STATE => {
                let [committed] = numbers(record.data, [3])?;
                self.tail.committed = committed;
            }
            SNAPSHOT => {
                let [index] = numbers(record.data, [1])?;
                self.tail.snapshots.push(index);
            }
            CHECKSUM => {}
            kind => return Err(format!("a record of the unknown kind {kind}")),
        }
        Ok(())
    }

    /// An entry replaces those from its index on: a new leader had others.
    fn add_entry(&mut self, entry: WalEntry) -> Result<(), String> {
        let entries = &mut self.tail.entries;
        let keep = entries.partition_point(|known| known.index < entry.index);
        entries.truncate(keep);
        if entry.index <= self.after {
            return Ok(());
        }
        if let Some(last) = entries.last()
            && last.index + 1 != entry.index
        {
            return Err(format!("entry {} follows entry {}", entry.index, last.index));
        }
        entries.push(entry);
        Ok(())
    }
}

impl<'a> WalRecord<'a> {
    fn decode(message: &'a [u8]) -> Option<Self> {
        let mut record = Self { kind: 0, checksum: 0, data: &[] };
        for field in ProtobufFields::new(message) {
            let ProtobufField { number, value } = field?;
            match number {
                1 => record.kind = value.number(),
                2 => record.checksum = value.number() as u32,
                3 => record.data = value.bytes(),
                _ => return None,
            }
        }
        Some(record)
    }
}

impl WalEntry {
    fn decode(message: &[u8]) -> Result<Self, String> {
        let mut entry = Self { kind: 0, term: 0, index: 0, data: Bytes::new() };
        for field in ProtobufFields::new(message) {
            let ProtobufField { number, value } = field.ok_or("an entry cannot be decoded")?;
            match number {
                1 => entry.kind = value.number(),
                2 => entry.term = value.number(),
                3 => entry.index = value.number(),
                4 => entry.data = Bytes::copy_from_slice(value.bytes()),
                _ => {}
            }
        }
        Ok(entry)
    }
}

/// The values of these fields, which are numbers.
fn numbers<const N: usize>(message: &[u8], wanted: [u64; N]) -> Result<[u64; N], String> {
    let mut found = [0; N];
    for field in ProtobufFields::new(message) {
        let field = field.ok_or("a record cannot be decoded")?;
        for (wanted, found) in wanted.iter().zip(&mut found) {
            if *wanted == field.number {
                *found = field.value.number();
            }
        }
    }
    Ok(found)
}

/// Whether one of the sectors of a record was never written: a crash may have written some of
/// them. As etcd, this looks at whole sectors within the record, and at its first and last part.
fn is_torn(record: &[u8], offset: u64) -> bool {
    let first = (SECTOR_BYTES - offset % SECTOR_BYTES) as usize;
    let (first, rest) = record.split_at_checked(first).unwrap_or((record, &[]));
    let sectors = [first].into_iter().chain(rest.chunks(SECTOR_BYTES as usize));
    sectors.filter(|part| !part.is_empty()).any(|part| part.iter().all(|byte| *byte == 0))
}

/// Fills the buffer as far as the file goes.
fn read_up_to(file: &mut impl Read, into: &mut [u8]) -> Result<usize, EtcdFileError> {
    let mut filled = 0;
    while let Some(rest) = into.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read(rest) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(filled)
}

const METADATA: u64 = 1;
const ENTRY: u64 = 2;
const HARD_STATE: u64 = 3;
const CHECKSUM: u64 = 4;
const SNAPSHOT: u64 = 5;

const SECTOR_BYTES: u64 = 512;
/// etcd's own limit is the size of the file.
const RECORD_BYTES_MAX: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protobuf::{put_message, put_number};

    /// Writes a log as etcd does.
    #[derive(Default)]
    struct TestLog {
        bytes: Vec<u8>,
        checksum: u32,
    }

    impl TestLog {
        fn record(&mut self, kind: u64, data: &[u8]) {
            let mut message = Vec::new();
            put_number(&mut message, 1, kind);
            if kind != CHECKSUM {
                self.checksum = crc32c::crc32c_append(self.checksum, data);
            }
            put_number(&mut message, 2, self.checksum.into());
            if kind != CHECKSUM {
                put_message(&mut message, 3, data);
            }
            let padding = message.len().next_multiple_of(8) - message.len();
            let mut length = message.len() as u64;
            if padding > 0 {
                length |= (0x80 | padding as u64) << 56;
            }
            self.bytes.extend(length.to_le_bytes());
            self.bytes.extend(message);
            self.bytes.resize(self.bytes.len() + padding, 0);
        }

        fn entry(&mut self, term: u64, index: u64, data: &[u8]) {
            let mut entry = Vec::new();
            put_number(&mut entry, 2, term);
            put_number(&mut entry, 3, index);
            put_message(&mut entry, 4, data);
            self.record(ENTRY, &entry);
        }

        fn committed(&mut self, index: u64) {
            let mut state = Vec::new();
            put_number(&mut state, 1, 2);
            put_number(&mut state, 3, index);
            self.record(HARD_STATE, &state);
        }
    }

    fn sample() -> TestLog {
        let mut log = TestLog::default();
        log.record(CHECKSUM, &[]);
        log.record(METADATA, &[8, 7, 16, 9]);
        log.record(SNAPSHOT, &[]);
        for index in 1..=5 {
            log.entry(1, index, format!("entry {index}").as_bytes());
        }
        log.committed(4);
        log
    }

    fn read(bytes: &[u8], after: u64) -> Result<WalTail, EtcdFileError> {
        let mut reader = WalReader::new(after);
        reader.read("0.wal", bytes, true)?;
        Ok(reader.finish())
    }

    #[test]
    fn entries_behind_an_index_are_read_and_replaced_by_later_ones() {
        let mut log = sample();
        log.entry(2, 4, b"other");
        let mut preallocated = log.bytes.clone();
        preallocated.resize(1 << 16, 0);
        for bytes in [&log.bytes, &preallocated] {
            let tail = read(bytes, 2).unwrap();
            assert_eq!((tail.member_id, tail.cluster_id, tail.committed), (7, 9, 4));
            let entries: Vec<_> = tail.entries.iter().map(|it| (it.index, it.term)).collect();
            assert_eq!(entries, [(3, 1), (4, 2)]);
            assert_eq!(tail.entries[1].data, "other");
            assert_eq!(tail.torn_at, None);
        }
    }

    #[test]
    fn files_continue_the_checksum_and_only_the_last_may_be_torn() {
        let log = sample();
        let mut next = TestLog { bytes: Vec::new(), checksum: log.checksum };
        next.record(CHECKSUM, &[]);
        next.record(METADATA, &[8, 7, 16, 9]);
        next.entry(1, 6, b"in the second file");
        next.committed(6);
        let both = |first: &[u8], second: &[u8]| {
            let mut reader = WalReader::new(0);
            reader.read("0.wal", first, false)?;
            reader.read("1.wal", second, true)?;
            Ok::<_, EtcdFileError>(reader.finish())
        };
        let tail = both(&log.bytes, &next.bytes).unwrap();
        assert_eq!((tail.entries.len(), tail.committed), (6, 6));
        // The first file that is read starts anywhere.
        assert_eq!(read(&next.bytes, 0).unwrap().entries[0].index, 6);
        let cut = &log.bytes[..log.bytes.len() - 9];
        let error = both(cut, &next.bytes).unwrap_err().to_string();
        assert!(error.contains("0.wal, offset ") && error.contains("cut off"), "{error}");
        let other = TestLog { bytes: Vec::new(), checksum: 77 };
        let mut foreign = other;
        foreign.record(CHECKSUM, &[]);
        assert!(both(&log.bytes, &foreign.bytes).is_err());
    }

    #[test]
    fn a_torn_record_ends_the_log_and_any_other_damage_is_an_error() {
        let mut log = sample();
        let start = log.bytes.len();
        log.entry(1, 6, &[7; 2_000]);
        for length in [start + 1, start + 8, start + 600, log.bytes.len() - 1] {
            let tail = read(&log.bytes[..length], 0).unwrap();
            assert_eq!(tail.entries.len(), 5, "cut to {length}");
            let torn = DamagePlace::Log { file: "0.wal".into(), offset: start as u64 };
            assert_eq!(tail.torn_at, Some(torn));
        }
        // One sector of it was not written.
        let mut torn = log.bytes.clone();
        torn[1_024..1_536].fill(0);
        assert_eq!(read(&torn, 0).unwrap().entries.len(), 5);
        for position in [start + 40, 30, 112] {
            let mut damaged = log.bytes.clone();
            damaged[position] ^= 1;
            let error = read(&damaged, 0).unwrap_err().to_string();
            assert!(error.contains("0.wal, offset "), "{position}: {error}");
        }
    }

    #[test]
    fn a_gap_is_an_error() {
        let mut log = sample();
        log.entry(1, 9, b"");
        let error = read(&log.bytes, 0).unwrap_err().to_string();
        assert!(error.contains("entry 9 follows entry 5"), "{error}");
    }
}
