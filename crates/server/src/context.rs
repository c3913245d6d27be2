//! What every service holds: the member, its data, who it is and what it may be asked.

use std::sync::Arc;
use std::time::Duration;

use quorate::{Node, RequestError};
use quorate_kv::{AnyTable, Command, KvError, KvReply, Query, SharedKv, check};
use quorate_proto::etcdserverpb::ResponseHeader;
use tokio::sync::watch;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status};

use crate::errors::{failed, no_leader, not_for_learners, refused, server_stopped, table};
use crate::metrics::Tally;
use crate::service::lease::Lessor;

/// The data of this member, shared with the node that runs commands on it.
pub type Store = SharedKv<AnyTable>;

/// What every service holds. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    pub(crate) node: Node,
    pub(crate) store: Store,
    pub(crate) cluster_id: u64,
    pub(crate) limits: Arc<Limits>,
    pub(crate) lessor: Arc<Lessor>,
    pub(crate) tally: Arc<Tally>,
    stage: Arc<watch::Sender<Stage>>,
}

/// How near its end a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Serving,
    /// It serves, and says that others should be asked.
    Leaving,
    /// It finishes what was begun.
    Closing,
}

/// What clients may ask for, and how long things last. The defaults are etcd's.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The largest command.
    pub request_bytes_max: usize,
    /// Requests in one branch of a transaction.
    pub txn_requests_max: usize,
    /// Learners serve linearizable reads and watches, too.
    pub learner_reads: bool,
    /// How often watchers that ask for it hear that nothing happened.
    pub watch_progress_every: Duration,
    /// Leases last at least this many seconds: longer than a leader may be missed.
    pub lease_ttl_min: i64,
    /// How long a new leader gives all leases on top, for their owners to find it.
    pub lease_grace: Duration,
    /// How often what is left of long leases is noted for later leaders.
    pub lease_checkpoint_every: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request_bytes_max: 3 << 19,
            txn_requests_max: check::TXN_REQUESTS_MAX,
            learner_reads: false,
            watch_progress_every: Duration::from_secs(600),
            lease_ttl_min: 2,
            lease_grace: Duration::from_secs(1),
            lease_checkpoint_every: Duration::from_secs(300),
        }
    }
}

/// Who may serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Anybody, learners included.
    Member,
    /// Learners only if they are told to serve reads.
    Reader,
    Voter,
}

impl Context {
    pub fn new(node: Node, store: Store, cluster_id: u64, limits: Limits) -> Self {
        let lessor = Arc::new(Lessor::default());
        let stage = Arc::new(watch::Sender::new(Stage::Serving));
        let (limits, tally) = (Arc::new(limits), Arc::new(Tally::default()));
        Self { node, store, cluster_id, limits, lessor, tally, stage }
    }

    /// The header of a reply that shows this revision.
    pub(crate) fn header(&self, revision: i64) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.node.id().0,
            revision,
            raft_term: self.node.term(),
        }
    }

    /// Whether this member may serve the request now.
    pub(crate) fn admit<T>(&self, request: &Request<T>, needs: Needs) -> Result<(), Status> {
        let learner_may = match needs {
            Needs::Member => true,
            Needs::Reader => self.limits.learner_reads,
            Needs::Voter => false,
        };
        if !learner_may && self.is_learner() {
            return Err(not_for_learners());
        }
        if requires_leader(request.metadata()) && self.node.leader().is_none() {
            return Err(no_leader());
        }
        Ok(())
    }

    pub(crate) fn is_learner(&self) -> bool {
        self.node.membership().is_learner(self.node.id())
    }

    /// Runs a command on every member, once, and decodes what the data model said.
    pub(crate) async fn run(&self, command: &Command) -> Result<KvReply, Status> {
        let command = command.encode();
        if command.len() > self.limits.request_bytes_max {
            return Err(refused(KvError::RequestTooLarge));
        }
        decode(self.node.propose(command).await)
    }

    /// Runs a command that only the leader of this term may decide on; refused if that is
    /// not this member.
    pub(crate) async fn run_in(&self, term: u64, command: &Command) -> Result<KvReply, Status> {
        decode(self.node.propose_in(term, command.encode()).await)
    }

    /// Looks up what the store has, however old.
    pub(crate) fn look_up(&self, question: &Query) -> Result<KvReply, Status> {
        served(self.store.read().query(question).map_err(|why| table(&why))?)
    }

    /// After this the store shows everything that was done before it was called.
    pub(crate) async fn catch_up(&self) -> Result<(), Status> {
        match self.node.barrier().await {
            Ok(_) => Ok(()),
            Err(why) => {
                Tally::one(&self.tally.reads_not_confirmed);
                Err(failed(&why))
            }
        }
    }

    /// From now on whoever asks is told that this server goes. It serves as before.
    pub fn leave(&self) {
        self.stage.send_replace(Stage::Leaving);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        *self.stage.borrow() >= Stage::Leaving
    }

    /// Streams end from now on, so that the server can.
    pub fn close(&self) {
        self.stage.send_replace(Stage::Closing);
    }

    /// Waits until a stream has to end, and says why: the server stops, or its client wants
    /// to know of a leader and there has been none for a while.
    pub(crate) async fn end_of_stream(&self, wants_leader: bool) -> Status {
        let mut stage = self.stage.subscribe();
        tokio::select! {
            _ = stage.wait_for(|stage| *stage == Stage::Closing) => server_stopped(),
            _ = self.node.wait_stopped() => server_stopped(),
            () = self.leader_lost(), if wants_leader => no_leader(),
        }
    }

    async fn leader_lost(&self) {
        let mut leader = self.node.watch_leader();
        loop {
            if leader.wait_for(Option::is_none).await.is_err() {
                return;
            }
            let found = leader.wait_for(Option::is_some);
            if tokio::time::timeout(LEADER_MISSED, found).await.is_err() {
                return;
            }
        }
    }
}

fn decode(reply: Result<quorate::CommandReply, RequestError>) -> Result<KvReply, Status> {
    let reply = reply.map_err(|why| failed(&why))?;
    let reply = KvReply::decode(&reply.bytes);
    served(reply.ok_or_else(|| Status::internal("etcdserver: reply not understood"))?)
}

fn served(reply: KvReply) -> Result<KvReply, Status> {
    match reply.result {
        Ok(_) => Ok(reply),
        Err(why) => Err(refused(why)),
    }
}

/// Whether the client would rather hear of a lost leader than wait.
pub(crate) fn requires_leader(metadata: &MetadataMap) -> bool {
    metadata.get("hasleader").is_some_and(|value| value == "true")
}

/// A stream whose client wants a leader ends when there was none for so long.
const LEADER_MISSED: Duration = Duration::from_secs(3);
