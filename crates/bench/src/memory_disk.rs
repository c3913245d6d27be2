//! A disk in memory: what the log costs without system calls.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use quorate_storage::Disk;

/// Files by name. Nothing is lost, so a sync does nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryDisk {
    files: BTreeMap<String, MemoryFile>,
}

pub(crate) type MemoryFile = Rc<RefCell<Vec<u8>>>;

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Disk for MemoryDisk {
    type File = MemoryFile;

    fn lock(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn list(&mut self) -> io::Result<Vec<String>> {
        Ok(self.files.keys().cloned().collect())
    }

    fn create(&mut self, name: &str, bytes: u64) -> io::Result<MemoryFile> {
        let file = Rc::new(RefCell::new(vec![0; bytes as usize]));
        self.files.insert(name.to_owned(), Rc::clone(&file));
        Ok(file)
    }

    fn open(&mut self, name: &str) -> io::Result<MemoryFile> {
        self.files.get(name).cloned().ok_or_else(not_found)
    }

    fn len(&mut self, file: &MemoryFile) -> io::Result<u64> {
        Ok(file.borrow().len() as u64)
    }

    fn set_len(&mut self, file: &MemoryFile, bytes: u64) -> io::Result<()> {
        file.borrow_mut().resize(bytes as usize, 0);
        Ok(())
    }

    fn read_at(&mut self, file: &MemoryFile, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let (file, start) = (file.borrow(), offset as usize);
        let bytes = file.get(start..start + into.len());
        into.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&mut self, file: &MemoryFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (mut file, start) = (file.borrow_mut(), offset as usize);
        let end = start + bytes.len();
        if file.len() < end {
            file.resize(end, 0);
        }
        file[start..end].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self, _file: &MemoryFile) -> io::Result<()> {
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let file = self.files.remove(from).ok_or_else(not_found)?;
        self.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.files.remove(name).map(drop).ok_or_else(not_found)
    }

    fn sync_dir(&mut self) -> io::Result<()> {
        Ok(())
    }
}
