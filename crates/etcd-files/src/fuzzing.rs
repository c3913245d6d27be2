//! Entry points for the fuzz targets. Not part of the public API.

use std::io::Cursor;

use crate::database::EtcdDatabase;
use crate::error::EtcdFileError;
use crate::wal::WalReader;

/// Reads everything from a database. Returns whether all of it could be read.
pub fn read_database(bytes: &[u8]) -> bool {
    let _ = EtcdDatabase::open(Cursor::new(bytes));
    let Ok(mut database) = EtcdDatabase::open_unchecked(Cursor::new(bytes)) else { return false };
    let small = database.marks().is_ok()
        && database.leases().is_ok()
        && database.alarms().is_ok()
        && database.users().is_ok()
        && database.roles().is_ok();
    let mut row_bytes = 0;
    let rows = database.rows(|row| {
        row_bytes += row.key.len() + row.value.len();
        Ok::<_, EtcdFileError>(())
    });
    assert!(row_bytes <= bytes.len(), "rows are larger than their file");
    small && rows.is_ok() && database.status().is_ok()
}

/// Reads a file of a log. Returns whether it could be read.
pub fn read_log(bytes: &[u8]) -> bool {
    let mut reader = WalReader::new(0);
    let read = reader.read("file", bytes, true).is_ok();
    let entries = reader.finish().entries;
    let entry_bytes: usize = entries.iter().map(|entry| entry.data.len()).sum();
    assert!(entry_bytes <= bytes.len(), "entries are larger than their file");
    read
}
