//! The table that the data is in: in memory, or in a file beside the log.
//!
//! The file is not what makes data durable: it can always be made anew of the newest
//! snapshot and the log. So one that is damaged is thrown away, with a word about it; that it
//! is this member's, and not left over from another, the node and the table find out.

use quorate::FileDisk;
use quorate_kv::{AnyTable, Kv, RedbTable, TableError};
use quorate_storage::Disk;

use crate::bootstrap::store_directory;
use crate::config::{Config, TableKind};

pub(crate) fn open_table(config: &Config) -> Result<Kv<AnyTable>, TableError> {
    if config.table == TableKind::Memory {
        return Kv::open(AnyTable::default());
    }
    // Within the directory of the log: who puts that aside puts the table aside, too.
    let directory = store_directory(config).join("table");
    let mut disk = FileDisk::open(directory).map_err(TableError::Disk)?;
    disk.lock().map_err(TableError::Disk)?;
    match open_redb(&disk) {
        Err(why) if why.is_damage() => {
            tracing::warn!(%why, "the table is damaged; it is made anew of snapshot and log");
            disk.remove(FILE).map_err(TableError::Disk)?;
            open_redb(&disk)
        }
        opened => opened,
    }
}

fn open_redb(disk: &FileDisk) -> Result<Kv<AnyTable>, TableError> {
    Kv::open(RedbTable::open(disk.clone(), FILE, CACHE_BYTES)?.into())
}

const FILE: &str = "rows";
/// Of the file, in memory.
const CACHE_BYTES: usize = 256 << 20;
