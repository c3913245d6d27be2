//! All connections of a load, and the threads that run them.
//!
//! A thread runs its connections without the help of others: few threads with many connections each
//! are woken less often than many, and leave the processors to the servers.

use std::sync::Arc;
use std::thread;

use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::client::{BenchResult, BenchRun, ClosedLoopClient};
use super::connection::{LoadConnection, LoadLink};
use crate::arguments::BenchArguments;
use crate::client::{Connection, ConnectionAddress};
use crate::error::CliError;

/// One thread of so many processors generates load.
const PROCESSORS_PER_THREAD: usize = 4;

/// Open connections, and their clients that have not begun.
pub(super) struct PreparedLoad {
    threads: Vec<LoadThread>,
    connections: usize,
}

struct LoadThread {
    start: oneshot::Sender<Arc<BenchRun>>,
    result: oneshot::Receiver<BenchResult>,
}

/// A connection that a thread shall open, and the numbers of its clients.
struct PlannedConnection {
    address: Arc<ConnectionAddress>,
    clients: Vec<ClosedLoopClient>,
}

impl PreparedLoad {
    /// Opens connections, spread evenly over these endpoints.
    pub(super) async fn open(
        endpoints: &[Connection],
        arguments: &BenchArguments,
    ) -> Result<Self, CliError> {
        let count = (arguments.connections.min(arguments.clients) as usize).max(endpoints.len());
        let mut addresses = Vec::new();
        for endpoint in endpoints {
            addresses.push(Arc::new(endpoint.address(arguments.client.dial_timeout)?));
        }
        let planned = addresses.iter().cycle().take(count);
        let mut planned: Vec<_> = planned
            .map(|address| PlannedConnection { address: Arc::clone(address), clients: Vec::new() })
            .collect();
        for number in 0..arguments.clients {
            planned[number as usize % count].clients.push(ClosedLoopClient::new(number));
        }
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let threads_max = (processors / PROCESSORS_PER_THREAD).clamp(1, count);
        let mut opening = Vec::new();
        while !planned.is_empty() {
            let share = planned.len().div_ceil(threads_max - opening.len());
            opening.push(start_thread(planned.drain(..share).collect())?);
        }
        let mut threads = Vec::new();
        for (opened, thread) in opening {
            opened.await.unwrap_or_else(|_| Err(thread_failed()))?;
            threads.push(thread);
        }
        Ok(Self { threads, connections: count })
    }

    pub(super) fn connections(&self) -> usize {
        self.connections
    }

    /// Runs all clients to their end.
    pub(super) async fn run(self, run: &Arc<BenchRun>) -> Result<BenchResult, CliError> {
        let mut results = Vec::new();
        for thread in self.threads {
            thread.start.send(Arc::clone(run)).map_err(|_| thread_failed())?;
            results.push(thread.result);
        }
        let mut total = BenchResult::new();
        for result in results {
            total.add(&result.await.map_err(|_| thread_failed())?);
        }
        Ok(total)
    }
}

type OpenedReceiver = oneshot::Receiver<Result<(), CliError>>;

fn start_thread(planned: Vec<PlannedConnection>) -> Result<(OpenedReceiver, LoadThread), CliError> {
    let failed = |error: std::io::Error| CliError::with_cause("cannot start threads", &error);
    let (opened, when_opened) = oneshot::channel();
    let (start, when_started) = oneshot::channel();
    let (done, result) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let work = async move {
        let links = match open_all(&planned).await {
            Ok(links) => links,
            Err(error) => return drop(opened.send(Err(error))),
        };
        let _ = opened.send(Ok(()));
        let Ok(run) = when_started.await else { return };
        let mut connections = JoinSet::new();
        for (planned, link) in planned.into_iter().zip(links) {
            let PlannedConnection { address, clients } = planned;
            let connection = LoadConnection::new(address, link, clients, Arc::clone(&run));
            connections.spawn(connection.run());
        }
        if let Some(total) = sum_of(connections).await {
            let _ = done.send(total);
        }
    };
    let thread = thread::Builder::new().name("load".to_owned());
    thread.spawn(move || runtime.block_on(work)).map_err(failed)?;
    Ok((when_opened, LoadThread { start, result }))
}

/// `None` if a connection ended early: without its results, the others would look like all.
async fn sum_of(mut connections: JoinSet<BenchResult>) -> Option<BenchResult> {
    let mut total = BenchResult::new();
    while let Some(result) = connections.join_next().await {
        total.add(&result.ok()?);
    }
    Some(total)
}

async fn open_all(planned: &[PlannedConnection]) -> Result<Vec<LoadLink>, CliError> {
    let mut links = Vec::new();
    for PlannedConnection { address, .. } in planned {
        let link = LoadLink::open(address).await.map_err(|error| {
            CliError::with_cause(&format!("cannot connect to {}", address.authority), &error)
        })?;
        links.push(link);
    }
    Ok(links)
}

fn thread_failed() -> CliError {
    CliError::failed("a thread of the load ended early")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_that_panics_fails_the_load() {
        let mut connections = JoinSet::new();
        connections.spawn(async { BenchResult::new() });
        assert!(sum_of(connections).await.is_some());
        let mut connections = JoinSet::new();
        connections.spawn(async { BenchResult::new() });
        connections.spawn(async { panic!("as expected") });
        assert!(sum_of(connections).await.is_none());
    }
}
