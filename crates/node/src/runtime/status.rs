//! The state of a running member, its membership events, and why it stopped.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use quorate_core::membership::{EndedGoal, GoalStep};
use quorate_core::message::Identity;
use quorate_core::{EntryId, Event, Index, MemberId, Membership, Status};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};

use crate::applier::SnapshotInstallError;
use crate::cluster_version::{ClusterVersion, UnsupportedVersion, VersionRange};
use crate::machine::MachineFailed;
use crate::outcome::RequestRefused;

/// The state of a running member.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStatus {
    /// The state of its core: role, term, log, membership and, of a leader, its peers.
    pub raft: Status,
    /// The incarnation of its disk.
    pub incarnation: u64,
    /// How often it was started on this disk.
    pub boots: u64,
    /// Requests on this member that have no reply yet.
    pub open_requests: usize,
    /// Saves that are not durable yet.
    pub saves_waiting: usize,
    /// The cluster knows another disk under its id and ignores this member: it has to be added
    /// again under a new id, with an empty disk. The member that said so, and the identity that
    /// it knows.
    pub identity_rejected: Option<(MemberId, Identity)>,
    /// The cluster version, as far as this member has applied the log.
    pub cluster_version: ClusterVersion,
    /// The cluster versions that its program supports.
    pub supported_versions: VersionRange,
    /// The cluster version that a program has to support to start from this disk.
    pub storage_version: u32,
}

/// Why a member no longer runs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StopReason {
    /// It was stopped by [`Node::stop`](crate::Node::stop) or the like.
    Stopped,
    /// Its disk failed, or the data on it is damaged. A restart shows what is left.
    Disk(Arc<dyn Error + Send + Sync>),
    /// The machine panicked while it ran a command or a query, or while a snapshot was read from
    /// it, with this message. It would again: fix it before a restart.
    MachinePanicked(String),
    /// The state machine returned an error. Find out why before a restart: it may fail again at
    /// the same entry.
    Machine(MachineFailed),
    /// The machine cannot be restored from a snapshot of the cluster.
    Snapshot(EntryId, SnapshotInstallError),
    /// The cluster has a version that this program does not support. Nothing is lost: a program
    /// that supports it continues from the same disk.
    UnsupportedVersion(UnsupportedVersion),
    /// The member's task panicked: a bug. Nothing wrong was written.
    Panicked,
}

impl StopReason {
    /// Why requests are refused from then on.
    pub(crate) fn as_refusal(&self) -> RequestRefused {
        match self {
            Self::Stopped => RequestRefused::Stopped,
            failed => RequestRefused::MemberFailed { reason: failed.to_string() },
        }
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => write!(f, "the member was stopped"),
            Self::Disk(why) => write!(f, "the disk failed: {why}"),
            Self::MachinePanicked(text) => write!(f, "the state machine panicked: {text}"),
            Self::Machine(failed) => write!(f, "{failed}"),
            Self::Snapshot(id, why) => write!(f, "snapshot {id}: {why}"),
            Self::UnsupportedVersion(why) => write!(f, "{why}"),
            Self::Panicked => write!(f, "the member panicked"),
        }
    }
}

impl Error for StopReason {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Disk(why) => Some(&**why),
            Self::Machine(failed) => Some(failed),
            Self::Snapshot(_, why) => Some(why),
            Self::UnsupportedVersion(why) => Some(why),
            Self::Stopped | Self::MachinePanicked(_) | Self::Panicked => None,
        }
    }
}

impl From<MachineFailed> for StopReason {
    fn from(failed: MachineFailed) -> Self {
        match failed.error.downcast_ref::<UnsupportedVersion>() {
            Some(why) => Self::UnsupportedVersion(*why),
            None => Self::Machine(failed),
        }
    }
}

impl StopReason {
    /// A snapshot could not be installed.
    pub(crate) fn of_snapshot(id: EntryId, why: SnapshotInstallError) -> Self {
        let unsupported = match &why {
            SnapshotInstallError::Version(why) => Some(*why),
            SnapshotInstallError::Machine(why) => why.downcast_ref().copied(),
            _ => None,
        };
        unsupported.map_or(Self::Snapshot(id, why), Self::UnsupportedVersion)
    }
}

/// Something that happened to the membership.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MembershipEvent {
    /// The current membership. Always the first event; and again when events were lost because
    /// they were not read in time.
    Current {
        /// The entry of the change that led to it.
        id: EntryId,
        /// The membership.
        membership: Arc<Membership>,
        /// Whether it is known to be settled.
        settled: bool,
    },
    /// A change is committed.
    Committed {
        /// The entry of the change.
        id: EntryId,
        /// The membership after it.
        membership: Arc<Membership>,
    },
    /// This membership is in effect on this member from now on.
    InEffect {
        /// The entry of the change that led to it.
        id: EntryId,
        /// The membership.
        membership: Arc<Membership>,
    },
    /// The membership is settled: any majority of it can continue alone.
    Settled {
        /// The entry of the change that led to it.
        id: EntryId,
        /// The membership.
        membership: Arc<Membership>,
    },
    /// This member leads, and takes the next step of a goal.
    GoalStep(GoalStep),
    /// A goal has ended, and the resulting membership is settled.
    GoalEnded(EndedGoal),
}

impl MembershipEvent {
    pub(crate) fn of(event: &Event) -> Option<Self> {
        Some(match event.clone() {
            Event::Membership { id, membership } => Self::InEffect { id, membership },
            Event::Settled { id, membership, .. } => Self::Settled { id, membership },
            Event::GoalStep { step } => Self::GoalStep(step),
            Event::GoalEnded(ended) => Self::GoalEnded(ended),
            _ => return None,
        })
    }
}

/// A stream of membership events: see [`Node::watch_membership`](crate::Node::watch_membership).
#[derive(Debug)]
pub struct MembershipWatch {
    pub(crate) events: broadcast::Receiver<MembershipEvent>,
    pub(crate) now: watch::Receiver<KnownMembership>,
    pub(crate) first: Option<KnownMembership>,
    pub(crate) ended: watch::Receiver<Option<StopReason>>,
}

/// The membership as far as the member knows it.
#[derive(Clone, Debug)]
pub(crate) struct KnownMembership {
    pub(crate) id: EntryId,
    pub(crate) membership: Arc<Membership>,
    pub(crate) settled: Index,
}

impl MembershipWatch {
    /// Waits for the next event; none when the member has stopped.
    pub async fn next(&mut self) -> Option<MembershipEvent> {
        let now = match self.first.take() {
            Some(now) => now,
            None => {
                let events = tokio::select! {
                    biased;
                    events = self.events.recv() => events,
                    _ = self.ended.wait_for(Option::is_some) => return None,
                };
                match events {
                    Ok(events) => return Some(events),
                    Err(RecvError::Closed) => return None,
                    Err(RecvError::Lagged(_)) => {
                        self.events = self.events.resubscribe();
                        self.now.borrow().clone()
                    }
                }
            }
        };
        let KnownMembership { id, membership, settled } = now;
        Some(MembershipEvent::Current { id, membership, settled: settled >= id.index })
    }
}
