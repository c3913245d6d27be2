//! The handle of a running member: all requests and queries go through it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use quorate_core::membership::{
    ChangeRefusal, EndedGoal, GoalEnd, MemberInfo, Plan, PlanContext, RemovedVoters, plan,
};
use quorate_core::status::RoleKind;
use quorate_core::{Change, EntryId, Index, MemberId, MemberSet, Membership, Refusal, Term};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::{Instrument, debug_span};

use super::batch_queue::BatchQueue;
use super::config::{NodeConfig, NodeError};
use super::host::Host;
use super::leader_query::{LeaderQuery, QUERY_BYTES_MAX};
use super::mailbox::{ClientRequest, Completion, Control, RequestKind};
use super::member::SharedState;
use super::metrics::Metrics;
use super::side_messages::LeaderView;
use super::status::{MembershipWatch, NodeStatus, StopReason};
use super::storage::Storage;
use super::sync::lock;
use super::transport::{MemberKey, Transport};
use crate::applier::VERSION_CHANGED;
use crate::cluster_version::{ClusterVersion, DowngradeRefusal};
use crate::command_id::CommandBuffer;
use crate::machine::Machine;
use crate::outcome::{OutcomeUnknown, RequestError, RequestRefused, RequestReply};
use crate::request_table::ChangeWait;

/// A running member. Clones are handles on the same member; it runs until it is stopped, also
/// when all handles are dropped.
///
/// Any member accepts any request: what only the leader can do is forwarded to it.
#[derive(Clone)]
pub struct Node {
    key: MemberKey,
    requests: mpsc::Sender<ClientRequest>,
    done: Arc<BatchQueue<Completion>>,
    controls: Arc<Semaphore>,
    queries: Arc<Semaphore>,
    shared: Arc<SharedState>,
    host: Host,
}

/// The reply to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommandReply {
    /// The index of its entry in the log.
    pub index: Index,
    /// What the machine returned.
    pub bytes: Bytes,
}

/// What a local read returns: see [`Node::read_local`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalRead {
    /// The newest entry whose effect the reply shows.
    pub index: Index,
    /// What the machine returned.
    pub bytes: Bytes,
}

impl Node {
    /// Ticks after which a change that is not settled ends as unknown.
    pub const CHANGE_TIMEOUT_TICKS: u64 = 600;

    /// Starts a member with a ticker, a disk thread and connections of which it is the only
    /// user; see [`Host`] for many members in one process. Must be called within a tokio
    /// runtime.
    pub async fn start<M: Machine + Send + 'static>(
        config: NodeConfig,
        storage: impl Storage,
        machine: M,
        transport: impl Transport,
    ) -> Result<Self, NodeError> {
        let host = Host::start_for_one(config.tick, config.own_threads, transport)?;
        let started = host.start_member(config, storage, machine).await;
        if started.is_err() {
            host.stop().await;
        }
        started
    }

    pub(crate) fn new(
        key: MemberKey,
        requests: mpsc::Sender<ClientRequest>,
        done: Arc<BatchQueue<Completion>>,
        shared: Arc<SharedState>,
        host: Host,
    ) -> Self {
        let controls = Arc::new(Semaphore::new(CONTROLS_MAX));
        let queries = Arc::new(Semaphore::new(QUERIES_MAX));
        Self { key, requests, done, controls, queries, shared, host }
    }

    /// The id of this member.
    pub fn id(&self) -> MemberId {
        self.key.member
    }

    /// What it shares with the other members of the process.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Runs a command on the machines of all members, once. `Ok` means that it is committed and
    /// has run on this member.
    pub async fn propose(
        &self,
        command: impl Into<CommandBuffer>,
    ) -> Result<CommandReply, RequestError> {
        match self.request(RequestKind::Propose(command.into())).await? {
            RequestReply::Ran { index, reply } => Ok(CommandReply { index, bytes: reply }),
            _ => Err(MISMATCH),
        }
    }

    /// Runs a command only if this member is the leader of this term ([`Node::term`]): it is
    /// neither forwarded nor proposed again to a later leader. For decisions that only a
    /// leader may take, and that would be wrong under another leader.
    pub async fn propose_in(
        &self,
        term: Term,
        command: impl Into<CommandBuffer>,
    ) -> Result<CommandReply, RequestError> {
        match self.request(RequestKind::ProposeIn(term, command.into())).await? {
            RequestReply::Ran { index, reply } => Ok(CommandReply { index, bytes: reply }),
            _ => Err(MISMATCH),
        }
    }

    /// Runs a query on the machine, linearizably: the reply reflects every command that was
    /// acknowledged to any client before this call.
    pub async fn read(&self, query: impl Into<Bytes>) -> Result<Bytes, RequestError> {
        match self.request(RequestKind::Read(query.into())).await? {
            RequestReply::Read { reply, .. } => Ok(reply),
            _ => Err(MISMATCH),
        }
    }

    /// Waits until every command that was acknowledged before this call has run on this
    /// member's machine. Returns the newest entry that has run. For applications that look into
    /// their machine themselves: what they then see is not stale.
    ///
    /// Callers that wait at the same time share a request.
    pub async fn barrier(&self) -> Result<Index, RequestError> {
        let span = debug_span!("request", member = %self.key.member, kind = "barrier");
        let ended = self.shared.barriers.wait(&self.shared.arrivals).instrument(span).await;
        ended.unwrap_or_else(|| Err(self.stopped()))
    }

    /// Runs a query on this member's machine as it is, without asking the leader: fast, and
    /// possible without a quorum. The reply may be stale; [`LocalRead::index`] is the newest
    /// entry whose effect it shows. Later local reads of the same member never show less, until
    /// it is restarted.
    pub async fn read_local(&self, query: impl Into<Bytes>) -> Result<LocalRead, RequestError> {
        match self.request(RequestKind::ReadLocal(query.into())).await? {
            RequestReply::Read { index, reply } => Ok(LocalRead { index, bytes: reply }),
            _ => Err(MISMATCH),
        }
    }

    /// Adds a learner: a member that receives the log and has no vote. Returns the entry that
    /// added it: start the new member with its index ([`NodeConfig::join`]), then wait with
    /// [`Node::wait_caught_up`] before it gets a vote.
    pub async fn add_learner(
        &self,
        id: MemberId,
        info: MemberInfo,
    ) -> Result<EntryId, RequestError> {
        self.change(Change::add_learner(id).with_info(id, info)).await
    }

    /// Waits until the member `id` is close enough to the end of the log to get a vote without
    /// delaying commits. Refused when it is not a member.
    pub async fn wait_caught_up(&self, id: MemberId) -> Result<(), RequestError> {
        loop {
            if let Ok(LeaderView { newest, view }) = self.leader_view().await {
                if view.caught_up.contains(id) {
                    return Ok(());
                }
                // This member may lag behind the leader and not know the new member yet.
                let known = self.shared.known.borrow().clone();
                if known.id.index >= newest.index && !known.membership.contains(id) {
                    return Err(RequestError::Refused(RequestRefused::NotMember));
                }
            }
            if let Some(ended) = self.ended_now() {
                return Err(ended);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Makes exactly these members the voters; all of them must be members already. Done means
    /// settled.
    pub async fn change_voters(
        &self,
        voters: impl IntoIterator<Item = MemberId>,
        removed: RemovedVoters,
    ) -> Result<EntryId, RequestError> {
        self.change(Change::set_voters(voters, removed)).await
    }

    /// Makes any change. `Ok` means settled: any majority of the new membership can continue
    /// alone. A change that is not settled after [`Node::CHANGE_TIMEOUT_TICKS`] ends as unknown.
    ///
    /// While another change is in progress, this one waits; it is refused after
    /// [`DriverOptions::request_ticks`](crate::DriverOptions::request_ticks). A leader
    /// that has just won, or has just seen the disk of a member, logs a change itself.
    pub async fn change(&self, change: Change) -> Result<EntryId, RequestError> {
        let wait = ChangeWait::Settled { ticks: Self::CHANGE_TIMEOUT_TICKS };
        match self.request_change(change, wait).await? {
            RequestReply::Changed { id } => Ok(id),
            RequestReply::GoalEnded(ended) if ended.end == GoalEnd::Reached => Ok(ended.at),
            RequestReply::GoalEnded(ended) => {
                Err(RequestError::Unknown(OutcomeUnknown::GoalAbandoned(ended)))
            }
            _ => Err(MISMATCH),
        }
    }

    /// As [`Node::change`], but returns as soon as the change is committed. Its entry identifies
    /// the membership, and the goal if it set one: [`Node::wait_settled`] waits for the rest.
    pub async fn begin_change(&self, change: Change) -> Result<EntryId, RequestError> {
        match self.request_change(change, ChangeWait::Committed).await? {
            RequestReply::ChangeCommitted { id } => Ok(id),
            _ => Err(MISMATCH),
        }
    }

    /// Sets a goal: these voters and these learners. The leader takes the steps, also after an
    /// election; new members are added with these infos. Returns when the goal has ended and
    /// the resulting membership is settled, however long that takes; the reply says whether it
    /// was reached. Cancelling the wait does not cancel the goal. Call this on a member that
    /// stays: a removed member does not learn how the goal ended.
    pub async fn set_goal(
        &self,
        voters: impl IntoIterator<Item = MemberId>,
        learners: impl IntoIterator<Item = MemberId>,
        infos: impl IntoIterator<Item = (MemberId, MemberInfo)>,
    ) -> Result<EndedGoal, RequestError> {
        let mut change = Change::goal(voters, learners);
        for (id, info) in infos {
            change = change.with_info(id, info);
        }
        match self.request_change(change, ChangeWait::Settled { ticks: u64::MAX }).await {
            Ok(RequestReply::GoalEnded(ended)) => Ok(ended),
            // The goal is reached already, but perhaps not settled.
            Err(RequestError::Refused(RequestRefused::ByLeader(Refusal::Change(
                ChangeRefusal::AlreadyReached,
            )))) => {
                let id = self.newest_membership().await?;
                self.wait_settled(id).await?;
                Ok(EndedGoal { id, end: GoalEnd::Reached, at: id })
            }
            Ok(_) => Err(MISMATCH),
            Err(why) => Err(why),
        }
    }

    /// The steps that a goal would take, in order, as the leader sees its members, and which
    /// losses each step cannot tolerate. Nothing is proposed.
    pub async fn plan(
        &self,
        voters: impl IntoIterator<Item = MemberId>,
        learners: impl IntoIterator<Item = MemberId>,
    ) -> Result<Plan, RequestError> {
        let (voters, learners): (MemberSet, MemberSet) =
            (voters.into_iter().collect(), learners.into_iter().collect());
        let LeaderView { newest, view } = self.leader_view().await?;
        let mut known = self.shared.known.subscribe();
        let arrived = known.wait_for(|known| known.id.index >= newest.index);
        let known = tokio::time::timeout(VIEW_TIMEOUT, arrived).await;
        let Ok(Ok(known)) = known else {
            return Err(RequestError::Refused(RequestRefused::NoLeader));
        };
        let planned = plan(&known.membership, &view, &voters, &learners);
        planned.map_err(|why| RequestError::Refused(RequestRefused::ByLeader(Refusal::Change(why))))
    }

    /// Cancels the change in progress: back to the membership before it.
    pub async fn cancel(&self) -> Result<EntryId, RequestError> {
        self.change(Change::cancel()).await
    }

    /// Transfers the leadership to the member `to`.
    pub async fn transfer(&self, to: MemberId) -> Result<(), RequestError> {
        self.request(RequestKind::Transfer(to)).await.map(|_| ())
    }

    /// Takes a snapshot of the machine now. Returns its index when it is durable.
    pub async fn snapshot(&self) -> Result<Index, RequestError> {
        self.control(Control::Snapshot).await?.map_err(RequestError::Refused)
    }

    /// Trims the log up to this index, as far as a snapshot covers it, even if a peer then
    /// needs that snapshot.
    pub fn trim(&self, index: Index) {
        self.done.push(Completion::Control(Control::Trim(index)));
    }

    /// Campaigns now, without waiting for the election timeout.
    pub fn campaign(&self) {
        self.done.push(Completion::Control(Control::Campaign));
    }

    /// The state of this member. Answered also when its disk hangs.
    pub async fn status(&self) -> Result<NodeStatus, RequestError> {
        self.control(Control::Status).await.map(|status| *status)
    }

    /// The newest membership in the leader's log, as its entry. It may not be committed yet.
    pub async fn newest_membership(&self) -> Result<EntryId, RequestError> {
        self.leader_view().await.map(|leader| leader.newest)
    }

    /// What the leader knows of its members.
    pub async fn view(&self) -> Result<PlanContext, RequestError> {
        self.leader_view().await.map(|leader| leader.view)
    }

    /// Retries until there is a leader, or the timeout has passed.
    async fn leader_view(&self) -> Result<LeaderView, RequestError> {
        let deadline = Instant::now() + VIEW_TIMEOUT;
        loop {
            match self.control(Control::View).await? {
                Ok(view) => return Ok(view),
                Err(why) if Instant::now() >= deadline => return Err(RequestError::Refused(why)),
                Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Sends a query to the application of the leader ([`Node::leader_queries`]), for state that
    /// only the leader has. It must be small and idempotent: a query that fails may have been
    /// received, and nothing of it is in the log.
    pub async fn ask_leader(&self, query: impl Into<Bytes>) -> Result<Bytes, RequestError> {
        let query = query.into();
        if query.len() > QUERY_BYTES_MAX {
            let (bytes, limit) = (query.len(), QUERY_BYTES_MAX);
            return Err(RequestError::Refused(RequestRefused::TooLarge { bytes, limit }));
        }
        let asked = self.control_of(&self.queries, |reply| Control::AskLeader(query, reply));
        match tokio::time::timeout(QUERY_TIMEOUT, asked).await {
            Ok(answer) => answer?.map_err(RequestError::Refused),
            Err(_) => Err(RequestError::Refused(RequestRefused::ReadTimedOut)),
        }
    }

    /// The queries of all members' applications to the leader, received while this member
    /// leads. An application that uses [`Node::ask_leader`] takes this receiver and replies; a
    /// second call returns none. A deposed leader may not know it yet: confirm with
    /// [`Node::barrier`] where that matters.
    pub fn leader_queries(&self) -> Option<mpsc::Receiver<LeaderQuery>> {
        lock(&self.shared.leader_queries).take()
    }

    /// The current term of this member.
    pub fn term(&self) -> Term {
        self.shared.term.load(Ordering::Relaxed)
    }

    /// The leader, as far as this member knows.
    pub fn leader(&self) -> Option<MemberId> {
        *self.shared.leader.borrow()
    }

    /// Whether this member is the leader, as far as it knows.
    pub fn is_leader(&self) -> bool {
        self.leader() == Some(self.id())
    }

    /// The leader, as it changes.
    pub fn watch_leader(&self) -> watch::Receiver<Option<MemberId>> {
        self.shared.leader.subscribe()
    }

    /// The membership that is in effect.
    pub fn membership(&self) -> Arc<Membership> {
        Arc::clone(&self.shared.known.borrow().membership)
    }

    /// The current membership, and all events about it from now on: what is committed, in
    /// effect and settled, the steps of goals and their ends.
    pub fn watch_membership(&self) -> MembershipWatch {
        let events = self.shared.events.subscribe();
        let now = self.shared.known.subscribe();
        let first = Some(now.borrow().clone());
        let ended = self.shared.ended.subscribe();
        MembershipWatch { events, now, first, ended }
    }

    /// Waits until this member knows that this membership, or a later one, is settled.
    pub async fn wait_settled(&self, id: EntryId) -> Result<(), RequestError> {
        let mut known = self.shared.known.subscribe();
        let mut ended = self.shared.ended.subscribe();
        tokio::select! {
            settled = known.wait_for(|known| known.settled >= id.index) => {
                settled.map(|_| ()).map_err(|_| self.stopped())
            }
            _ = ended.wait_for(Option::is_some) => Err(self.stopped()),
        }
    }

    /// The cluster version: which commands and formats all members know. Propose a command of a
    /// later version only when this allows it; see [`Machine`].
    pub fn cluster_version(&self) -> ClusterVersion {
        *self.shared.cluster_version.borrow()
    }

    /// The cluster version, as it changes.
    pub fn watch_cluster_version(&self) -> watch::Receiver<ClusterVersion> {
        self.shared.cluster_version.subscribe()
    }

    /// Prepares the cluster for programs that support no higher version than this one: lowers the
    /// cluster version, and keeps it there until all members run such a program. Only the leader
    /// accepts it. A member may be restarted with an older program when its
    /// [`NodeStatus::storage_version`] is this version.
    ///
    /// The machine must be able to write its state in the format of that version.
    pub async fn downgrade(&self, version: u32) -> Result<(), RequestError> {
        self.request_downgrade(Some(version)).await
    }

    /// Ends a downgrade: the cluster version rises again when all members support a higher one.
    pub async fn cancel_downgrade(&self) -> Result<(), RequestError> {
        self.request_downgrade(None).await
    }

    async fn request_downgrade(&self, target: Option<u32>) -> Result<(), RequestError> {
        let ended = self.control(|reply| Control::Downgrade(target, reply)).await?;
        match ended? {
            RequestReply::Ran { reply, .. } if reply == VERSION_CHANGED => Ok(()),
            _ => Err(RequestRefused::Downgrade(DowngradeRefusal::Changed).into()),
        }
    }

    /// Counters and gauges of this member, and of the transport that it shares with others.
    pub fn metrics(&self) -> Metrics {
        Metrics {
            dropped: lock(&self.shared.dropped).clone(),
            transport: self.host.parts.transport.counts(),
            ..self.shared.counters.read()
        }
    }

    /// The peers that this member is connected with now, in either direction.
    pub fn connected_peers(&self) -> Vec<MemberId> {
        self.host.parts.transport.connected_peers(self.key)
    }

    /// Stops this member gracefully: a leader transfers its leadership first, if it can. When
    /// this returns, all that the member used is free: its directory, its tasks and, of a
    /// member that was started with [`Node::start`], also the listener and the threads. It can
    /// be started again at once. Members that share a [`Host`] keep running.
    pub async fn stop(&self) -> StopReason {
        if self.is_leader() {
            self.transfer_before_stop().await;
        }
        self.stop_now().await
    }

    /// Stops this member without a transfer of leadership; otherwise as [`Node::stop`].
    pub async fn stop_now(&self) -> StopReason {
        self.done.push(Completion::Control(Control::Stop));
        self.wait_stopped().await
    }

    async fn transfer_before_stop(&self) {
        let Ok(status) = self.status().await else { return };
        if status.raft.role != RoleKind::Leader {
            return;
        }
        let successors = status.raft.peers.iter().filter(|peer| {
            peer.id != self.id() && peer.active && status.raft.membership.is_voter(peer.id)
        });
        if let Some(successor) = successors.max_by_key(|peer| peer.matched) {
            let _ = tokio::time::timeout(TRANSFER_TIMEOUT, self.transfer(successor.id)).await;
        }
    }

    /// Waits until this member has stopped, and returns the reason.
    pub async fn wait_stopped(&self) -> StopReason {
        let mut ended = self.shared.ended.subscribe();
        let why = ended.wait_for(Option::is_some).await;
        why.ok().and_then(|why| why.clone()).unwrap_or(StopReason::Stopped)
    }

    fn ended_now(&self) -> Option<RequestError> {
        self.shared.ended.borrow().is_some().then(|| self.stopped())
    }

    /// The error of requests to a member that has stopped.
    fn stopped(&self) -> RequestError {
        let ended = self.shared.ended.borrow();
        ended.as_ref().map_or(RequestRefused::Stopped, StopReason::as_refusal).into()
    }

    async fn request_change(
        &self,
        change: Change,
        wait: ChangeWait,
    ) -> Result<RequestReply, RequestError> {
        self.request(RequestKind::Change(Box::new(change), wait)).await
    }

    async fn request(&self, kind: RequestKind) -> Result<RequestReply, RequestError> {
        let span = debug_span!("request", member = %self.key.member, kind = kind.name());
        self.send_request(kind).instrument(span).await
    }

    async fn send_request(&self, kind: RequestKind) -> Result<RequestReply, RequestError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.requests.send(ClientRequest { kind, reply }).await;
        sent.map_err(|_| self.stopped())?;
        self.shared.arrivals.on_request();
        match answer.await {
            Ok(outcome) => outcome,
            Err(_) => Err(RequestError::Unknown(OutcomeUnknown::Stopped)),
        }
    }

    async fn control<T>(
        &self,
        control: impl FnOnce(oneshot::Sender<T>) -> Control,
    ) -> Result<T, RequestError> {
        self.control_of(&self.controls, control).await
    }

    async fn control_of<T>(
        &self,
        permits: &Semaphore,
        control: impl FnOnce(oneshot::Sender<T>) -> Control,
    ) -> Result<T, RequestError> {
        let _permit = permits.acquire().await;
        let (reply, answer) = oneshot::channel();
        let mut ended = self.shared.ended.subscribe();
        self.done.push(Completion::Control(control(reply)));
        tokio::select! {
            answer = answer => answer.map_err(|_| self.stopped()),
            _ = ended.wait_for(Option::is_some) => Err(self.stopped()),
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Never happens: each kind of request has its kind of reply.
const MISMATCH: RequestError = RequestError::Unknown(OutcomeUnknown::Stopped);
/// Status requests that may be in progress at the same time.
const CONTROLS_MAX: usize = 64;
/// Queries to the leader's application that may be in progress at the same time.
const QUERIES_MAX: usize = 1_024;
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const VIEW_TIMEOUT: Duration = Duration::from_secs(5);
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);
