//! Corruption of single parts of the disk: it is detected, or it is harmless.
//!
//! A store with every kind of record is closed gracefully. Then each byte of each file
//! is changed, regions are zeroed, swapped and duplicated, files are truncated, removed
//! and replaced: one change at a time. A store that opens afterwards must hold exactly
//! the original data; otherwise it must refuse to open.

use std::collections::BTreeMap;
use std::fmt;

use quorate_storage::{OpenError, Store};

use super::StorageViolation;
use super::member::{ActionResult, StoredMember};
use super::model::{DiskModel, EXPECTED, IDENTITY, StoreAction, config, first_boot};
use crate::faulty_disk::{Fault, FaultyDisk};

/// The results of all damage cases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DamageReport {
    /// Refused as corrupt, with the position of the damage.
    pub detected: u64,
    /// Refused for another reason: a damaged version or file.
    pub refused: u64,
    /// Opened, with all data intact.
    pub harmless: u64,
    /// Only in [`explore_unmarked`]: the last batch was treated as a torn write.
    pub treated_as_torn: u64,
}

impl DamageReport {
    pub fn cases(&self) -> u64 {
        self.detected + self.refused + self.harmless + self.treated_as_torn
    }
}

impl fmt::Display for DamageReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} cases: {} detected with their position, {} refused otherwise, {} harmless, \
             {} treated as a torn write",
            self.cases(),
            self.detected,
            self.refused,
            self.harmless,
            self.treated_as_torn
        )
    }
}

/// Damages a disk on which everything is synced, as its sync mark says.
pub fn explore() -> Result<DamageReport, StorageViolation> {
    let DamageTarget { disk, model, .. } = DamageTarget::new()?;
    let mut runner =
        DamageRunner { report: DamageReport::default(), disk, model, before_last: None };
    runner.run_all()?;
    Ok(runner.report)
}

/// Small damage to a disk whose sync mark is lost. Records after the last one that proves
/// a sync may not have been durable: exactly those may be lost. Larger damage, which
/// destroys the proving records too, can hide more and is not tried.
pub fn explore_unmarked() -> Result<DamageReport, StorageViolation> {
    let DamageTarget { mut disk, model, before_last } = DamageTarget::new()?;
    disk.damage("synced", |bytes| bytes.fill(0));
    let before_last = Some(before_last);
    let mut runner = DamageRunner { report: DamageReport::default(), disk, model, before_last };
    runner.run_small()?;
    Ok(runner.report)
}

struct DamageTarget {
    disk: FaultyDisk,
    model: DiskModel,
    /// The model before the last sync.
    before_last: DiskModel,
}

/// Small, so that a few saves fill a segment.
const SEGMENT_BYTES: u64 = 3 << 10;

/// Produces several segments, a snapshot with entries before and after it, membership
/// changes, and records with and without a hard state.
const ACTIONS: [StoreAction; 18] = [
    StoreAction::Append,
    StoreAction::Sync,
    StoreAction::AppendLarge,
    StoreAction::Sync,
    StoreAction::Append,
    StoreAction::Capture,
    StoreAction::Append,
    StoreAction::AppendLarge,
    StoreAction::Sync,
    StoreAction::Replace,
    StoreAction::Restart,
    StoreAction::Append,
    StoreAction::Sync,
    StoreAction::Vote,
    StoreAction::Append,
    StoreAction::Sync,
    StoreAction::Append,
    StoreAction::Append,
];

impl DamageTarget {
    fn new() -> Result<Self, StorageViolation> {
        Self::build().map_err(|message| StorageViolation { actions: ACTIONS.to_vec(), message })
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
            unread_snapshots: Vec::new(),
        };
        for action in ACTIONS {
            let ActionResult::Done(done) = member.run(action)? else {
                unreachable!("no stop is configured");
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

struct DamageRunner {
    report: DamageReport,
    disk: FaultyDisk,
    model: DiskModel,
    /// The state without the last batch, if losing that batch is allowed.
    before_last: Option<DiskModel>,
}

impl DamageRunner {
    fn run_all(&mut self) -> Result<(), StorageViolation> {
        let files = self.files();
        for (name, bytes) in &files {
            self.change_bytes(name, bytes)?;
            self.change_regions(name, bytes.len(), &[8, 32, 512, 4096])?;
            self.swap_sectors(name, bytes.len())?;
            self.truncate(name, bytes.len())?;
            self.replace_file(name, &files)?;
        }
        self.misread()
    }

    /// The disk is undamaged, but one read fails or returns wrong data.
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

    fn run_small(&mut self) -> Result<(), StorageViolation> {
        let files = self.files();
        for (name, bytes) in &files {
            self.change_bytes(name, bytes)?;
            self.change_regions(name, bytes.len(), &[8, 32])?;
        }
        Ok(())
    }

    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let files = self.disk.files();
        files.map(|(name, bytes)| (name.to_string(), bytes.to_vec())).collect()
    }

    /// Flips every bit of the written data, and one mask per byte where all bytes are zero.
    fn change_bytes(&mut self, name: &str, bytes: &[u8]) -> Result<(), StorageViolation> {
        let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        for offset in 0..bytes.len() {
            let zeros =
                bytes.len() > 4096 && bytes[offset..].iter().take(512).all(|byte| *byte == 0);
            let masks: &[u8] = if offset >= written || zeros {
                &[0xff]
            } else {
                &[1, 2, 4, 8, 16, 32, 64, 128, 255]
            };
            for mask in masks {
                self.damage(name, format!("byte {offset} ^ {mask:02x}"), |bytes| {
                    bytes[offset] ^= mask
                })?;
            }
        }
        Ok(())
    }

    fn change_regions(
        &mut self,
        name: &str,
        len: usize,
        sizes: &[usize],
    ) -> Result<(), StorageViolation> {
        for size in sizes {
            for start in (0..len).step_by(*size) {
                let end = (start + size).min(len);
                self.damage(name, format!("{start}..{end} zeroed"), |bytes| {
                    bytes[start..end].fill(0)
                })?;
                self.damage(name, format!("{start}..{end} ones"), |bytes| {
                    bytes[start..end].fill(0xff)
                })?;
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
                    self.damage(name, format!("{one} copied to {other}"), |bytes| {
                        bytes.copy_within(one..one + size, other);
                    })?;
                }
            }
        }
        Ok(())
    }

    fn truncate(&mut self, name: &str, len: usize) -> Result<(), StorageViolation> {
        for end in (0..len).step_by(16) {
            self.damage(name, format!("truncated at {end}"), |bytes| bytes.truncate(end))?;
        }
        self.damage(name, "extended".to_string(), |bytes| bytes.extend([0x5a; 700]))
    }

    fn replace_file(
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
        description: String,
        damage: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), StorageViolation> {
        let mut disk = self.disk.clone();
        disk.damage(name, damage);
        self.open(disk, &format!("{name}: {description}"))
    }

    fn open(&mut self, disk: FaultyDisk, description: &str) -> Result<(), StorageViolation> {
        match Store::open(disk, EXPECTED, &config(SEGMENT_BYTES)) {
            Err(OpenError::Corrupt(_)) => self.report.detected += 1,
            Err(_) => self.report.refused += 1,
            Ok(mut opened) => match self.model.clone().opened(&mut opened) {
                Ok(()) => self.report.harmless += 1,
                // Detected when the snapshot or an old entry was read.
                Err(_) if opened.store.failed().is_some() => self.report.detected += 1,
                Err(why) => {
                    let torn = self.before_last.clone();
                    let torn = torn.is_some_and(|mut model| model.opened(&mut opened).is_ok());
                    if !torn {
                        let message = format!("{description}: {why}");
                        return Err(StorageViolation { actions: Vec::new(), message });
                    }
                    self.report.treated_as_torn += 1;
                }
            },
        }
        Ok(())
    }
}
