//! The task that is a member: it takes what has gathered in the mailbox, lets the driver
//! decide, and hands out what is to be done. It never waits for a disk, a machine or a
//! peer; they report when they are done.

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
use super::batch_queue::BatchQueue;
use super::clock::Clock;
use super::disk_thread::DiskHandle;
use super::inbox::{LocalMember, write};
use super::leader_query::{LeaderQuery, ReplyTo};
use super::mailbox::{ClientRequest, Completion, Control, FromPeers, Mailbox, RequestKind};
use super::metrics::{Counters, NodeObserver};
use super::pending_replies::PendingReplies;
use super::side_messages::{LeaderView, SideMessage, SideRequests};
use super::snapshots::OutgoingSnapshot;
use super::status::{KnownMembership, MembershipEvent, NodeStatus, StopReason};
use super::sync::lock;
use super::transport::{MemberKey, PeerMessage, RejectReason, Transport};
use crate::applier::MachineJob;
use crate::driver::{Driver, DriverOutput};
use crate::outcome::RequestRefused;

/// A member's task, with everything it reaches.
pub(crate) struct Member {
    pub(crate) key: MemberKey,
    pub(crate) driver: Driver,
    pub(crate) boots: u64,
    pub(crate) mailbox: Mailbox,
    pub(crate) clock: Clock,
    pub(crate) disk: DiskHandle,
    pub(crate) jobs: Arc<BatchQueue<ApplyCommand>>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) local: Arc<LocalMember>,
    pub(crate) inquiries: mpsc::Sender<LeaderQuery>,
    pub(crate) shared: Arc<SharedState>,
    pub(crate) state: TaskState,
    /// The machine's task.
    pub(crate) applying: JoinHandle<()>,
    /// So that the channel stays open when nobody holds a handle any more.
    pub(crate) _requests: mpsc::Sender<ClientRequest>,
}

/// What others may see of a member without asking it.
pub(crate) struct SharedState {
    pub(crate) counters: Arc<Counters>,
    pub(crate) observer: Arc<dyn NodeObserver>,
    pub(crate) dropped: std::sync::Mutex<BTreeMap<&'static str, u64>>,
    /// Until the application takes it.
    pub(crate) inquiries: std::sync::Mutex<Option<mpsc::Receiver<LeaderQuery>>>,
    pub(crate) term: AtomicU64,
    pub(crate) leader: watch::Sender<Option<MemberId>>,
    pub(crate) known: watch::Sender<KnownMembership>,
    pub(crate) news: broadcast::Sender<MembershipEvent>,
    pub(crate) ended: watch::Sender<Option<StopReason>>,
}

/// What the task remembers from turn to turn.
pub(crate) struct TaskState {
    pub(crate) waiting: PendingReplies,
    /// When something was last set going while clients were listened to.
    handed_out: Instant,
    side_requests: SideRequests,
    saves_waiting: usize,
    jobs_waiting: usize,
    peers: BTreeMap<MemberId, MemberInfo>,
    snapshot_wanted: Vec<(Index, oneshot::Sender<Result<Index, RequestRefused>>)>,
    disowned: Option<(MemberId, quorate_core::message::Identity)>,
    /// How often a leader knew more of this log than is there.
    missed: u32,
    ended: Option<StopReason>,
    completions: Vec<Completion>,
    from_peers: Vec<FromPeers>,
    requests: Vec<ClientRequest>,
}

/// So many saves or batches of jobs may be under way before clients have to wait, if the
/// disk or the machine is slow.
const UNDER_WAY_FOR_CLIENTS: usize = 16;
/// It is slow when the last of them has taken so long. Otherwise clients wait for it even if
/// nothing else is under way: what gathers meanwhile makes one batch instead of several.
const SLOW: Duration = Duration::from_millis(10);
/// And before peers have to. An honest leader stops earlier by itself: this is beyond the
/// appends that it has on their way.
const UNDER_WAY_FOR_PEERS: usize = 2_048;
/// What is taken out of a lane in one turn.
const REQUESTS_PER_TURN: usize = 4_096;
const DELIVERIES_PER_TURN: usize = 256;

impl TaskState {
    pub(crate) fn new() -> Self {
        Self {
            waiting: PendingReplies::default(),
            handed_out: Instant::now(),
            side_requests: SideRequests::default(),
            saves_waiting: 0,
            jobs_waiting: 0,
            peers: BTreeMap::new(),
            snapshot_wanted: Vec::new(),
            disowned: None,
            missed: 0,
            ended: None,
            completions: Vec::new(),
            from_peers: Vec::new(),
            requests: Vec::new(),
        }
    }
}

impl Member {
    /// Until it is stopped or fails; says why.
    pub(crate) async fn run(mut self) -> StopReason {
        let membership = Arc::clone(self.driver.raft().membership());
        self.meet(&membership);
        while self.state.ended.is_none() {
            self.gather().await;
            self.take_in();
            self.hand_out();
        }
        self.finish().await
    }

    /// Waits until there is something to do, then takes what there is.
    async fn gather(&mut self) {
        let under_way = self.state.saves_waiting.max(self.state.jobs_waiting);
        let slow = under_way > 0 && self.state.handed_out.elapsed() >= SLOW;
        let clients = under_way == 0 || (slow && under_way < UNDER_WAY_FOR_CLIENTS);
        // How much the machine may have to do for peers is bounded by the core.
        let peers = self.state.saves_waiting < UNDER_WAY_FOR_PEERS;
        let (state, mailbox) = (&mut self.state, &mut self.mailbox);
        tokio::select! {
            biased;
            () = mailbox.done.ready() => {}
            _ = mailbox.peers.recv_many(&mut state.from_peers, DELIVERIES_PER_TURN), if peers => {}
            _ = mailbox.clients.recv_many(&mut state.requests, REQUESTS_PER_TURN), if clients => {}
            () = self.clock.changed() => {}
        }
        mailbox.done.take_all(&mut state.completions);
        while peers && state.from_peers.len() < DELIVERIES_PER_TURN {
            let Ok(delivery) = mailbox.peers.try_recv() else { break };
            state.from_peers.push(delivery);
        }
        while clients && state.requests.len() < REQUESTS_PER_TURN {
            let Ok(request) = mailbox.clients.try_recv() else { break };
            state.requests.push(request);
        }
        if !state.requests.is_empty() {
            state.handed_out = Instant::now();
        }
        self.shared.counters.turns.add(1);
    }

    /// Tells the driver what has happened. Time comes first: what a leader may answer by
    /// its lease depends on it.
    fn take_in(&mut self) {
        for _ in 0..self.clock.take_due() {
            self.driver.tick();
            self.state.side_requests.tick();
            self.show_dropped();
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
        let mut requests = std::mem::take(&mut self.state.requests);
        for request in requests.drain(..) {
            self.on_request(request);
        }
        self.state.requests = requests;
    }

    fn on_request(&mut self, request: ClientRequest) {
        let counters = &self.shared.counters;
        let ticket = match request.question {
            RequestKind::Propose(command) => {
                counters.proposals.add(1);
                self.driver.propose(&command)
            }
            RequestKind::ProposeIn(term, command) => {
                counters.proposals.add(1);
                self.driver.propose_in(term, &command)
            }
            RequestKind::Read(question) => {
                counters.reads.add(1);
                self.driver.read(question)
            }
            RequestKind::ReadLocal(query) => self.driver.read_local(query),
            RequestKind::Barrier => {
                counters.reads.add(1);
                self.driver.barrier()
            }
            RequestKind::Change(change, ticks) => self.driver.change(*change, ticks),
            RequestKind::Transfer(to) => self.driver.transfer(to),
        };
        self.state.waiting.insert(ticket, request.reply);
    }

    fn on_delivery(&mut self, delivery: FromPeers) {
        match delivery {
            FromPeers::Messages(messages) => {
                self.shared.counters.received.add(messages.len() as u64);
                for message in messages {
                    self.on_peer_message(message);
                }
            }
            FromPeers::Unreachable(peer) => self.driver.unreachable(peer),
            FromPeers::ConnectionLost(peer) => self.driver.connection_lost(peer),
            FromPeers::SnapshotReceived(envelope) => self.receive(*envelope),
        }
    }

    fn on_peer_message(&mut self, message: PeerMessage) {
        match message {
            // A snapshot without its bytes is none.
            PeerMessage::Raft(Envelope { message: Message::Snapshot(_), .. }) => {}
            PeerMessage::Raft(envelope) => self.receive(envelope),
            PeerMessage::Side { from, to, bytes } if to == self.key.member => {
                match SideMessage::from_bytes(bytes) {
                    Ok(SideMessage::ViewRequest(number)) => {
                        let told = SideMessage::ViewReply(number, self.own_view());
                        self.say(from, &told);
                    }
                    Ok(SideMessage::ViewReply(number, view)) => {
                        self.state.side_requests.on_view_reply(number, view);
                    }
                    Ok(SideMessage::Query(number, question)) => {
                        let transport = Arc::clone(&self.transport);
                        let reply_to = ReplyTo::Remote { key: self.key, transport, number };
                        self.pass_on(LeaderQuery::new(from, question, reply_to));
                    }
                    Ok(SideMessage::QueryReply(number, answer)) => {
                        self.state.side_requests.on_query_reply(number, answer)
                    }
                    Err(why) => debug!(member = %self.key, %from, %why, "message not understood"),
                }
            }
            PeerMessage::Side { .. } => {}
        }
    }

    fn receive(&mut self, envelope: Envelope) {
        let (from, incarnation) = (envelope.from, envelope.incarnation);
        let dropped = self.driver.receive(envelope);
        match dropped {
            Some(Dropped::OtherIncarnation { .. } | Dropped::OtherJoinIndex { .. }) => {
                self.turn_away(from, incarnation);
            }
            Some(Dropped::CommitBeyondLog { commit, last }) => self.miss_entries(commit, last),
            _ => {}
        }
    }

    /// A new disk passes through this while its leader gets to know it. One that stays here
    /// has lost what it confirmed, and no leader will send that again.
    fn miss_entries(&mut self, commit: Index, last: Index) {
        self.state.missed = self.state.missed.saturating_add(1);
        if self.state.missed == MISSED_OFTEN {
            let text = "the log lacks entries that it had: remove this member, add it anew";
            warn!(member = %self.key, commit, last, "{text}");
        }
    }

    /// It is told by the core who is known by its id; then nobody listens to it.
    fn turn_away(&mut self, from: MemberId, incarnation: u64) {
        let mut filter = write(&self.local.filter);
        if filter.rejected_disks.contains(&(from, incarnation)) {
            return;
        }
        if filter.rejected_disks.len() < TURNED_AWAY_MAX {
            filter.rejected_disks.push((from, incarnation));
        }
        drop(filter);
        warn!(member = %self.key, %from, "not the disk that is known by this id: turned away");
        self.hand_out();
        self.transport.reject(self.key, from, RejectReason::NotItself);
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
            }
            Completion::Loaded(target, entries) => self.driver.loaded(target, entries),
            Completion::SnapshotSaved(meta) => {
                counters.snapshots_taken.add(1);
                self.driver.snapshot_saved(meta.id.index);
                self.tell_of_snapshot(meta.id.index);
            }
            Completion::SnapshotGivenUp(index) => {
                self.driver.snapshot_given_up();
                let failed = self.state.snapshot_wanted.extract_if(.., |(at, _)| *at <= index);
                for (_, reply) in failed {
                    let _ = reply.send(Err(RequestRefused::SnapshotFailed));
                }
            }
            Completion::SnapshotSent(to, arrived) => {
                let count =
                    if arrived { &counters.snapshots_sent } else { &counters.snapshots_lost };
                count.add(1);
                self.driver.snapshot_sent(to, arrived);
            }
            Completion::SnapshotOpened(envelope, Some(source)) => {
                let done = Arc::clone(&self.mailbox.done);
                let user = self.local.disk_uses.begin_use();
                let snapshot = OutgoingSnapshot::new(*envelope, source, user, done);
                self.transport.send_snapshot(self.key, snapshot);
            }
            Completion::SnapshotOpened(envelope, None) => {
                self.driver.snapshot_sent(envelope.to, false);
            }
            Completion::Control(control) => self.on_control(control),
            Completion::Ended(why) => self.state.ended = Some(why),
        }
    }

    fn on_control(&mut self, control: Control) {
        match control {
            Control::Status(reply) => {
                let _ = reply.send(Box::new(self.status()));
            }
            Control::View(reply) => self.on_view_wanted(reply),
            Control::AskLeader(question, reply) => self.ask_leader(question, reply),
            Control::Snapshot(reply) => {
                let index = self.driver.capture();
                self.state.snapshot_wanted.push((index, reply));
                let newest = self.driver.raft().snapshot().id.index;
                self.tell_of_snapshot(newest);
            }
            Control::Trim(index) => self.driver.trim(index),
            Control::Campaign => self.driver.campaign(),
            Control::Stop => self.state.ended = Some(StopReason::Stopped),
        }
    }

    fn tell_of_snapshot(&mut self, durable: Index) {
        let ready = self.state.snapshot_wanted.extract_if(.., |(wanted, _)| *wanted <= durable);
        for (_, reply) in ready {
            let _ = reply.send(Ok(durable));
        }
    }

    fn on_view_wanted(&mut self, reply: oneshot::Sender<Result<LeaderView, RequestRefused>>) {
        if let Some(view) = self.own_view() {
            let _ = reply.send(Ok(view));
            return;
        }
        match self.driver.raft().leader() {
            Some(leader) => {
                let ticks = self.driver.raft().config().election_ticks;
                let message = self.state.side_requests.request_view(reply, ticks);
                self.say(leader, &message);
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
                self.pass_on(LeaderQuery::new(leader, question, ReplyTo::Local(reply)));
            }
            Some(leader) => {
                let ticks = self.driver.raft().config().election_ticks;
                let message = self.state.side_requests.query(question, reply, ticks);
                self.say(leader, &message);
            }
            None => {
                let _ = reply.send(Err(RequestRefused::NoLeader));
            }
        }
    }

    /// To the application here. If this member does not lead, or too many wait already, the
    /// inquiry is dropped, and tells so.
    fn pass_on(&self, inquiry: LeaderQuery) {
        if self.driver.raft().leader() == Some(self.key.member) {
            let _ = self.inquiries.try_send(inquiry);
        }
    }

    fn own_view(&self) -> Option<LeaderView> {
        let raft = self.driver.raft();
        let view = raft.plan_context()?;
        Some(LeaderView { newest: raft.newest_membership_id(), view })
    }

    fn say(&self, to: MemberId, message: &SideMessage) {
        let message = PeerMessage::Side { from: self.key.member, to, bytes: message.to_bytes() };
        self.transport.send(self.key, vec![message]);
    }

    fn status(&self) -> NodeStatus {
        NodeStatus {
            raft: self.driver.raft().status(),
            incarnation: self.driver.origin().incarnation,
            boots: self.boots,
            open_requests: self.driver.open_requests(),
            saves_waiting: self.state.saves_waiting,
            disowned: self.state.disowned,
        }
    }

    /// Everything that the driver wants done goes to who does it.
    fn hand_out(&mut self) {
        while self.driver.has_work() {
            let work = self.driver.take();
            self.hand_out_work(work);
        }
        self.shared.term.store(self.driver.raft().term(), Ordering::Relaxed);
        let counters = &self.shared.counters;
        counters.open_requests.set(self.driver.open_requests() as u64);
        counters.saves_waiting.set(self.state.saves_waiting as u64);
    }

    fn hand_out_work(&mut self, work: DriverOutput) {
        // Peers and the disk work at the same time.
        if let Some(save) = work.save {
            self.state.saves_waiting += 1;
            self.disk.save(save);
        }
        if !work.send.is_empty() {
            self.shared.counters.sent.add(work.send.len() as u64);
            let messages = work.send.into_iter().map(PeerMessage::Raft).collect();
            self.transport.send(self.key, messages);
        }
        for job in work.jobs {
            if let MachineJob::Apply(entries) = &job {
                self.tell_committed(entries);
            }
            let reports = !matches!(job, MachineJob::Snapshot(_));
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
        for (ticket, answer) in work.answers {
            self.shared.counters.count_answer(&answer);
            self.state.waiting.answer(ticket, answer);
        }
        for event in work.events {
            self.on_event(&event);
        }
    }

    fn tell_committed(&self, entries: &quorate_core::Entries) {
        for entry in entries.chunks().flatten() {
            if let Some(change) = entry.change() {
                let membership = Arc::clone(&change.membership);
                let _ =
                    self.shared.news.send(MembershipEvent::Committed { id: entry.id, membership });
            }
        }
    }

    fn on_event(&mut self, event: &Event) {
        self.shared.observer.on_event(event);
        let member = self.key;
        match event {
            Event::Role { from, to, term } => {
                info!(%member, term, ?from, ?to, "role");
            }
            Event::Leader { leader, term } => {
                info!(%member, term, ?leader, "leader");
                // Who hears of a leader finds the term it leads in.
                self.shared.term.store(*term, Ordering::Release);
                self.shared.leader.send_replace(*leader);
            }
            Event::Membership { id, membership } => {
                info!(%member, %id, %membership, "membership counts");
                self.on_membership(*id, membership);
            }
            Event::Settled { id, membership, .. } => {
                info!(%member, %id, %membership, "membership settled");
                self.shared.known.send_modify(|known| known.settled = id.index);
                // From here on nobody needs them.
                write(&self.local.filter).removed = membership.removed().to_vec();
            }
            Event::GoalStep { step } => info!(%member, %step, "goal's next step"),
            Event::GoalEnded(ended) => info!(%member, goal = %ended.id, "goal ended"),
            Event::IdentityRejected { by, known } => {
                warn!(%member, %by, "disowned: add this member anew, under a new id");
                self.state.disowned = Some((*by, *known));
            }
            other => debug!(%member, ?other, "event"),
        }
        if let Some(news) = MembershipEvent::of(event) {
            let _ = self.shared.news.send(news);
        }
    }

    fn on_membership(&mut self, id: quorate_core::EntryId, membership: &Arc<Membership>) {
        // Of a snapshot's membership, the entry that brought it, not that of the snapshot.
        let since = membership.since();
        let id = if since.index > 0 { since } else { id };
        self.shared.known.send_modify(|known| {
            known.id = id;
            known.membership = Arc::clone(membership);
        });
        write(&self.local.filter).rejected_disks.clear();
        self.meet(membership);
    }

    /// Whom to reach from now on. Who has just gone may still have to be told so.
    fn meet(&mut self, membership: &Membership) {
        let mut peers = BTreeMap::new();
        for id in membership.members().iter().filter(|id| *id != self.key.member) {
            peers.insert(id, membership.info(id).cloned().unwrap_or_default());
        }
        let mut all = std::mem::replace(&mut self.state.peers, peers.clone());
        all.extend(peers);
        self.transport.set_peers(self.key, all.into_iter().collect());
    }

    fn show_dropped(&self) {
        lock(&self.shared.dropped).clone_from(self.driver.dropped());
    }

    /// Everybody gets an answer, and nothing holds on to the disk any more, so that the
    /// member can be started again.
    async fn finish(mut self) -> StopReason {
        let why = self.state.ended.take().unwrap_or(StopReason::Stopped);
        info!(member = %self.key, %why, "ended");
        self.transport.remove_member(self.key);
        self.mailbox.peers.close();
        self.mailbox.clients.close();
        while let Ok(request) = self.mailbox.clients.try_recv() {
            self.on_request(request);
        }
        match &why {
            StopReason::Stopped => self.driver.stop(),
            failed => self.driver.fail(&failed.to_string()),
        }
        for (ticket, answer) in self.driver.take().answers {
            self.state.waiting.answer(ticket, answer);
        }
        self.shared.leader.send_replace(None);
        self.jobs.push(ApplyCommand::Stop);
        let _ = self.applying.await;
        self.jobs.close();
        self.mailbox.done.close();
        let released = self.local.disk_uses.cancel();
        if timeout(DISK_USE_TIMEOUT, released).await.is_err() {
            warn!(member = %self.key, "a snapshot still uses the disk");
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
/// Impostors remembered at once; the core drops what the others say.
const TURNED_AWAY_MAX: usize = 64;
/// Heartbeats until that is no passing thing.
const MISSED_OFTEN: u32 = 50;
