//! How a server ends: in good order after one signal, at once after another.

use std::io;
use std::time::Duration;

use quorate::{MemberId, Node};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{sleep, timeout};

/// What an operator, or the system, wants the process to do.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From here on signals end nothing by themselves.
    pub(crate) fn listen() -> io::Result<Self> {
        let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
        Ok(Self { terminate: signal(terminate)?, interrupt: signal(interrupt)? })
    }

    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "terminated",
            _ = self.interrupt.recv() => "interrupt",
        }
    }
}

/// Lets another member lead, if this one does and another one can. Returns when that is so,
/// or took too long.
pub(crate) async fn hand_over(node: &Node) {
    let handed = async {
        while node.is_leader() {
            match heir(node).await {
                Heir::Ready(id) if node.transfer(id).await.is_ok() => return,
                Heir::Ready(_) | Heir::Coming => sleep(LOOK_AGAIN).await,
                Heir::Nobody => return,
            }
        }
    };
    if timeout(HAND_OVER_PATIENCE, handed).await.is_err() {
        tracing::warn!("nobody took over in time; the others will elect a leader");
    }
}

/// Hands over again whenever this member is elected nevertheless. Never ends.
pub(crate) async fn refuse_to_lead(node: &Node) {
    let own = node.id();
    let mut leader = node.watch_leader();
    while leader.wait_for(|leader| *leader == Some(own)).await.is_ok() {
        hand_over(node).await;
        sleep(LOOK_AGAIN).await;
    }
    // The member has ended, and leads no more.
    std::future::pending().await
}

/// Who could lead next.
enum Heir {
    /// This one, which knows most.
    Ready(MemberId),
    /// Somebody, once it has caught up.
    Coming,
    Nobody,
}

async fn heir(node: &Node) -> Heir {
    let (Ok(status), Ok(view)) = (node.status().await, node.view().await) else {
        return Heir::Coming;
    };
    let membership = &status.raft.membership;
    let voters = || {
        let other = |id| id != node.id() && membership.is_voter(id);
        status.raft.peers.iter().filter(move |peer| other(peer.id))
    };
    let ready = voters().filter(|peer| peer.active && view.caught_up.contains(peer.id));
    match ready.max_by_key(|peer| peer.matched) {
        Some(peer) => Heir::Ready(peer.id),
        // A leader that nobody answers steps down soon.
        None if voters().next().is_some() => Heir::Coming,
        None => Heir::Nobody,
    }
}

const LOOK_AGAIN: Duration = Duration::from_millis(50);
const HAND_OVER_PATIENCE: Duration = Duration::from_secs(5);
