//! Graceful shutdown: signals, and handing leadership to another member first.

use std::io;
use std::time::Duration;

use quorate::{MemberId, Node};
use quorate_core::status::{Flow, PeerStatus};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep, timeout};

use crate::logs;

/// The signals that ask the process to stop; and SIGHUP, which does not.
pub(crate) struct ShutdownSignals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl ShutdownSignals {
    /// From now on these signals no longer end the process by themselves.
    pub(crate) fn listen() -> io::Result<Self> {
        let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
        let hang_up = signal(SignalKind::hangup())?;
        Ok(Self { terminate: signal(terminate)?, interrupt: signal(interrupt)?, hang_up })
    }

    /// Waits for the next signal that asks to stop, and returns its name. SIGHUP begins and
    /// ends debug logging; certificates need no signal, they are read again by themselves.
    pub(crate) async fn next(&mut self) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "terminated",
                _ = self.interrupt.recv() => return "interrupt",
                _ = self.hang_up.recv() => match logs::toggle_debug() {
                    true => tracing::info!("received SIGHUP: debug logging begins"),
                    false => tracing::info!("received SIGHUP: debug logging ends"),
                },
            }
        }
    }
}

/// How a member ceased to lead before its shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeadershipTransfer {
    /// It does not lead, or no longer.
    Done,
    /// No other member can lead: there is no other voter, or too few of them answer for an
    /// election.
    NoSuccessor,
    /// No other member took over in time.
    TimedOut,
}

/// Transfers leadership to another member, if this one leads and another one can. Returns when
/// that is done, is impossible, or took too long.
pub(crate) async fn transfer_leadership(node: &Node) -> LeadershipTransfer {
    let ended = tokio::select! {
        ended = try_transfer(node) => ended,
        () = no_longer_leads(node) => LeadershipTransfer::Done,
        () = no_quorum(node) => LeadershipTransfer::NoSuccessor,
        () = sleep(TRANSFER_TIMEOUT) => LeadershipTransfer::TimedOut,
    };
    match ended {
        LeadershipTransfer::Done => {}
        LeadershipTransfer::NoSuccessor => {
            tracing::info!("no other member can take over leadership");
        }
        LeadershipTransfer::TimedOut => {
            tracing::warn!(
                "no member took over leadership in time; the others will elect a leader"
            );
        }
    }
    ended
}

async fn try_transfer(node: &Node) -> LeadershipTransfer {
    while node.is_leader() {
        match successor(node).await {
            Successor::Ready(id) if node.transfer(id).await.is_ok() => break,
            Successor::Ready(_) | Successor::NotReady => sleep(POLL_INTERVAL).await,
            Successor::None => return LeadershipTransfer::NoSuccessor,
        }
    }
    LeadershipTransfer::Done
}

/// Waits until this member does not lead, and for a moment until it knows the next leader: until
/// then its vote may be needed.
async fn no_longer_leads(node: &Node) {
    let own = node.id();
    let mut leader = node.watch_leader();
    if leader.wait_for(|leader| *leader != Some(own)).await.is_ok() {
        let _ = timeout(NEXT_LEADER_TIMEOUT, leader.wait_for(Option::is_some)).await;
    }
}

/// Waits until too few voters answer to elect another leader, and that has lasted a moment: a new
/// leader has heard from none of them, and a connection may be opened again.
async fn no_quorum(node: &Node) {
    let mut since = None;
    loop {
        sleep(POLL_INTERVAL).await;
        let Ok(status) = node.status().await else { continue };
        let peers = &status.raft.peers;
        let answers = |id| {
            let answers = |peer: &PeerStatus| peer.active && peer.flow != Flow::Probe;
            id == node.id() || peers.iter().any(|peer| peer.id == id && answers(peer))
        };
        if peers.is_empty() || status.raft.membership.quorum(answers) {
            since = None;
        } else if since.get_or_insert_with(Instant::now).elapsed() >= NO_QUORUM_TIMEOUT {
            return;
        }
    }
}

/// Transfers leadership again whenever this member is elected. Never returns.
pub(crate) async fn decline_leadership(node: &Node) {
    let own = node.id();
    let mut leader = node.watch_leader();
    while leader.wait_for(|leader| *leader == Some(own)).await.is_ok() {
        transfer_leadership(node).await;
        sleep(POLL_INTERVAL).await;
    }
    // The member has stopped and can no longer be elected.
    std::future::pending().await
}

/// Which member could lead next.
enum Successor {
    /// The voter with the longest log.
    Ready(MemberId),
    /// There are other voters; none has caught up yet.
    NotReady,
    /// There is no other voter.
    None,
}

async fn successor(node: &Node) -> Successor {
    let (Ok(status), Ok(view)) = (node.status().await, node.view().await) else {
        return Successor::NotReady;
    };
    let membership = &status.raft.membership;
    let voters = || {
        let is_other_voter = |id| id != node.id() && membership.is_voter(id);
        status.raft.peers.iter().filter(move |peer| is_other_voter(peer.id))
    };
    let ready = voters().filter(|peer| peer.active && view.caught_up.contains(peer.id));
    match ready.max_by_key(|peer| peer.matched) {
        Some(peer) => Successor::Ready(peer.id),
        // A leader whose peers do not answer steps down soon.
        None if voters().next().is_some() => Successor::NotReady,
        None => Successor::None,
    }
}

const POLL_INTERVAL: Duration = Duration::from_millis(50);
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);
const NO_QUORUM_TIMEOUT: Duration = Duration::from_millis(300);
const NEXT_LEADER_TIMEOUT: Duration = Duration::from_millis(300);
