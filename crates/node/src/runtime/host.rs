//! What all members of a process share: the ticker, the disk thread, the connections.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::thread::available_parallelism;
use std::time::Duration;

use quorate_core::config::ReadMode;
use tokio::sync::{Semaphore, broadcast, mpsc, watch};
use tokio::task::JoinHandle;
use tracing::{Instrument, Span, info_span};

use super::apply_task::{ApplyTask, install, panic_text};
use super::arrivals::Arrivals;
use super::batch_queue::BatchQueue;
use super::clock::{Clock, Ticker};
use super::config::{NodeConfig, NodeError};
use super::cpu_pressure::GatherTime;
use super::disk_thread::{DiskHandle, DiskSlot, DiskThread};
use super::inbox::{Inbox, LocalMember, LocalMembers};
use super::leader_query::QUERIES_WAITING_MAX;
use super::mailbox::{Completion, Control, Mailbox};
use super::member::{Member, SharedState, TaskState};
use super::node::Node;
use super::pending_replies::PendingReplies;
use super::raft_threads::RaftThreads;
use super::shared_barriers::MemberBarriers;
use super::status::{KnownMembership, StopReason};
use super::storage::{Storage, StoredState};
use super::sync::lock;
use super::transport::{MemberKey, Transport};
use super::wake_timer::WakeTimer;
use crate::applier::Applier;
use crate::cluster_version::{ClusterVersion, VersionRange};
use crate::driver::Driver;
use crate::machine::{Machine, WorkProgress};
use crate::start::{StartingMember, first_identity};

/// Runs any number of members, each of a different cluster, on one ticker, one disk thread
/// and one set of connections. Clones are handles on the same host.
#[derive(Clone)]
pub struct Host {
    pub(crate) parts: Arc<Parts>,
}

pub(crate) struct Parts {
    threads: RaftThreads,
    ticker: Ticker,
    gather: GatherTime,
    disks: DiskThread,
    local_members: Arc<LocalMembers>,
    pub(crate) transport: Arc<dyn Transport>,
    state: Mutex<HostState>,
    lifetime: HostLifetime,
}

/// When a host stops by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HostLifetime {
    /// Never: of [`Host::start`].
    UntilStopped,
    /// With its last member: of [`Node::start`].
    UntilEmpty,
}

#[derive(Default)]
struct HostState {
    is_listening: bool,
    is_stopping: bool,
    running: BTreeMap<MemberKey, RunningMember>,
}

/// What it takes to stop a member and to wait for it.
#[derive(Clone)]
struct RunningMember {
    completions: Arc<BatchQueue<Completion>>,
    shared: Arc<SharedState>,
}

/// A member that was read from its disk and does not run yet.
struct OpenedMember<M> {
    driver: Driver,
    applier: Applier<M>,
    storage: Box<dyn Storage>,
    boots: u64,
}

impl Host {
    /// Starts what the members share. Must be called within a tokio runtime, which the host
    /// uses from then on. It listens as soon as it has its first member, so that no peer
    /// connects to a process without members.
    pub fn start(tick: Duration, transport: impl Transport) -> Result<Self, NodeError> {
        Self::new(tick, RaftThreads::of_caller(), transport, HostLifetime::UntilStopped)
    }

    /// As [`Host::start`], on threads of its own: one for Raft (members, ticks, connections)
    /// and one for the state machines. Whatever else the process does, it cannot delay a
    /// heartbeat. A request costs a little more, since it changes threads twice.
    pub fn start_on_own_threads(
        tick: Duration,
        transport: impl Transport,
    ) -> Result<Self, NodeError> {
        let threads = RaftThreads::start().map_err(NodeError::System)?;
        Self::new(tick, threads, transport, HostLifetime::UntilStopped)
    }

    /// A host that stops when its last member has stopped.
    pub(crate) fn start_for_one(
        tick: Duration,
        own_threads: bool,
        transport: impl Transport,
    ) -> Result<Self, NodeError> {
        if !own_threads {
            return Self::new(tick, RaftThreads::of_caller(), transport, HostLifetime::UntilEmpty);
        }
        let threads = RaftThreads::start().map_err(NodeError::System)?;
        Self::new(tick, threads, transport, HostLifetime::UntilEmpty)
    }

    fn new(
        tick: Duration,
        threads: RaftThreads,
        transport: impl Transport,
        lifetime: HostLifetime,
    ) -> Result<Self, NodeError> {
        if tick.is_zero() {
            return Err(NodeError::ZeroTick);
        }
        // On the caller's runtime nothing is known of its threads.
        let gather = match (threads.are_own(), available_parallelism()) {
            (true, Ok(processors)) => GatherTime::for_processors(processors.get()),
            _ => GatherTime::default(),
        };
        let ticker = {
            let _raft = threads.raft.enter();
            Ticker::start(tick, threads.are_own().then(|| gather.clone()))
        };
        let parts = Parts {
            threads,
            ticker,
            gather,
            disks: DiskThread::start().map_err(NodeError::System)?,
            local_members: Arc::default(),
            transport: Arc::new(transport),
            state: Mutex::default(),
            lifetime,
        };
        Ok(Self { parts: Arc::new(parts) })
    }

    /// Starts a member on this host. Its ticks are as long as the host's; the tick in the
    /// config is ignored.
    pub async fn start_member<M: Machine + Send + 'static>(
        &self,
        mut config: NodeConfig,
        storage: impl Storage,
        machine: M,
    ) -> Result<Node, NodeError> {
        let raft = &mut config.raft;
        for number in [&mut raft.incarnation, &mut raft.seed] {
            if *number == 0 {
                *number = random_number().map_err(NodeError::System)?;
            }
        }
        let VersionRange { min, max } = config.versions;
        if min < ClusterVersion::FIRST || min > max {
            return Err(NodeError::EmptyVersions(config.versions));
        }
        let key = config.key();
        let opening = config.clone();
        let apply = &self.parts.threads.apply;
        let opened = apply.spawn_blocking(move || open_member(opening, storage, machine)).await;
        let opened = opened.map_err(|why| NodeError::MachinePanicked(panic_text(why)))??;
        match self.parts.run(key, &config, opened) {
            Ok(node) => Ok(node),
            Err((why, disk)) => {
                // The storage is free again when the caller sees the error.
                disk.close().await;
                Err(why)
            }
        }
    }

    /// Stops all members at once, then closes all connections and the listener, and ends the
    /// ticker and the disk thread. When this returns, everything is free: addresses,
    /// directories, threads. A leader does not transfer its leadership; call
    /// [`Node::stop`] first where that matters. Stopping twice is harmless.
    pub async fn stop(&self) {
        let running: Vec<RunningMember> = {
            let mut state = lock(&self.parts.state);
            state.is_stopping = true;
            state.running.values().cloned().collect()
        };
        for member in &running {
            member.completions.push(Completion::Control(Control::Stop));
        }
        for member in running {
            let mut ended = member.shared.ended.subscribe();
            let _ = ended.wait_for(Option::is_some).await;
        }
        self.parts.stop_shared().await;
        self.parts.threads.stop();
        self.parts.threads.wait_stopped().await;
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").finish_non_exhaustive()
    }
}

fn open_member<M: Machine>(
    config: NodeConfig,
    mut storage: impl Storage,
    machine: M,
) -> Result<OpenedMember<M>, NodeError> {
    let activation = config.raft.activation;
    let first = config.first.map(|membership| membership.with_activation(activation));
    let (mark, first) = first_identity(config.cluster, &config.raft, first);
    let StoredState { identity, boots, boot } =
        storage.open(mark, &first).map_err(NodeError::Storage)?;
    let starting =
        StartingMember::new(config.raft, identity, boots, boot, machine, config.versions);
    let mut starting = starting.map_err(NodeError::Machine)?;
    if let Some(snapshot) = starting.snapshot() {
        let source = storage.open_snapshot(snapshot.id).map_err(NodeError::Storage)?;
        let installed = install(&mut starting.applier, &snapshot, source);
        let installed = installed.map_err(|ended| match ended {
            StopReason::Snapshot(id, why) => NodeError::Snapshot(id, why),
            StopReason::UnsupportedVersion(why) => NodeError::UnsupportedVersion(why),
            ended => NodeError::Storage(ended.into()),
        })?;
        starting.on_installed(&installed);
        storage.release_snapshot(snapshot.id);
    }
    let (driver, applier, _) = starting.finish(config.options).map_err(NodeError::Boot)?;
    Ok(OpenedMember { driver, applier, storage: Box::new(storage), boots })
}

impl Parts {
    /// Registers a member, and begins to listen with the first one.
    fn register(
        &self,
        key: MemberKey,
        local: Arc<LocalMember>,
        running: RunningMember,
    ) -> Result<(), NodeError> {
        let mut state = lock(&self.state);
        if state.is_stopping {
            return Err(NodeError::HostStopped);
        }
        if !self.local_members.add(key, local) {
            return Err(NodeError::AlreadyRunning(key));
        }
        if !state.is_listening {
            let inbox = Inbox::new(Arc::clone(&self.local_members));
            let _raft = self.threads.raft.enter();
            if let Err(why) = self.transport.start(inbox) {
                self.local_members.remove(key);
                return Err(NodeError::Transport(why));
            }
            state.is_listening = true;
        }
        state.running.insert(key, running);
        Ok(())
    }

    /// Forgets a member that has stopped. Returns whether the host has to stop with it.
    fn unregister(&self, key: MemberKey) -> bool {
        let mut state = lock(&self.state);
        self.local_members.remove(key);
        state.running.remove(&key);
        let stops = self.lifetime == HostLifetime::UntilEmpty && state.running.is_empty();
        state.is_stopping |= stops;
        stops
    }

    /// Ends what the members shared, after the last of them.
    async fn stop_shared(&self) {
        self.transport.stop().await;
        self.disks.stop().await;
        self.ticker.stop();
    }

    /// Runs an opened member. An error comes with the disk, which the caller has to close.
    fn run<M: Machine + Send + 'static>(
        self: &Arc<Self>,
        key: MemberKey,
        config: &NodeConfig,
        opened: OpenedMember<M>,
    ) -> Result<Node, (NodeError, DiskHandle)> {
        let OpenedMember { driver, mut applier, storage, boots } = opened;
        let shared = Arc::new(shared(config, &driver));
        let done = Arc::new(BatchQueue::new());
        let counters = Arc::clone(&shared.counters);
        let observer = Arc::clone(&shared.observer);
        let disk = self.disks.add(DiskSlot {
            storage,
            done: Arc::clone(&done),
            counters: Arc::clone(&counters),
            observer: Arc::clone(&observer),
        });
        let (requests, clients) = mpsc::channel(config.mailbox_requests.max(1));
        let (deliveries, peers) = mpsc::channel(config.mailbox_deliveries.max(1));
        let load_snapshot = applier.snapshot_loader();
        let known = (shared.known.subscribe(), shared.cluster_version.subscribe());
        let local = Arc::new(LocalMember::new(deliveries, disk.clone(), load_snapshot, known));
        let running = RunningMember { completions: Arc::clone(&done), shared: Arc::clone(&shared) };
        if let Err(why) = self.register(key, Arc::clone(&local), running) {
            return Err((why, disk));
        }
        {
            // What the transport spawns runs where Raft does.
            let _raft = self.threads.raft.enter();
            self.transport.add_member(key, driver.command_id().incarnation);
        }
        let jobs = Arc::new(BatchQueue::new());
        let (queries, waiting_queries) = mpsc::channel(QUERIES_WAITING_MAX);
        *lock(&shared.leader_queries) = Some(waiting_queries);
        // A thread that runs one machine may block.
        let runs_one_machine = self.threads.are_own() && self.lifetime == HostLifetime::UntilEmpty;
        let progress = WorkProgress::default();
        applier.report_progress_to(progress.clone());
        let replies = PendingReplies::default();
        let apply = ApplyTask {
            applier,
            jobs: Arc::clone(&jobs),
            done: Arc::clone(&done),
            disk: disk.clone(),
            counters,
            observer,
            blocking: config.machine_blocks && !runs_one_machine,
            writing: Arc::new(Semaphore::new(1)),
            disk_uses: local.disk_uses.clone(),
            loaded: local.loaded.clone(),
            replies: replies.for_machine(),
        };
        let counts_all = matches!(config.raft.reads, ReadMode::LeaderLease { .. });
        let member = Member {
            key,
            driver,
            boots,
            mailbox: Mailbox { clients, peers, done: Arc::clone(&done) },
            clock: Clock::new(&self.ticker, counts_all),
            timer: WakeTimer::new(self.threads.are_own()),
            disk: disk.clone(),
            jobs,
            transport: Arc::clone(&self.transport),
            local,
            leader_queries: queries,
            shared: Arc::clone(&shared),
            barriers: MemberBarriers(Arc::clone(&shared.barriers)),
            state: TaskState::new(config.versions, self.gather.clone(), replies),
            progress,
            applying: self.watch_apply(key, apply, Arc::clone(&done)),
            _requests: requests.clone(),
        };
        self.watch_member(key, member, disk, Arc::clone(&shared));
        Ok(Node::new(key, requests, done, shared, Host { parts: Arc::clone(self) }))
    }

    /// Runs the member's task. When it has ended, for whatever reason, the member's name and
    /// all its resources are free before [`Node::wait_stopped`] returns.
    fn watch_member(
        self: &Arc<Self>,
        key: MemberKey,
        member: Member,
        disk: DiskHandle,
        shared: Arc<SharedState>,
    ) {
        let parts = Arc::clone(self);
        let span = member_span(key);
        self.threads.raft.spawn(async move {
            let ran = tokio::spawn(member.run().instrument(span)).await;
            if ran.is_err() {
                parts.transport.remove_member(key);
                disk.close().await;
            }
            let host_stops = parts.unregister(key);
            if host_stops {
                parts.stop_shared().await;
            }
            shared.ended.send_replace(Some(ran.unwrap_or(StopReason::Panicked)));
            if host_stops {
                parts.threads.stop();
            }
        });
    }

    fn watch_apply<M: Machine + Send + 'static>(
        &self,
        key: MemberKey,
        apply: ApplyTask<M>,
        done: Arc<BatchQueue<Completion>>,
    ) -> JoinHandle<()> {
        self.threads.apply.spawn(async move {
            if let Err(why) = tokio::spawn(apply.run().instrument(member_span(key))).await {
                done.push(Completion::Ended(StopReason::MachinePanicked(panic_text(why))));
            }
        })
    }
}

fn shared(config: &NodeConfig, driver: &Driver) -> SharedState {
    let raft = driver.raft();
    let status = raft.status();
    let membership = Arc::clone(raft.membership());
    let known = KnownMembership { id: status.membership_id, membership, settled: status.settled };
    SharedState {
        counters: Arc::default(),
        observer: Arc::clone(&config.observer),
        dropped: Mutex::default(),
        leader_queries: Mutex::default(),
        term: AtomicU64::new(status.term),
        leader: watch::Sender::new(None),
        known: watch::Sender::new(known),
        cluster_version: watch::Sender::new(driver.cluster_version()),
        events: broadcast::Sender::new(EVENTS_KEPT),
        ended: watch::Sender::new(None),
        barriers: Arc::default(),
        arrivals: Arrivals::new(),
    }
}

/// Around everything that a member does. No parent: it outlives the call that started it.
fn member_span(key: MemberKey) -> Span {
    let MemberKey { cluster, member } = key;
    info_span!(parent: None, "member", cluster = format_args!("{cluster:016x}"), %member)
}

/// A random number, never 0.
fn random_number() -> Result<u64, std::io::Error> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(u64::from_le_bytes(bytes).max(1))
}

/// Membership events that a slow reader may still find.
const EVENTS_KEPT: usize = 256;
