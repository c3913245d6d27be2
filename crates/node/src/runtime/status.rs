//! What can be seen of a running member: as it is now, as it changes, and how it ended.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use quorate_core::membership::{EndedGoal, GoalStep};
use quorate_core::message::Identity;
use quorate_core::{EntryId, Event, Index, MemberId, Membership, Status};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};

use crate::applier::SnapshotInstallError;
use crate::machine::MachineFailed;

/// A picture of a running member.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStatus {
    /// What its core says: role, term, log, membership, and, of a leader, its peers.
    pub raft: Status,
    /// The disk behind it.
    pub incarnation: u64,
    /// How often it was started on this disk.
    pub boots: u64,
    /// Requests that were asked here and have no answer yet.
    pub open_requests: usize,
    /// Saves that the disk has not confirmed.
    pub saves_waiting: usize,
    /// Others know somebody else by its id, and nothing it says counts: it has to be added
    /// anew, under a new id, with an empty disk. Who said so, and whom they know.
    pub disowned: Option<(MemberId, Identity)>,
}

/// Why a member runs no more.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StopReason {
    /// Somebody stopped it.
    Stopped,
    /// Its disk failed, or what was on it is damaged. A restart finds out what is left.
    Disk(Arc<dyn Error + Send + Sync>),
    /// The machine panicked while it ran a command or answered a question. It would again:
    /// mend it before a restart.
    MachinePanicked,
    /// The state machine returned an error. Find out why before a restart: it may fail again at
    /// the same entry.
    Machine(MachineFailed),
    /// A snapshot that the cluster agreed on is not one of this machine.
    Snapshot(EntryId, SnapshotInstallError),
    /// The member itself panicked: a bug. Nothing wrong was written.
    Panicked,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => write!(f, "it was stopped"),
            Self::Disk(why) => write!(f, "its disk failed: {why}"),
            Self::MachinePanicked => write!(f, "the state machine panicked"),
            Self::Machine(failed) => write!(f, "{failed}"),
            Self::Snapshot(id, why) => write!(f, "snapshot {id}: {why}"),
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
            Self::Stopped | Self::MachinePanicked | Self::Panicked => None,
        }
    }
}

/// Something about the membership, as it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MembershipEvent {
    /// The membership as it is now. The first news, always; and again when others were
    /// missed because nobody read them in time.
    Current {
        /// The entry that brought it.
        id: EntryId,
        /// Who is in it.
        membership: Arc<Membership>,
        /// Whether it is known to be settled.
        settled: bool,
    },
    /// A change is committed.
    Committed {
        /// The entry of the change.
        id: EntryId,
        /// What results from it.
        membership: Arc<Membership>,
    },
    /// This membership decides from now on, here.
    InEffect {
        /// The entry that brought it.
        id: EntryId,
        /// Who is in it.
        membership: Arc<Membership>,
    },
    /// Any majority of this membership can go on by itself from now on.
    Settled {
        /// The entry that brought it.
        id: EntryId,
        /// Who is in it.
        membership: Arc<Membership>,
    },
    /// The leader is here: the goal's next step is due.
    GoalStep(GoalStep),
    /// A goal is pursued no more, and what came of it is settled.
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

/// The membership as it changes: see [`Node::watch_membership`](crate::Node::watch_membership).
#[derive(Debug)]
pub struct MembershipWatch {
    pub(crate) news: broadcast::Receiver<MembershipEvent>,
    pub(crate) now: watch::Receiver<KnownMembership>,
    pub(crate) first: Option<KnownMembership>,
    pub(crate) ended: watch::Receiver<Option<StopReason>>,
}

/// What is known about the membership at any moment.
#[derive(Clone, Debug)]
pub(crate) struct KnownMembership {
    pub(crate) id: EntryId,
    pub(crate) membership: Arc<Membership>,
    pub(crate) settled: Index,
}

impl MembershipWatch {
    /// What happens next; none when the member has ended.
    pub async fn next(&mut self) -> Option<MembershipEvent> {
        let now = match self.first.take() {
            Some(now) => now,
            None => {
                let news = tokio::select! {
                    biased;
                    news = self.news.recv() => news,
                    _ = self.ended.wait_for(Option::is_some) => return None,
                };
                match news {
                    Ok(news) => return Some(news),
                    Err(RecvError::Closed) => return None,
                    Err(RecvError::Lagged(_)) => {
                        self.news = self.news.resubscribe();
                        self.now.borrow().clone()
                    }
                }
            }
        };
        let KnownMembership { id, membership, settled } = now;
        Some(MembershipEvent::Current { id, membership, settled: settled >= id.index })
    }
}
