//! Counters of a TCP transport, by name.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::runtime::RejectReason;

macro_rules! counted {
    ($($(#[$doc:meta])* $case:ident = $name:literal),* $(,)?) => {
        /// Something that a transport counts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum TcpCounter { $($(#[$doc])* $case),* }

        impl TcpCounter {
            const ALL: &[(Self, &'static str)] = &[$((Self::$case, $name)),*];
        }
    };
}

counted! {
    Connected = "connected",
    ConnectFailed = "connect_failed",
    /// The peer speaks no version that this process speaks.
    HandshakeRefused = "handshake_refused",
    Disconnected = "disconnected",
    Accepted = "accepted",
    AcceptFailed = "accept_failed",

    FramesSent = "frames_sent",
    BytesSent = "bytes_sent",
    Writes = "writes",
    FramesReceived = "frames_received",
    BytesReceived = "bytes_received",
    Reads = "reads",
    BodiesEncoded = "bodies_encoded",
    /// Received on a channel that was refused or closed in the meantime.
    FramesIgnored = "frames_ignored",

    DroppedFull = "dropped_full",
    DroppedStale = "dropped_stale",
    DroppedLost = "dropped_with_connection",
    DroppedRefused = "dropped_refused",
    DroppedNoAddress = "dropped_no_address",
    DroppedUnsendable = "dropped_unsendable",

    ForeignCluster = "rejected_foreign_cluster",
    OtherMember = "rejected_other_member",
    Removed = "rejected_removed",
    OtherDisk = "rejected_other_disk",
    RejectedByPeer = "rejected_by_peer",
    /// The certificate of a process is not for the member that it spoke for.
    OtherCertificate = "rejected_other_certificate",

    /// A process asked which members this one hosts.
    DiscoveryAnswered = "discovery_answered",

    /// The handshake of [`ConnectionSecurity`](crate::tcp::ConnectionSecurity) failed.
    NotSecured = "handshake_not_secured",
    BadMagic = "handshake_bad_magic",
    WrongVersion = "handshake_wrong_version",
    HandshakeTimeout = "handshake_timeout",
    Evicted = "unidentified_evicted",
    TooManyConnections = "too_many_connections",
    TooManyChannels = "too_many_channels",
    Silent = "silent",
    WriteTimeout = "write_timeout",

    Oversized = "frame_oversized",
    /// Too much was buffered, and this frame had been incomplete for longest.
    OverBudget = "frame_over_budget",
    Truncated = "frame_truncated",
    BadChecksum = "frame_bad_checksum",
    UnknownKind = "frame_unknown_kind",
    UnknownChannel = "frame_unknown_channel",
    ChannelReused = "frame_channel_reused",
    Malformed = "frame_malformed",
    Unexpected = "frame_unexpected",

    SnapshotsSent = "snapshots_sent",
    SnapshotsRefusedByPeer = "snapshots_refused_by_peer",
    SnapshotsLost = "snapshots_lost",
    SnapshotsNoPlace = "snapshots_no_place",
    SnapshotsReceived = "snapshots_received",
    SnapshotsRefused = "snapshots_refused",
    SnapshotsBroken = "snapshots_broken",
}

impl From<RejectReason> for TcpCounter {
    fn from(why: RejectReason) -> Self {
        match why {
            RejectReason::ForeignCluster => Self::ForeignCluster,
            RejectReason::OtherMember => Self::OtherMember,
            RejectReason::Removed => Self::Removed,
            RejectReason::OtherDisk => Self::OtherDisk,
        }
    }
}

/// The count of each.
#[derive(Debug)]
pub(crate) struct TcpCounters {
    numbers: Vec<AtomicU64>,
}

impl Default for TcpCounters {
    fn default() -> Self {
        Self { numbers: TcpCounter::ALL.iter().map(|_| AtomicU64::new(0)).collect() }
    }
}

impl TcpCounters {
    pub(crate) fn one(&self, what: TcpCounter) {
        self.add(what, 1);
    }

    pub(crate) fn add(&self, what: TcpCounter, more: u64) {
        self.numbers[what as usize].fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn by_name(&self) -> BTreeMap<&'static str, u64> {
        let number = |what: TcpCounter| self.numbers[what as usize].load(Ordering::Relaxed);
        TcpCounter::ALL.iter().map(|(what, name)| (*name, number(*what))).collect()
    }
}
