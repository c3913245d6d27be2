//! The handle of a running member: everything that can be asked of it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use quorate_core::membership::{
    ChangeRefusal, EndedGoal, GoalEnd, MemberInfo, Plan, PlanContext, plan,
};
use quorate_core::status::RoleKind;
use quorate_core::{Change, EntryId, Index, MemberId, MemberSet, Membership, Refusal, Term};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::Instant;

use super::batch_queue::BatchQueue;
use super::config::{NodeConfig, NodeError};
use super::host::Host;
use super::leader_query::{LeaderQuery, QUESTION_BYTES_MAX};
use super::mailbox::{ClientRequest, Completion, Control, RequestKind};
use super::member::SharedState;
use super::metrics::Metrics;
use super::side_messages::LeaderView;
use super::status::{MembershipWatch, NodeStatus, StopReason};
use super::storage::Storage;
use super::sync::lock;
use super::transport::{MemberKey, Transport};
use crate::machine::Machine;
use crate::outcome::{OutcomeUnknown, RequestError, RequestRefused, RequestReply};

/// A running member. Clones are handles of the same one; it runs until it is stopped,
/// whether somebody holds a handle or not.
///
/// Any member may be asked anything: what only the leader can do is passed on to it.
#[derive(Clone)]
pub struct Node {
    key: MemberKey,
    requests: mpsc::Sender<ClientRequest>,
    done: Arc<BatchQueue<Completion>>,
    controls: Arc<Semaphore>,
    asking: Arc<Semaphore>,
    shared: Arc<SharedState>,
    host: Host,
}

/// What a command came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandReply {
    /// Where it stands in the log.
    pub index: Index,
    /// What the machine said.
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

/// What happens to voters that [`Node::change_voters`] leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovedVoters {
    /// They stay members, without a vote.
    BecomeLearners,
    /// They leave the cluster, once they are learners and that is settled.
    Leave,
}

impl Node {
    /// Starts a member that has ticker, disk thread and connections to itself; see
    /// [`Host`] for many in one process. Has to be called within a tokio runtime.
    pub async fn start<M: Machine + Send + 'static>(
        config: NodeConfig,
        storage: impl Storage,
        machine: M,
        transport: impl Transport,
    ) -> Result<Self, NodeError> {
        let host = Host::start_for_one(config.tick, transport)?;
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
        let asking = Arc::new(Semaphore::new(ASKING_MAX));
        Self { key, requests, done, controls, asking, shared, host }
    }

    /// Which member this is.
    pub fn id(&self) -> MemberId {
        self.key.member
    }

    /// What it shares with the other members of the process.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Runs a command on every member's machine, once. Done means that it is committed
    /// and has run here.
    pub async fn propose(&self, command: impl Into<Bytes>) -> Result<CommandReply, RequestError> {
        match self.ask(RequestKind::Propose(command.into())).await? {
            RequestReply::Ran { index, reply } => Ok(CommandReply { index, bytes: reply }),
            _ => Err(MISMATCH),
        }
    }

    /// Runs a command if this member leads in this term ([`Node::term`]), by its own log and
    /// no other: it is not passed on, and no later leader is offered it. For what only a
    /// leader may decide, and what would be wrong once another leads.
    pub async fn propose_in(
        &self,
        term: Term,
        command: impl Into<Bytes>,
    ) -> Result<CommandReply, RequestError> {
        match self.ask(RequestKind::ProposeIn(term, command.into())).await? {
            RequestReply::Ran { index, reply } => Ok(CommandReply { index, bytes: reply }),
            _ => Err(MISMATCH),
        }
    }

    /// Asks the machine something, and gets an answer that is not older than the
    /// question: everything that anybody was told to be done before is in it.
    pub async fn read(&self, question: impl Into<Bytes>) -> Result<Bytes, RequestError> {
        match self.ask(RequestKind::Read(question.into())).await? {
            RequestReply::Read { reply, .. } => Ok(reply),
            _ => Err(MISMATCH),
        }
    }

    /// Waits until every command that was acknowledged before this call has run on this
    /// member's machine. Returns the newest entry that has run. For applications that look into
    /// their machine themselves: what they then see is not stale.
    pub async fn barrier(&self) -> Result<Index, RequestError> {
        match self.ask(RequestKind::Barrier).await? {
            RequestReply::Read { index, .. } => Ok(index),
            _ => Err(MISMATCH),
        }
    }

    /// Runs a query on this member's machine as it is, without asking the leader: fast, and
    /// possible without a quorum. The reply may be stale; [`LocalRead::index`] is the newest
    /// entry whose effect it shows. Later local reads of the same member never show less, until
    /// it is restarted.
    pub async fn read_local(&self, query: impl Into<Bytes>) -> Result<LocalRead, RequestError> {
        match self.ask(RequestKind::ReadLocal(query.into())).await? {
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

    /// Waits until this member is so near the end of the log that it could vote without
    /// harm. Refused when it is no member.
    pub async fn wait_caught_up(&self, id: MemberId) -> Result<(), RequestError> {
        loop {
            if let Ok(LeaderView { newest, view }) = self.leader_view().await {
                if view.caught_up.contains(id) {
                    return Ok(());
                }
                // Who is behind the leader may not have heard of a new member yet.
                let known = self.shared.known.borrow().clone();
                if known.id.index >= newest.index && !known.membership.contains(id) {
                    return Err(RequestError::Refused(RequestRefused::NotMember));
                }
            }
            if let Some(ended) = self.ended_now() {
                return Err(ended);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Makes exactly these members the voters; all of them must be members already. Done means
    /// settled.
    pub async fn change_voters(
        &self,
        voters: impl IntoIterator<Item = MemberId>,
        removed: RemovedVoters,
    ) -> Result<EntryId, RequestError> {
        let retain = removed == RemovedVoters::BecomeLearners;
        self.change(Change::set_voters(voters, retain)).await
    }

    /// Any change. Done means settled: any majority of the new membership can go on by
    /// itself. What is not settled after [`CHANGE_TIMEOUT_TICKS`] ends as unknown.
    ///
    /// While another change is in progress, this one waits; it is refused after
    /// [`DriverOptions::request_ticks`](crate::DriverOptions::request_ticks). A leader
    /// that has just won, or has just seen the disk of a member, logs a change itself.
    pub async fn change(&self, change: Change) -> Result<EntryId, RequestError> {
        match self.ask_change(change, CHANGE_TIMEOUT_TICKS).await? {
            RequestReply::Changed { id } => Ok(id),
            RequestReply::GoalEnded(ended) if ended.end == GoalEnd::Reached => Ok(ended.at),
            RequestReply::GoalEnded(ended) => {
                Err(RequestError::Unknown(OutcomeUnknown::GoalAbandoned(ended)))
            }
            _ => Err(MISMATCH),
        }
    }

    /// Where to end: these voters and these learners. Whoever leads takes the steps; new
    /// members are added with these infos. Returns when the goal has ended and what came
    /// of it is settled, however long that takes; the answer says whether it was reached.
    /// Giving up the wait leaves the goal in place. Ask a member that stays: one that is
    /// removed does not hear how it ended.
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
        match self.ask_change(change, u64::MAX).await {
            Ok(RequestReply::GoalEnded(ended)) => Ok(ended),
            // Nothing has to be done, but perhaps waited for.
            Err(RequestError::Refused(RequestRefused::ByLeader(Refusal::Change(
                ChangeRefusal::AlreadyReached,
            )))) => {
                let id = self.leader_view().await?.newest;
                self.wait_settled(id).await?;
                Ok(EndedGoal { id, end: GoalEnd::Reached, at: id })
            }
            Ok(_) => Err(MISMATCH),
            Err(why) => Err(why),
        }
    }

    /// What a goal would lead to: the steps in order, by what the leader sees of its
    /// members, and which losses each could not bear. Nothing is proposed.
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
        let known = tokio::time::timeout(VIEW_PATIENCE, arrived).await;
        let Ok(Ok(known)) = known else {
            return Err(RequestError::Refused(RequestRefused::NoLeader));
        };
        let planned = plan(&known.membership, &view, &voters, &learners);
        planned.map_err(|why| RequestError::Refused(RequestRefused::ByLeader(Refusal::Change(why))))
    }

    /// Back to where the change under way began.
    pub async fn cancel(&self) -> Result<EntryId, RequestError> {
        self.change(Change::cancel()).await
    }

    /// Makes this member the leader.
    pub async fn transfer(&self, to: MemberId) -> Result<(), RequestError> {
        self.ask(RequestKind::Transfer(to)).await.map(|_| ())
    }

    /// Takes a snapshot of the machine now. Returns its index when it is durable.
    pub async fn snapshot(&self) -> Result<Index, RequestError> {
        self.control(Control::Snapshot).await?.map_err(RequestError::Refused)
    }

    /// Drops the log up to here, as far as a snapshot covers it, even if a peer will then
    /// need that snapshot.
    pub fn trim(&self, index: Index) {
        self.done.push(Completion::Control(Control::Trim(index)));
    }

    /// Stands for election now, without waiting for a timeout.
    pub fn campaign(&self) {
        self.done.push(Completion::Control(Control::Campaign));
    }

    /// A picture of this member. Answered also when its disk hangs.
    pub async fn status(&self) -> Result<NodeStatus, RequestError> {
        self.control(Control::Status).await.map(|status| *status)
    }

    /// What the leader sees of its members, wherever it is.
    pub async fn view(&self) -> Result<PlanContext, RequestError> {
        self.leader_view().await.map(|told| told.view)
    }

    /// As other requests do, it waits for a leader.
    async fn leader_view(&self) -> Result<LeaderView, RequestError> {
        let deadline = Instant::now() + VIEW_PATIENCE;
        loop {
            match self.control(Control::View).await? {
                Ok(view) => return Ok(view),
                Err(why) if Instant::now() >= deadline => return Err(RequestError::Refused(why)),
                Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    }

    /// Asks the application where the leader is ([`Node::leader_queries`]) something that only
    /// it knows. Small, and harmless to ask twice: a question that is refused may have been
    /// heard, and nothing stands in the log.
    pub async fn ask_leader(&self, question: impl Into<Bytes>) -> Result<Bytes, RequestError> {
        let question = question.into();
        if question.len() > QUESTION_BYTES_MAX {
            let (bytes, limit) = (question.len(), QUESTION_BYTES_MAX);
            return Err(RequestError::Refused(RequestRefused::TooLarge { bytes, limit }));
        }
        let asked = self.control_of(&self.asking, |reply| Control::AskLeader(question, reply));
        match tokio::time::timeout(ANSWER_PATIENCE, asked).await {
            Ok(answer) => answer?.map_err(RequestError::Refused),
            Err(_) => Err(RequestError::Refused(RequestRefused::ReadTimedOut)),
        }
    }

    /// What applications of other members, and this one's, ask while this member leads. An
    /// application that uses [`Node::ask_leader`] takes this once, and answers; nobody can
    /// take it a second time. Who was deposed may not know: confirm with [`Node::read`] what
    /// only a leader may say.
    pub fn leader_queries(&self) -> Option<mpsc::Receiver<LeaderQuery>> {
        lock(&self.shared.inquiries).take()
    }

    /// The term that this member is in.
    pub fn term(&self) -> Term {
        self.shared.term.load(Ordering::Relaxed)
    }

    /// Whom this member takes for the leader.
    pub fn leader(&self) -> Option<MemberId> {
        *self.shared.leader.borrow()
    }

    /// Whether this member takes itself for the leader.
    pub fn is_leader(&self) -> bool {
        self.leader() == Some(self.id())
    }

    /// Tells whenever the leader changes.
    pub fn watch_leader(&self) -> watch::Receiver<Option<MemberId>> {
        self.shared.leader.subscribe()
    }

    /// The membership that counts now.
    pub fn membership(&self) -> Arc<Membership> {
        Arc::clone(&self.shared.known.borrow().membership)
    }

    /// The membership as it is now, and everything that happens to it from now on: what is
    /// committed, what counts, what is settled, the steps of goals and their ends.
    pub fn watch_membership(&self) -> MembershipWatch {
        let news = self.shared.news.subscribe();
        let now = self.shared.known.subscribe();
        let first = Some(now.borrow().clone());
        let ended = self.shared.ended.subscribe();
        MembershipWatch { news, now, first, ended }
    }

    /// Waits until this membership, or a later one, is known here to be settled.
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

    /// Numbers about this member, and about what it shares with others.
    pub fn metrics(&self) -> Metrics {
        Metrics {
            dropped: lock(&self.shared.dropped).clone(),
            transport: self.host.parts.transport.counts(),
            ..self.shared.counters.read()
        }
    }

    /// Stops this member gracefully: a leader transfers its leadership first, if it can. When
    /// this returns, all that the member used is free: its directory, its tasks and, of a
    /// member that was started with [`Node::start`], also the listener and the threads. It can
    /// be started again at once. Members that share a [`Host`] keep running.
    pub async fn stop(&self) -> StopReason {
        if self.is_leader() {
            self.hand_over().await;
        }
        self.stop_now().await
    }

    /// Stops this member without a transfer of leadership; otherwise as [`Node::stop`].
    pub async fn stop_now(&self) -> StopReason {
        self.done.push(Completion::Control(Control::Stop));
        self.wait_stopped().await
    }

    async fn hand_over(&self) {
        let Ok(status) = self.status().await else { return };
        if status.raft.role != RoleKind::Leader {
            return;
        }
        let heirs = status.raft.peers.iter().filter(|peer| {
            peer.id != self.id() && peer.active && status.raft.membership.is_voter(peer.id)
        });
        if let Some(heir) = heirs.max_by_key(|peer| peer.matched) {
            let _ = tokio::time::timeout(HAND_OVER_PATIENCE, self.transfer(heir.id)).await;
        }
    }

    /// Waits until this member has ended, and says why.
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
        match &*self.shared.ended.borrow() {
            None | Some(StopReason::Stopped) => RequestRefused::Stopped.into(),
            Some(failed) => RequestRefused::MemberFailed { reason: failed.to_string() }.into(),
        }
    }

    async fn ask_change(&self, change: Change, ticks: u64) -> Result<RequestReply, RequestError> {
        self.ask(RequestKind::Change(Box::new(change), ticks)).await
    }

    async fn ask(&self, question: RequestKind) -> Result<RequestReply, RequestError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.requests.send(ClientRequest { question, reply }).await;
        sent.map_err(|_| self.stopped())?;
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

/// Ticks after which a change that is not settled ends as unknown.
pub const CHANGE_TIMEOUT_TICKS: u64 = 600;

/// No question is answered by another kind of answer.
const MISMATCH: RequestError = RequestError::Unknown(OutcomeUnknown::Stopped);
/// How many may look at a member at once.
const CONTROLS_MAX: usize = 64;
/// How many may ask the leader's application at once.
const ASKING_MAX: usize = 1_024;
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const VIEW_PATIENCE: Duration = Duration::from_secs(5);
const HAND_OVER_PATIENCE: Duration = Duration::from_secs(5);
