//! A [`Disk`] on a real directory.
//!
//! Only the owner of the directory can read it, because it holds the data of clients.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::UNIX_EPOCH;

use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock};
use rustix::io::Errno;

use crate::Disk;
use crate::names::FileName;
use crate::place::FilePlace;
use crate::reserved_file::ReservedFile;

/// A directory with mode 0700 and files with mode 0600. Clones are handles to the same
/// directory.
#[derive(Clone, Debug)]
pub struct FileDisk {
    path: PathBuf,
    dir: Arc<File>,
    lock: Option<Arc<File>>,
}

impl FileDisk {
    /// Opens the directory at this path, or creates it. A directory that other users can
    /// access is refused with [`io::ErrorKind::PermissionDenied`].
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        create_directory(&path, &mut |parent| File::open(parent)?.sync_all())?;
        let dir = File::open(&path)?;
        let metadata = dir.metadata()?;
        if !metadata.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, "not a directory"));
        }
        let mode = metadata.mode() & 0o777;
        if mode & 0o077 != 0 {
            let text = format!("{}: mode is {mode:04o}, must be 0700", path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(Self { path, dir: Arc::new(dir), lock: None })
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Symbolic links are not followed, so that no name leads out of the directory.
    fn options() -> OpenOptions {
        let mut options = OpenOptions::new();
        let no_links = OFlags::NOFOLLOW.bits().cast_signed();
        options.read(true).write(true).mode(0o600).custom_flags(no_links);
        options
    }
}

impl Disk for FileDisk {
    type File = Arc<ReservedFile>;

    fn lock(&mut self) -> io::Result<()> {
        if self.lock.is_some() {
            return Ok(());
        }
        let path = self.path.join(FileName::Lock.to_string());
        let file = Self::options().create(true).truncate(false).open(path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        self.lock = Some(Arc::new(file));
        Ok(())
    }

    fn list(&mut self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in self.path.read_dir()? {
            // All our names are UTF-8; ignore others.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create(&mut self, name: &str, bytes: u64) -> io::Result<Self::File> {
        let path = self.path.join(name);
        let file = Self::options().create(true).truncate(true).open(path)?;
        if bytes > 0 {
            match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
                // The file system cannot reserve space: only set the length.
                Err(Errno::OPNOTSUPP) => file.set_len(bytes)?,
                reserved => reserved?,
            }
        }
        Ok(Arc::new(ReservedFile::new(file, bytes)))
    }

    fn open(&mut self, name: &str) -> io::Result<Self::File> {
        let file = Self::options().open(self.path.join(name))?;
        if !Metadata::is_file(&file.metadata()?) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(Arc::new(ReservedFile::existing(file)))
    }

    fn len(&mut self, file: &Self::File) -> io::Result<u64> {
        Ok(file.file.metadata()?.len())
    }

    fn set_len(&mut self, file: &Self::File, bytes: u64) -> io::Result<()> {
        file.set_len(bytes)
    }

    fn read_at(&mut self, file: &Self::File, offset: u64, into: &mut [u8]) -> io::Result<()> {
        file.file.read_exact_at(into, offset)
    }

    fn write_at(&mut self, file: &Self::File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        file.write_at(offset, bytes)
    }

    fn sync(&mut self, file: &Self::File) -> io::Result<()> {
        file.file.sync_data()
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    /// The name is removed before this returns. The space of a large file takes long to free:
    /// another thread does that, by closing the last handle.
    fn remove(&mut self, name: &str) -> io::Result<()> {
        let path = self.path.join(name);
        let opened = Self::options().open(&path).ok();
        std::fs::remove_file(path)?;
        if let Some(file) = opened.filter(|file| file.metadata().is_ok_and(is_large)) {
            // Without a thread the file is closed here.
            let _ = thread::Builder::new().name("quorate-free".into()).spawn(|| drop(file));
        }
        Ok(())
    }

    fn sync_dir(&mut self) -> io::Result<()> {
        self.dir.sync_all()
    }

    fn place(&mut self, name: &str) -> io::Result<Option<FilePlace>> {
        let metadata = match self.path.join(name).symlink_metadata() {
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
            metadata => metadata?,
        };
        // Not every file system knows it.
        let created = metadata.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let created = created.map_or(0, |at| u64::try_from(at.as_nanos()).unwrap_or(0));
        Ok(Some(FilePlace { inode: metadata.ino(), created }))
    }
}

/// Whether freeing the space of this file is worth a thread.
fn is_large(metadata: Metadata) -> bool {
    metadata.len() >= 1 << 20
}

/// Makes the names in this directory durable.
type SyncDirectory<'a> = &'a mut dyn FnMut(&Path) -> io::Result<()>;

/// Creates a directory, and those above it. Each name is made durable: otherwise a power loss
/// could take the whole directory with it.
fn create_directory(path: &Path, sync: SyncDirectory<'_>) -> io::Result<()> {
    create_parents(path, sync)?;
    create_synced(DirBuilder::new().mode(0o700), path, sync)
}

fn create_parents(path: &Path, sync: SyncDirectory<'_>) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() && !parent.exists() => {
            create_parents(parent, sync)?;
            create_synced(&DirBuilder::new(), parent, sync)
        }
        _ => Ok(()),
    }
}

/// Creates a directory, unless it exists, and makes its name durable.
fn create_synced(builder: &DirBuilder, path: &Path, sync: SyncDirectory<'_>) -> io::Result<()> {
    match builder.create(path) {
        Ok(()) => sync(parent_of(path)),
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(why) => Err(why),
    }
}

fn parent_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also while somebody reads it, and a small one.
    #[test]
    fn a_removed_name_is_gone_at_once() {
        let root = tempfile::tempdir().unwrap();
        let mut disk = FileDisk::open(root.path().join("disk")).unwrap();
        for bytes in [0, 4 << 20] {
            let file = disk.create("file", bytes).unwrap();
            disk.remove("file").unwrap();
            assert_eq!(disk.list().unwrap(), [""; 0]);
            assert_eq!(disk.len(&file).unwrap(), bytes);
        }
        assert_eq!(disk.remove("file").unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_name_of_each_new_directory_is_made_durable_in_its_parent() {
        let root = tempfile::tempdir().unwrap();
        let paths = ["", "a", "a/b", "a/b/c"].map(|path| root.path().join(path));
        let mut synced = Vec::new();
        let mut sync = |parent: &Path| {
            // It is created before its parent is synced, and nothing below it exists yet.
            let child = &paths[synced.len() + 1];
            assert_eq!(parent_of(child), parent);
            assert!(child.exists() && !child.join("b").exists() && !child.join("c").exists());
            synced.push(parent.to_owned());
            Ok(())
        };
        create_directory(&paths[3], &mut sync).unwrap();
        assert_eq!(synced, [root.path(), &paths[1], &paths[2]]);
        // What exists is not synced again, and an error is not ignored.
        create_directory(&paths[3], &mut |_| panic!("nothing is new")).unwrap();
        let failed =
            create_directory(&paths[3].join("d"), &mut |_| Err(io::ErrorKind::Other.into()));
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::Other);
        assert_eq!(parent_of(Path::new("relative")), Path::new("."));
    }
}
