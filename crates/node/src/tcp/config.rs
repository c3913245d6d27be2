//! The settings of a TCP transport.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quorate_core::MemberId;
use quorate_core::membership::MemberInfo;

use crate::runtime::{MemberKey, RejectReason};

use super::security::{ConnectionSecurity, Plaintext};

/// Reads the `host:port` of a peer from its info in the membership.
pub type AddressResolver = Arc<dyn Fn(&MemberInfo) -> Option<String> + Send + Sync>;

/// Called with the address of a peer and the round-trip time of a keep-alive.
pub type RoundTripCallback = Arc<dyn Fn(&str, Duration) + Send + Sync>;

/// Called when a peer rejects a local member: the member, the peer, and the reason.
pub type RejectedCallback = Arc<dyn Fn(MemberKey, MemberId, RejectReason) + Send + Sync>;

/// Addresses, timeouts and limits. [`TcpConfig::new`] fills in defaults for a data centre;
/// every field may be changed after.
#[derive(Clone)]
#[non_exhaustive]
pub struct TcpConfig {
    /// The address to listen on. Port 0 takes any free port.
    pub listen: SocketAddr,
    /// Further addresses to listen on.
    pub listen_also: Vec<SocketAddr>,
    /// `host:port` under which peers reach this process. Empty: the address it listens on.
    pub advertise: String,
    /// Finds a peer's address. By default the whole info is `host:port`.
    pub resolve_address: AddressResolver,
    /// Called with each measured round trip. It must return quickly: the connection waits.
    pub on_round_trip: RoundTripCallback,
    /// Called each time a peer rejects a member of this process, such as one that was removed
    /// while it did not run. It must return quickly: the connection waits.
    pub on_rejected: RejectedCallback,
    /// Encryption and authentication of connections. By default none.
    pub security: Arc<dyn ConnectionSecurity>,

    /// Longer frames are rejected. Before a member has introduced itself, the limit is 4 KiB.
    pub frame_bytes_max: usize,
    /// The memory of all frames together that have arrived, complete or not, and that members
    /// have yet to process; at least one frame. Frames of up to 64 KiB do not count. When it
    /// is used up, the connection whose frame has been incomplete for longest is closed.
    pub buffered_bytes_max: usize,
    /// Frames that may be queued for one address. One pair of members may use half of what is
    /// free, so that there is always room for others.
    pub queue_frames_max: usize,
    /// The same in bytes.
    pub queue_bytes_max: usize,
    /// Frames that are queued for an address while there is no connection to it.
    pub offline_frames_max: usize,
    /// Frames that waited longer than this for a connection are dropped.
    pub stale_after: Duration,
    /// The minimum interval between two reports to a member that a peer is unreachable.
    pub unreachable_every: Duration,

    /// Timeout for connecting and for the handshake.
    pub handshake_timeout: Duration,
    /// A connection on which nothing can be written for this long is closed.
    pub write_timeout: Duration,
    /// The interval between keep-alives.
    pub keep_alive_every: Duration,
    /// A connection on which nothing is received for this long is closed.
    pub silence_timeout: Duration,
    /// The first backoff before reconnecting; doubled with every failure.
    pub reconnect_min: Duration,
    /// The longest backoff before reconnecting.
    pub reconnect_max: Duration,
    /// Failed connection attempts are logged as a warning only after this long: a peer that
    /// has yet to start is nothing to warn of.
    pub warn_after: Duration,
    /// The first backoff after a peer refused a member; doubled every time.
    pub refused_min: Duration,
    /// The longest backoff after a peer refused a member.
    pub refused_max: Duration,

    /// Incoming connections without a member yet. When there are more, the oldest one of the
    /// address that has the most is closed.
    pub unidentified_max: usize,
    /// Incoming connections with a member.
    pub identified_max: usize,
    /// Pairs of members that may share one connection.
    pub channels_max: usize,

    /// Rate limit of all outgoing snapshots together. None: unlimited.
    pub snapshot_bytes_per_second: Option<u64>,
    /// Snapshots that are sent at the same time.
    pub snapshots_max: usize,
    /// Snapshots that may wait for their turn. When there are more, the new one is dropped.
    pub snapshots_waiting_max: usize,
}

impl TcpConfig {
    /// The defaults, listening on this address.
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            listen_also: Vec::new(),
            advertise: String::new(),
            resolve_address: Arc::new(whole_info),
            on_round_trip: Arc::new(|_, _| {}),
            on_rejected: Arc::new(|_, _, _| {}),
            security: Arc::new(Plaintext),
            frame_bytes_max: 64 << 20,
            buffered_bytes_max: 256 << 20,
            queue_frames_max: 16 << 10,
            queue_bytes_max: 64 << 20,
            offline_frames_max: 256,
            stale_after: Duration::from_millis(500),
            unreachable_every: Duration::from_millis(100),
            handshake_timeout: Duration::from_secs(5),
            write_timeout: Duration::from_secs(5),
            keep_alive_every: Duration::from_secs(1),
            silence_timeout: Duration::from_secs(10),
            reconnect_min: Duration::from_millis(50),
            reconnect_max: Duration::from_secs(2),
            warn_after: Duration::from_secs(10),
            refused_min: Duration::from_millis(200),
            refused_max: Duration::from_secs(30),
            unidentified_max: 256,
            identified_max: 1024,
            channels_max: 4096,
            snapshot_bytes_per_second: None,
            snapshots_max: 4,
            snapshots_waiting_max: 64,
        }
    }
}

fn whole_info(member: &MemberInfo) -> Option<String> {
    let address = std::str::from_utf8(&member.info).ok()?;
    (!address.is_empty()).then(|| address.to_owned())
}

impl fmt::Debug for TcpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpConfig")
            .field("listen", &self.listen)
            .field("advertise", &self.advertise)
            .finish_non_exhaustive()
    }
}
