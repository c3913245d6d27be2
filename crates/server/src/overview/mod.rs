//! The cluster at a glance, from any member: the leader's status, what each member reports about
//! itself, and the timeline of the member that replies.
//!
//! Each member sends its report to the leader once a second, as a query between applications; the
//! answer is the leader's status with the reports of all members. So one query shows a member the
//! whole cluster, however many clients look at it.

mod report;
pub(crate) mod timeline;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use prost::Message;
use quorate::{EntryId, MemberId, MemberSet, Membership};
use quorate_proto::quorate::v1;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::context::ServiceContext;
use crate::metrics::ServerMetrics;
use crate::service::membership::status_reply;
use crate::status::ServiceError;
use report::own_report;
use timeline::{EventTimeline, unix_millis};

/// What a member knows of the cluster beside its own state.
pub(crate) struct ClusterOverview {
    pub(crate) timeline: Arc<EventTimeline>,
    /// What is measured in this process; none in tests of services alone.
    metrics: Option<Arc<ServerMetrics>>,
    data_dir: PathBuf,
    started: SystemTime,
    /// Of a leader: the reports of the other members.
    reports: Mutex<BTreeMap<u64, (Instant, v1::MemberReport)>>,
    /// Of the others: the leader's last answer.
    answer: tokio::sync::Mutex<Option<LeaderAnswer>>,
    /// The same, for the metrics.
    tolerance: Mutex<Option<(Instant, v1::Tolerance)>>,
    /// Since when this member knows the goal.
    goal: Mutex<Option<(EntryId, Instant)>>,
    pub(crate) backup_unix_millis: AtomicU64,
    disk_free: AtomicU64,
    disk_size: AtomicU64,
    /// Feeds of events that may be open at the same time.
    pub(crate) feeds: Arc<Semaphore>,
}

#[derive(Clone)]
struct LeaderAnswer {
    at: Instant,
    reply: v1::OverviewReply,
}

impl Default for ClusterOverview {
    fn default() -> Self {
        Self {
            timeline: Arc::default(),
            metrics: None,
            data_dir: PathBuf::new(),
            started: SystemTime::now(),
            reports: Mutex::default(),
            answer: tokio::sync::Mutex::default(),
            tolerance: Mutex::default(),
            goal: Mutex::default(),
            backup_unix_millis: AtomicU64::new(0),
            disk_free: AtomicU64::new(0),
            disk_size: AtomicU64::new(0),
            feeds: Arc::new(Semaphore::new(FEEDS_MAX)),
        }
    }
}

impl ClusterOverview {
    pub(crate) fn new(metrics: Arc<ServerMetrics>, data_dir: PathBuf) -> Self {
        let timeline = Arc::clone(&metrics.timeline);
        Self { timeline, metrics: Some(metrics), data_dir, ..Self::default() }
    }

    /// Whole snapshots were sent to a client.
    pub(crate) fn backup_made(&self) {
        self.backup_unix_millis.store(unix_millis(SystemTime::now()), Ordering::Relaxed);
    }

    /// Free bytes and size of the file system with the log.
    pub(crate) fn disk(&self) -> (u64, u64) {
        (self.disk_free.load(Ordering::Relaxed), self.disk_size.load(Ordering::Relaxed))
    }

    /// How long this member has known the goal in progress.
    pub(crate) fn goal_age(&self, membership: &Membership) -> Option<Duration> {
        let mut known = lock(&self.goal);
        let goal = membership.goal().map(|goal| goal.id);
        if known.map(|(id, _)| id) != goal {
            *known = goal.map(|id| (id, Instant::now()));
        }
        known.map(|(_, since)| since.elapsed())
    }

    /// The tolerated failures as the leader last said; none if that is long ago.
    pub(crate) fn tolerance(&self) -> Option<v1::Tolerance> {
        let known = lock(&self.tolerance);
        let (at, tolerance) = known.as_ref()?;
        (at.elapsed() < ANSWER_VALID).then(|| tolerance.clone())
    }

    fn keep_tolerance(&self, status: Option<&v1::StatusReply>) {
        if let Some(tolerance) = status.and_then(|status| status.tolerance.clone()) {
            *lock(&self.tolerance) = Some((Instant::now(), tolerance));
        }
    }

    /// The reports of other members that are in this membership.
    fn reports_of(&self, members: &MemberSet) -> Vec<v1::MemberReport> {
        let mut kept = lock(&self.reports);
        kept.retain(|id, _| members.contains(MemberId(*id)));
        kept.values()
            .map(|(at, report)| v1::MemberReport {
                age_millis: report.age_millis.saturating_add(millis(at.elapsed())),
                ..report.clone()
            })
            .collect()
    }
}

/// The overview as this member has it, with the entries of the timeline after this number.
pub(crate) async fn overview(
    context: &ServiceContext,
    timeline_after: u64,
) -> Result<v1::OverviewReply, ServiceError> {
    let mut reply = match from_leader(context).await {
        Some(reply) => reply,
        None => own_view(context).await?,
    };
    reply.header = context.membership_header();
    reply.timeline = context.overview.timeline.after(timeline_after);
    reply.unix_millis = unix_millis(SystemTime::now());
    reply.auth_enabled = context.store.auth_version().enabled;
    Ok(reply)
}

/// What this member knows without a leader, or as the leader.
async fn own_view(context: &ServiceContext) -> Result<v1::OverviewReply, ServiceError> {
    let own = own_report(context).await?;
    let status = status_reply(context).await?;
    context.overview.keep_tolerance(Some(&status));
    let mut reports = context.overview.reports_of(&context.node.membership().members());
    reports.retain(|report| report.member_id != own.member_id);
    reports.push(own);
    reports.sort_by_key(|report| report.member_id);
    Ok(v1::OverviewReply { status: Some(status), reports, ..Default::default() })
}

/// Sends the report of this member to the leader, and returns its answer. A recent answer is used
/// again, so that many clients of this member cause no more queries. `None` if this member leads,
/// or no leader answers.
async fn from_leader(context: &ServiceContext) -> Option<v1::OverviewReply> {
    let node = &context.node;
    if node.is_leader() || node.leader().is_none() {
        return None;
    }
    let mut known = context.overview.answer.lock().await;
    if let Some(LeaderAnswer { at, reply }) = &*known
        && at.elapsed() < ANSWER_FRESH
    {
        return Some(reply.clone());
    }
    let report = own_report(context).await.ok()?;
    let mut query = vec![REPORT_QUERY];
    report.encode(&mut query).ok()?;
    let asked = tokio::time::timeout(QUERY_TIMEOUT, node.ask_leader(query)).await;
    let answer = asked.ok().and_then(Result::ok);
    let reply = answer.and_then(|answer| v1::OverviewReply::decode(answer).ok())?;
    context.overview.keep_tolerance(reply.status.as_ref());
    *known = Some(LeaderAnswer { at: Instant::now(), reply: reply.clone() });
    Some(reply)
}

/// The report in a query of another member; `None` for other queries.
pub(crate) fn decode_query(query: &Bytes) -> Option<v1::MemberReport> {
    let (&kind, report) = query.split_first()?;
    (kind == REPORT_QUERY).then(|| v1::MemberReport::decode(report).ok()).flatten()
}

/// The leader's answer to a member that sent its report.
pub(crate) async fn answer(context: &ServiceContext, report: v1::MemberReport) -> Option<Bytes> {
    let members = context.node.membership().members();
    if members.contains(MemberId(report.member_id)) {
        let id = report.member_id;
        lock(&context.overview.reports).insert(id, (Instant::now(), report));
    }
    let reply = own_view(context).await.ok()?;
    Some(reply.encode_to_vec().into())
}

/// Reports to the leader, and notes what only polling shows: connections, snapshots, free space.
pub(crate) async fn run(context: &ServiceContext) {
    tokio::join!(watch_commits(context), poll(context));
}

async fn watch_commits(context: &ServiceContext) {
    let mut events = context.node.watch_membership();
    while let Some(event) = events.next().await {
        if let quorate::membership::MembershipEvent::Committed { id, membership } = event {
            context.overview.timeline.committed(id, &membership);
        }
    }
}

async fn poll(context: &ServiceContext) {
    let (node, overview) = (&context.node, &context.overview);
    let mut connected = MemberSet::default();
    let mut snapshots = (0, 0, 0);
    loop {
        let membership = node.membership();
        overview.goal_age(&membership);
        let now: MemberSet =
            node.connected_peers().into_iter().filter(|id| membership.contains(*id)).collect();
        for id in now.iter().filter(|id| !connected.contains(*id)) {
            overview.timeline.connection(id, true);
        }
        // The connection to a member that was removed ends without news.
        for id in connected.iter().filter(|id| !now.contains(*id) && membership.contains(*id)) {
            overview.timeline.connection(id, false);
        }
        connected = now;
        let metrics = node.metrics();
        let counts = (metrics.snapshots_taken, metrics.snapshots_sent, metrics.snapshots_lost);
        for (before, after, text) in [
            (snapshots.0, counts.0, "this member took a snapshot"),
            (snapshots.1, counts.1, "a snapshot was sent to a member that lagged"),
            (snapshots.2, counts.2, "a snapshot could not be sent"),
        ] {
            if after > before {
                overview.timeline.snapshot(text);
            }
        }
        snapshots = counts;
        read_disk(overview).await;
        if node.is_leader() {
            // Without clients, nothing else refreshes it.
            if let Ok(status) = status_reply(context).await {
                overview.keep_tolerance(Some(&status));
            }
        } else {
            let _ = from_leader(context).await;
        }
        tokio::time::sleep(REPORT_INTERVAL).await;
    }
}

/// The file system may be slow to answer.
async fn read_disk(overview: &ClusterOverview) {
    let directory = overview.data_dir.clone();
    let read = tokio::task::spawn_blocking(move || rustix::fs::statvfs(&directory)).await;
    if let Ok(Ok(disk)) = read {
        overview.disk_free.store(disk.f_bavail.saturating_mul(disk.f_frsize), Ordering::Relaxed);
        overview.disk_size.store(disk.f_blocks.saturating_mul(disk.f_frsize), Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The kind of the query. Those about leases, lost members and hashes have lower numbers.
const REPORT_QUERY: u8 = 5;
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
const QUERY_TIMEOUT: Duration = Duration::from_secs(1);
/// An answer of this age is used again.
const ANSWER_FRESH: Duration = Duration::from_millis(200);
/// An answer of this age still says how many failures are tolerated.
const ANSWER_VALID: Duration = Duration::from_secs(5);
const FEEDS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_told_from_other_queries() {
        let report = v1::MemberReport { member_id: 7, version: "1".into(), ..Default::default() };
        let mut query = vec![REPORT_QUERY];
        report.encode(&mut query).unwrap();
        assert_eq!(decode_query(&query.into()), Some(report));
        for other in [&[][..], &[1, 0, 0, 0, 0, 0, 0, 0, 0], &[3], &[4, 8], &[5, 255]] {
            assert_eq!(decode_query(&Bytes::copy_from_slice(other)), None, "{other:?}");
        }
    }

    #[test]
    fn reports_of_former_members_are_forgotten() {
        let overview = ClusterOverview::default();
        for id in [1, 2] {
            let report = v1::MemberReport { member_id: id, ..Default::default() };
            lock(&overview.reports).insert(id, (Instant::now(), report));
        }
        let members: MemberSet = [MemberId(2), MemberId(3)].into_iter().collect();
        let ids: Vec<u64> = overview.reports_of(&members).iter().map(|one| one.member_id).collect();
        assert_eq!(ids, [2]);
        assert_eq!(lock(&overview.reports).len(), 1);
    }

    #[test]
    fn the_age_of_a_goal_starts_when_it_is_seen() {
        let overview = ClusterOverview::default();
        let membership = Membership::new([MemberId(1)], []);
        assert_eq!(overview.goal_age(&membership), None);
    }
}
