//! `quorate snapshot`: saves, verifies and restores snapshots.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use quorate_proto::etcdserverpb as etcd;
use quorate_server::config::{self, Invocation, ServerConfig};
use quorate_server::recover::{self, RestoreOptions};
use quorate_server::snapshot_file::{SnapshotFile, SnapshotHeader};
use serde_json::json;

use crate::arguments::{ClientArguments, RestoreArguments, SnapshotCommand, WriteOut};
use crate::client::{Connection, connect};
use crate::error::CliError;
use crate::ids::hex_id;
use crate::print::{self, TextTable, bytes};
use crate::snapshot_checksum::{CHECKSUM_BYTES, ChecksumReader, check_file};

pub(crate) async fn run(command: SnapshotCommand) -> Result<(), CliError> {
    match command {
        SnapshotCommand::Save { file, client } => save(&file, &client).await,
        SnapshotCommand::Status { file, output } => status(&file, output.write_out),
        SnapshotCommand::Restore(arguments) => restore(&arguments),
    }
}

/// Writes to a temporary file, which gets its final name once it is complete, verified and
/// synced.
async fn save(path: &Path, client: &ClientArguments) -> Result<(), CliError> {
    let connection = connect(client).await?;
    let temporary = temporary_path(path);
    let total = match receive(&connection, &temporary).await {
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

async fn receive(connection: &Connection, path: &Path) -> Result<u64, CliError> {
    let failed =
        |status| CliError::from_status("cannot save a snapshot", &connection.endpoint, &status);
    let mut file = File::create(path).map_err(|error| write_error(path, &error))?;
    let stream = connection.maintenance().snapshot(etcd::SnapshotRequest {}).await;
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
    let (size, checksum) = check_file(path)?;
    let checksum: String = checksum.iter().map(|byte| format!("{byte:02x}")).collect();
    // etcd's files have the same checksum, but a content that this program cannot read.
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

fn restore(arguments: &RestoreArguments) -> Result<(), CliError> {
    if (arguments.bump_revision > 0) != arguments.mark_compacted {
        return Err(CliError::usage("--bump-revision and --mark-compacted must be used together"));
    }
    let config = restore_config(arguments)?;
    check_directories(&config)?;
    let file = File::open(&arguments.file).map_err(|error| {
        CliError::with_cause(&format!("cannot read {}", arguments.file.display()), &error)
    })?;
    let options = RestoreOptions {
        bump_revision: arguments.bump_revision,
        skip_hash_check: arguments.skip_hash_check,
    };
    let restored = recover::restore(&config, file, options).map_err(|error| {
        CliError::with_cause(&format!("cannot restore {}", arguments.file.display()), &error)
    })?;
    let (header, data_dir) = (restored.header, config.data_dir.display());
    if arguments.output.write_out == WriteOut::Json {
        print::json(&json!({
            "dataDir": data_dir.to_string(),
            "savedRevision": header.revision,
            "savedClusterID": hex_id(header.cluster_id),
            "revision": restored.revision,
            "clusterID": hex_id(restored.cluster_id),
        }));
        return Ok(());
    }
    print::line(&format!(
        "restored revision {} of cluster {} to {data_dir}, for the new cluster {}",
        header.revision,
        hex_id(header.cluster_id),
        hex_id(restored.cluster_id)
    ));
    if arguments.mark_compacted {
        print::line(&format!(
            "it starts at revision {}; earlier revisions are compacted",
            restored.revision
        ));
    }
    print::line(
        "restore the other initial members from this file in the same way, then start each with \
         its --name, --data-dir and addresses",
    );
    Ok(())
}

fn restore_config(arguments: &RestoreArguments) -> Result<ServerConfig, CliError> {
    let mut flags = vec![
        ("--name", &arguments.name),
        ("--initial-cluster", &arguments.initial_cluster),
        ("--initial-cluster-token", &arguments.initial_cluster_token),
        ("--initial-advertise-peer-urls", &arguments.initial_advertise_peer_urls),
    ];
    flags.extend(arguments.data_dir.as_ref().map(|path| ("--data-dir", path)));
    flags.extend(arguments.wal_dir.as_ref().map(|path| ("--wal-dir", path)));
    let flags = flags.into_iter().flat_map(|(flag, value)| [flag.to_string(), value.clone()]);
    // ETCD_* variables configure servers, not this command.
    let invocation =
        config::parse(flags, []).map_err(|error| CliError::usage(error.to_string()))?;
    let Invocation::Run(config) = invocation else {
        return Err(CliError::usage("this is not a server configuration"));
    };
    Ok(*config)
}

/// Existing data must not be overwritten or mixed with the restored data.
fn check_directories(config: &ServerConfig) -> Result<(), CliError> {
    let empty = |path: &Path| match fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    let data_dir = &config.data_dir;
    if !empty(data_dir) {
        return Err(CliError::failed(format!(
            "{} is not empty or cannot be read; use another --data-dir",
            data_dir.display()
        )));
    }
    match config.wal_dir.as_ref().filter(|path| path.exists()) {
        Some(path) => {
            Err(CliError::failed(format!("{} exists; use another --wal-dir", path.display())))
        }
        None => Ok(()),
    }
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
