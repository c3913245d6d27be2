//! `quorate snapshot`: save what a member has, check what was saved, and bring it back.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use quorate_proto::etcdserverpb as etcd;
use quorate_server::config::{self, Config, Invocation};
use quorate_server::recover::{self, RestoreOptions};
use quorate_server::snapshot_file::{SnapshotFile, SnapshotHeader};
use serde_json::json;

use crate::arguments::{ClientArguments, RestoreArguments, SnapshotCommand, WriteOut};
use crate::client::{Connection, connect};
use crate::failure::Failure;
use crate::print::{self, Table, bytes};
use crate::trailer::{Checked, TRAILER_BYTES, check_file};
use crate::who::hex;

pub(crate) async fn run(asked: SnapshotCommand) -> Result<(), Failure> {
    match asked {
        SnapshotCommand::Save { file, client } => save(&file, &client).await,
        SnapshotCommand::Status { file, write_out } => status(&file, write_out),
        SnapshotCommand::Restore(asked) => restore(&asked),
    }
}

/// The file gets its name when it is whole, checked and on the disk.
async fn save(path: &Path, client: &ClientArguments) -> Result<(), Failure> {
    let connection = connect(client).await?;
    let part = beside(path);
    let received = receive(&connection, &part).await;
    let total = match received {
        Ok(total) => total,
        Err(failure) => {
            // Half a snapshot helps nobody; that it could not be removed neither.
            let _ = fs::remove_file(&part);
            return Err(failure);
        }
    };
    let named = fs::rename(&part, path).and_then(|()| sync_directory(path));
    named.map_err(|why| unwritable(path, &why))?;
    print::line(&format!(
        "{} saved from {} to {}",
        bytes(total - TRAILER_BYTES as u64),
        connection.endpoint,
        path.display()
    ));
    Ok(())
}

async fn receive(connection: &Connection, part: &Path) -> Result<u64, Failure> {
    let failed = |status| Failure::answered("cannot save", &connection.endpoint, &status);
    let mut file = File::create(part).map_err(|why| unwritable(part, &why))?;
    let stream = connection.maintenance().snapshot(etcd::SnapshotRequest {}).await;
    let mut stream = stream.map_err(failed)?.into_inner();
    let mut checked = Checked::new();
    while let Some(piece) = stream.message().await.map_err(failed)? {
        checked.take(&piece.blob);
        file.write_all(&piece.blob).map_err(|why| unwritable(part, &why))?;
    }
    file.sync_all().map_err(|why| unwritable(part, &why))?;
    let total = checked.total();
    checked.finish().map_err(|why| {
        Failure::failed(format!("{} sent no whole snapshot: {}", connection.endpoint, why.text()))
    })?;
    Ok(total)
}

fn status(path: &Path, write_out: WriteOut) -> Result<(), Failure> {
    let (size, sum) = check_file(path)?;
    let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    // etcd's files have the same end; what is in them is not known here.
    let ours = File::open(path).ok().and_then(|file| SnapshotFile::open(file).ok());
    let header = ours.map(|ours| ours.header);
    match write_out {
        WriteOut::Json => print::json(&json!({
            "bytes": size,
            "sha256": sum,
            "revision": header.map(|header| header.revision),
            "applied": header.map(|header| header.applied),
            "clusterID": header.map(|header| header.cluster_id),
        })),
        WriteOut::Table => {
            let mut table = Table::new(&["SIZE", "REVISION", "APPLIED", "CLUSTER", "SHA-256"]);
            let known = |text: &dyn Fn(&SnapshotHeader) -> String| {
                header.as_ref().map_or(String::new(), text)
            };
            table.row([
                bytes(size),
                known(&|header| header.revision.to_string()),
                known(&|header| header.applied.to_string()),
                known(&|header| hex(header.cluster_id)),
                sum,
            ]);
            print::out(&table.text());
        }
    }
    Ok(())
}

fn restore(asked: &RestoreArguments) -> Result<(), Failure> {
    if (asked.bump_revision > 0) != asked.mark_compacted {
        return Err(Failure::usage(
            "--mark-compacted is required with a --bump-revision above 0, and refused without it",
        ));
    }
    let config = restored_config(asked)?;
    check_unused(&config)?;
    let unreadable =
        |why: io::Error| Failure::because(&format!("cannot read {}", asked.file.display()), &why);
    let file = File::open(&asked.file).map_err(unreadable)?;
    let how = RestoreOptions {
        bump_revision: asked.bump_revision,
        skip_hash_check: asked.skip_hash_check,
    };
    let restored = recover::restore(&config, file, how).map_err(|why| {
        Failure::because(&format!("cannot restore {}", asked.file.display()), &why)
    })?;
    let (header, data_dir) = (restored.header, config.data_dir.display());
    print::line(&format!(
        "restored revision {} of cluster {} to {data_dir}, for the new cluster {}",
        header.revision,
        hex(header.cluster_id),
        hex(restored.cluster_id)
    ));
    if asked.mark_compacted {
        print::line(&format!(
            "it begins at revision {}; all before that is compacted",
            restored.revision
        ));
    }
    print::line(
        "restore each of its first members from this file in the same way, then start them with \
         the same --name, --data-dir and addresses",
    );
    Ok(())
}

fn restored_config(asked: &RestoreArguments) -> Result<Config, Failure> {
    let mut flags = vec![
        ("--name", &asked.name),
        ("--initial-cluster", &asked.initial_cluster),
        ("--initial-cluster-token", &asked.initial_cluster_token),
        ("--initial-advertise-peer-urls", &asked.initial_advertise_peer_urls),
    ];
    flags.extend(asked.data_dir.as_ref().map(|path| ("--data-dir", path)));
    flags.extend(asked.wal_dir.as_ref().map(|path| ("--wal-dir", path)));
    let flags = flags.into_iter().flat_map(|(flag, value)| [flag.to_string(), value.clone()]);
    // Variables are for servers: what is not said here is not meant.
    let wanted = config::parse(flags, []).map_err(|why| Failure::usage(why.to_string()))?;
    let Invocation::Run(config) = wanted else {
        return Err(Failure::usage("nothing to restore to"));
    };
    Ok(*config)
}

/// Nothing that is there may be written over, nor mixed with what comes.
fn check_unused(config: &Config) -> Result<(), Failure> {
    let empty = |path: &Path| match fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_none(),
        Err(why) => why.kind() == io::ErrorKind::NotFound,
    };
    let data_dir = &config.data_dir;
    if !empty(data_dir) {
        return Err(Failure::failed(format!(
            "{} is not empty or cannot be read; name another --data-dir",
            data_dir.display()
        )));
    }
    match config.wal_dir.as_ref().filter(|path| path.exists()) {
        Some(path) => {
            Err(Failure::failed(format!("{} exists; name another --wal-dir", path.display())))
        }
        None => Ok(()),
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".part");
    PathBuf::from(name)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

fn unwritable(path: &Path, why: &io::Error) -> Failure {
    Failure::because(&format!("cannot write {}", path.display()), why)
}
