//! Stores in memory that the fuzz targets damage.

#![allow(clippy::unwrap_used, reason = "a failing fuzz target panics")]

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use quorate_core::{
    Boot, Entry, EntryId, HardState, MemberId, Membership, Save, SaveId, SnapshotMeta,
};
use quorate_storage::{Disk, OpenedStore, Store, StoreConfig, StoreIdentity, StoreOwner};

const IDENTITY: StoreIdentity =
    StoreIdentity { cluster: 1, member: MemberId(1), incarnation: 7, joined_at: 0 };

/// The owner of the sample store.
pub const OWNER: StoreOwner = StoreOwner { cluster: 1, member: MemberId(1) };

/// Small segments, so that the sample store has several.
pub const CONFIG: StoreConfig = StoreConfig::new().segment_bytes(2 << 10).tail_bytes_max(1 << 10);

/// The entry of the sample store's snapshot.
pub const SNAPSHOT: EntryId = EntryId { term: 2, index: 20 };

/// A directory in memory. Clones share their files; [`Self::copy`] does not.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisk {
    files: BTreeMap<String, SharedFile>,
}

type SharedFile = Arc<Mutex<Vec<u8>>>;

fn contents(file: &SharedFile) -> MutexGuard<'_, Vec<u8>> {
    file.lock().unwrap()
}

impl MemoryDisk {
    /// A disk with copies of all files.
    pub fn copy(&self) -> Self {
        let copy = |file: &SharedFile| Arc::new(Mutex::new(contents(file).clone()));
        Self { files: self.files.iter().map(|(name, file)| (name.clone(), copy(file))).collect() }
    }

    /// Changes bytes of the files whose name starts with `prefix`. Each four bytes of `damage` are
    /// one change: the offset, a file number and the bits to flip. The rest truncates the last
    /// file.
    pub fn damage(&self, prefix: &str, damage: &[u8]) {
        let files: Vec<&SharedFile> = self
            .files
            .iter()
            .filter(|(name, _)| name.starts_with(prefix))
            .map(|(_, f)| f)
            .collect();
        let (changes, rest) = damage.as_chunks::<4>();
        for [low, high, number, bits] in changes {
            let mut bytes = contents(files[usize::from(*number) % files.len()]);
            let offset = usize::from(u16::from_le_bytes([*low, *high]));
            if let Some(byte) = bytes.get_mut(offset) {
                *byte ^= bits;
            }
        }
        if let ([count, ..], Some(last)) = (rest, files.last()) {
            let mut bytes = contents(last);
            let length = bytes.len().saturating_sub(usize::from(*count));
            bytes.truncate(length);
        }
    }
}

/// A store with entries 2 to 40 in several segments, and a snapshot of entry 20.
pub fn sample_store() -> MemoryDisk {
    let mut disk = MemoryDisk::default();
    let first = Boot::first(Membership::new([MemberId(1)], []));
    Store::create(&mut disk, IDENTITY, &first, &CONFIG).unwrap();
    let OpenedStore { mut store, .. } = Store::open(disk, OWNER, &CONFIG).unwrap();
    for index in 2..=40 {
        store.write(&save(index)).unwrap();
        if index % 3 == 0 {
            store.sync().unwrap();
        }
    }
    let membership = Arc::new(Membership::new([MemberId(1), MemberId(2)], []));
    let mut writer = store.begin_snapshot(SnapshotMeta { id: SNAPSHOT, membership }).unwrap();
    for chunk in [&b"state"[..], &[7; 300], b"more"] {
        store.append_snapshot(&mut writer, chunk).unwrap();
    }
    store.finish_snapshot(writer).unwrap();
    store.close().unwrap()
}

fn save(index: u64) -> Save {
    Save {
        id: SaveId(index),
        hard_state: Some(HardState { term: 2, vote: Some(MemberId(1)), commit: index - 1 }),
        entries: vec![Entry::command(2, index, vec![index as u8; 100])].into(),
        install: None,
        must_sync: true,
        then_send: Vec::new(),
    }
}

impl Disk for MemoryDisk {
    type File = SharedFile;

    fn lock(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn list(&mut self) -> io::Result<Vec<String>> {
        Ok(self.files.keys().cloned().collect())
    }

    fn create(&mut self, name: &str, bytes: u64) -> io::Result<SharedFile> {
        let file = Arc::new(Mutex::new(vec![0; bytes as usize]));
        self.files.insert(name.to_owned(), Arc::clone(&file));
        Ok(file)
    }

    fn open(&mut self, name: &str) -> io::Result<SharedFile> {
        self.files.get(name).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn len(&mut self, file: &SharedFile) -> io::Result<u64> {
        Ok(contents(file).len() as u64)
    }

    fn set_len(&mut self, file: &SharedFile, bytes: u64) -> io::Result<()> {
        contents(file).resize(bytes as usize, 0);
        Ok(())
    }

    fn read_at(&mut self, file: &SharedFile, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let bytes = contents(file);
        let part = bytes.get(offset as usize..offset as usize + into.len());
        into.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&mut self, file: &SharedFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut file = contents(file);
        let end = offset as usize + bytes.len();
        if file.len() < end {
            file.resize(end, 0);
        }
        file[offset as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self, _: &SharedFile) -> io::Result<()> {
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let file = self.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        self.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.files.remove(name).map(|_| ()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sync_dir(&mut self) -> io::Result<()> {
        Ok(())
    }
}
