//! Reads the store in steps: the lock is held only for a short time, and expensive reads run
//! beside the threads that serve requests, a few at a time, one client after the other.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use quorate_kv::{
    AnyTable, AuthVersion, IncrementalRead, Issuer, Kv, KvCommandReply, KvOutcome, Query,
    ReadLimits, ReadStage, Txn, WatchEvent,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

use crate::access::ClientIdentity;
use crate::context::{ServiceContext, SharedStore};
use crate::response_budget::{MemoryWait, ResponseMemory};
use crate::status::ServiceError;

/// Turns for expensive reads. Each turn is short; requests wait for their next one in a queue.
#[derive(Debug)]
pub(crate) struct ReadTurns {
    slots: Arc<Semaphore>,
    /// A client has one request in the queue at a time, however many it sends.
    clients: Mutex<HashMap<Option<SocketAddr>, Weak<Semaphore>>>,
}

impl Default for ReadTurns {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let slots = Arc::new(Semaphore::new(cores.div_ceil(2)));
        Self { slots, clients: Mutex::default() }
    }
}

impl ReadTurns {
    fn of_client(&self, client: &ClientIdentity) -> Arc<Semaphore> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turns) = clients.get(&client.peer_address).and_then(Weak::upgrade) {
            return turns;
        }
        if clients.len() >= CLIENTS_FORGOTTEN_AT {
            clients.retain(|_, turns| turns.strong_count() > 0);
        }
        let turns = Arc::new(Semaphore::new(1));
        clients.insert(client.peer_address, Arc::downgrade(&turns));
        turns
    }

    /// Lets no expensive read go on until the guard is dropped.
    #[cfg(test)]
    pub(crate) async fn pause(&self) -> OwnedSemaphorePermit {
        let all = self.slots.available_permits() as u32;
        Arc::clone(&self.slots).acquire_many_owned(all).await.unwrap()
    }

    async fn next(&self, client: &Arc<Semaphore>) -> Result<ReadTurn, ServiceError> {
        let stopped = |_| ServiceError::ServerStopped;
        let client = Arc::clone(client).acquire_owned().await.map_err(stopped)?;
        let slot = Arc::clone(&self.slots).acquire_owned().await.map_err(stopped)?;
        Ok(ReadTurn { _slot: slot, _client: client })
    }
}

/// Ends when it is dropped.
struct ReadTurn {
    _slot: OwnedSemaphorePermit,
    _client: OwnedSemaphorePermit,
}

/// Reads a range or a transaction from the store as it is. The reply comes with the memory that was reserved for it.
pub(crate) async fn read(
    context: &ServiceContext,
    client: &ClientIdentity,
    query: Query,
) -> Result<(KvCommandReply, ResponseMemory), ServiceError> {
    let start = |kv: &Kv<AnyTable>, issuer: Issuer<'_>| start(kv, issuer, &query);
    let (reply, bytes) = match context.with_identity(client, start).await? {
        StartedRead::Complete { reply, bytes } => (reply, bytes),
        StartedRead::Steps(read, _) if read.stage() == ReadStage::Complete => {
            let bytes = read.bytes_read();
            (read.finish(), bytes)
        }
        StartedRead::Steps(read, checked_at) => {
            return Box::pin(read_in_turns(context, client, &query, *read, checked_at)).await;
        }
    };
    let memory = context.responses.reserve(bytes, WAIT).await?;
    Ok((counted(context, reply), memory))
}

/// What the first step of a read has found.
enum StartedRead {
    Complete {
        reply: KvCommandReply,
        bytes: u64,
    },
    /// It was read with the rights of this moment.
    Steps(Box<IncrementalRead>, AuthVersion),
}

/// Continues a read that takes several steps.
async fn read_in_turns(
    context: &ServiceContext,
    client: &ClientIdentity,
    query: &Query,
    mut read: IncrementalRead,
    mut checked_at: AuthVersion,
) -> Result<(KvCommandReply, ResponseMemory), ServiceError> {
    let turns = context.reads.of_client(client);
    let mut memory = None;
    while read.stage() != ReadStage::Complete {
        if read.stage() == ReadStage::Reading && memory.is_none() {
            read = measure(context, &turns, read).await?;
            memory = Some(context.responses.reserve(read.bytes_measured(), WAIT).await?);
        }
        let turn = context.reads.next(&turns).await?;
        let store = context.store.clone();
        let end;
        (read, end) = spawn_blocking(move || {
            let _turn = turn;
            continue_read(&store, read, checked_at)
        })
        .await??;
        if end == TurnEnd::RightsChanged {
            // It may start over, and then shows what was written after the rights were lost.
            let check = |kv: &Kv<AnyTable>, issuer: Issuer<'_>| {
                kv.check_query(issuer, query)?;
                Ok(AuthVersion::of(kv.auth()))
            };
            checked_at = context.with_identity(client, check).await?;
        }
    }
    let memory = match memory {
        Some(memory) => memory,
        None => context.responses.reserve(read.bytes_read(), WAIT).await?,
    };
    // Sorting takes long if there are many keys.
    let reply = spawn_blocking(|| read.finish()).await?;
    Ok((counted(context, reply), memory))
}

fn counted(context: &ServiceContext, reply: KvCommandReply) -> KvCommandReply {
    if let Ok(outcome) = &reply.result {
        context.commands.on_read(outcome);
    }
    reply
}

/// Reserves memory for the reply to a write, before it runs: the pairs that it reads or returns,
/// as they are now. `None` if its reply has none.
pub(crate) async fn reserve_for_write(
    context: &ServiceContext,
    client: &ClientIdentity,
    reads: Txn,
) -> Result<Option<ResponseMemory>, ServiceError> {
    if reads.success.is_empty() {
        return Ok(None);
    }
    let query = Query::Txn(reads);
    let start = |kv: &Kv<AnyTable>, issuer: Issuer<'_>| start_measuring(kv, issuer, &query);
    let bytes = match context.with_identity(client, start).await? {
        ReplySize::Known(bytes) => bytes,
        ReplySize::Partly(read) => {
            let turns = context.reads.of_client(client);
            Box::pin(measure(context, &turns, *read)).await?.bytes_measured()
        }
    };
    Ok(Some(context.responses.reserve(bytes, WAIT).await?))
}

/// The bytes of what a reply contains.
enum ReplySize {
    Known(u64),
    /// Some of it was measured.
    Partly(Box<IncrementalRead>),
}

fn start_measuring(
    kv: &Kv<AnyTable>,
    issuer: Issuer<'_>,
    query: &Query,
) -> Result<ReplySize, ServiceError> {
    kv.check_query(issuer, query)?;
    let Query::Txn(reads) = query else { return Err(ServiceError::UnexpectedReply) };
    if let Some(bytes) = kv.size_of_single_keys(reads) {
        return Ok(ReplySize::Known(bytes));
    }
    let mut read = kv.start_txn(reads.clone())?;
    // This prepares the ranges and reads none of them.
    let nothing = ReadLimits::default().keys_max(0);
    let is_refused = kv.continue_read(&mut read, nothing)?.is_err();
    // A revision that this member does not have, or no longer: the write itself is refused.
    if is_refused || kv.measure_read(&mut read, ReadLimits::default().keys_max) {
        return Ok(ReplySize::Known(read.bytes_measured()));
    }
    Ok(ReplySize::Partly(Box::new(read)))
}

/// Most reads are complete after this. The issuer is checked at the moment whose data is read.
fn start(
    kv: &Kv<AnyTable>,
    issuer: Issuer<'_>,
    query: &Query,
) -> Result<StartedRead, ServiceError> {
    kv.check_query(issuer, query)?;
    let mut read = match query {
        Query::Range(range) if range.keys.is_single() => {
            let (found, bytes) = kv.read_single_key(range)??;
            let reply =
                KvCommandReply { revision: kv.revision(), result: Ok(KvOutcome::Range(found)) };
            return Ok(StartedRead::Complete { reply, bytes });
        }
        Query::Range(range) => kv.start_range(range.clone())?,
        Query::Txn(txn) => kv.start_txn(txn.clone())?,
        _ => return Err(ServiceError::UnexpectedReply),
    };
    kv.continue_read(&mut read, ReadLimits::default())??;
    Ok(StartedRead::Steps(Box::new(read), AuthVersion::of(kv.auth())))
}

/// Determines the size of what will be read.
async fn measure(
    context: &ServiceContext,
    turns: &Arc<Semaphore>,
    mut read: IncrementalRead,
) -> Result<IncrementalRead, ServiceError> {
    loop {
        let turn = context.reads.next(turns).await?;
        let store = context.store.clone();
        let measured = spawn_blocking(move || {
            let _turn = turn;
            let mut complete = false;
            for _ in 0..STEPS_PER_TURN {
                complete = store.read().measure_read(&mut read, ReadLimits::default().keys_max);
                if complete {
                    break;
                }
            }
            (read, complete)
        });
        let complete;
        (read, complete) = measured.await?;
        if complete {
            return Ok(read);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TurnEnd {
    /// The steps of the turn were taken, or the read is complete.
    Done,
    /// Users or roles are no longer those of the last check. Nothing was read since.
    RightsChanged,
}

/// One turn. The lock is released after each step.
fn continue_read(
    store: &SharedStore,
    mut read: IncrementalRead,
    checked_at: AuthVersion,
) -> Result<(IncrementalRead, TurnEnd), ServiceError> {
    for _ in 0..STEPS_PER_TURN {
        let limits = limits_after(read.restarts());
        let kv = store.read();
        if AuthVersion::of(kv.auth()) != checked_at {
            return Ok((read, TurnEnd::RightsChanged));
        }
        let stage = kv.continue_read(&mut read, limits)??;
        if stage == ReadStage::Complete {
            break;
        }
    }
    Ok((read, TurnEnd::Done))
}

/// Reads the previous pairs of watched events. Memory for them must be reserved.
pub(crate) async fn read_previous(
    context: &ServiceContext,
    client: &ClientIdentity,
    mut events: Vec<WatchEvent>,
) -> Result<Vec<WatchEvent>, ServiceError> {
    let turns = context.reads.of_client(client);
    let mut read = 0;
    while read < events.len() {
        let turn = context.reads.next(&turns).await?;
        let store = context.store.clone();
        let step = spawn_blocking(move || {
            let _turn = turn;
            for _ in 0..STEPS_PER_TURN {
                let rest = events.get_mut(read..).unwrap_or_default();
                read += store.read().read_previous(rest, ReadLimits::default())?;
            }
            Ok::<_, ServiceError>((events, read))
        });
        (events, read) = step.await??;
    }
    Ok(events)
}

/// A read that had to start over because of a compaction takes larger steps, up to all at once, with as many more
/// reads of a file: so it ends, however often the store is compacted.
fn limits_after(restarts: u32) -> ReadLimits {
    let factor = 10usize.saturating_pow(restarts);
    let ReadLimits { keys_max, bytes_max, .. } = ReadLimits::default();
    ReadLimits::default()
        .keys_max(keys_max.saturating_mul(factor))
        .bytes_max(bytes_max.saturating_mul(factor))
}

const WAIT: MemoryWait = MemoryWait::ForSomeTime;
/// Steps that one request may take before the next one gets its turn: some milliseconds.
const STEPS_PER_TURN: usize = 10;
/// Clients that have gone are forgotten when there are so many.
const CLIENTS_FORGOTTEN_AT: usize = 1_024;
