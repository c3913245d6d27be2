//! Damage to what is on disk, piece by piece: noticed, or harmless.
//!
//! A store that holds a bit of everything is closed in good order. Then each byte of
//! each file is altered, regions are zeroed, swapped and doubled, files are cut,
//! removed and exchanged: one damage at a time. Whatever opens afterwards has to hold
//! exactly what was there; everything else has to be refused.

use std::collections::BTreeMap;
use std::fmt;

use quorate_storage::{OpenError, Store};

use super::StorageViolation;
use super::member::{Ended, StoredMember};
use super::model::{DiskModel, EXPECTED, IDENTITY, Work, config, first_boot};
use crate::faulty_disk::{Fault, FaultyDisk};

/// What came of all the damage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DamageReport {
    /// Refused as corrupt, with its place.
    pub noticed: u64,
    /// Refused for another reason: a damaged version or file.
    pub refused: u64,
    /// Opened, with everything that was ever there.
    pub harmless: u64,
    /// Only in [`explore_unmarked`]: the last batch was taken for torn.
    pub taken_for_torn: u64,
}

impl DamageReport {
    pub fn cases(&self) -> u64 {
        self.noticed + self.refused + self.harmless + self.taken_for_torn
    }
}

impl fmt::Display for DamageReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} cases: {} noticed with their place, {} refused otherwise, {} harmless, \
             {} taken for a torn write",
            self.cases(),
            self.noticed,
            self.refused,
            self.harmless,
            self.taken_for_torn
        )
    }
}

/// Everything is synced, and the mark says so.
pub fn explore() -> Result<DamageReport, StorageViolation> {
    let Victim { disk, model, .. } = Victim::new()?;
    let mut breaker = Breaker { report: DamageReport::default(), disk, model, before_last: None };
    breaker.all()?;
    Ok(breaker.report)
}

/// Small damage to a disk whose mark is lost: of the records after the last one that
/// tells of a sync nobody knows whether they were durable. Exactly those may be lost.
/// Damage so large that it takes those who tell with it can hide more.
pub fn explore_unmarked() -> Result<DamageReport, StorageViolation> {
    let Victim { mut disk, model, before_last } = Victim::new()?;
    disk.damage("synced", |bytes| bytes.fill(0));
    let before_last = Some(before_last);
    let mut breaker = Breaker { report: DamageReport::default(), disk, model, before_last };
    breaker.small()?;
    Ok(breaker.report)
}

struct Victim {
    disk: FaultyDisk,
    model: DiskModel,
    /// As it was before the last sync.
    before_last: DiskModel,
}

/// A few saves fill a segment.
const SEGMENT_BYTES: u64 = 3 << 10;

/// Several segments, a snapshot with entries before and after it, changes of
/// membership, records with and without a hard state.
const WORKS: [Work; 18] = [
    Work::Append,
    Work::Sync,
    Work::AppendLarge,
    Work::Sync,
    Work::Append,
    Work::Capture,
    Work::Append,
    Work::AppendLarge,
    Work::Sync,
    Work::Replace,
    Work::Restart,
    Work::Append,
    Work::Sync,
    Work::Vote,
    Work::Append,
    Work::Sync,
    Work::Append,
    Work::Append,
];

impl Victim {
    fn new() -> Result<Self, StorageViolation> {
        Self::build().map_err(|what| StorageViolation { works: WORKS.to_vec(), what })
    }

    fn build() -> Result<Self, String> {
        let mut disk = FaultyDisk::new();
        Store::create(&mut disk, IDENTITY, &first_boot(), &config(SEGMENT_BYTES))
            .map_err(|why| why.to_string())?;
        let mut model = DiskModel::new(&first_boot());
        let mut opened =
            Store::open(disk, EXPECTED, &config(SEGMENT_BYTES)).map_err(|why| why.to_string())?;
        model.opened(&mut opened)?;
        let mut member = StoredMember {
            store: opened.store,
            model,
            config: config(SEGMENT_BYTES),
            unmade: Vec::new(),
        };
        for work in WORKS {
            let Ended::Done(done) = member.play(work)? else {
                unreachable!("nothing stops it");
            };
            member = *done;
        }
        let StoredMember { store, mut model, .. } = member;
        let before_last = model.clone();
        let disk = store.close().map_err(|why| why.to_string())?;
        model.synced();
        Ok(Self { disk, model, before_last })
    }
}

struct Breaker {
    report: DamageReport,
    disk: FaultyDisk,
    model: DiskModel,
    /// What may be left of the model's last batch.
    before_last: Option<DiskModel>,
}

impl Breaker {
    fn all(&mut self) -> Result<(), StorageViolation> {
        let files = self.files();
        for (name, bytes) in &files {
            self.alter_bytes(name, bytes)?;
            self.alter_regions(name, bytes.len(), &[8, 32, 512, 4096])?;
            self.swap_sectors(name, bytes.len())?;
            self.cut(name, bytes.len())?;
            self.replace_by(name, &files)?;
        }
        self.misread()
    }

    /// The disk is as it was, but one read of it goes wrong.
    fn misread(&mut self) -> Result<(), StorageViolation> {
        for fault in [Fault::ReadError, Fault::FlippedRead, Fault::StaleRead] {
            for skip in 0.. {
                let mut disk = self.disk.clone();
                disk.inject(fault, skip);
                let opened = Store::open(&mut disk, EXPECTED, &config(SEGMENT_BYTES)).map(|_| ());
                if opened.is_ok() && !disk.has_struck() {
                    break;
                }
                let mut disk = self.disk.clone();
                disk.inject(fault, skip);
                self.open(disk, &format!("{fault:?} after {skip} reads"))?;
            }
        }
        Ok(())
    }

    fn small(&mut self) -> Result<(), StorageViolation> {
        let files = self.files();
        for (name, bytes) in &files {
            self.alter_bytes(name, bytes)?;
            self.alter_regions(name, bytes.len(), &[8, 32])?;
        }
        Ok(())
    }

    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let files = self.disk.files();
        files.map(|(name, bytes)| (name.to_string(), bytes.to_vec())).collect()
    }

    /// Every bit of what was written; where there are only zeros, some.
    fn alter_bytes(&mut self, name: &str, bytes: &[u8]) -> Result<(), StorageViolation> {
        let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        for at in 0..bytes.len() {
            let zeros = bytes.len() > 4096 && bytes[at..].iter().take(512).all(|byte| *byte == 0);
            let masks: &[u8] =
                if at >= written || zeros { &[0xff] } else { &[1, 2, 4, 8, 16, 32, 64, 128, 255] };
            for mask in masks {
                self.damage(name, format!("byte {at} ^ {mask:02x}"), |bytes| bytes[at] ^= mask)?;
            }
        }
        Ok(())
    }

    fn alter_regions(
        &mut self,
        name: &str,
        len: usize,
        sizes: &[usize],
    ) -> Result<(), StorageViolation> {
        for size in sizes {
            for at in (0..len).step_by(*size) {
                let end = (at + size).min(len);
                self.damage(name, format!("{at}..{end} zeroed"), |bytes| bytes[at..end].fill(0))?;
                self.damage(name, format!("{at}..{end} ones"), |bytes| bytes[at..end].fill(0xff))?;
            }
        }
        Ok(())
    }

    fn swap_sectors(&mut self, name: &str, len: usize) -> Result<(), StorageViolation> {
        for size in [64, 512] {
            for one in (0..len - len % size).step_by(size) {
                for other in (one + size..len + 1 - size).step_by(size * 3) {
                    self.damage(name, format!("{one} and {other} swapped"), |bytes| {
                        let (head, tail) = bytes.split_at_mut(other);
                        head[one..one + size].swap_with_slice(&mut tail[..size]);
                    })?;
                    self.damage(name, format!("{one} doubled at {other}"), |bytes| {
                        bytes.copy_within(one..one + size, other);
                    })?;
                }
            }
        }
        Ok(())
    }

    fn cut(&mut self, name: &str, len: usize) -> Result<(), StorageViolation> {
        for end in (0..len).step_by(16) {
            self.damage(name, format!("cut at {end}"), |bytes| bytes.truncate(end))?;
        }
        self.damage(name, "lengthened".to_string(), |bytes| bytes.extend([0x5a; 700]))
    }

    fn replace_by(
        &mut self,
        name: &str,
        files: &BTreeMap<String, Vec<u8>>,
    ) -> Result<(), StorageViolation> {
        let mut disk = self.disk.clone();
        disk.replace(name, None);
        self.open(disk, &format!("{name} removed"))?;
        for (other, bytes) in files.iter().filter(|(other, _)| *other != name) {
            let mut disk = self.disk.clone();
            disk.replace(name, Some(bytes.clone()));
            self.open(disk, &format!("{name} replaced by {other}"))?;
        }
        Ok(())
    }

    fn damage(
        &mut self,
        name: &str,
        what: String,
        damage: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), StorageViolation> {
        let mut disk = self.disk.clone();
        disk.damage(name, damage);
        self.open(disk, &format!("{name}: {what}"))
    }

    fn open(&mut self, disk: FaultyDisk, what: &str) -> Result<(), StorageViolation> {
        match Store::open(disk, EXPECTED, &config(SEGMENT_BYTES)) {
            Err(OpenError::Corrupt(_)) => self.report.noticed += 1,
            Err(_) => self.report.refused += 1,
            Ok(mut opened) => match self.model.clone().opened(&mut opened) {
                Ok(()) => self.report.harmless += 1,
                // Found when the snapshot or an old entry was read.
                Err(_) if opened.store.failed().is_some() => self.report.noticed += 1,
                Err(why) => {
                    let torn = self.before_last.clone();
                    let torn = torn.is_some_and(|mut model| model.opened(&mut opened).is_ok());
                    if !torn {
                        let what = format!("{what}: {why}");
                        return Err(StorageViolation { works: Vec::new(), what });
                    }
                    self.report.taken_for_torn += 1;
                }
            },
        }
        Ok(())
    }
}
