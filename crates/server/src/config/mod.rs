//! The configuration of a server, from etcd's flags, `ETCD_*` environment variables or YAML file.
//!
//! As in etcd, flags override variables, and a file makes both ignored. Refused are names that
//! etcd does not have, and flags that ask for protection that this server does not give. Flags
//! of etcd that have no effect here cause a warning.

mod corruption;
mod error;
pub(crate) mod file;
mod flags;
mod help;
mod settings;
mod transport_security;

use std::path::PathBuf;
use std::time::Duration;

pub use corruption::CorruptionChecks;
pub use error::ServerConfigError;
pub use flags::UnsupportedFeature;
pub use help::help;
use settings::Settings;
pub use transport_security::TransportSecurity;

use crate::auth::AuthConfig;
use crate::context::RESPONSE_MEMORY_DEFAULT;
use crate::etcd_release::EtcdRelease;
use crate::request_kinds::RequestKinds;
use crate::url::Url;

/// All settings. [`ServerConfig::default`] is a single-member cluster on etcd's ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    pub name: String,
    pub data_dir: PathBuf,
    /// The directory of the log, if not in the data directory.
    pub wal_dir: Option<PathBuf>,
    pub listen_peer_urls: Vec<Url>,
    pub listen_client_urls: Vec<Url>,
    /// Listeners for requests that are not gRPC. If there are any, those of
    /// `listen_client_urls` serve gRPC only.
    pub listen_client_http_urls: Vec<Url>,
    pub listen_metrics_urls: Vec<Url>,
    /// Where the console is served; the client port serves it if there are none.
    pub listen_console_urls: Vec<Url>,
    pub initial_advertise_peer_urls: Vec<Url>,
    pub advertise_client_urls: Vec<Url>,
    /// Names and peer URLs of the initial members; empty for a single-member cluster.
    pub initial_cluster: Vec<(String, Url)>,
    pub initial_cluster_state: ClusterState,
    pub initial_cluster_token: String,
    /// TLS of the `https` URLs for clients and metrics.
    pub client_security: TransportSecurity,
    /// TLS of the `https` URLs for peers.
    pub peer_security: TransportSecurity,
    /// The validity of certificates that the server makes for itself, in years.
    pub self_signed_cert_validity: u32,
    pub force_new_cluster: bool,
    /// Start from a data directory that was copied or restored.
    pub allow_moved_data_dir: bool,
    pub heartbeat_interval: Duration,
    pub election_timeout: Duration,
    pub pre_vote: bool,
    /// Take a snapshot after this many entries, if that comes before the limit in bytes.
    pub snapshot_count: Option<u64>,
    /// Take a snapshot after this many bytes of entries, and as many as the newest one has.
    pub snapshot_bytes: u64,
    /// Where the data is kept while the server runs.
    pub table: TableKind,
    /// The memory for rows of the table in memory. Older rows are moved to a file. 0 means all memory.
    pub row_memory_bytes: u64,
    /// 0 means etcd's default of 2 GiB; `u64::MAX`, no limit.
    pub quota_backend_bytes: u64,
    pub auto_compaction: Option<AutoCompaction>,
    pub max_txn_ops: usize,
    pub max_request_bytes: usize,
    /// The memory that responses may take until their clients have read them, in bytes.
    pub max_response_memory: u64,
    /// Memory of messages that arrived from peers and are not processed yet.
    pub max_peer_buffered_bytes: usize,
    /// Concurrent calls and streams of one connection; further ones wait.
    pub max_concurrent_streams: u32,
    /// Serve etcd's calls as JSON over HTTP.
    pub enable_grpc_gateway: bool,
    /// Origins of web pages that may use the gateway; `*` means all.
    pub cors: Vec<String>,
    /// Host names that HTTP requests without TLS may name; empty or `*` means all.
    pub host_whitelist: Vec<String>,
    pub watch_progress_notify_interval: Duration,
    /// The number of started learners in the cluster.
    pub max_learners: usize,
    /// Promote learners as soon as they have caught up.
    pub auto_promote: bool,
    /// Learners serve linearizable reads and watches.
    pub learner_reads: bool,
    /// How long a graceful shutdown waits for requests in progress.
    pub drain_timeout: Duration,
    /// Also measure the duration of each call.
    pub extensive_metrics: bool,
    pub log_level: String,
    pub log_format: LogFormat,
    /// Where log lines are written; each of them gets all lines.
    pub log_outputs: Vec<LogOutput>,
    pub auth: AuthConfig,
    pub corruption_checks: CorruptionChecks,
    /// The release of etcd that this server reports as its version.
    pub etcd_release: EtcdRelease,
    /// Warnings about settings without effect.
    pub warnings: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterState {
    New,
    Existing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// In memory, rebuilt from the newest snapshot and the log at every start.
    Memory,
    /// In a redb file, which a restart continues from. Memory holds the keys, and a cache of the
    /// values.
    Redb,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object per line, as etcd's.
    Json,
    /// Time, level, place and message, then the fields as JSON; separated by tabs, as etcd's.
    Console,
}

/// Where log lines are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogOutput {
    Stderr,
    Stdout,
    /// Lines are appended to this file.
    File(PathBuf),
}

/// Which revisions are compacted automatically.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoCompaction {
    /// Revisions older than this.
    Periodic(Duration),
    /// All but this many of the newest revisions.
    Revision(i64),
}

/// What a command line asks the program to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invocation {
    Run(Box<ServerConfig>),
    Help,
    Version,
}

/// Parses a command line, without the name of the program, and environment variables.
pub fn parse<A, E>(args: A, env: E) -> Result<Invocation, ServerConfigError>
where
    A: IntoIterator<Item = String>,
    E: IntoIterator<Item = (String, String)>,
{
    let mut settings = Settings::from_args(args)?;
    if settings.is_on("help")? {
        return Ok(Invocation::Help);
    }
    if settings.is_on("version")? {
        return Ok(Invocation::Version);
    }
    settings.add_env(env);
    if let Some(path) = settings.text("config-file") {
        let mut from_file = file::read(path)?;
        if settings.has_other_than("config-file") {
            let warning =
                "a configuration file was given: flags and environment variables are ignored";
            from_file.warn(warning.into());
        }
        settings = from_file;
    }
    settings.check_supported()?;
    ServerConfig::from_settings(&settings).map(|config| Invocation::Run(Box::new(config)))
}

impl Default for ServerConfig {
    fn default() -> Self {
        let url =
            |port| {
                vec![Url::parse("http://localhost:0").map_or_else(
                    |_| unreachable!("this is a valid URL"),
                    |url| url.with_port(port),
                )]
            };
        Self {
            name: "default".into(),
            data_dir: "default.etcd".into(),
            wal_dir: None,
            listen_peer_urls: url(2380),
            listen_client_urls: url(2379),
            listen_client_http_urls: Vec::new(),
            listen_metrics_urls: Vec::new(),
            listen_console_urls: Vec::new(),
            initial_advertise_peer_urls: url(2380),
            advertise_client_urls: url(2379),
            initial_cluster: Vec::new(),
            initial_cluster_state: ClusterState::New,
            initial_cluster_token: "etcd-cluster".into(),
            client_security: TransportSecurity::default(),
            peer_security: TransportSecurity::default(),
            self_signed_cert_validity: 1,
            force_new_cluster: false,
            allow_moved_data_dir: false,
            heartbeat_interval: Duration::from_millis(100),
            election_timeout: Duration::from_millis(1000),
            pre_vote: true,
            snapshot_count: None,
            snapshot_bytes: 128 << 20,
            table: TableKind::Memory,
            row_memory_bytes: 64 << 20,
            quota_backend_bytes: 0,
            auto_compaction: None,
            max_txn_ops: 128,
            max_request_bytes: 3 << 19,
            max_response_memory: RESPONSE_MEMORY_DEFAULT,
            max_peer_buffered_bytes: 256 << 20,
            max_concurrent_streams: 1 << 14,
            enable_grpc_gateway: true,
            cors: Vec::new(),
            host_whitelist: Vec::new(),
            watch_progress_notify_interval: Duration::from_secs(600),
            max_learners: 1,
            auto_promote: false,
            learner_reads: false,
            drain_timeout: Duration::from_secs(5),
            extensive_metrics: false,
            log_level: "info".into(),
            log_format: LogFormat::Json,
            log_outputs: vec![LogOutput::Stderr],
            auth: AuthConfig::default(),
            corruption_checks: CorruptionChecks::default(),
            etcd_release: EtcdRelease::default(),
            warnings: Vec::new(),
        }
    }
}

impl ServerConfig {
    fn from_settings(given: &Settings) -> Result<Self, ServerConfigError> {
        let default = Self::default();
        let name = given.text("name").unwrap_or(&default.name).to_owned();
        let data_dir = given.text("data-dir").map_or_else(|| format!("{name}.etcd"), Into::into);
        let advertised = given.urls("initial-advertise-peer-urls", &default.listen_peer_urls)?;
        let listened = given.urls("listen-client-urls", &default.listen_client_urls)?;
        let config = Self {
            advertise_client_urls: given.advertised_to_clients(&listened)?,
            data_dir: data_dir.into(),
            wal_dir: given.text("wal-dir").map(PathBuf::from),
            listen_peer_urls: given.urls("listen-peer-urls", &default.listen_peer_urls)?,
            listen_client_urls: listened,
            listen_client_http_urls: given.urls("listen-client-http-urls", &[])?,
            listen_metrics_urls: given.urls("listen-metrics-urls", &[])?,
            listen_console_urls: given.urls("listen-console-urls", &[])?,
            initial_advertise_peer_urls: advertised,
            initial_cluster: given.initial_cluster()?,
            initial_cluster_state: given.cluster_state()?,
            initial_cluster_token: given
                .text("initial-cluster-token")
                .unwrap_or(&default.initial_cluster_token)
                .to_owned(),
            client_security: given.client_security()?,
            peer_security: given.peer_security()?,
            self_signed_cert_validity: given
                .number("self-signed-cert-validity", default.self_signed_cert_validity)?,
            force_new_cluster: given.is_on("force-new-cluster")?,
            allow_moved_data_dir: given.is_on("allow-moved-data-dir")?,
            heartbeat_interval: given.millis("heartbeat-interval", default.heartbeat_interval)?,
            election_timeout: given.millis("election-timeout", default.election_timeout)?,
            pre_vote: given.switch("pre-vote", true)?,
            snapshot_count: given.snapshot_count()?,
            snapshot_bytes: given.number("snapshot-bytes", default.snapshot_bytes)?,
            table: given.table()?,
            row_memory_bytes: given.number("row-memory-bytes", default.row_memory_bytes)?,
            quota_backend_bytes: given.quota()?,
            auto_compaction: given.auto_compaction()?,
            max_txn_ops: given.number("max-txn-ops", default.max_txn_ops)?,
            max_request_bytes: given.number("max-request-bytes", default.max_request_bytes)?,
            max_response_memory: given
                .number("max-response-memory", default.max_response_memory)?,
            max_peer_buffered_bytes: given
                .number("max-peer-buffered-bytes", default.max_peer_buffered_bytes)?,
            max_concurrent_streams: given
                .number("max-concurrent-streams", default.max_concurrent_streams)?,
            enable_grpc_gateway: given.switch("enable-grpc-gateway", true)?,
            cors: given.names("cors"),
            host_whitelist: given.names("host-whitelist"),
            watch_progress_notify_interval: given.duration(
                "watch-progress-notify-interval",
                default.watch_progress_notify_interval,
            )?,
            max_learners: given.number("max-learners", default.max_learners)?,
            auto_promote: given.is_on("auto-promote")?,
            learner_reads: given.is_on("learner-reads")?,
            drain_timeout: given.duration("drain-timeout", default.drain_timeout)?,
            extensive_metrics: given.extensive_metrics()?,
            log_level: given.text("log-level").unwrap_or(&default.log_level).to_owned(),
            log_format: given.log_format()?,
            log_outputs: given.log_outputs()?,
            auth: given.auth()?,
            corruption_checks: CorruptionChecks::from_settings(given)?,
            etcd_release: given.etcd_release()?,
            warnings: given.warnings(),
            name,
        };
        config.check()
    }

    fn check(self) -> Result<Self, ServerConfigError> {
        if self.heartbeat_interval.is_zero() {
            return Err(ServerConfigError::value("heartbeat-interval", "0", "a duration above 0"));
        }
        if self.election_timeout < 5 * self.heartbeat_interval {
            let value = self.election_timeout.as_millis().to_string();
            let expected = "at least 5 times the heartbeat interval";
            return Err(ServerConfigError::value("election-timeout", &value, expected));
        }
        if self.election_timeout > ELECTION_TIMEOUT_MAX {
            let value = self.election_timeout.as_millis().to_string();
            return Err(ServerConfigError::value("election-timeout", &value, "at most 50000"));
        }
        let levels = ["debug", "info", "warn", "error", "panic", "fatal", "dpanic"];
        if !levels.contains(&self.log_level.as_str()) {
            return Err(ServerConfigError::value(
                "log-level",
                &self.log_level,
                "debug, info, warn, error",
            ));
        }
        for (name, urls) in [
            ("listen-peer-urls", &self.listen_peer_urls),
            ("listen-client-urls", &self.listen_client_urls),
            ("initial-advertise-peer-urls", &self.initial_advertise_peer_urls),
        ] {
            if urls.is_empty() {
                return Err(ServerConfigError::value(name, "", "http://host:port"));
            }
        }
        self.check_transport_security()
    }

    /// What the listeners of `listen_client_urls` serve.
    pub(crate) fn client_requests(&self) -> RequestKinds {
        if self.listen_client_http_urls.is_empty() { RequestKinds::All } else { RequestKinds::Grpc }
    }

    /// The members of the initial cluster, each with all of its peer URLs.
    pub(crate) fn initial_members(&self) -> Vec<(String, Vec<Url>)> {
        if self.initial_cluster.is_empty() {
            return vec![(self.name.clone(), self.initial_advertise_peer_urls.clone())];
        }
        let mut members: Vec<(String, Vec<Url>)> = Vec::new();
        for (name, url) in &self.initial_cluster {
            match members.iter_mut().find(|(known, _)| known == name) {
                Some((_, urls)) => urls.push(url.clone()),
                None => members.push((name.clone(), vec![url.clone()])),
            }
        }
        members
    }
}

/// As etcd's: a cluster should not be without a leader for longer than that.
const ELECTION_TIMEOUT_MAX: Duration = Duration::from_secs(50);

#[cfg(test)]
mod tests;
