//! A server that is started on the data directory of an etcd member, as after `etcdutl snapshot
//! restore`, or when only the program was replaced.
//!
//! Its data becomes that of the first members of a new cluster if all of them have the same data:
//! there is only one member, or the directory was just restored from a snapshot. Otherwise the
//! start is refused: members whose logs ended at different entries must not become one cluster.

use std::path::Path;

use bytes::Bytes;
use quorate::{MemberId, Membership};
use quorate_etcd_files::EtcdDataDir;
use serde::Deserialize;

use super::{
    NEW, OLD, RecoverError, RestoreOptions, empty_store, random_number, sibling, sync_parent,
    write_imported_to,
};
use crate::bootstrap::{InitialCluster, cluster_id, store_directory};
use crate::config::ServerConfig;
use crate::etcd_import::import_directory;
use crate::member_details::MemberDetails;
use crate::url::Url;

/// A member as etcd's database describes it.
#[derive(Deserialize)]
struct EtcdMember {
    id: u64,
    #[serde(default)]
    name: String,
    #[serde(default, rename = "peerURLs")]
    peer_urls: Vec<String>,
    #[serde(default, rename = "isLearner")]
    is_learner: bool,
}

/// Replaces the data of an etcd member, if the data directory has that of one, and keeps it under
/// another name.
pub(crate) fn adopt_etcd_member(config: &ServerConfig) -> Result<(), RecoverError> {
    let directory = store_directory(config);
    let database = config.data_dir.join("member").join("snap").join("db");
    if !database.exists() || is_own(&directory).map_err(RecoverError::System)? {
        return Ok(());
    }
    let opened = EtcdDataDir::open(&config.data_dir, config.wal_dir.as_deref());
    let mut opened = opened.map_err(|error| RecoverError::Etcd(error.into()))?;
    let own = opened.log.member_id;
    // etcd 3.4 restores the members to the log alone.
    let (members, is_restored) = match opened.log.restored_members.take() {
        Some(members) => (Ok(members), true),
        None => (opened.database.members(), false),
    };
    let members = members.map_err(|error| RecoverError::Etcd(error.into()))?;
    let unknown = || RecoverError::EtcdMembers { directory: config.data_dir.clone() };
    let members: Result<Vec<EtcdMember>, _> =
        members.iter().map(|member| serde_json::from_slice(member)).collect();
    let mut members = members.map_err(|_| unknown())?;
    if config.force_new_cluster {
        members.retain(|member| member.id == own);
    }
    if members.len() > 1 && !is_restored {
        let (directory, members) = (config.data_dir.clone(), members.len());
        return Err(RecoverError::EtcdCluster { directory, members });
    }
    let initial = first_members(&members, own).ok_or_else(unknown)?;
    let mut kv = empty_store()?;
    let imported = import_directory(&mut kv, opened).map_err(RecoverError::Etcd)?;
    let number = random_number()?;
    let new_directory = sibling(&directory, &format!("{NEW}{number:x}"));
    let options = RestoreOptions::default();
    let restored = write_imported_to(&new_directory, initial, kv, options, imported)?;
    let kept = sibling(&directory, &format!("{OLD}{:x}", restored.cluster_id));
    std::fs::rename(&directory, &kept).map_err(RecoverError::System)?;
    std::fs::rename(&new_directory, &directory).map_err(RecoverError::System)?;
    sync_parent(&directory).map_err(RecoverError::System)?;
    tracing::warn!(kept = %kept.display(), revision = restored.revision,
        "imported the data of an etcd member into a new cluster; its own files are kept");
    Ok(())
}

/// Whether the directory has files of this program. Opening it would create some.
fn is_own(directory: &Path) -> std::io::Result<bool> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        entries => entries?,
    };
    for entry in entries {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if OWN_FILES.iter().any(|own| name.starts_with(own)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The first members of the new cluster: those of etcd, with their ids. `None` if this one is not
/// among them, or an address cannot be used here.
fn first_members(members: &[EtcdMember], own: u64) -> Option<InitialCluster> {
    let ids = |is_learner: bool| {
        let members = members.iter().filter(move |member| member.is_learner == is_learner);
        members.map(|member| MemberId(member.id))
    };
    let mut membership = Membership::new(ids(false), ids(true));
    for member in members {
        let urls: Option<Vec<Url>> =
            member.peer_urls.iter().map(|url| Url::parse(url).ok()).collect();
        let details = MemberDetails::expected(&member.name, &urls.filter(|urls| !urls.is_empty())?);
        membership = membership.with_info(MemberId(member.id), details.in_zone(Bytes::new()));
    }
    members.iter().find(|member| member.id == own)?;
    let mut ids: Vec<u64> = members.iter().map(|member| member.id).collect();
    ids.sort_unstable();
    Some(InitialCluster { cluster: cluster_id(&ids), own: MemberId(own), membership })
}

/// How the files of a log of this program begin.
const OWN_FILES: [&str; 3] = ["wal-", "snapshot-", "synced"];
