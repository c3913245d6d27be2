//! `quorate snapshot`: saves, verifies and restores snapshots.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use quorate_proto::etcdserverpb as etcd;
use quorate_server::SNAPSHOT_FORMAT_KEY;
use quorate_server::snapshot_file::{
    EtcdFileError, EtcdStatus, SnapshotFile, SnapshotFileError, SnapshotHeader, etcd_status,
    is_own_format,
};
use serde_json::json;
use tonic::Request;
use tonic::metadata::MetadataValue;

use crate::arguments::{ClientArguments, SnapshotCommand, SnapshotFormat, WriteOut};
use crate::client::{Connection, connect};
use crate::command::new_cluster;
use crate::error::CliError;
use crate::ids::hex_id;
use crate::print::{self, TextTable, bytes};
use crate::snapshot_checksum::{CHECKSUM_BYTES, ChecksumReader, check_file};

pub(crate) async fn run(command: SnapshotCommand) -> Result<(), CliError> {
    match command {
        SnapshotCommand::Save { file, format, client } => save(&file, format, &client).await,
        SnapshotCommand::Status { file, output } => status(&file, output.write_out),
        SnapshotCommand::Restore(arguments) => new_cluster::restore(&arguments),
    }
}

/// Writes to a temporary file, which gets its final name once it is complete, verified and
/// synced.
async fn save(
    path: &Path,
    format: SnapshotFormat,
    client: &ClientArguments,
) -> Result<(), CliError> {
    let connection = connect(client).await?;
    let temporary = temporary_path(path);
    let total = match receive(&connection, &temporary, format).await {
        Ok(total) => total,
        Err(error) => {
            // The first error is the one to report, even if the cleanup fails as well.
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
    };
    let renamed = fs::rename(&temporary, path).and_then(|()| sync_directory(path));
    renamed.map_err(|error| write_error(path, &error))?;
    let size = total - CHECKSUM_BYTES as u64;
    let (endpoint, file) = (&connection.endpoint, path.display().to_string());
    match client.write_out {
        WriteOut::Table => print::line(&format!("{} saved from {endpoint} to {file}", bytes(size))),
        WriteOut::Json => {
            print::json(&json!({ "file": file, "endpoint": endpoint, "bytes": size }));
        }
    }
    Ok(())
}

async fn receive(
    connection: &Connection,
    path: &Path,
    format: SnapshotFormat,
) -> Result<u64, CliError> {
    let failed =
        |status| CliError::from_status("cannot save a snapshot", &connection.endpoint, &status);
    let mut file = File::create(path).map_err(|error| write_error(path, &error))?;
    let mut request = Request::new(etcd::SnapshotRequest {});
    let format = format.to_possible_value();
    let format = format.and_then(|format| MetadataValue::try_from(format.get_name()).ok());
    if let Some(format) = format {
        request.metadata_mut().insert(SNAPSHOT_FORMAT_KEY, format);
    }
    let stream = connection.maintenance().snapshot(request).await;
    let mut stream = stream.map_err(failed)?.into_inner();
    let mut reader = ChecksumReader::new();
    while let Some(chunk) = stream.message().await.map_err(failed)? {
        reader.update(&chunk.blob);
        file.write_all(&chunk.blob).map_err(|error| write_error(path, &error))?;
    }
    file.sync_all().map_err(|error| write_error(path, &error))?;
    let total = reader.total();
    reader.finish().map_err(|error| {
        let text = error.text();
        CliError::failed(format!("{} sent an incomplete snapshot: {text}", connection.endpoint))
    })?;
    Ok(total)
}

fn status(path: &Path, write_out: WriteOut) -> Result<(), CliError> {
    let unreadable =
        |error: io::Error| CliError::with_cause(&format!("cannot read {}", path.display()), &error);
    let mut file = File::open(path).map_err(unreadable)?;
    if is_own_format(&mut file).map_err(unreadable)? {
        return own_status(path, write_out);
    }
    let status = etcd_status(file).map_err(|error| match error {
        EtcdFileError::NotADatabase => {
            CliError::failed(format!("{}: {}", path.display(), SnapshotFileError::UnknownFormat))
        }
        error => CliError::failed(format!("{}: {error}", path.display())),
    })?;
    print_etcd_status(&status, write_out);
    Ok(())
}

/// As `etcdutl snapshot status` prints it.
fn print_etcd_status(status: &EtcdStatus, write_out: WriteOut) {
    let version = status.version.clone().unwrap_or_default();
    let EtcdStatus { hash, revision, total_keys, total_bytes, .. } = *status;
    match write_out {
        WriteOut::Json => print::json(&json!({
            "hash": hash,
            "revision": revision,
            "totalKey": total_keys,
            "totalSize": total_bytes,
            "version": version,
        })),
        WriteOut::Table => {
            let columns = ["HASH", "REVISION", "TOTAL KEYS", "TOTAL SIZE", "VERSION"];
            let mut table = TextTable::new(&columns);
            let (hash, revision) = (format!("{hash:x}"), revision.to_string());
            table.row([hash, revision, total_keys.to_string(), bytes(total_bytes), version]);
            print::out(&table.text());
        }
    }
}

fn own_status(path: &Path, write_out: WriteOut) -> Result<(), CliError> {
    let (size, checksum) = check_file(path)?;
    let checksum: String = checksum.iter().map(|byte| format!("{byte:02x}")).collect();
    let snapshot = File::open(path).ok().and_then(|file| SnapshotFile::open(file).ok());
    let header = snapshot.map(|snapshot| snapshot.header);
    match write_out {
        WriteOut::Json => print::json(&json!({
            "bytes": size,
            "sha256": checksum,
            "revision": header.map(|header| header.revision),
            "applied": header.map(|header| header.applied),
            "clusterID": header.map(|header| hex_id(header.cluster_id)),
        })),
        WriteOut::Table => {
            let mut table =
                TextTable::new(&["SIZE", "REVISION", "APPLIED INDEX", "CLUSTER ID", "SHA-256"]);
            let cell = |text: &dyn Fn(&SnapshotHeader) -> String| {
                header.as_ref().map_or(String::new(), text)
            };
            table.row([
                bytes(size),
                cell(&|header| header.revision.to_string()),
                cell(&|header| header.applied.to_string()),
                cell(&|header| hex_id(header.cluster_id)),
                checksum,
            ]);
            print::out(&table.text());
        }
    }
    Ok(())
}

fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".part");
    PathBuf::from(name)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

fn write_error(path: &Path, error: &io::Error) -> CliError {
    CliError::with_cause(&format!("cannot write {}", path.display()), error)
}
