//! The threads that a host runs on: the caller's runtime, or threads of its own.

use std::io;
use std::sync::Mutex;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::{oneshot, watch};

use super::sync::lock;

/// Where the tasks of a host run.
pub(crate) struct RaftThreads {
    /// Member tasks, the ticker and the transport.
    pub(crate) raft: Handle,
    /// State machines. A command may take long, so they never run where `raft` does if the
    /// host has threads of its own.
    pub(crate) apply: Handle,
    own: Vec<OwnThread>,
}

/// A thread that runs the tasks of one runtime until it is told to stop, or this is dropped.
pub(crate) struct OwnThread {
    handle: Handle,
    /// Dropping it ends the thread.
    stop: Mutex<Option<oneshot::Sender<()>>>,
    /// Closed when the thread has ended.
    running: watch::Receiver<()>,
}

impl RaftThreads {
    /// The tasks run on the runtime that calls this.
    pub(crate) fn of_caller() -> Self {
        let handle = Handle::current();
        Self { raft: handle.clone(), apply: handle, own: Vec::new() }
    }

    /// One thread for Raft and one for the state machines.
    pub(crate) fn start() -> io::Result<Self> {
        let (raft, apply) = (OwnThread::start("quorate-raft")?, OwnThread::start("quorate-apply")?);
        let handles = (raft.handle.clone(), apply.handle.clone());
        Ok(Self { raft: handles.0, apply: handles.1, own: vec![raft, apply] })
    }

    /// Whether the host has threads of its own.
    pub(crate) fn are_own(&self) -> bool {
        !self.own.is_empty()
    }

    /// Ends the host's own threads. Tasks that still run on them are dropped.
    pub(crate) fn stop(&self) {
        for thread in &self.own {
            lock(&thread.stop).take();
        }
    }

    /// Waits until the host's own threads have ended. Must not be called on one of them.
    pub(crate) async fn wait_stopped(&self) {
        for thread in &self.own {
            let mut running = thread.running.clone();
            while running.changed().await.is_ok() {}
        }
    }
}

impl OwnThread {
    pub(crate) fn start(name: &str) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let (ended, running) = watch::channel(());
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Ends with an error when the sender is dropped, which is the signal.
            let _ = runtime.block_on(stopped);
            // Blocking work may hang on a disk: the thread does not wait for it.
            runtime.shutdown_background();
            drop(ended);
        })?;
        Ok(Self { handle, stop: Mutex::new(Some(stop)), running })
    }

    /// Where tasks for this thread are spawned.
    #[cfg(feature = "tls")]
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}
