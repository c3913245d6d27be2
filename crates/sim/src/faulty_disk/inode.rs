//! One file: the content that a process sees, and what survives a crash.

use std::io;
use std::sync::Arc;

use super::SECTOR_BYTES;

#[derive(Clone, Debug)]
pub(super) struct Inode {
    open: Arc<()>,
    /// The content that a process sees.
    bytes: Vec<u8>,
    /// The previous version of a sector for each write since the last sync, oldest first.
    undo: Vec<SectorVersion>,
    /// The same for the previous sync: returned by a stale read.
    stale: Vec<SectorVersion>,
    /// The durable versions of sectors that differ in memory and that no sync will write.
    unsyncable: Vec<SectorVersion>,
    /// The durable length, if it differs.
    durable_len: Option<usize>,
    /// The bytes removed from the end since the last sync.
    cut: Vec<u8>,
}

#[derive(Clone, Debug)]
struct SectorVersion {
    sector: usize,
    bytes: [u8; SECTOR_BYTES],
}

impl Inode {
    /// A new file of zeros. Nothing of it is durable yet, not even its length.
    pub(super) fn new(bytes: u64) -> Self {
        let durable_len = (bytes > 0).then_some(0);
        Self { durable_len, ..Self::durable(vec![0; bytes as usize]) }
    }

    pub(super) fn durable(bytes: Vec<u8>) -> Self {
        Self {
            open: Arc::new(()),
            bytes,
            undo: Vec::new(),
            stale: Vec::new(),
            unsyncable: Vec::new(),
            durable_len: None,
            cut: Vec::new(),
        }
    }

    pub(super) fn opened(&self) -> Arc<()> {
        Arc::clone(&self.open)
    }

    /// Whether a process has it open.
    pub(super) fn is_open(&self) -> bool {
        Arc::strong_count(&self.open) > 1
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let bytes = start.and_then(|start| self.bytes.get(start..start.checked_add(into.len())?));
        into.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    /// Overwrites the result of a read with the previous versions of the sectors.
    pub(super) fn read_stale(&self, offset: u64, into: &mut [u8]) {
        for version in self.stale.iter().chain(&self.undo) {
            let start = version.sector * SECTOR_BYTES;
            for (index, byte) in version.bytes.iter().enumerate() {
                let target = (start + index).checked_sub(offset as usize);
                if let Some(target) = target.and_then(|target| into.get_mut(target)) {
                    *target = *byte;
                }
            }
        }
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let start = offset as usize;
        let end = start + bytes.len();
        self.record_cut();
        for sector in start / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES) {
            self.record_version(sector);
        }
        if end > self.bytes.len() {
            self.durable_len.get_or_insert(self.bytes.len());
            self.bytes.resize(end, 0);
        }
        self.bytes[start..end].copy_from_slice(bytes);
    }

    pub(super) fn set_len(&mut self, len: u64) {
        let len = len as usize;
        if len == self.bytes.len() {
            return;
        }
        self.record_cut();
        self.durable_len.get_or_insert(self.bytes.len());
        if len < self.bytes.len() {
            self.cut = self.bytes.split_off(len);
        } else {
            self.bytes.resize(len, 0);
        }
    }

    /// Before the file grows over removed bytes: records them as previous versions.
    fn record_cut(&mut self) {
        if self.cut.is_empty() {
            return;
        }
        let cut_at = self.bytes.len();
        let cut = std::mem::take(&mut self.cut);
        let mut whole = self.bytes.clone();
        whole.extend_from_slice(&cut);
        for sector in cut_at / SECTOR_BYTES..whole.len().div_ceil(SECTOR_BYTES) {
            self.undo.push(SectorVersion { sector, bytes: sector_of(&whole, sector) });
        }
    }

    fn record_version(&mut self, sector: usize) {
        let unsyncable = self.unsyncable.iter().position(|version| version.sector == sector);
        let version = match unsyncable {
            Some(position) => self.unsyncable.swap_remove(position),
            None => SectorVersion { sector, bytes: sector_of(&self.bytes, sector) },
        };
        self.undo.push(version);
    }

    pub(super) fn sync(&mut self) {
        std::mem::swap(&mut self.stale, &mut self.undo);
        self.undo.clear();
        self.durable_len = None;
        self.cut.clear();
    }

    /// A failed sync: memory returns to the durable state.
    pub(super) fn drop_dirty(&mut self) {
        self.choose(|_| 0);
    }

    /// A failed sync: memory keeps its content, but it is no longer marked dirty.
    pub(super) fn forget_dirty(&mut self) {
        for version in std::mem::take(&mut self.undo) {
            if self.unsyncable.iter().all(|known| known.sector != version.sector) {
                self.unsyncable.push(version);
            }
        }
    }

    /// Applies a crash. For each part with several possible results, `choose` gets the
    /// number of options and returns one; the first is the durable state at the last
    /// sync, the last is the state in memory.
    pub(super) fn choose(&mut self, mut choose: impl FnMut(u32) -> u32) {
        let lost = std::mem::take(&mut self.unsyncable);
        self.restore(lost.iter());
        let mut undo = std::mem::take(&mut self.undo);
        undo.sort_by_key(|version| version.sector);
        for versions in undo.chunk_by(|one, other| one.sector == other.sector) {
            let chosen = choose(versions.len() as u32 + 1) as usize;
            self.restore(versions.get(chosen).into_iter());
        }
        if let Some(len) = self.durable_len.take()
            && choose(2) == 0
        {
            let cut = std::mem::take(&mut self.cut);
            self.bytes.extend_from_slice(&cut);
            self.bytes.resize(len, 0);
        }
        self.cut.clear();
        self.stale.clear();
    }

    fn restore<'a>(&mut self, versions: impl Iterator<Item = &'a SectorVersion>) {
        for version in versions {
            let start = (version.sector * SECTOR_BYTES).min(self.bytes.len());
            let end = (start + SECTOR_BYTES).min(self.bytes.len());
            self.bytes[start..end].copy_from_slice(&version.bytes[..end - start]);
        }
    }

    pub(super) fn damage(&mut self, damage: impl FnOnce(&mut Vec<u8>)) {
        self.sync();
        damage(&mut self.bytes);
    }
}

/// A whole sector, padded with zeros after the end of the file.
fn sector_of(bytes: &[u8], sector: usize) -> [u8; SECTOR_BYTES] {
    let mut whole = [0; SECTOR_BYTES];
    let start = (sector * SECTOR_BYTES).min(bytes.len());
    let part = &bytes[start..bytes.len().min(start + SECTOR_BYTES)];
    whole[..part.len()].copy_from_slice(part);
    whole
}
