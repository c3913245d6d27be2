//! One file: what a process sees of it, and what would be left of that.

use std::io;
use std::sync::Arc;

use super::SECTOR_BYTES;

#[derive(Clone, Debug)]
pub(super) struct Inode {
    open: Arc<()>,
    /// As a process sees it.
    bytes: Vec<u8>,
    /// Sectors as they were before each write since the last sync, oldest first.
    undo: Vec<Before>,
    /// The same, of the sync before: what a stale read finds.
    stale: Vec<Before>,
    /// Sectors that memory shows and no sync will ever write, as the disk has them.
    unseen: Vec<Before>,
    /// The length that the disk knows, where it differs.
    len_durable: Option<usize>,
    /// What was cut off the end since the last sync.
    cut: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Before {
    sector: usize,
    bytes: [u8; SECTOR_BYTES],
}

impl Inode {
    /// A new file of zeros. The disk knows nothing of it yet, not even its length.
    pub(super) fn new(bytes: u64) -> Self {
        let len_durable = (bytes > 0).then_some(0);
        Self { len_durable, ..Self::durable(vec![0; bytes as usize]) }
    }

    pub(super) fn durable(bytes: Vec<u8>) -> Self {
        Self {
            open: Arc::new(()),
            bytes,
            undo: Vec::new(),
            stale: Vec::new(),
            unseen: Vec::new(),
            len_durable: None,
            cut: Vec::new(),
        }
    }

    pub(super) fn opened(&self) -> Arc<()> {
        Arc::clone(&self.open)
    }

    /// Somebody holds it open.
    pub(super) fn is_open(&self) -> bool {
        Arc::strong_count(&self.open) > 1
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let found = usize::try_from(offset).ok();
        let found = found.and_then(|at| self.bytes.get(at..at.checked_add(into.len())?));
        let found = found.ok_or(io::ErrorKind::UnexpectedEof)?;
        into.copy_from_slice(found);
        Ok(())
    }

    /// The same read, but of sectors as they were before they were last written.
    pub(super) fn read_stale(&self, offset: u64, into: &mut [u8]) {
        for before in self.stale.iter().chain(&self.undo) {
            let start = before.sector * SECTOR_BYTES;
            for (at, byte) in before.bytes.iter().enumerate() {
                let place = (start + at).checked_sub(offset as usize);
                if let Some(seen) = place.and_then(|place| into.get_mut(place)) {
                    *seen = *byte;
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
        self.remember_cut();
        for sector in start / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES) {
            self.remember(sector);
        }
        if end > self.bytes.len() {
            self.len_durable.get_or_insert(self.bytes.len());
            self.bytes.resize(end, 0);
        }
        self.bytes[start..end].copy_from_slice(bytes);
    }

    pub(super) fn set_len(&mut self, len: u64) {
        let len = len as usize;
        if len == self.bytes.len() {
            return;
        }
        self.remember_cut();
        self.len_durable.get_or_insert(self.bytes.len());
        if len < self.bytes.len() {
            self.cut = self.bytes.split_off(len);
        } else {
            self.bytes.resize(len, 0);
        }
    }

    /// The file grows again over what was cut: from now on that is dirty like the rest.
    fn remember_cut(&mut self) {
        if self.cut.is_empty() {
            return;
        }
        let cut_at = self.bytes.len();
        let cut = std::mem::take(&mut self.cut);
        let mut whole = self.bytes.clone();
        whole.extend_from_slice(&cut);
        for sector in cut_at / SECTOR_BYTES..whole.len().div_ceil(SECTOR_BYTES) {
            self.undo.push(Before { sector, bytes: sector_of(&whole, sector) });
        }
    }

    fn remember(&mut self, sector: usize) {
        let unseen = self.unseen.iter().position(|before| before.sector == sector);
        let before = match unseen {
            Some(at) => self.unseen.swap_remove(at),
            None => Before { sector, bytes: sector_of(&self.bytes, sector) },
        };
        self.undo.push(before);
    }

    pub(super) fn sync(&mut self) {
        std::mem::swap(&mut self.stale, &mut self.undo);
        self.undo.clear();
        self.len_durable = None;
        self.cut.clear();
    }

    /// A failed sync: memory goes back to what the disk has.
    pub(super) fn drop_dirty(&mut self) {
        self.choose(|_| 0);
    }

    /// A failed sync: memory stays, and is no longer known to differ from the disk.
    pub(super) fn forget_dirty(&mut self) {
        for before in std::mem::take(&mut self.undo) {
            if self.unseen.iter().all(|known| known.sector != before.sector) {
                self.unseen.push(before);
            }
        }
    }

    /// What a crash leaves. For each thing that may have come out in several ways
    /// `choose` says which one did, of so many; the first is how the disk had it
    /// at the last sync, the last one is how memory had it.
    pub(super) fn choose(&mut self, mut choose: impl FnMut(u32) -> u32) {
        let lost = std::mem::take(&mut self.unseen);
        self.put_back(lost.iter());
        let mut undo = std::mem::take(&mut self.undo);
        undo.sort_by_key(|before| before.sector);
        for versions in undo.chunk_by(|one, other| one.sector == other.sector) {
            let chosen = choose(versions.len() as u32 + 1) as usize;
            self.put_back(versions.get(chosen).into_iter());
        }
        if let Some(len) = self.len_durable.take()
            && choose(2) == 0
        {
            let cut = std::mem::take(&mut self.cut);
            self.bytes.extend_from_slice(&cut);
            self.bytes.resize(len, 0);
        }
        self.cut.clear();
        self.stale.clear();
    }

    fn put_back<'a>(&mut self, befores: impl Iterator<Item = &'a Before>) {
        for before in befores {
            let start = (before.sector * SECTOR_BYTES).min(self.bytes.len());
            let end = (start + SECTOR_BYTES).min(self.bytes.len());
            self.bytes[start..end].copy_from_slice(&before.bytes[..end - start]);
        }
    }

    pub(super) fn damage(&mut self, damage: impl FnOnce(&mut Vec<u8>)) {
        self.sync();
        damage(&mut self.bytes);
    }
}

/// A whole sector; zeros where the file ends before.
fn sector_of(bytes: &[u8], sector: usize) -> [u8; SECTOR_BYTES] {
    let mut whole = [0; SECTOR_BYTES];
    let start = (sector * SECTOR_BYTES).min(bytes.len());
    let found = &bytes[start..bytes.len().min(start + SECTOR_BYTES)];
    whole[..found.len()].copy_from_slice(found);
    whole
}
