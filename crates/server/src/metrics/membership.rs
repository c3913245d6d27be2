//! The membership in numbers: what is tolerated, what is in progress, who lags.

use std::sync::atomic::Ordering;

use super::MetricsPage;
use crate::context::ServiceContext;

pub(super) async fn write(page: &mut MetricsPage, context: &ServiceContext) {
    let (node, overview) = (&context.node, &context.overview);
    let membership = node.membership();
    let flag = u8::from;
    if let Some(tolerance) = overview.tolerance() {
        let name = "quorate_failures_tolerated";
        let help =
            "How many more members may fail, as the leader sees it; absent without a leader.";
        page.gauge(name, help, tolerance.failures);
        let name = "quorate_has_quorum";
        let help =
            "Whether a quorum of each majority is live and caught up, as the leader sees it.";
        page.gauge(name, help, flag(tolerance.has_quorum));
    }
    let joint = flag(membership.majorities().len() > 1);
    page.gauge("quorate_joint", "Whether the membership is joint.", joint);
    page.gauge("quorate_voters", "Voters of the membership.", membership.voters().len());
    page.gauge("quorate_learners", "Learners of the membership.", membership.learners().len());
    let age = overview.goal_age(&membership);
    let name = "quorate_goal_in_progress";
    page.gauge(name, "Whether a membership change is in progress.", flag(age.is_some()));
    let name = "quorate_goal_age_seconds";
    let help = "How long this member has known the change in progress; 0 without one.";
    page.gauge(name, help, age.unwrap_or_default().as_secs_f64());
    if let Ok(status) = node.status().await {
        let raft = status.raft;
        let settled = flag(raft.settled >= raft.membership_id.index);
        page.gauge("quorate_settled", "Whether the membership is known to be settled.", settled);
        let name = "quorate_stalled";
        page.head(name, "gauge", "Whether the disk or the state machine stands still.");
        page.line(name, "what=\"disk\"", flag(raft.stalled.disk));
        page.line(name, "what=\"machine\"", flag(raft.stalled.machine));
        let name = "quorate_peer_lag_entries";
        page.head(name, "gauge", "Entries that a member has not saved yet; only on the leader.");
        for peer in raft.peers.iter().filter(|peer| peer.id != raft.id) {
            let lag = raft.log.last.index.saturating_sub(peer.matched);
            page.line(name, &format!("peer=\"{}\"", peer.id), lag);
        }
        let name = "quorate_peer_active";
        page.head(name, "gauge", "Whether a member answers; only on the leader.");
        for peer in raft.peers.iter().filter(|peer| peer.id != raft.id) {
            page.line(name, &format!("peer=\"{}\"", peer.id), flag(peer.active));
        }
    }
    let seconds = overview.backup_unix_millis.load(Ordering::Relaxed) as f64 / 1e3;
    let name = "quorate_last_backup_timestamp_seconds";
    let help =
        "When a client last read a whole snapshot from this member; 0 for not since its start.";
    page.gauge(name, help, seconds);
    let (free, size) = overview.disk();
    page.gauge("quorate_disk_free_bytes", "Free bytes of the file system with the log.", free);
    page.gauge("quorate_disk_size_bytes", "Size of the file system with the log.", size);
}
