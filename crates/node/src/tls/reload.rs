//! Configurations that follow their files: before a handshake the files are checked, and read
//! again if they changed. Files that cannot be used leave the previous configuration in effect.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tracing::{info, warn};

use super::load::{FileContents, TlsConfigError};
use super::settings::TlsSettings;
use crate::runtime::lock;

type Build<T> = fn(&TlsSettings, &FileContents<'_>) -> Result<T, TlsConfigError>;

/// A value made from files.
pub(super) struct Reloading<T> {
    shared: Arc<ReloadShared<T>>,
}

struct ReloadShared<T> {
    settings: TlsSettings,
    files: Vec<PathBuf>,
    build: Build<T>,
    current: Mutex<Arc<T>>,
    last_check: Mutex<LastCheck>,
    /// A check is in progress. Others do not wait for it: a file system may hang.
    checking: AtomicBool,
}

/// What the last check found, whether or not it could be used.
struct LastCheck {
    stamps: Vec<Option<FileStamp>>,
    contents: Vec<(PathBuf, Vec<u8>)>,
}

/// What changes when a file is written or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    modified: SystemTime,
    bytes: u64,
    inode: u64,
}

impl FileStamp {
    fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        #[cfg(unix)]
        let inode = std::os::unix::fs::MetadataExt::ino(&metadata);
        #[cfg(not(unix))]
        let inode = 0;
        Some(Self { modified: metadata.modified().ok()?, bytes: metadata.len(), inode })
    }

    /// A file that was changed just now may change again without a new stamp.
    fn is_settled(&self, now: SystemTime) -> bool {
        now.duration_since(self.modified).is_ok_and(|age| age > STAMP_RESOLUTION)
    }
}

/// The coarsest resolution of modification times on common file systems.
const STAMP_RESOLUTION: Duration = Duration::from_secs(2);

impl<T: Send + Sync + 'static> Reloading<T> {
    /// Reads the files. At this point, unusable ones are an error.
    pub(super) fn load(
        settings: &TlsSettings,
        files: Vec<PathBuf>,
        build: Build<T>,
    ) -> Result<Self, TlsConfigError> {
        let stamps = files.iter().map(|path| FileStamp::of(path)).collect();
        let contents = read(&files)?;
        let value = build(settings, &FileContents(&contents))?;
        let shared = ReloadShared {
            settings: settings.clone(),
            files,
            build,
            current: Mutex::new(Arc::new(value)),
            last_check: Mutex::new(LastCheck { stamps, contents }),
            checking: AtomicBool::new(false),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The value of the present files, or of the last ones that could be used.
    pub(super) async fn current(&self) -> Arc<T> {
        if !self.shared.checking.swap(true, Ordering::AcqRel) {
            let shared = Arc::clone(&self.shared);
            // It fails only while the runtime shuts down.
            let _ = tokio::task::spawn_blocking(move || {
                shared.check();
                shared.checking.store(false, Ordering::Release);
            })
            .await;
        }
        Arc::clone(&lock(&self.shared.current))
    }
}

impl<T> ReloadShared<T> {
    fn check(&self) {
        let mut last = lock(&self.last_check);
        let now = SystemTime::now();
        let stamps: Vec<_> = self.files.iter().map(|path| FileStamp::of(path)).collect();
        let is_settled =
            |stamp: &Option<FileStamp>| stamp.is_some_and(|stamp| stamp.is_settled(now));
        if stamps == last.stamps && stamps.iter().all(is_settled) {
            return;
        }
        let were_missing = last.stamps.contains(&None);
        last.stamps = stamps;
        let contents = match read(&self.files) {
            Ok(contents) if contents == last.contents => return,
            Ok(contents) => contents,
            // Whatever repairs it, such as another owner of the file, must be noticed.
            Err(error) if were_missing => {
                last.stamps.fill(None);
                tracing::debug!(%error, "TLS files are still missing");
                return;
            }
            Err(error) => {
                last.stamps.fill(None);
                warn!(%error, "cannot read changed TLS files; the previous ones stay in use");
                return;
            }
        };
        match (self.build)(&self.settings, &FileContents(&contents)) {
            Ok(value) => {
                *lock(&self.current) = Arc::new(value);
                info!(files = ?self.files, "TLS files have changed; new connections use them");
            }
            Err(error) => {
                warn!(%error, "cannot use changed TLS files; the previous ones stay in use");
            }
        }
        last.contents = contents;
    }
}

fn read(files: &[PathBuf]) -> Result<Vec<(PathBuf, Vec<u8>)>, TlsConfigError> {
    let read_one = |path: &PathBuf| {
        let bytes = std::fs::read(path).map_err(|error| TlsConfigError::file(path, error))?;
        Ok((path.clone(), bytes))
    };
    files.iter().map(read_one).collect()
}
