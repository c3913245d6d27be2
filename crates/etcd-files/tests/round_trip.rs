//! What the writer writes, the reader reads; and no damage to it makes the reader panic.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::Cursor;
use std::ops::Bound;

use bytes::Bytes;
use quorate_etcd_files::{
    BboltFile, BboltRow, BboltSource, BboltWriteError, BboltWriter, EtcdFileError, fuzzing,
};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Buckets in memory.
struct TestBuckets {
    names: Vec<&'static str>,
    rows: BTreeMap<&'static str, Rows>,
    /// How many rows a read returns.
    at_once: usize,
}

impl BboltSource for &TestBuckets {
    type Error = Infallible;

    fn buckets(&self) -> &[&'static str] {
        &self.names
    }

    fn rows(&self, bucket: &str, after: Option<&[u8]>) -> Result<Vec<BboltRow>, Infallible> {
        let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.to_vec()));
        let next = self.rows[bucket].range((from, Bound::Unbounded));
        let row = |(key, value): (&Vec<u8>, &Vec<u8>)| {
            (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value))
        };
        Ok(next.take(self.at_once).map(row).collect())
    }
}

impl TestBuckets {
    fn new(buckets: impl IntoIterator<Item = (&'static str, Rows)>, at_once: usize) -> Self {
        let rows: BTreeMap<_, _> = buckets.into_iter().collect();
        Self { names: rows.keys().copied().collect(), rows, at_once }
    }

    fn write(&self) -> Result<Vec<u8>, BboltWriteError<Infallible>> {
        let mut writer = BboltWriter::new(self)?;
        let mut file = Vec::new();
        while let Some(piece) = writer.next_piece()? {
            assert_eq!(piece.len() % 4096, 0);
            file.extend_from_slice(&piece);
        }
        assert_eq!(file.len() as u64, writer.bytes());
        Ok(file)
    }
}

fn read(bytes: &[u8]) -> Result<BTreeMap<Vec<u8>, Rows>, EtcdFileError> {
    let mut file = BboltFile::open(Cursor::new(bytes), bytes.len() as u64)?;
    let mut found = BTreeMap::new();
    for bucket in file.buckets()? {
        let mut rows = Rows::new();
        file.scan(&bucket, &mut |key, value| {
            rows.insert(key.to_vec(), value.to_vec());
            Ok::<_, EtcdFileError>(())
        })?;
        found.insert(bucket.name, rows);
    }
    Ok(found)
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Mostly small rows, some of several pages.
    fn rows(&mut self) -> Rows {
        let count = match self.below(5) {
            0 => 0,
            1 => self.below(4),
            2 => self.below(400),
            _ => self.below(60),
        };
        let row = |random: &mut Self| {
            let key_bytes = if random.below(20) == 0 { 6_000 } else { 24 };
            let key = (0..1 + random.below(key_bytes)).map(|_| random.next() as u8).collect();
            let value_bytes = if random.below(30) == 0 { 20_000 } else { 200 };
            let value = vec![random.next() as u8; random.below(value_bytes) as usize];
            (key, value)
        };
        (0..count).map(|_| row(self)).collect()
    }
}

#[test]
fn what_is_written_can_be_read() {
    let mut random = Random(7);
    for round in 0..300 {
        let names = ["alarm", "auth", "key", "lease", "meta"];
        let wanted = 1 + random.below(names.len() as u64) as usize;
        let buckets = names.into_iter().take(wanted).map(|name| (name, random.rows()));
        let buckets = TestBuckets::new(buckets.collect::<Vec<_>>(), 1 + round % 17);
        let found = read(&buckets.write().unwrap()).unwrap();
        let expected =
            buckets.rows.iter().map(|(name, rows)| (name.as_bytes().to_vec(), rows.clone()));
        assert_eq!(found, expected.collect::<BTreeMap<_, _>>(), "round {round}");
    }
}

#[test]
fn a_large_bucket_has_several_levels() {
    let row = |number: u64| (number.to_be_bytes().to_vec(), vec![7; 100]);
    let buckets = TestBuckets::new([("key", (0..100_000).map(row).collect())], usize::MAX);
    let bytes = buckets.write().unwrap();
    assert_eq!(read(&bytes).unwrap()[&b"key"[..]], buckets.rows["key"]);
}

#[test]
fn rows_that_bbolt_cannot_hold_are_refused() {
    let row = (vec![1; 32_769], Vec::new());
    let error = TestBuckets::new([("key", [row].into())], 1).write().unwrap_err().to_string();
    assert!(error.contains("a row of \"key\" with a key of 32769"), "{error}");
}

#[test]
fn rows_that_change_between_the_reads_are_noticed() {
    struct Shrinking(std::cell::Cell<u64>);
    impl BboltSource for Shrinking {
        type Error = Infallible;
        fn buckets(&self) -> &[&'static str] {
            &["key"]
        }
        fn rows(&self, _: &str, after: Option<&[u8]>) -> Result<Vec<BboltRow>, Infallible> {
            let count = if after.is_some() { 0 } else { self.0.replace(self.0.get() / 2) };
            let row =
                |number: u64| (Bytes::copy_from_slice(&number.to_be_bytes()), vec![7; 500].into());
            Ok((0..count).map(row).collect())
        }
    }
    let mut writer = BboltWriter::new(Shrinking(std::cell::Cell::new(100))).unwrap();
    let failed = loop {
        match writer.next_piece() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the change was not noticed"),
            Err(error) => break error,
        }
    };
    assert!(matches!(failed, BboltWriteError::Changed));
}

#[test]
fn damage_is_refused_with_its_place_and_never_panics() {
    let row = |number: u64| (number.to_be_bytes().to_vec(), vec![7; 60]);
    let buckets = [("key", (0..500).map(row).collect()), ("meta", (0..3).map(row).collect())];
    let bytes = TestBuckets::new(buckets, usize::MAX).write().unwrap();
    let intact = read(&bytes).unwrap();
    let mut random = Random(11);
    let mut refused = 0;
    for _ in 0..4_000 {
        let mut damaged = bytes.clone();
        // Headers and elements of pages, mostly.
        let page = random.below(damaged.len() as u64 / 4096) as usize * 4096;
        let within = if random.below(4) == 0 { 4096 } else { 120 };
        let position = page + random.below(within) as usize;
        damaged[position] ^= 1 << random.below(8);
        match read(&damaged) {
            Ok(found) => {
                let rows: usize = found.values().map(BTreeMap::len).sum();
                assert!(rows <= 503, "rows appeared");
            }
            Err(EtcdFileError::Damaged { place, problem }) => {
                refused += 1;
                assert!(place.to_string().starts_with("page "), "{place}: {problem}");
            }
            Err(EtcdFileError::Truncated { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        fuzzing::read_database(&damaged);
    }
    assert!(refused > 1_000, "{refused} were refused");
    // Either meta page is enough.
    for meta in [20, 4096 + 20] {
        let mut damaged = bytes.clone();
        damaged[meta] ^= 1;
        assert_eq!(read(&damaged).unwrap(), intact);
    }
    for length in [0, 1, 16, 80, 4096, 8192, 12_288, bytes.len() - 4096, bytes.len() - 1] {
        let error = read(&bytes[..length]).unwrap_err().to_string();
        let expected = error.contains("truncated") || error == "not a database of etcd";
        assert!(expected, "truncated to {length}: {error}");
    }
    assert_eq!(read(&[0; 8192]).unwrap_err().to_string(), "not a database of etcd");
    let mut swapped = bytes.clone();
    for meta in [16, 4096 + 16] {
        swapped[meta..meta + 4].reverse();
    }
    assert!(matches!(read(&swapped), Err(EtcdFileError::OtherByteOrder)));
    let mut both = bytes;
    both[20] ^= 1;
    both[4096 + 20] ^= 1;
    let error = read(&both).unwrap_err().to_string();
    assert_eq!(error, "the file is damaged: page 0: neither meta page is valid");
}

/// A page that refers to itself or to a page of another branch, and elements that share their
/// bytes, would make a small file a large one.
#[test]
fn loops_and_shared_bytes_are_refused() {
    let row = |number: u64| (number.to_be_bytes().to_vec(), vec![7; 60]);
    let bytes =
        TestBuckets::new([("key", (0..500).map(row).collect())], usize::MAX).write().unwrap();
    let branch = bytes.len() - 4096;
    let own_page = (branch / 4096) as u64;
    for child in [own_page, 3, 0, 1, u64::MAX] {
        let mut looped = bytes.clone();
        looped[branch + 16 + 16 + 8..branch + 16 + 32].copy_from_slice(&child.to_le_bytes());
        let error = read(&looped).unwrap_err().to_string();
        let expected = error.contains("two other pages refer to it")
            || error.contains("the database has pages 2 to");
        assert!(expected, "child {child}: {error}");
    }
    let mut shared = bytes;
    // The second element of the first leaf points to the first key: 16 bytes earlier, since it
    // counts from the element, and one row less.
    let element = 3 * 4096 + 16 + 16;
    let position = u32::from_le_bytes(shared[element + 4..element + 8].try_into().unwrap());
    shared[element + 4..element + 8].copy_from_slice(&(position - 68).to_le_bytes());
    let error = read(&shared).unwrap_err().to_string();
    assert!(error.contains("page 3, element 1: key and value overlap others"), "{error}");
}
