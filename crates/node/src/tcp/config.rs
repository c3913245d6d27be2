//! What can be set about a TCP transport.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quorate_core::membership::MemberInfo;

use super::security::{ConnectionSecurity, Plaintext};

/// Where a peer is reached, by what its cluster says about it.
pub type AddressResolver = Arc<dyn Fn(&MemberInfo) -> Option<String> + Send + Sync>;

/// An address that was dialled, and how long its answer took.
pub type RoundTripCallback = Arc<dyn Fn(&str, Duration) + Send + Sync>;

/// How to listen and whom to trust how long. [`TcpConfig::new`] has defaults for a data
/// centre; all times and limits may be changed.
#[derive(Clone)]
pub struct TcpConfig {
    /// Where to listen. Port 0 takes any that is free.
    pub listen: SocketAddr,
    /// Where to listen besides.
    pub listen_also: Vec<SocketAddr>,
    /// `host:port` under which others reach this process. Empty: what it listens on.
    pub advertise: String,
    /// Where a peer is reached. By default its info is `host:port`, all of it.
    pub resolve_address: AddressResolver,
    /// Told how long an address took to answer a sign of life. Be quick: the connection waits.
    pub on_round_trip: RoundTripCallback,
    /// What stands between TCP and the frames. By default nothing.
    pub security: Arc<dyn ConnectionSecurity>,

    /// No frame may be longer.
    pub frame_bytes_max: usize,
    /// Frames that wait to be written to one address. One member takes no more than half of
    /// what is free, so that there is always a place for others.
    pub queue_frames_max: usize,
    /// The same in bytes.
    pub queue_bytes_max: usize,
    /// Frames that are kept for an address while there is no connection to it.
    pub offline_frames_max: usize,
    /// Frames that waited longer than this for a connection are not sent any more.
    pub stale_after: Duration,
    /// A member is told that a peer is unreachable at most this often.
    pub unreachable_every: Duration,

    /// Time for connecting, and for saying who one is.
    pub handshake_timeout: Duration,
    /// A connection on which nothing can be written for this long is closed.
    pub write_timeout: Duration,
    /// A sign of life is sent this often.
    pub keep_alive_every: Duration,
    /// A connection on which nothing is heard for this long is closed.
    pub silence_timeout: Duration,
    /// First pause before dialling again; doubled with every failure.
    pub reconnect_min: Duration,
    /// The longest pause before dialling again.
    pub reconnect_max: Duration,
    /// First pause before trying a peer again that refused a member; doubled every time.
    pub refused_min: Duration,
    /// The longest pause before trying such a peer again.
    pub refused_max: Duration,

    /// Connections that have not message who they are. The oldest has to go for a new one.
    pub unidentified_max: usize,
    /// Connections that have.
    pub identified_max: usize,
    /// Pairs of members that talk over one connection.
    pub channels_max: usize,

    /// How fast snapshots are sent, all together. None: as fast as possible.
    pub snapshot_bytes_per_second: Option<u64>,
    /// Snapshots that are sent at once.
    pub snapshots_max: usize,
    /// Snapshots that wait for their turn. What does not find a place is lost.
    pub snapshots_waiting_max: usize,
}

impl TcpConfig {
    /// Listens here, with the defaults.
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            listen_also: Vec::new(),
            advertise: String::new(),
            resolve_address: Arc::new(whole_info),
            on_round_trip: Arc::new(|_, _| {}),
            security: Arc::new(Plaintext),
            frame_bytes_max: 64 << 20,
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
