//! Decides which member to start: the one on the disk, an initial member of a new cluster, or a
//! joining member of a running cluster.
//!
//! Ids are made as etcd makes them, so that every initial member computes the same ones. The
//! flags about the initial cluster are used only with an empty disk.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use quorate::storage::FileDisk;
use quorate::transport::HostedMember;
use quorate::{MemberId, Membership, NodeConfig, TcpTransport, UnsupportedVersion};
use quorate_kv::SUPPORTED_VERSIONS;
use quorate_storage::{OpenError, Store};
use sha1::{Digest, Sha1};
use tokio::time::Instant;

use crate::config::{ClusterState, ServerConfig};
use crate::member_details::MemberDetails;
use crate::url::{Url, join};

/// The directory of the log and the snapshots.
pub(crate) fn store_directory(config: &ServerConfig) -> PathBuf {
    config.wal_dir.clone().unwrap_or_else(|| config.data_dir.join("member"))
}

/// The configuration of the node to start.
pub(crate) async fn prepare(
    config: &ServerConfig,
    transport: &TcpTransport,
) -> Result<NodeConfig, BootstrapError> {
    let mut disk = FileDisk::open(store_directory(config)).map_err(BootstrapError::Directory)?;
    let owner = Store::read_identity(&mut disk).map_err(BootstrapError::Store)?;
    let node = match (owner, config.initial_cluster_state) {
        (Some(identity), _) => {
            let node = NodeConfig::join(identity.cluster, identity.member.0, identity.joined_at);
            tracing::info!(cluster = %hex(identity.cluster), member = %identity.member,
                "restarting from the data directory; the initial cluster is ignored");
            node
        }
        (None, ClusterState::New) => new_cluster(config, transport).await?,
        (None, ClusterState::Existing) => join_cluster(config, transport).await?,
    };
    Ok(with_settings(node, config))
}

fn with_settings(mut node: NodeConfig, config: &ServerConfig) -> NodeConfig {
    let ticks = |time: Duration| {
        let ticks = time.as_nanos().div_ceil(config.heartbeat_interval.as_nanos().max(1));
        u64::try_from(ticks).unwrap_or(u64::MAX)
    };
    node.tick = config.heartbeat_interval;
    node.raft.heartbeat_ticks = 1;
    node.raft.election_ticks = u32::try_from(ticks(config.election_timeout)).unwrap_or(u32::MAX);
    node.raft.pre_vote = config.pre_vote;
    // etcd's timeout of a request.
    node.options.request_ticks = ticks(Duration::from_secs(5) + 2 * config.election_timeout);
    node.options.snapshot_entries = config.snapshot_count;
    node.options.snapshot_bytes = config.snapshot_bytes.max(1);
    node.raft.tail_bytes_max = TAIL_BYTES_MAX;
    node
}

/// Entries in memory for peers that lag. The rest of the log is read from the disk, where the system
/// caches it too.
pub(crate) const TAIL_BYTES_MAX: u64 = 4 << 20;

/// An initial member of a new cluster.
async fn new_cluster(
    config: &ServerConfig,
    transport: &TcpTransport,
) -> Result<NodeConfig, BootstrapError> {
    let InitialCluster { cluster, own, membership } = initial_cluster(config)?;
    check_not_known(config, transport, cluster, own).await?;
    let mut node = NodeConfig::join(cluster, own.0, 0);
    node.first = Some(membership);
    Ok(node)
}

/// The start of a cluster. Only `own` differs between its initial members.
#[derive(Debug)]
pub(crate) struct InitialCluster {
    pub(crate) cluster: u64,
    pub(crate) own: MemberId,
    pub(crate) membership: Membership,
}

pub(crate) fn initial_cluster(config: &ServerConfig) -> Result<InitialCluster, BootstrapError> {
    let members = config.initial_members();
    check_own(config, &members)?;
    let mut initial: Vec<(MemberId, &String, MemberDetails)> = Vec::new();
    for (name, urls) in &members {
        let id = MemberId(member_id(urls, &config.initial_cluster_token, None));
        if initial.iter().any(|(known, ..)| *known == id) {
            return Err(BootstrapError::SameAddress { urls: join(urls) });
        }
        initial.push((id, name, MemberDetails::expected(name, urls)));
    }
    let ids: Vec<u64> = initial.iter().map(|(id, ..)| id.0).collect();
    let own = initial.iter().find(|(_, name, _)| **name == config.name);
    let own = own.map_or(MemberId(0), |(id, ..)| *id);
    let mut membership = Membership::new(initial.iter().map(|(id, ..)| *id), []);
    for (id, _, details) in &initial {
        membership = membership.with_info(*id, details.in_zone(bytes::Bytes::new()));
    }
    Ok(InitialCluster { cluster: cluster_id(&ids), own, membership })
}

/// An empty disk under the id of a member that has run before is refused: the lost disk held
/// votes and entries that the member had promised to keep.
async fn check_not_known(
    config: &ServerConfig,
    transport: &TcpTransport,
    cluster: u64,
    own: MemberId,
) -> Result<(), BootstrapError> {
    let inquiry = inquire(config, transport, INITIAL_MEMBERS_TIMEOUT).await;
    let known = inquiry.residents.iter().any(|resident| {
        let membership = &resident.membership.membership;
        resident.key.cluster == cluster && membership.incarnation(own).is_some()
    });
    if known { Err(BootstrapError::AlreadyBootstrapped { id: own.0 }) } else { Ok(()) }
}

fn check_own(config: &ServerConfig, members: &[(String, Vec<Url>)]) -> Result<(), BootstrapError> {
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

/// Asks the given members until one of them has this member in its membership.
async fn join_cluster(
    config: &ServerConfig,
    transport: &TcpTransport,
) -> Result<NodeConfig, BootstrapError> {
    let members = config.initial_members();
    check_own(config, &members)?;
    let deadline = Instant::now() + JOIN_TIMEOUT;
    let mut reported = false;
    loop {
        let inquiry = inquire(config, transport, INQUIRY_TIMEOUT).await;
        let newest = inquiry.residents.iter().max_by_key(|resident| resident.membership.id);
        let error = match newest {
            Some(resident) => match find_own(config, &members, resident) {
                Ok(node) => return Ok(node),
                Err(error) => error,
            },
            None => BootstrapError::NoMemberAnswers { tried: inquiry.failures },
        };
        // The members that answered may be lagging, and others may be about to start.
        if Instant::now() >= deadline {
            return Err(error);
        }
        if !reported {
            reported = true;
            let seconds = JOIN_TIMEOUT.as_secs();
            let advice = newest.and_then(|resident| not_added(config, resident));
            let advice = advice.unwrap_or_default();
            tracing::warn!("cannot join yet: {advice}{error}; trying again for {seconds} s");
        }
        tokio::time::sleep(INQUIRY_INTERVAL).await;
    }
}

/// What to do if the cluster does not know the addresses of this member.
fn not_added(config: &ServerConfig, resident: &HostedMember) -> Option<String> {
    let membership = &resident.membership.membership;
    let own: Vec<_> = config.initial_advertise_peer_urls.iter().map(Url::to_string).collect();
    let is_own =
        |id| MemberDetails::of(membership, id).peer_urls.iter().any(|url| own.contains(url));
    let is_known = membership.members().iter().any(is_own);
    (!is_known).then(|| {
        format!(
            "this member was never added to the cluster, or was removed. Add it first with \
             'quorate member add {}={}', and start it with the variables that this prints. ",
            config.name,
            own.join(",")
        )
    })
}

fn find_own(
    config: &ServerConfig,
    given: &[(String, Vec<Url>)],
    resident: &HostedMember,
) -> Result<NodeConfig, BootstrapError> {
    let version = resident.cluster_version;
    if !SUPPORTED_VERSIONS.contains(version) {
        let why = UnsupportedVersion { needs: version, supported: SUPPORTED_VERSIONS };
        return Err(BootstrapError::UnsupportedVersion(why));
    }
    let membership = &resident.membership.membership;
    let sorted = |mut urls: Vec<String>| {
        urls.sort();
        urls.join(",")
    };
    let known: Vec<(MemberId, String)> = membership
        .members()
        .iter()
        .map(|id| (id, sorted(MemberDetails::of(membership, id).peer_urls)))
        .collect();
    let given: Vec<(&str, String)> = given
        .iter()
        .map(|(name, urls)| (name.as_str(), sorted(urls.iter().map(Url::to_string).collect())))
        .collect();
    let unequal = |reason: &'static str| {
        let pair = |(name, urls): &(&str, String)| format!("{name}={urls}");
        let given = given.iter().map(pair).collect::<Vec<_>>().join(" ");
        let pair = |(id, urls): &(MemberId, String)| format!("{id}={urls}");
        let known = known.iter().map(pair).collect::<Vec<_>>().join(" ");
        BootstrapError::UnequalClusters { reason, given, known }
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
    Ok(NodeConfig::join(resident.key.cluster, id.0, membership.joined_at(*id)))
}

/// The answers of the other members.
struct InquiryResult {
    residents: Vec<HostedMember>,
    failures: String,
}

async fn inquire(
    config: &ServerConfig,
    transport: &TcpTransport,
    timeout: Duration,
) -> InquiryResult {
    let mut inquiry = InquiryResult { residents: Vec::new(), failures: String::new() };
    let others = config.initial_members().into_iter().filter(|(name, _)| *name != config.name);
    for url in others.flat_map(|(_, urls)| urls) {
        match transport.discover(&url.peer_address(), timeout).await {
            Ok(residents) => inquiry.residents.extend(residents),
            Err(error) => inquiry.failures.push_str(&format!(" {url}: {error};")),
        }
    }
    inquiry
}

/// The id of a member: the first 8 bytes of the SHA-1 of its sorted addresses, the token of
/// its cluster and, for a member that is added later, the time.
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

/// The id of a cluster, made from those of its initial members.
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

/// A cluster id as it is printed everywhere, like a member id: 16 hexadecimal digits.
pub(crate) fn hex(id: u64) -> String {
    format!("{id:016x}")
}

/// Why it cannot be decided which member to start.
#[derive(Debug)]
#[non_exhaustive]
pub enum BootstrapError {
    /// The data directory cannot be used.
    Directory(std::io::Error),
    /// The data directory cannot be read.
    Store(OpenError),
    /// The name of this member is not in the initial cluster. Add it there.
    NotNamed { name: String, names: String },
    /// The initial cluster has another address for this member than it advertises. Make them
    /// equal.
    OtherAddress { given: String, advertised: String },
    /// Two members of the initial cluster have the same addresses.
    SameAddress { urls: String },
    /// The cluster knows this member id with another disk. Remove the member, and add it again.
    AlreadyBootstrapped { id: u64 },
    /// The initial cluster differs from the running one. Use the output of `member add`.
    UnequalClusters { reason: &'static str, given: String, known: String },
    /// The cluster has a version that this program does not support.
    UnsupportedVersion(UnsupportedVersion),
    /// No member of the initial cluster answered with its membership.
    NoMemberAnswers { tried: String },
}

impl fmt::Display for BootstrapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(error) => write!(f, "data directory: {error}"),
            Self::Store(error) => write!(f, "data directory: {error}"),
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
                "member {id:016x} has already been bootstrapped on another disk; \
                 remove it and add it again"
            ),
            Self::UnequalClusters { reason, given, known } => {
                write!(
                    f,
                    "error validating peerURLs: {reason}; given {given}; the cluster has {known}; \
                     a new member is added with 'quorate member add' before it starts"
                )
            }
            Self::UnsupportedVersion(why) => write!(f, "cannot join: {why}"),
            Self::NoMemberAnswers { tried } => {
                write!(f, "could not retrieve cluster information from the given URLs:{tried}")
            }
        }
    }
}

impl std::error::Error for BootstrapError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Directory(error) => Some(error),
            Self::Store(error) => Some(error),
            Self::UnsupportedVersion(why) => Some(why),
            _ => None,
        }
    }
}

const INQUIRY_TIMEOUT: Duration = Duration::from_secs(5);
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
const INQUIRY_INTERVAL: Duration = Duration::from_millis(200);
/// Short, since the other initial members may start at any time and are not waited for.
const INITIAL_MEMBERS_TIMEOUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(texts: &[&str]) -> Vec<Url> {
        texts.iter().map(|text| Url::parse(text).unwrap()).collect()
    }

    /// The ids that etcd prints for its default single-member cluster.
    #[test]
    fn ids_are_those_of_etcd() {
        let alone = urls(&["http://localhost:2380"]);
        let id = member_id(&alone, "etcd-cluster", None);
        assert_eq!(
            (hex(id), hex(cluster_id(&[id]))),
            ("8e9e05c52164694d".into(), "cdf818194e3a8c32".into())
        );
        let two = urls(&["http://b:1", "http://a:1"]);
        let reversed = urls(&["http://a:1", "http://b:1"]);
        assert_eq!(member_id(&two, "t", None), member_id(&reversed, "t", None));
        assert_ne!(member_id(&two, "t", None), member_id(&two, "t", Some(1)));
    }
}
