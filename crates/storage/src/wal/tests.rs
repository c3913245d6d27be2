use std::sync::Arc;

use bytes::Bytes;
use quorate_core::{MemberId, Payload};

use super::record::{AppendedEntries, HEADER_BYTES, Record, RecordHeader, padded};
use super::*;
use crate::test_random::TestRandom;

const SEED: u32 = 0xfeed;

fn random_record(random: &mut TestRandom) -> (Vec<u8>, Record) {
    let mut term = 1 + random.below(5);
    let prev = EntryId::new(term, random.below(1000));
    let entries: Vec<Entry> = (0..random.below(6))
        .map(|offset| {
            term += random.below(2);
            let payload = if random.below(4) == 0 {
                Payload::Change(Arc::new(random.logged_change()))
            } else {
                Payload::Command(vec![offset as u8; random.below(100) as usize].into())
            };
            Entry { id: EntryId::new(term, prev.index + 1 + offset), payload }
        })
        .collect();
    let vote = random.flip().then(|| MemberId(1 + random.below(9)));
    let hard_state = HardState { term, vote, commit: random.below(1000) };
    let record = Record {
        hard_state: random.flip().then_some(hard_state),
        install: random.flip().then(|| EntryId::new(1, random.below(9))),
        entries: (!entries.is_empty()).then(|| AppendedEntries { prev, entries: entries.clone() }),
    };
    let contents = RecordContents {
        hard_state: record.hard_state,
        install: record.install,
        prev,
        entries: &entries.into(),
    };
    let mut bytes = Vec::new();
    assert!(contents.encode(SEED, 7, 6, &mut bytes));
    (bytes, record)
}

fn decode(bytes: &[u8], seed: u32) -> Option<Record> {
    let header = RecordHeader::decode(bytes.first_chunk()?, seed)?;
    let body = bytes.get(HEADER_BYTES..HEADER_BYTES + header.body_bytes as usize)?;
    header.matches(body, seed).then(|| header.decode_body(Bytes::copy_from_slice(body)).unwrap())
}

#[test]
fn records_round_trip() {
    let mut random = TestRandom::new(1);
    for _ in 0..2_000 {
        let (bytes, record) = random_record(&mut random);
        let header = RecordHeader::decode(bytes.first_chunk().unwrap(), SEED).unwrap();
        assert_eq!((header.sequence, header.synced), (7, 6));
        assert_eq!(header.record_bytes(), bytes.len() as u64);
        assert_eq!(bytes.len() as u64, padded(header.body_bytes as usize));
        assert_eq!(decode(&bytes, SEED), Some(record));
        assert_eq!(decode(&bytes, SEED + 1), None, "a record of another segment is refused");
    }
}

#[test]
fn every_bit_flip_is_detected() {
    let mut random = TestRandom::new(2);
    for _ in 0..20 {
        let (bytes, record) = random_record(&mut random);
        let header = RecordHeader::decode(bytes.first_chunk().unwrap(), SEED).unwrap();
        let end = HEADER_BYTES + header.body_bytes as usize;
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // Padding is not covered by the checksum.
            let expected = (bit / 8 >= end).then(|| record.clone());
            assert_eq!(decode(&damaged, SEED), expected, "bit {bit}");
        }
    }
}

#[test]
fn damaged_bodies_never_panic() {
    let mut random = TestRandom::new(3);
    let mut decoded = 0;
    for _ in 0..20_000 {
        let (mut bytes, _) = random_record(&mut random);
        let header = RecordHeader::decode(bytes.first_chunk().unwrap(), SEED).unwrap();
        let body = &mut bytes[HEADER_BYTES..HEADER_BYTES + header.body_bytes as usize];
        for _ in 0..random.below(4) {
            if !body.is_empty() {
                body[random.below(body.len() as u64) as usize] = random.below(256) as u8;
            }
        }
        decoded += u32::from(header.decode_body(Bytes::copy_from_slice(body)).is_ok());
    }
    assert!((5_000..20_000).contains(&decoded), "{decoded}");
}

#[test]
fn heads_round_trip_and_every_bit_flip_is_detected() {
    let head = SegmentHead {
        identity: StoreIdentity { cluster: 1, member: MemberId(2), incarnation: 3, joined_at: 4 },
        number: 4,
        boots: 5,
        bytes: 6,
        first_sequence: 7,
        previous: 3,
        previous_end: 9,
        start: SegmentStart {
            hard_state: HardState { term: 3, vote: Some(MemberId(2)), commit: 4 },
            floor: EntryId::new(1, 2),
            last: EntryId::new(3, 8),
        },
    };
    let bytes = head.encode();
    assert_eq!(bytes.len() as u64, HEAD_BYTES);
    assert_eq!(SegmentHead::decode(&bytes).unwrap().0, head);
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(SegmentHead::decode(&damaged).is_err(), "bit {bit}");
    }
    for end in 0..bytes.len() {
        assert!(SegmentHead::decode(&bytes[..end]).is_err(), "{end} bytes");
    }
}

/// Compares the index with a plain list of entries.
#[test]
fn index_agrees_with_a_list() {
    for seed in 0..200 {
        let mut random = TestRandom::new(seed);
        let mut index = LogIndex::default();
        let mut list: Vec<(EntryId, u64)> = Vec::new(); // Each entry with its segment.
        let (mut term, mut base) = (1, 0);
        for sequence in 1..60 {
            let segment = sequence / 7;
            let last = base + list.len() as u64;
            let keep =
                if random.below(4) == 0 { random.below(last - base + 1) } else { last - base };
            list.truncate(keep as usize);
            term += random.below(2);
            let prev = list.last().map_or(index.base(), |(id, _)| *id);
            let ids: Vec<EntryId> = (1..=1 + random.below(5))
                .map(|offset| EntryId::new(term, prev.index + offset))
                .collect();
            let position = RecordPosition { segment, offset: sequence * 512, sequence };
            index.append(prev, ids.iter().copied(), position, 512).unwrap();
            list.extend(ids.iter().map(|id| (*id, segment)));
            if random.below(10) == 0 {
                index.drop_before(segment);
                let gone = list.iter().take_while(|(_, held)| *held < segment).count();
                list.drain(..gone);
                base += gone as u64;
            }
            check_index(&index, &list, base);
        }
    }
}

fn check_index(index: &LogIndex, list: &[(EntryId, u64)], base: u64) {
    assert_eq!(index.base().index, base);
    for (id, segment) in list {
        assert_eq!(index.term(id.index), Some(id.term));
        let span = index.spans_from(id.index).next().unwrap();
        assert!(span.first <= id.index && id.index <= span.last);
        assert_eq!(span.position.segment, *segment);
    }
    let starts: Vec<EntryId> = list
        .iter()
        .enumerate()
        .filter(|(at, (id, _))| *at == 0 || list[at - 1].0.term != id.term)
        .map(|(_, (id, _))| *id)
        .collect();
    assert_eq!(index.terms(), starts);
}

#[test]
fn entries_that_are_not_contiguous_are_refused() {
    let position = RecordPosition { segment: 1, offset: 512, sequence: 1 };
    let mut index = LogIndex::new(EntryId::new(2, 5), EntryId::new(2, 5));
    let mut append = |prev: (u64, u64), first: (u64, u64)| {
        let id = EntryId::new(first.0, first.1);
        index.append(EntryId::new(prev.0, prev.1), [id].into_iter(), position, 8).is_ok()
    };
    assert!(!append((2, 6), (2, 7)), "a gap");
    assert!(!append((1, 5), (2, 6)), "another previous entry");
    assert!(!append((1, 4), (2, 5)), "below the floor");
    assert!(!append((2, 5), (2, 7)), "skips an index");
    assert!(!append((2, 5), (1, 6)), "an older term");
    assert!(append((2, 5), (2, 6)));
}
