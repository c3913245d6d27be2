//! Opens the table that holds the data: in memory, or in a file beside the log.
//!
//! Of a table in memory, old rows are in a file too, but that one has no name and a restart
//! begins with an empty one (`docs/decisions/036-old-rows-in-a-file.md`).
//!
//! The file of a table on redb does not make data durable: it can always be rebuilt from the newest snapshot and
//! the log. So a damaged file is deleted, with a warning. The node and the table check that the
//! file belongs to this member.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use quorate::storage::FileDisk;
use quorate_kv::{AnyTable, Kv, MemoryTable, RedbTable, RowFile, TableError};
use quorate_storage::Disk;
use tokio::task::spawn_blocking;

use crate::bootstrap::store_directory;
use crate::config::{ServerConfig, TableKind};
use crate::server::ServerError;

/// The data of a member.
pub(crate) struct OpenedTable {
    pub(crate) kv: Kv<AnyTable>,
    /// Where a table in memory keeps its old rows.
    pub(crate) row_file: Option<RowFile>,
}

/// Reads the whole table, which takes a while if it is large.
pub(crate) async fn open_table(config: &ServerConfig) -> Result<OpenedTable, ServerError> {
    // Within the directory of the log, so that moving that directory moves the table too.
    let directory = store_directory(config);
    let (kind, row_memory_bytes) = (config.table, config.row_memory_bytes);
    let opened = spawn_blocking(move || match kind {
        TableKind::Memory => open_memory(&directory, row_memory_bytes),
        TableKind::Redb => {
            let kv = open_or_rebuild(&directory.join("table"))?;
            Ok(OpenedTable { kv, row_file: None })
        }
    });
    let opened = opened.await.map_err(|error| ServerError::System(io::Error::other(error)))?;
    opened.map_err(ServerError::Table)
}

fn open_memory(directory: &Path, row_memory_bytes: u64) -> Result<OpenedTable, TableError> {
    if row_memory_bytes == 0 {
        return Ok(OpenedTable { kv: Kv::open(AnyTable::default())?, row_file: None });
    }
    let path = directory.join(ROW_FILE);
    let row_file = RowFile::create(&path, row_memory_bytes, Box::new(report_row_file));
    let row_file = row_file.map_err(|error| {
        let text = format!("cannot create {}: {error}", path.display());
        TableError::Disk(io::Error::new(error.kind(), text))
    })?;
    let kv = Kv::open(MemoryTable::with_file(row_file.clone()).into())?;
    Ok(OpenedTable { kv, row_file: Some(row_file) })
}

fn report_row_file(result: Result<(), &io::Error>) {
    match result {
        Ok(()) => tracing::info!("old rows no longer exceed --row-memory-bytes"),
        Err(error) => {
            tracing::warn!(%error, "cannot write old rows to their file; they stay in memory, \
                and it is tried again every 10 s");
        }
    }
}

fn open_or_rebuild(directory: &Path) -> Result<Kv<AnyTable>, TableError> {
    let mut disk = FileDisk::open(directory).map_err(TableError::Disk)?;
    lock(&mut disk).map_err(TableError::Disk)?;
    match open_redb(&disk) {
        Err(error) if error.is_corruption() => {
            tracing::warn!(%error, "the table is damaged; rebuilding it from snapshot and log");
            disk.remove(FILE).map_err(TableError::Disk)?;
            open_redb(&disk)
        }
        opened => opened,
    }
}

/// Waits for the lock: a previous server in this process releases it when its last client is
/// gone.
fn lock(disk: &mut FileDisk) -> io::Result<()> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match disk.lock() {
            Err(_) if Instant::now() < deadline => std::thread::sleep(LOCK_RETRY_INTERVAL),
            locked => return locked,
        }
    }
}

fn open_redb(disk: &FileDisk) -> Result<Kv<AnyTable>, TableError> {
    Kv::open(RedbTable::open(disk.clone(), FILE, CACHE_BYTES)?.into())
}

const FILE: &str = "rows";
/// It has this name for a moment while it is created.
const ROW_FILE: &str = "rows.tmp";
/// The part of the file that is cached in memory.
const CACHE_BYTES: usize = 64 << 20;
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(50);
