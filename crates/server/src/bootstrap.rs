//! Who this member is: by its disk, by the first membership of a new cluster, or by what
//! the members of a running one say.
//!
//! Ids are made as etcd makes them, so that every first member computes the same. What was
//! given about the first cluster counts only on an empty disk.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use quorate::{
    DriverOptions, FileDisk, HostedMember, MemberId, Membership, NodeConfig, TcpTransport,
};
use quorate_storage::{OpenError, Store};
use sha1::{Digest, Sha1};
use tokio::time::Instant;

use crate::config::{ClusterState, Config};
use crate::member_info::Info;
use crate::url::{Url, join};

/// Where the log and the snapshots are.
pub(crate) fn store_directory(config: &Config) -> PathBuf {
    config.wal_dir.clone().unwrap_or_else(|| config.data_dir.join("member"))
}

/// What to start the member with.
pub(crate) async fn prepare(
    config: &Config,
    transport: &TcpTransport,
) -> Result<NodeConfig, BootstrapError> {
    let mut disk = FileDisk::open(store_directory(config)).map_err(BootstrapError::Directory)?;
    let owner = Store::read_identity(&mut disk).map_err(BootstrapError::Store)?;
    let node = match (owner, config.initial_cluster_state) {
        (Some(identity), _) => {
            let node = NodeConfig::join(identity.cluster, identity.member, identity.joined_at);
            tracing::info!(cluster_id = %hex(identity.cluster), member_id = %hex(identity.member.0),
                "restarting; the initial cluster is ignored");
            node
        }
        (None, ClusterState::New) => found(config, transport).await?,
        (None, ClusterState::Existing) => join_running(config, transport).await?,
    };
    Ok(with_times(node, config))
}

fn with_times(mut node: NodeConfig, config: &Config) -> NodeConfig {
    let ticks = |time: Duration| {
        let ticks = time.as_nanos().div_ceil(config.heartbeat_interval.as_nanos().max(1));
        u64::try_from(ticks).unwrap_or(u64::MAX)
    };
    node.tick = config.heartbeat_interval;
    node.raft.heartbeat_ticks = 1;
    node.raft.election_ticks = u32::try_from(ticks(config.election_timeout)).unwrap_or(u32::MAX);
    node.raft.pre_vote = config.pre_vote;
    node.options = DriverOptions {
        // As long as etcd's clients are used to wait.
        request_ticks: ticks(Duration::from_secs(5) + 2 * config.election_timeout),
        snapshot_entries: config.snapshot_count.max(1),
        ..node.options
    };
    node
}

/// A first member of a new cluster.
async fn found(config: &Config, transport: &TcpTransport) -> Result<NodeConfig, BootstrapError> {
    let Founding { cluster, own, membership } = founding(config)?;
    check_not_known(config, transport, cluster, own).await?;
    let mut node = NodeConfig::join(cluster, own, 0);
    node.first = Some(membership);
    Ok(node)
}

/// How a cluster begins: the same for all of its first members, but for who is asked.
#[derive(Debug)]
pub(crate) struct Founding {
    pub(crate) cluster: u64,
    pub(crate) own: MemberId,
    pub(crate) membership: Membership,
}

pub(crate) fn founding(config: &Config) -> Result<Founding, BootstrapError> {
    let members = config.first_members();
    check_own(config, &members)?;
    let mut first: Vec<(MemberId, &String, Info)> = Vec::new();
    for (name, urls) in &members {
        let id = MemberId(member_id(urls, &config.initial_cluster_token, None));
        if first.iter().any(|(known, ..)| *known == id) {
            return Err(BootstrapError::SameAddress { urls: join(urls) });
        }
        first.push((id, name, Info::expected(name, urls)));
    }
    let ids: Vec<u64> = first.iter().map(|(id, ..)| id.0).collect();
    let own = first.iter().find(|(_, name, _)| **name == config.name);
    let own = own.map_or(MemberId(0), |(id, ..)| *id);
    let mut membership = Membership::new(first.iter().map(|(id, ..)| *id), []);
    for (id, _, info) in &first {
        membership = membership.with_info(*id, info.in_zone(bytes::Bytes::new()));
    }
    Ok(Founding { cluster: cluster_id(&ids), own, membership })
}

/// An empty disk that comes under the name of a member that was seen before has lost what
/// it promised.
async fn check_not_known(
    config: &Config,
    transport: &TcpTransport,
    cluster: u64,
    own: MemberId,
) -> Result<(), BootstrapError> {
    let asked = inquire(config, transport, FOUNDERS_PATIENCE).await;
    let known = asked.residents.iter().any(|resident| {
        let membership = &resident.membership.membership;
        resident.key.cluster == cluster && membership.incarnation(own).is_some()
    });
    if known { Err(BootstrapError::AlreadyBootstrapped { id: own.0 }) } else { Ok(()) }
}

fn check_own(config: &Config, members: &[(String, Vec<Url>)]) -> Result<(), BootstrapError> {
    let Some((_, urls)) = members.iter().find(|(name, _)| *name == config.name) else {
        let names = members.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(",");
        return Err(BootstrapError::NotNamed { name: config.name.clone(), names });
    };
    let (mut given, mut advertised) = (urls.clone(), config.initial_advertise_peer_urls.clone());
    given.sort();
    advertised.sort();
    if given == advertised {
        return Ok(());
    }
    Err(BootstrapError::OtherAddress { given: join(&given), advertised: join(&advertised) })
}

/// Asks the members that were given until one knows this one.
async fn join_running(
    config: &Config,
    transport: &TcpTransport,
) -> Result<NodeConfig, BootstrapError> {
    let members = config.first_members();
    check_own(config, &members)?;
    let deadline = Instant::now() + JOIN_PATIENCE;
    loop {
        let asked = inquire(config, transport, INQUIRY_PATIENCE).await;
        let newest = asked.residents.iter().max_by_key(|resident| resident.membership.id);
        let refused = match newest {
            Some(resident) => match find_own(config, &members, resident) {
                Ok(node) => return Ok(node),
                Err(why) => why,
            },
            None => BootstrapError::NobodyAnswers { tried: asked.failures },
        };
        // Who was asked may be behind, or about to start.
        if Instant::now() >= deadline {
            return Err(refused);
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

fn find_own(
    config: &Config,
    given: &[(String, Vec<Url>)],
    resident: &HostedMember,
) -> Result<NodeConfig, BootstrapError> {
    let membership = &resident.membership.membership;
    let sorted = |mut urls: Vec<String>| {
        urls.sort();
        urls.join(",")
    };
    let known: Vec<(MemberId, String)> = membership
        .members()
        .iter()
        .map(|id| (id, sorted(Info::of(membership, id).peer_urls)))
        .collect();
    let given: Vec<(&str, String)> = given
        .iter()
        .map(|(name, urls)| (name.as_str(), sorted(urls.iter().map(Url::to_string).collect())))
        .collect();
    let unequal = |why: &'static str| {
        let one = |(name, urls): &(&str, String)| format!("{name}={urls}");
        let given = given.iter().map(one).collect::<Vec<_>>().join(" ");
        let one = |(id, urls): &(MemberId, String)| format!("{}={urls}", hex(id.0));
        let known = known.iter().map(one).collect::<Vec<_>>().join(" ");
        BootstrapError::Unequal { why, given, known }
    };
    if known.len() != given.len() {
        return Err(unequal("member count is unequal"));
    }
    if given.iter().any(|(_, urls)| known.iter().all(|(_, known)| known != urls)) {
        return Err(unequal("unmatched member while checking PeerURLs"));
    }
    let own = given.iter().find(|(name, _)| *name == config.name);
    let own = own.and_then(|(_, urls)| known.iter().find(|(_, known)| known == urls));
    let Some((id, _)) = own else { return Err(unequal("this member is not among them")) };
    if membership.incarnation(*id).is_some() || membership.joined_at(*id) == 0 {
        return Err(BootstrapError::AlreadyBootstrapped { id: id.0 });
    }
    Ok(NodeConfig::join(resident.key.cluster, *id, membership.joined_at(*id)))
}

/// What the others said.
struct Asked {
    residents: Vec<HostedMember>,
    failures: String,
}

async fn inquire(config: &Config, transport: &TcpTransport, patience: Duration) -> Asked {
    let mut asked = Asked { residents: Vec::new(), failures: String::new() };
    let others = config.first_members().into_iter().filter(|(name, _)| *name != config.name);
    for url in others.flat_map(|(_, urls)| urls) {
        match transport.discover(&url.address(), patience).await {
            Ok(residents) => asked.residents.extend(residents),
            Err(why) => asked.failures.push_str(&format!(" {url}: {why};")),
        }
    }
    asked
}

/// The id of a member: the first 8 bytes of the SHA-1 of its sorted addresses, the token of
/// its cluster and, for one that is added later, the time.
pub(crate) fn member_id(urls: &[Url], token: &str, seconds: Option<u64>) -> u64 {
    let mut urls: Vec<String> = urls.iter().map(Url::to_string).collect();
    urls.sort();
    let mut hash = Sha1::new();
    urls.iter().for_each(|url| hash.update(url));
    hash.update(token);
    if let Some(seconds) = seconds {
        hash.update(seconds.to_string());
    }
    first_bytes(hash)
}

/// The id of a cluster: made of those of its first members.
pub(crate) fn cluster_id(ids: &[u64]) -> u64 {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    let mut hash = Sha1::new();
    ids.iter().for_each(|id| hash.update(id.to_be_bytes()));
    first_bytes(hash)
}

fn first_bytes(hash: Sha1) -> u64 {
    let hash = hash.finalize();
    hash.first_chunk::<8>().map_or(1, |bytes| u64::from_be_bytes(*bytes)).max(1)
}

/// Ids as etcd shows them.
pub(crate) fn hex(id: u64) -> String {
    format!("{id:x}")
}

/// Why nobody knows which member to start.
#[derive(Debug)]
#[non_exhaustive]
pub enum BootstrapError {
    /// The directory cannot be used.
    Directory(std::io::Error),
    /// What is in it cannot be read.
    Store(OpenError),
    /// The own name is not in the initial cluster. Add it there.
    NotNamed { name: String, names: String },
    /// The initial cluster says another address than this member does. Make them equal.
    OtherAddress { given: String, advertised: String },
    /// Two members of the initial cluster have the same addresses.
    SameAddress { urls: String },
    /// The cluster knows another disk by this id. Remove the member, and add it anew.
    AlreadyBootstrapped { id: u64 },
    /// The initial cluster is not the one that runs. Take the words of `member add`.
    Unequal { why: &'static str, given: String, known: String },
    /// Nobody of the initial cluster said who is in it.
    NobodyAnswers { tried: String },
}

impl fmt::Display for BootstrapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(why) => write!(f, "data directory: {why}"),
            Self::Store(why) => write!(f, "data directory: {why}"),
            Self::NotNamed { name, names } => {
                write!(f, "couldn't find local name {name:?} in the initial cluster, found {names}")
            }
            Self::OtherAddress { given, advertised } => write!(
                f,
                "--initial-cluster has {given} for this member, \
                 --initial-advertise-peer-urls has {advertised}"
            ),
            Self::SameAddress { urls } => {
                write!(f, "two members of the initial cluster are at {urls}")
            }
            Self::AlreadyBootstrapped { id } => write!(
                f,
                "member {id:x} has already been bootstrapped on another disk; \
                 remove it and add it anew"
            ),
            Self::Unequal { why, given, known } => {
                write!(
                    f,
                    "error validating peerURLs: {why}; given {given}; the cluster has {known}"
                )
            }
            Self::NobodyAnswers { tried } => {
                write!(f, "could not retrieve cluster information from the given URLs:{tried}")
            }
        }
    }
}

impl std::error::Error for BootstrapError {}

const INQUIRY_PATIENCE: Duration = Duration::from_secs(5);
const JOIN_PATIENCE: Duration = Duration::from_secs(10);
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// First members start at any time: nobody waits for them.
const FOUNDERS_PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(texts: &[&str]) -> Vec<Url> {
        texts.iter().map(|text| Url::parse(text).unwrap()).collect()
    }

    /// The ids that etcd prints for its documented cluster of three.
    #[test]
    fn ids_are_those_of_etcd() {
        let alone = urls(&["http://localhost:2380"]);
        let id = member_id(&alone, "etcd-cluster", None);
        assert_eq!(
            (hex(id), hex(cluster_id(&[id]))),
            ("8e9e05c52164694d".into(), "cdf818194e3a8c32".into())
        );
        let two = urls(&["http://b:1", "http://a:1"]);
        let turned = urls(&["http://a:1", "http://b:1"]);
        assert_eq!(member_id(&two, "t", None), member_id(&turned, "t", None));
        assert_ne!(member_id(&two, "t", None), member_id(&two, "t", Some(1)));
    }
}
