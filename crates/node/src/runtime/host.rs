//! What all members of a process share: the ticker, the disk thread, the connections.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate_core::config::ReadMode;
use tokio::sync::{Semaphore, broadcast, mpsc, watch};
use tokio::task::{JoinHandle, spawn_blocking};

use super::apply_task::{ApplyTask, install};
use super::clock::{Clock, start_ticker};
use super::config::{NodeConfig, NodeError};
use super::disk_thread::{DiskHandle, DiskSlot, DiskThread};
use super::inbox::{Inbox, LocalMember, LocalMembers};
use super::leader_query::INQUIRIES_WAITING_MAX;
use super::mailbox::{BatchQueue, Completion, Mailbox, lock};
use super::member::{Member, SharedState, TaskState};
use super::node::Node;
use super::status::{KnownMembership, StopReason};
use super::storage::{Storage, StoredState};
use super::transport::{MemberKey, Transport};
use crate::applier::Applier;
use crate::driver::Driver;
use crate::machine::Machine;
use crate::start::{Waking, first_mark};

/// Runs any number of members, each of a cluster of its own, on one ticker, one disk
/// thread and one set of connections.
#[derive(Clone)]
pub struct Host {
    pub(crate) parts: Arc<Parts>,
}

pub(crate) struct Parts {
    tick: Duration,
    ticker: watch::Receiver<()>,
    disks: DiskThread,
    local_members: Arc<LocalMembers>,
    pub(crate) transport: Arc<dyn Transport>,
    listening: Mutex<bool>,
}

/// A member that was read from its disk and runs not yet.
struct OpenedMember<M> {
    driver: Driver,
    applier: Applier<M>,
    storage: Box<dyn Storage>,
    boots: u64,
}

impl Host {
    /// Starts what is shared. Has to be called within a tokio runtime, which it then uses.
    /// It listens as soon as it has its first member: nobody finds the local closed.
    pub fn start(tick: Duration, transport: impl Transport) -> Result<Self, NodeError> {
        if tick.is_zero() {
            return Err(NodeError::ZeroTick);
        }
        let transport: Arc<dyn Transport> = Arc::new(transport);
        let local_members = Arc::new(LocalMembers::default());
        let disks = DiskThread::start().map_err(NodeError::System)?;
        let ticker = start_ticker(tick);
        let listening = Mutex::new(false);
        Ok(Self {
            parts: Arc::new(Parts { tick, ticker, disks, local_members, transport, listening }),
        })
    }

    /// Starts a member here. Ticks are as long as the host's, whatever the config says.
    pub async fn start_member<M: Machine + Send + 'static>(
        &self,
        mut config: NodeConfig,
        storage: impl Storage,
        machine: M,
    ) -> Result<Node, NodeError> {
        let raft = &mut config.raft;
        for number in [&mut raft.incarnation, &mut raft.seed] {
            if *number == 0 {
                *number = draw().map_err(NodeError::System)?;
            }
        }
        let key = config.key();
        let waking = config.clone();
        let awake = spawn_blocking(move || wake(waking, storage, machine)).await;
        let awake = awake.map_err(|_| NodeError::MachinePanicked)??;
        self.parts.run(key, &config, awake)
    }

    /// Closes all connections. The members have to be stopped before.
    pub async fn stop(self) {
        self.parts.transport.stop().await;
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").finish_non_exhaustive()
    }
}

fn wake<M: Machine>(
    config: NodeConfig,
    mut storage: impl Storage,
    machine: M,
) -> Result<OpenedMember<M>, NodeError> {
    let activation = config.raft.activation;
    let first = config.first.map(|membership| membership.with_activation(activation));
    let (mark, first) = first_mark(config.cluster, &config.raft, first);
    let StoredState { identity, boots, boot } =
        storage.open(mark, &first).map_err(NodeError::Storage)?;
    let mut waking = Waking::new(config.raft, identity, boots, boot, machine);
    let snapshot = waking.boot.snapshot.clone();
    if snapshot.id.index > 0 {
        let source = storage.open_snapshot(snapshot.id).map_err(NodeError::Storage)?;
        install(&mut waking.applier, &snapshot, source).map_err(|ended| match ended {
            StopReason::Snapshot(id, why) => NodeError::Snapshot(id, why),
            ended => NodeError::Storage(ended.into()),
        })?;
        storage.release_snapshot(snapshot.id);
    }
    let (driver, applier, _) = waking.finish(config.options).map_err(NodeError::Boot)?;
    Ok(OpenedMember { driver, applier, storage: Box::new(storage), boots })
}

impl Parts {
    fn listen(&self) -> Result<(), NodeError> {
        let mut listening = lock(&self.listening);
        if !*listening {
            let inbox = Inbox::new(Arc::clone(&self.local_members));
            self.transport.start(inbox).map_err(NodeError::Transport)?;
            *listening = true;
        }
        Ok(())
    }

    fn run<M: Machine + Send + 'static>(
        self: &Arc<Self>,
        key: MemberKey,
        config: &NodeConfig,
        awake: OpenedMember<M>,
    ) -> Result<Node, NodeError> {
        let OpenedMember { driver, applier, storage, boots } = awake;
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
        let local = Arc::new(LocalMember::new(deliveries, disk.clone(), shared.known.subscribe()));
        if !self.local_members.add(key, Arc::clone(&local)) {
            tokio::spawn(async move { disk.close().await });
            return Err(NodeError::AlreadyRunning(key));
        }
        if let Err(why) = self.listen() {
            self.local_members.remove(key);
            tokio::spawn(async move { disk.close().await });
            return Err(why);
        }
        self.transport.add_member(key, driver.origin().incarnation);
        let jobs = Arc::new(BatchQueue::new());
        let (inquiries, asked) = mpsc::channel(INQUIRIES_WAITING_MAX);
        *lock(&shared.inquiries) = Some(asked);
        let apply = ApplyTask {
            applier,
            jobs: Arc::clone(&jobs),
            done: Arc::clone(&done),
            disk: disk.clone(),
            counters,
            observer,
            blocking: config.machine_blocks,
            writing: Arc::new(Semaphore::new(1)),
            disk_uses: local.disk_uses.clone(),
        };
        let counts_all = matches!(config.raft.reads, ReadMode::LeaderLease { .. });
        let member = Member {
            key,
            driver,
            boots,
            mailbox: Mailbox { clients, peers, done: Arc::clone(&done) },
            clock: Clock::new(self.ticker.clone(), self.tick, counts_all),
            disk: disk.clone(),
            jobs,
            transport: Arc::clone(&self.transport),
            local,
            inquiries,
            shared: Arc::clone(&shared),
            state: TaskState::new(),
            applying: watch_apply(apply, Arc::clone(&done)),
            _requests: requests.clone(),
        };
        self.watch_member(key, member, disk, Arc::clone(&shared));
        Ok(Node::new(key, requests, done, shared, Host { parts: Arc::clone(self) }))
    }

    /// However a member ends, somebody else may run under its name after.
    fn watch_member(
        self: &Arc<Self>,
        key: MemberKey,
        member: Member,
        disk: DiskHandle,
        shared: Arc<SharedState>,
    ) {
        let parts = Arc::clone(self);
        tokio::spawn(async move {
            let ran = tokio::spawn(member.run()).await;
            if ran.is_err() {
                parts.transport.remove_member(key);
                disk.close().await;
            }
            parts.local_members.remove(key);
            shared.ended.send_replace(Some(ran.unwrap_or(StopReason::Panicked)));
        });
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
        inquiries: Mutex::default(),
        term: AtomicU64::new(status.term),
        leader: watch::Sender::new(None),
        known: watch::Sender::new(known),
        news: broadcast::Sender::new(NEWS_KEPT),
        ended: watch::Sender::new(None),
    }
}

fn watch_apply<M: Machine + Send + 'static>(
    apply: ApplyTask<M>,
    done: Arc<BatchQueue<Completion>>,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        if tokio::spawn(apply.run()).await.is_err() {
            done.push(Completion::Ended(StopReason::MachinePanicked));
        }
    })
}

/// A number that nobody else has; never 0.
fn draw() -> Result<u64, std::io::Error> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(u64::from_le_bytes(bytes).max(1))
}

/// News about the membership that a slow reader may still find.
const NEWS_KEPT: usize = 256;
