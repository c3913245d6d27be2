//! The table that the data is in: in memory, or in a file beside the log.
//!
//! The file is not what makes data durable: it can always be made anew of the newest
//! snapshot and the log. So one that is damaged is thrown away, with a word about it; that it
//! is this member's, and not left over from another, the node and the table find out.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use quorate::FileDisk;
use quorate_kv::{AnyTable, Kv, RedbTable, TableError};
use quorate_storage::Disk;
use tokio::task::spawn_blocking;

use crate::bootstrap::store_directory;
use crate::config::{Config, TableKind};
use crate::server::ServerError;

/// All of it is read, which takes a while where there is much.
pub(crate) async fn open_table(config: &Config) -> Result<Kv<AnyTable>, ServerError> {
    // Within the directory of the log: who puts that aside puts the table aside, too.
    let directory = store_directory(config).join("table");
    let kind = config.table;
    let opened = spawn_blocking(move || match kind {
        TableKind::Memory => Kv::open(AnyTable::default()),
        TableKind::Redb => open_or_renew(&directory),
    });
    let opened = opened.await.map_err(|why| ServerError::System(io::Error::other(why)))?;
    opened.map_err(ServerError::Table)
}

fn open_or_renew(directory: &Path) -> Result<Kv<AnyTable>, TableError> {
    let mut disk = FileDisk::open(directory).map_err(TableError::Disk)?;
    lock(&mut disk).map_err(TableError::Disk)?;
    match open_redb(&disk) {
        Err(why) if why.is_corruption() => {
            tracing::warn!(%why, "the table is damaged; it is made anew of snapshot and log");
            disk.remove(FILE).map_err(TableError::Disk)?;
            open_redb(&disk)
        }
        opened => opened,
    }
}

/// Whoever ran on it before lets go of it when its last client has gone.
fn lock(disk: &mut FileDisk) -> io::Result<()> {
    let began = Instant::now();
    loop {
        match disk.lock() {
            Err(_) if began.elapsed() < LOCK_PATIENCE => std::thread::sleep(LOCK_AGAIN),
            locked => return locked,
        }
    }
}

fn open_redb(disk: &FileDisk) -> Result<Kv<AnyTable>, TableError> {
    Kv::open(RedbTable::open(disk.clone(), FILE, CACHE_BYTES)?.into())
}

const FILE: &str = "rows";
/// Of the file, in memory.
const CACHE_BYTES: usize = 64 << 20;
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_AGAIN: Duration = Duration::from_millis(50);
