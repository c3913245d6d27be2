//! Graceful shutdown: signals, and handing leadership to another member first.

use std::io;
use std::time::Duration;

use quorate::{MemberId, Node};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{sleep, timeout};

/// The signals that ask the process to stop.
pub(crate) struct ShutdownSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl ShutdownSignals {
    /// From now on these signals no longer end the process by themselves.
    pub(crate) fn listen() -> io::Result<Self> {
        let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
        Ok(Self { terminate: signal(terminate)?, interrupt: signal(interrupt)? })
    }

    /// Waits for the next signal and returns its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "terminated",
            _ = self.interrupt.recv() => "interrupt",
        }
    }
}

/// Transfers leadership to another member, if this one leads and another one can. Returns when
/// that is done, is impossible, or took too long.
pub(crate) async fn transfer_leadership(node: &Node) {
    let transferred = async {
        while node.is_leader() {
            match successor(node).await {
                Successor::Ready(id) if node.transfer(id).await.is_ok() => return,
                Successor::Ready(_) | Successor::NotReady => sleep(POLL_INTERVAL).await,
                Successor::None => return,
            }
        }
    };
    if timeout(TRANSFER_TIMEOUT, transferred).await.is_err() {
        tracing::warn!("no member took over leadership in time; the others will elect a leader");
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
