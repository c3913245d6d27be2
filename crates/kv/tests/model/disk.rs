//! A disk in memory that can drop unsynced writes.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use quorate_storage::Disk;

#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryDisk {
    files: Arc<Mutex<BTreeMap<String, MemoryFile>>>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryFile(Arc<Mutex<FileContents>>);

#[derive(Clone, Debug, Default)]
struct FileContents {
    bytes: Vec<u8>,
    synced: Vec<u8>,
    syncs: usize,
}

impl MemoryDisk {
    /// The disk after a crash now: only synced data.
    pub(crate) fn crashed(&self) -> Self {
        let files = self.files.lock().unwrap();
        let files = files.iter().map(|(name, file)| {
            let synced = file.contents().synced.clone();
            let contents = FileContents { bytes: synced.clone(), synced, syncs: 0 };
            (name.clone(), MemoryFile(Arc::new(Mutex::new(contents))))
        });
        Self { files: Arc::new(Mutex::new(files.collect())) }
    }

    pub(crate) fn syncs(&self) -> usize {
        self.files.lock().unwrap().values().map(|file| file.contents().syncs).sum()
    }
}

impl MemoryFile {
    fn contents(&self) -> MutexGuard<'_, FileContents> {
        self.0.lock().unwrap()
    }
}

impl Disk for MemoryDisk {
    type File = MemoryFile;

    fn lock(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn list(&mut self) -> io::Result<Vec<String>> {
        Ok(self.files.lock().unwrap().keys().cloned().collect())
    }

    fn create(&mut self, name: &str, bytes: u64) -> io::Result<MemoryFile> {
        let file = MemoryFile::default();
        file.contents().bytes.resize(bytes as usize, 0);
        self.files.lock().unwrap().insert(name.into(), file.clone());
        Ok(file)
    }

    fn open(&mut self, name: &str) -> io::Result<MemoryFile> {
        let file = self.files.lock().unwrap().get(name).cloned();
        file.ok_or(io::ErrorKind::NotFound.into())
    }

    fn len(&mut self, file: &MemoryFile) -> io::Result<u64> {
        Ok(file.contents().bytes.len() as u64)
    }

    fn set_len(&mut self, file: &MemoryFile, bytes: u64) -> io::Result<()> {
        file.contents().bytes.resize(bytes as usize, 0);
        Ok(())
    }

    fn read_at(&mut self, file: &MemoryFile, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let contents = file.contents();
        let from = contents.bytes.get(offset as usize..offset as usize + into.len());
        into.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&mut self, file: &MemoryFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut contents = file.contents();
        let end = offset as usize + bytes.len();
        if contents.bytes.len() < end {
            contents.bytes.resize(end, 0);
        }
        contents.bytes[offset as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self, file: &MemoryFile) -> io::Result<()> {
        let mut contents = file.contents();
        contents.synced = contents.bytes.clone();
        contents.syncs += 1;
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let mut files = self.files.lock().unwrap();
        let file = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        files.insert(to.into(), file);
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.files.lock().unwrap().remove(name);
        Ok(())
    }

    fn sync_dir(&mut self) -> io::Result<()> {
        Ok(())
    }
}
