//! A member's task: it takes what is in the mailbox, lets the driver decide, and dispatches
//! the resulting work. It never waits for a disk, a machine or a peer; they report when they
//! are done.

mod batches;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_core::membership::MemberInfo;
use quorate_core::message::Message;
use quorate_core::{Dropped, Envelope, Event, Index, MemberId, Membership};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::apply_task::ApplyCommand;
use super::arrivals::Arrivals;
use super::batch_pace::BatchPace;
use super::batch_queue::BatchQueue;
use super::clock::Clock;
use super::cpu_pressure::GatherTime;
use super::delayed_messages::{DelayedMessages, MayWait};
use super::disk_thread::DiskHandle;
use super::inbox::{LocalMember, read, write};
use super::leader_query::{LeaderQuery, ReplyTo};
use super::mailbox::{ClientRequest, Completion, Control, FromPeers, Mailbox};
use super::metrics::{Counters, NodeObserver};
use super::pending_replies::PendingReplies;
use super::shared_barriers::{MemberBarriers, SharedBarriers};
use super::side_messages::{LeaderView, SideMessage, SideRequests};
use super::snapshots::OutgoingSnapshot;
use super::status::{KnownMembership, MembershipEvent, NodeStatus, StopReason};
use super::sync::lock;
use super::transport::{MemberKey, PeerMessage, RejectReason, Transport};
use super::versions::VersionRounds;
use super::wake_timer::WakeTimer;
use batches::ForwardedRequests;

use crate::applier::MachineJob;
use crate::cluster_version::{ClusterVersion, VersionRange};
use crate::driver::{Driver, DriverOutput};
use crate::machine::WorkProgress;
use crate::outcome::RequestRefused;

/// A member's task, with everything it uses.
pub(crate) struct Member {
    pub(crate) key: MemberKey,
    pub(crate) driver: Driver,
    pub(crate) boots: u64,
    pub(crate) mailbox: Mailbox,
    pub(crate) clock: Clock,
    pub(crate) timer: WakeTimer,
    pub(crate) disk: DiskHandle,
    pub(crate) jobs: Arc<BatchQueue<ApplyCommand>>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) local: Arc<LocalMember>,
    pub(crate) leader_queries: mpsc::Sender<LeaderQuery>,
    pub(crate) shared: Arc<SharedState>,
    pub(crate) barriers: MemberBarriers,
    pub(crate) state: TaskState,
    /// Of the machine.
    pub(crate) progress: WorkProgress,
    /// The machine's task.
    pub(crate) applying: JoinHandle<()>,
    /// Keeps the channel open when all handles are dropped.
    pub(crate) _requests: mpsc::Sender<ClientRequest>,
}

/// The state of a member that its handles read directly.
pub(crate) struct SharedState {
    pub(crate) counters: Arc<Counters>,
    pub(crate) observer: Arc<dyn NodeObserver>,
    pub(crate) dropped: std::sync::Mutex<BTreeMap<&'static str, u64>>,
    /// Until the application takes the receiver.
    pub(crate) leader_queries: std::sync::Mutex<Option<mpsc::Receiver<LeaderQuery>>>,
    pub(crate) term: AtomicU64,
    pub(crate) leader: watch::Sender<Option<MemberId>>,
    pub(crate) known: watch::Sender<KnownMembership>,
    pub(crate) cluster_version: watch::Sender<ClusterVersion>,
    pub(crate) events: broadcast::Sender<MembershipEvent>,
    pub(crate) ended: watch::Sender<Option<StopReason>>,
    pub(crate) barriers: Arc<SharedBarriers>,
    pub(crate) arrivals: Arrivals,
}

/// What the task keeps between turns.
pub(crate) struct TaskState {
    pub(crate) waiting: PendingReplies,
    pace: BatchPace,
    delayed: DelayedMessages,
    side_requests: SideRequests,
    pub(crate) versions: VersionRounds,
    saves_waiting: usize,
    jobs_waiting: usize,
    peers: BTreeMap<MemberId, MemberInfo>,
    snapshot_requests: Vec<(Index, oneshot::Sender<Result<Index, RequestRefused>>)>,
    identity_rejected: Option<(MemberId, quorate_core::message::Identity)>,
    /// How often a leader assumed entries that this log does not have.
    missed: u32,
    ended: Option<StopReason>,
    completions: Vec<Completion>,
    from_peers: Vec<FromPeers>,
    requests: Vec<ClientRequest>,
    forwarded: ForwardedRequests,
    /// Of the machine, at the last tick.
    steps_seen: u64,
}

impl TaskState {
    pub(crate) fn new(
        supported: VersionRange,
        gather: GatherTime,
        waiting: PendingReplies,
    ) -> Self {
        Self {
            waiting,
            pace: BatchPace::new(Instant::now(), gather),
            delayed: DelayedMessages::default(),
            side_requests: SideRequests::default(),
            versions: VersionRounds::new(supported),
            saves_waiting: 0,
            jobs_waiting: 0,
            peers: BTreeMap::new(),
            snapshot_requests: Vec::new(),
            identity_rejected: None,
            missed: 0,
            ended: None,
            completions: Vec::new(),
            from_peers: Vec::new(),
            requests: Vec::new(),
            forwarded: ForwardedRequests::default(),
            steps_seen: 0,
        }
    }
}

impl Member {
    /// Runs until the member is stopped or fails; returns the reason.
    pub(crate) async fn run(mut self) -> StopReason {
        let membership = Arc::clone(self.driver.raft().membership());
        self.update_peers(&membership);
        while self.state.ended.is_none() {
            self.receive_batch().await;
            self.process_batch();
            self.dispatch();
        }
        self.finish().await
    }

    /// A machine that is busy with a long command does not stand still.
    fn report_progress(&mut self) {
        let steps = self.progress.steps();
        if steps != self.state.steps_seen {
            self.state.steps_seen = steps;
            self.driver.machine_progressed();
        }
    }

    /// Gives the driver its inputs. Time comes first: what a leader may reply by its lease
    /// depends on it.
    fn process_batch(&mut self) {
        for _ in 0..self.clock.take_due() {
            self.report_progress();
            self.driver.tick();
            self.state.side_requests.tick();
            self.on_version_tick();
            self.publish_dropped();
        }
        let mut completions = std::mem::take(&mut self.state.completions);
        for completion in completions.drain(..) {
            self.on_completion(completion);
        }
        self.state.completions = completions;
        let mut from_peers = std::mem::take(&mut self.state.from_peers);
        for delivery in from_peers.drain(..) {
            self.on_delivery(delivery);
        }
        self.state.from_peers = from_peers;
        self.process_requests();
    }

    fn on_delivery(&mut self, delivery: FromPeers) {
        match delivery {
            FromPeers::Messages(messages, held) => {
                self.shared.counters.received.add(messages.len() as u64);
                let before = self.state.forwarded.kept_so_far();
                let now = Instant::now();
                for message in messages {
                    self.on_peer_message(message, now);
                }
                if self.state.forwarded.kept_so_far() > before {
                    self.state.forwarded.hold(held);
                }
            }
            FromPeers::Unreachable(peer) => self.driver.unreachable(peer),
            FromPeers::ConnectionLost(peer) => self.driver.connection_lost(peer),
            FromPeers::SnapshotReceived(envelope) => {
                self.receive(*envelope);
                if !self.driver.raft().log_status().installing {
                    // It is not needed: the log has more by now.
                    self.local.loaded.set(None);
                }
            }
        }
    }

    fn on_peer_message(&mut self, message: PeerMessage, now: Instant) {
        match message {
            // A snapshot comes with its bytes, not as a message.
            PeerMessage::Raft(Envelope { message: Message::Snapshot(_), .. }) => {}
            PeerMessage::Raft(envelope) => {
                let is_request =
                    matches!(envelope.message, Message::Propose(..) | Message::Read(_));
                if is_request && self.state.peers.contains_key(&envelope.from) {
                    self.state.delayed.on_request(envelope.from, now);
                }
                if let Some(other) = self.state.forwarded.keep(envelope) {
                    self.receive_in_order(other);
                }
            }
            PeerMessage::Side { from, to, bytes } if to == self.key.member => {
                match SideMessage::from_bytes(bytes) {
                    Ok(SideMessage::ViewRequest(number)) => {
                        let reply = SideMessage::ViewReply(number, self.own_view());
                        self.send_side_message(from, &reply);
                    }
                    Ok(SideMessage::ViewReply(number, view)) => {
                        self.state.side_requests.on_view_reply(number, view);
                    }
                    Ok(SideMessage::Query(number, question)) => {
                        let transport = Arc::clone(&self.transport);
                        let reply_to = ReplyTo::Remote { key: self.key, transport, number };
                        self.dispatch_query(LeaderQuery::new(from, question, reply_to));
                    }
                    Ok(SideMessage::QueryReply(number, answer)) => {
                        self.state.side_requests.on_query_reply(number, answer)
                    }
                    Ok(SideMessage::VersionRequest(number)) => {
                        let supported = self.state.versions.supported();
                        self.send_side_message(from, &SideMessage::VersionReply(number, supported));
                    }
                    Ok(SideMessage::VersionReply(number, supported)) => {
                        self.on_version_reply(from, number, supported);
                    }
                    Err(why) => {
                        debug!(member = %self.key.member, %from, error = %why, "malformed side message");
                    }
                }
            }
            PeerMessage::Side { .. } => {}
        }
    }

    fn receive(&mut self, envelope: Envelope) {
        let (from, incarnation) = (envelope.from, envelope.incarnation);
        let campaigns = matches!(envelope.message, Message::PreVote(_) | Message::Vote(_));
        let dropped = self.driver.receive(envelope);
        if (campaigns || dropped.is_some()) && read(&self.local.filter).removed.contains(&from) {
            self.reject_removed(from);
        }
        match dropped {
            Some(Dropped::OtherIncarnation { .. } | Dropped::OtherJoinIndex { .. }) => {
                self.reject_disk(from, incarnation);
            }
            Some(Dropped::CommitBeyondLog { commit, last }) => {
                self.on_missing_entries(commit, last)
            }
            _ => {}
        }
    }

    /// The leader assumes entries that this log does not have. That is normal for a new disk
    /// until the leader knows it. If it lasts, this disk has lost entries that it confirmed, and
    /// no leader will send them again.
    fn on_missing_entries(&mut self, commit: Index, last: Index) {
        self.state.missed = self.state.missed.saturating_add(1);
        if self.state.missed == MISSED_MAX {
            let text = "the log lacks what this member confirmed, so that it does not vote: \
                        its disk was rolled back or restored; \
                        remove this member and add it again under a new id";
            warn!(member = %self.key.member, commit, last, "{text}");
        }
    }

    /// Tells a member that it was removed. It may have missed the entry that says so; on a
    /// connection that was open before, nothing else tells it.
    fn reject_removed(&mut self, from: MemberId) {
        debug!(member = %self.key.member, peer = %from, "peer rejected: it was removed");
        self.dispatch();
        self.transport.reject(self.key, from, RejectReason::Removed);
    }

    /// Rejects a sender with another disk than the one in the membership. The core has told it
    /// which identity is known.
    fn reject_disk(&mut self, from: MemberId, incarnation: u64) {
        let mut filter = write(&self.local.filter);
        if filter.rejected_disks.contains(&(from, incarnation)) {
            return;
        }
        if filter.rejected_disks.len() < REJECTED_DISKS_MAX {
            filter.rejected_disks.push((from, incarnation));
        }
        drop(filter);
        warn!(member = %self.key.member, peer = %from, "peer rejected: another disk is known under its id");
        self.dispatch();
        self.transport.reject(self.key, from, RejectReason::OtherDisk);
    }

    fn on_completion(&mut self, completion: Completion) {
        let counters = &self.shared.counters;
        match completion {
            Completion::Saved(id) => {
                self.driver.saved(id);
                self.state.saves_waiting = self.driver.saves_waiting();
            }
            Completion::Jobs(done) => {
                for job in done {
                    self.state.jobs_waiting = self.state.jobs_waiting.saturating_sub(1);
                    self.driver.job_done(job);
                }
                self.publish_version();
            }
            Completion::Loaded(target, entries) => self.driver.loaded(target, entries),
            Completion::SnapshotSaved { index, bytes } => {
                counters.snapshots_taken.add(1);
                self.driver.snapshot_saved(index, bytes);
                self.complete_snapshot_requests(index);
            }
            Completion::SnapshotFailed(index) => {
                self.driver.snapshot_given_up();
                let failed = self
                    .state
                    .snapshot_requests
                    .extract_if(.., |(requested, _)| *requested <= index);
                for (_, reply) in failed {
                    let _ = reply.send(Err(RequestRefused::SnapshotFailed));
                }
            }
            Completion::SnapshotSent(to, arrived) => {
                let count =
                    if arrived { &counters.snapshots_sent } else { &counters.snapshots_lost };
                count.add(1);
                if arrived {
                    self.driver.snapshot_sent(to);
                } else {
                    self.driver.snapshot_lost(to);
                }
            }
            Completion::SnapshotOpened(envelope, Some(source)) => {
                let done = Arc::clone(&self.mailbox.done);
                let user = self.local.disk_uses.begin_use();
                let snapshot = OutgoingSnapshot::new(*envelope, source, user, done);
                self.transport.send_snapshot(self.key, snapshot);
            }
            Completion::SnapshotOpened(envelope, None) => {
                self.driver.snapshot_lost(envelope.to);
            }
            Completion::Control(control) => self.on_control(control),
            Completion::Ended(why) => {
                // What failed first is the reason; the rest may follow from it.
                self.state.ended.get_or_insert(why);
            }
        }
    }

    fn on_control(&mut self, control: Control) {
        match control {
            Control::Status(reply) => {
                let _ = reply.send(Box::new(self.status()));
            }
            Control::View(reply) => self.on_view_request(reply),
            Control::AskLeader(question, reply) => self.ask_leader(question, reply),
            Control::Snapshot(reply) => {
                let index = self.driver.capture();
                self.state.snapshot_requests.push((index, reply));
                let newest = self.driver.raft().snapshot().id.index;
                self.complete_snapshot_requests(newest);
            }
            Control::Trim(index) => self.driver.trim(index),
            Control::Downgrade(target, reply) => self.on_downgrade(target, reply),
            Control::Campaign => self.driver.campaign(),
            // A failure in the same batch is the reason that callers should see.
            Control::Stop => _ = self.state.ended.get_or_insert(StopReason::Stopped),
        }
    }

    fn complete_snapshot_requests(&mut self, durable: Index) {
        let ready = self.state.snapshot_requests.extract_if(.., |(index, _)| *index <= durable);
        for (_, reply) in ready {
            let _ = reply.send(Ok(durable));
        }
    }

    fn on_view_request(&mut self, reply: oneshot::Sender<Result<LeaderView, RequestRefused>>) {
        if let Some(view) = self.own_view() {
            let _ = reply.send(Ok(view));
            return;
        }
        match self.driver.raft().leader() {
            Some(leader) => {
                let ticks = self.driver.raft().config().election_ticks;
                let message = self.state.side_requests.request_view(reply, ticks);
                self.send_side_message(leader, &message);
            }
            None => {
                let _ = reply.send(Err(RequestRefused::NoLeader));
            }
        }
    }

    fn ask_leader(
        &mut self,
        question: Bytes,
        reply: oneshot::Sender<Result<Bytes, RequestRefused>>,
    ) {
        match self.driver.raft().leader() {
            Some(leader) if leader == self.key.member => {
                self.dispatch_query(LeaderQuery::new(leader, question, ReplyTo::Local(reply)));
            }
            Some(leader) => {
                let ticks = self.driver.raft().config().election_ticks;
                let message = self.state.side_requests.query(question, reply, ticks);
                self.send_side_message(leader, &message);
            }
            None => {
                let _ = reply.send(Err(RequestRefused::NoLeader));
            }
        }
    }

    /// Hands a query to the local application. If this member does not lead, or too many
    /// queries wait, the query is dropped, which tells its sender.
    fn dispatch_query(&self, query: LeaderQuery) {
        if self.driver.raft().leader() == Some(self.key.member) {
            let _ = self.leader_queries.try_send(query);
        }
    }

    fn own_view(&self) -> Option<LeaderView> {
        let raft = self.driver.raft();
        let view = raft.plan_context()?;
        Some(LeaderView { newest: raft.newest_membership_id(), view })
    }

    pub(crate) fn send_side_message(&self, to: MemberId, message: &SideMessage) {
        let message = PeerMessage::Side { from: self.key.member, to, bytes: message.to_bytes() };
        self.transport.send(self.key, vec![message]);
    }

    fn status(&self) -> NodeStatus {
        NodeStatus {
            raft: self.driver.raft().status(),
            incarnation: self.driver.command_id().incarnation,
            boots: self.boots,
            open_requests: self.driver.open_requests(),
            saves_waiting: self.state.saves_waiting,
            identity_rejected: self.state.identity_rejected,
            cluster_version: self.driver.cluster_version(),
            supported_versions: self.state.versions.supported(),
            storage_version: self.driver.storage_version(),
        }
    }

    /// Dispatches all work of the driver.
    fn dispatch(&mut self) {
        while self.driver.has_output() {
            let work = self.driver.take_output();
            self.dispatch_output(work);
        }
        if self.state.delayed.next_due().is_some_and(|due| due <= Instant::now()) {
            self.send(Vec::new());
        }
        self.shared.term.store(self.driver.raft().term(), Ordering::Relaxed);
        let counters = &self.shared.counters;
        counters.open_requests.set(self.driver.open_requests() as u64);
        counters.log_lost.set(u64::from(self.driver.raft().has_lost_log()));
        counters.peers_lost.set(self.driver.raft().lost_peers() as u64);
        counters.saves_waiting.set(self.state.saves_waiting as u64);
    }

    fn dispatch_output(&mut self, work: DriverOutput) {
        // Peers and the disk work in parallel.
        if let Some(save) = work.save {
            self.state.saves_waiting += 1;
            self.disk.save(save);
        }
        if !work.send.is_empty() {
            self.send(work.send);
        }
        for job in work.jobs {
            if let MachineJob::Apply(entries) = &job {
                self.report_committed(entries);
            }
            let reports = !matches!(job, MachineJob::Snapshot(_) | MachineJob::SendState { .. });
            self.state.jobs_waiting += usize::from(reports);
            self.jobs.push(ApplyCommand::Job(job));
        }
        for envelope in work.snapshots {
            if let Message::Snapshot(meta) = &envelope.message {
                self.disk.send_snapshot(meta.id, envelope);
            }
        }
        for load in work.load {
            self.disk.load(load);
        }
        if let Some(index) = work.trim {
            self.disk.trim(index);
        }
        for (_, answer) in &work.outcomes {
            self.shared.counters.count_answer(answer);
        }
        self.state.waiting.complete(work.outcomes);
        for event in work.events {
            self.on_event(&event);
        }
    }

    /// Sends messages, and what has waited for long enough.
    fn send(&mut self, mut messages: Vec<Envelope>) {
        let raft = self.driver.raft();
        let leads = raft.leader() == Some(self.key.member);
        // A change of the membership does not wait, nor what a removed member has yet to learn.
        let are_members = || messages.iter().all(|sent| raft.membership().contains(sent.to));
        let is_settled = raft.settled() >= raft.membership().since().index;
        let may_wait = match is_settled && raft.is_membership_at_rest() && are_members() {
            false => MayWait::Nothing,
            true if leads => MayWait::OfLeader { last: raft.log_status().last.index },
            true => MayWait::OfFollower { save: self.gathers_for_save() },
        };
        self.state.delayed.pass(&mut messages, may_wait, Instant::now());
        if messages.is_empty() {
            return;
        }
        self.shared.counters.sent.add(messages.len() as u64);
        let messages = messages.into_iter().map(PeerMessage::Raft).collect();
        self.transport.send(self.key, messages);
    }

    fn report_committed(&self, entries: &quorate_core::Entries) {
        for entry in entries.chunks().flatten() {
            if let Some(change) = entry.change() {
                let membership = Arc::clone(&change.membership);
                let _ = self
                    .shared
                    .events
                    .send(MembershipEvent::Committed { id: entry.id, membership });
            }
        }
    }

    fn on_event(&mut self, event: &Event) {
        self.shared.observer.on_event(event);
        let member = self.key.member;
        match event {
            Event::Role { from, to, term } => {
                info!(%member, term, %from, %to, "role changed");
            }
            Event::Leader { leader, term } => {
                let name = leader.map_or("none".to_owned(), |leader| leader.to_string());
                info!(%member, term, leader = name, "leader changed");
                // A reader that sees the leader also sees its term.
                self.shared.term.store(*term, Ordering::Release);
                self.shared.leader.send_replace(*leader);
            }
            Event::Membership { id, membership } => {
                info!(%member, %id, %membership, "membership in effect");
                self.on_membership(*id, membership);
            }
            Event::Settled { id, membership, .. } => {
                info!(%member, %id, %membership, "membership settled");
                self.shared.known.send_modify(|known| known.settled = id.index);
                // No member needs them from now on.
                write(&self.local.filter).removed = membership.removed().to_vec();
            }
            Event::GoalStep { step } => info!(%member, %step, "next step of the goal"),
            Event::GoalEnded(ended) => {
                info!(%member, goal = %ended.id, end = ?ended.end, "goal ended")
            }
            Event::LogComplete => info!(%member, "the log has all that this member confirmed"),
            Event::PeerLostLog { peer, confirmed, last } => {
                let text = "peer is not counted: its log lacks what it confirmed; \
                            remove it and add it again under a new id";
                warn!(%member, %peer, confirmed, last, "{text}");
            }
            Event::IdentityRejected { by, known } => {
                warn!(%member, %by, "identity rejected: remove this member and add it again under a new id");
                self.state.identity_rejected = Some((*by, *known));
            }
            Event::Stalled(stalled) if stalled.any() => {
                warn!(%member, %stalled, "the disk or the state machine stands still");
            }
            Event::Stalled(_) => info!(%member, "the disk and the state machine make progress"),
            Event::DiskSlow { others_ticks } => {
                let text = "the disk is much slower than those of other members: handing over";
                warn!(%member, others_ticks, "{text}");
            }
            other => debug!(%member, ?other, "event"),
        }
        if let Some(event) = MembershipEvent::of(event) {
            let _ = self.shared.events.send(event);
        }
    }

    fn on_membership(&mut self, id: quorate_core::EntryId, membership: &Arc<Membership>) {
        // For the membership of a snapshot: the entry of its change, not that of the snapshot.
        let since = membership.since();
        let id = if since.index > 0 { since } else { id };
        self.shared.known.send_modify(|known| {
            known.id = id;
            known.membership = Arc::clone(membership);
        });
        write(&self.local.filter).rejected_disks.clear();
        self.update_peers(membership);
    }

    /// Tells the transport the peers from now on. Members that were just removed stay in the
    /// list once more: they have yet to learn of it.
    fn update_peers(&mut self, membership: &Membership) {
        let mut peers = BTreeMap::new();
        for id in membership.members().iter().filter(|id| *id != self.key.member) {
            peers.insert(id, membership.info(id).cloned().unwrap_or_default());
        }
        let mut all = std::mem::replace(&mut self.state.peers, peers.clone());
        all.extend(peers);
        self.transport.set_peers(self.key, all.into_iter().collect());
    }

    fn publish_dropped(&self) {
        lock(&self.shared.dropped).clone_from(self.driver.dropped());
    }

    /// Completes all requests, and releases the disk and the transport, so that the member can
    /// be started again.
    async fn finish(mut self) -> StopReason {
        let why = self.state.ended.take().unwrap_or(StopReason::Stopped);
        info!(member = %self.key.member, reason = %why, "member stopped");
        self.transport.remove_member(self.key);
        self.mailbox.peers.close();
        self.mailbox.clients.close();
        self.barriers.0.close(why.as_refusal().into());
        let mut requests = std::mem::take(&mut self.state.requests);
        while let Ok(request) = self.mailbox.clients.try_recv() {
            requests.push(request);
        }
        for request in requests {
            self.on_request(request);
        }
        match &why {
            StopReason::Stopped => self.driver.stop(),
            failed => self.driver.fail(&failed.to_string()),
        }
        self.state.waiting.complete(self.driver.take_output().outcomes);
        self.shared.leader.send_replace(None);
        self.jobs.push(ApplyCommand::Stop);
        let _ = self.applying.await;
        // A job that was queued before the stop may have failed.
        let mut completions = Vec::new();
        self.mailbox.done.take_all(&mut completions);
        let failed = completions.into_iter().find_map(|completion| match completion {
            Completion::Ended(failed) => Some(failed),
            _ => None,
        });
        let why = match (why, failed) {
            (StopReason::Stopped, Some(failed)) => failed,
            (why, _) => why,
        };
        self.jobs.close();
        self.mailbox.done.close();
        let released = self.local.disk_uses.cancel();
        if timeout(DISK_USE_TIMEOUT, released).await.is_err() {
            warn!(member = %self.key.member, "a snapshot still uses the disk");
        }
        let closed = self.disk.close().await;
        lock(&self.shared.dropped).clone_from(self.driver.dropped());
        match (why, closed) {
            (StopReason::Stopped, Some(Err(failed))) => StopReason::Disk(failed.into()),
            (why, _) => why,
        }
    }
}

/// How long a stopping member waits for snapshots that use its disk: one may hang on it.
const DISK_USE_TIMEOUT: Duration = Duration::from_secs(5);
/// Rejected disks that are remembered; the core drops the messages of others.
const REJECTED_DISKS_MAX: usize = 64;
/// Heartbeats after which it is no longer normal.
const MISSED_MAX: u32 = 50;
