//! Opens the table that holds the data: in memory, or in a file beside the log.
//!
//! The file does not make data durable: it can always be rebuilt from the newest snapshot and
//! the log. So a damaged file is deleted, with a warning. The node and the table check that the
//! file belongs to this member.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use quorate::storage::FileDisk;
use quorate_kv::{AnyTable, Kv, RedbTable, TableError};
use quorate_storage::Disk;
use tokio::task::spawn_blocking;

use crate::bootstrap::store_directory;
use crate::config::{ServerConfig, TableKind};
use crate::server::ServerError;

/// Reads the whole table, which takes a while if it is large.
pub(crate) async fn open_table(config: &ServerConfig) -> Result<Kv<AnyTable>, ServerError> {
    // Within the directory of the log, so that moving that directory moves the table too.
    let directory = store_directory(config).join("table");
    let kind = config.table;
    let opened = spawn_blocking(move || match kind {
        TableKind::Memory => Kv::open(AnyTable::default()),
        TableKind::Redb => open_or_rebuild(&directory),
    });
    let opened = opened.await.map_err(|error| ServerError::System(io::Error::other(error)))?;
    opened.map_err(ServerError::Table)
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
/// The part of the file that is cached in memory.
const CACHE_BYTES: usize = 64 << 20;
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(50);
