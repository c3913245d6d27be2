//! `quorate snapshot restore` and `quorate import`: the data directory of an initial member of a
//! new cluster.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use quorate_server::config::{self, Invocation, ServerConfig};
use quorate_server::recover::{self, EtcdImport, RestoreOptions, Restored};
use serde_json::json;

use crate::arguments::{ImportArguments, NewClusterArguments, RestoreArguments, WriteOut};
use crate::error::CliError;
use crate::ids::hex_id;
use crate::print;

pub(crate) fn restore(arguments: &RestoreArguments) -> Result<(), CliError> {
    let RestoreArguments { file: path, data_dir, wal_dir, skip_hash_check, cluster } = arguments;
    let (config, mut options) = new_cluster(cluster, data_dir.as_ref(), wal_dir.as_ref())?;
    options.skip_hash_check = *skip_hash_check;
    let failed = |context: &str, error: &dyn std::error::Error| {
        CliError::with_cause(&format!("{context} {}", path.display()), error)
    };
    let file = File::open(path).map_err(|error| failed("cannot read", &error))?;
    let restored = recover::restore(&config, file, options);
    let restored = restored.map_err(|error| failed("cannot restore", &error))?;
    report(&restored, &config, cluster);
    Ok(())
}

pub(crate) fn import(arguments: &ImportArguments) -> Result<(), CliError> {
    let ImportArguments { data_dir, wal_dir, new_data_dir, new_wal_dir, cluster } = arguments;
    let (config, options) = new_cluster(cluster, new_data_dir.as_ref(), new_wal_dir.as_ref())?;
    let restored = recover::import(&config, data_dir, wal_dir.as_deref(), options);
    let restored = restored.map_err(|error| {
        CliError::with_cause(&format!("cannot import {}", data_dir.display()), &error)
    })?;
    report(&restored, &config, cluster);
    Ok(())
}

fn new_cluster(
    arguments: &NewClusterArguments,
    data_dir: Option<&String>,
    wal_dir: Option<&String>,
) -> Result<(ServerConfig, RestoreOptions), CliError> {
    if (arguments.bump_revision > 0) != arguments.mark_compacted {
        return Err(CliError::usage("--bump-revision and --mark-compacted must be used together"));
    }
    let config = server_config(arguments, data_dir, wal_dir)?;
    check_directories(&config)?;
    let bump_revision = arguments.bump_revision;
    Ok((config, RestoreOptions { bump_revision, ..RestoreOptions::default() }))
}

fn server_config(
    arguments: &NewClusterArguments,
    data_dir: Option<&String>,
    wal_dir: Option<&String>,
) -> Result<ServerConfig, CliError> {
    let mut flags = vec![
        ("--name", &arguments.name),
        ("--initial-cluster", &arguments.initial_cluster),
        ("--initial-cluster-token", &arguments.initial_cluster_token),
        ("--initial-advertise-peer-urls", &arguments.initial_advertise_peer_urls),
    ];
    flags.extend(data_dir.map(|path| ("--data-dir", path)));
    flags.extend(wal_dir.map(|path| ("--wal-dir", path)));
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

fn report(restored: &Restored, config: &ServerConfig, arguments: &NewClusterArguments) {
    let (header, data_dir) = (restored.header, config.data_dir.display());
    // A snapshot of etcd does not name its cluster.
    let old_cluster = (header.cluster_id != 0).then(|| hex_id(header.cluster_id));
    if arguments.output.write_out == WriteOut::Json {
        let etcd = restored.etcd.as_ref();
        print::json(&json!({
            "dataDir": data_dir.to_string(),
            "format": if etcd.is_some() { "etcd" } else { "quorate" },
            "savedRevision": header.revision,
            "savedClusterID": old_cluster,
            "revision": restored.revision,
            "clusterID": hex_id(restored.cluster_id),
            "replayedEntries": etcd.map(|etcd| etcd.replayed),
            "notes": etcd.map(|etcd| &etcd.notes),
        }));
        return;
    }
    let from = match (&restored.etcd, &old_cluster) {
        (None, Some(cluster)) => format!("of cluster {cluster}"),
        (Some(_), Some(cluster)) => format!("of the etcd cluster {cluster}"),
        (_, None) => "of an etcd cluster".to_owned(),
    };
    let new_cluster = hex_id(restored.cluster_id);
    print::line(&format!(
        "restored revision {} {from} to {data_dir}, for the new cluster {new_cluster}",
        header.revision
    ));
    if let Some(EtcdImport { replayed, notes, .. }) = &restored.etcd {
        if *replayed > 0 {
            print::line(&format!("{replayed} entries of the log were behind its database"));
        }
        notes.iter().for_each(|note| print::line(&format!("note: {note}")));
    }
    if arguments.mark_compacted {
        print::line(&format!(
            "it starts at revision {}; earlier revisions are compacted",
            restored.revision
        ));
    }
    print::line(
        "restore the other initial members from the same data in the same way, then start each \
         with its --name, --data-dir and addresses",
    );
}
