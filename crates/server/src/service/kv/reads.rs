//! Reads the store in steps: the lock is held only for a short time, and expensive reads run
//! beside the threads that serve requests, a few at a time, one client after the other.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use quorate_kv::{IncrementalRead, KvCommandReply, Range, ReadLimits, ReadStage, Txn};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

use crate::access::ClientIdentity;
use crate::context::{ServiceContext, SharedStore};
use crate::response_budget::ResponseMemory;
use crate::status::ServiceError;

/// What to read.
pub(crate) enum ReadRequest {
    Range(Range),
    Txn(Txn),
}

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

/// Reads from the store as it is. The reply comes with the memory that was reserved for it.
pub(crate) async fn read(
    context: &ServiceContext,
    client: &ClientIdentity,
    request: ReadRequest,
) -> Result<(KvCommandReply, ResponseMemory), ServiceError> {
    let mut read = start(&context.store, request)?;
    if read.stage() == ReadStage::Complete {
        let memory = context.responses.reserve(read.bytes_read()).await?;
        return Ok((read.finish(), memory));
    }
    let turns = context.reads.of_client(client);
    let mut memory = None;
    while read.stage() != ReadStage::Complete {
        if read.stage() == ReadStage::Reading && memory.is_none() {
            read = measure(context, &turns, read).await?;
            memory = Some(context.responses.reserve(read.bytes_measured()).await?);
        }
        let turn = context.reads.next(&turns).await?;
        let store = context.store.clone();
        read = spawn_blocking(move || {
            let _turn = turn;
            continue_read(&store, read)
        })
        .await??;
    }
    let memory = match memory {
        Some(memory) => memory,
        None => context.responses.reserve(read.bytes_read()).await?,
    };
    // Sorting takes long if there are many keys.
    let reply = spawn_blocking(|| read.finish()).await?;
    Ok((reply, memory))
}

/// Most reads are complete after this.
fn start(store: &SharedStore, request: ReadRequest) -> Result<IncrementalRead, ServiceError> {
    let kv = store.read();
    let mut read = match request {
        ReadRequest::Range(range) => kv.start_range(range)?,
        ReadRequest::Txn(txn) => kv.start_txn(txn)?,
    };
    kv.continue_read(&mut read, ReadLimits::default())??;
    Ok(read)
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

/// One turn. The lock is released after each step.
fn continue_read(
    store: &SharedStore,
    mut read: IncrementalRead,
) -> Result<IncrementalRead, ServiceError> {
    for _ in 0..STEPS_PER_TURN {
        let limits = limits_after(read.restarts());
        let stage = store.read().continue_read(&mut read, limits)??;
        if stage == ReadStage::Complete {
            break;
        }
    }
    Ok(read)
}

/// A read that had to start over because of a compaction takes larger steps, up to all at once:
/// so it ends, however often the store is compacted.
fn limits_after(restarts: u32) -> ReadLimits {
    let factor = 10usize.saturating_pow(restarts);
    let ReadLimits { keys_max, bytes_max, .. } = ReadLimits::default();
    ReadLimits::default()
        .keys_max(keys_max.saturating_mul(factor))
        .bytes_max(bytes_max.saturating_mul(factor))
}

/// Steps that one request may take before the next one gets its turn: some milliseconds.
const STEPS_PER_TURN: usize = 10;
/// Clients that have gone are forgotten when there are so many.
const CLIENTS_FORGOTTEN_AT: usize = 1_024;
