//! Waits for writes of keys, on behalf of a caller.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use quorate_kv::{
    AnyTable, Issuer, KeyRange, KeyUse, Kv, PollLimits, WatchEvent, WatchEventKind, WatchPoll,
    WatchRequest, WatcherId,
};
use tokio::sync::{Notify, watch};

use super::queue::CallerCalls;
use crate::context::ServiceContext;
use crate::status::ServiceError;

/// A watch of a key or a range. It ends with an error when the server stops, or when the caller
/// loses the right to read the keys.
pub(super) struct KeyWatch {
    calls: CallerCalls,
    keys: KeyRange,
    watcher: WatcherId,
    woken: Arc<Notify>,
    auth_changes: watch::Receiver<u64>,
    events: VecDeque<RevisionEvent>,
}

/// An event, and the revision of the header that it is sent with.
pub(super) struct RevisionEvent {
    pub(super) revision: i64,
    pub(super) event: WatchEvent,
}

impl KeyWatch {
    /// Watches from this revision on.
    pub(super) async fn new(
        calls: &CallerCalls,
        key: Bytes,
        range_end: Bytes,
        start_revision: i64,
    ) -> Self {
        let keys = KeyRange { key, range_end };
        let woken = Arc::new(Notify::new());
        let wake = {
            let woken = Arc::clone(&woken);
            Arc::new(move |_| woken.notify_one())
        };
        let request =
            WatchRequest { keys: keys.clone(), start_revision, ..WatchRequest::default() };
        let store = &calls.context.store;
        let watcher = {
            let kv = store.read_when_free().await;
            store.watch_in(&kv, request, wake).0
        };
        let auth_changes = calls.context.auth.changes.subscribe();
        Self { calls: calls.clone(), keys, watcher, woken, auth_changes, events: VecDeque::new() }
    }

    fn context(&self) -> &ServiceContext {
        &self.calls.context
    }

    /// The next event; `None` if the watch has ended because a compaction overtook it.
    pub(super) async fn next(&mut self) -> Result<Option<RevisionEvent>, ServiceError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            let store = &self.calls.context.store;
            let polled = {
                let kv = store.read_when_free().await;
                store.poll_watch_in(&kv, self.watcher, PollLimits::default())?
            };
            match polled {
                WatchPoll::Events { header_revision: revision, events, .. } => {
                    let events = events.into_iter();
                    self.events.extend(events.map(|event| RevisionEvent { revision, event }));
                }
                WatchPoll::Again => tokio::task::yield_now().await,
                WatchPoll::Compacted { .. } | WatchPoll::Gone => return Ok(None),
                WatchPoll::Idle => self.wait().await?,
            }
        }
    }

    /// Waits until there may be another event.
    async fn wait(&mut self) -> Result<(), ServiceError> {
        let context = self.calls.context.clone();
        tokio::select! {
            () = self.woken.notified() => Ok(()),
            error = context.server_stopped() => Err(error),
            Ok(()) = self.auth_changes.changed() => self.check_rights().await,
        }
    }

    async fn check_rights(&self) -> Result<(), ServiceError> {
        let KeyRange { key, range_end } = &self.keys;
        let check = |kv: &Kv<AnyTable>, issuer: Issuer<'_>| {
            Ok(kv.auth().check_keys(issuer, KeyUse::Read, key, range_end)?)
        };
        self.context().with_identity(&self.calls.client, check).await
    }

    /// Waits until a key is deleted, or may have been: the caller reads it again.
    pub(super) async fn wait_for_deletion(&mut self) -> Result<(), ServiceError> {
        while let Some(event) = self.next().await? {
            if event.event.kind == WatchEventKind::Delete {
                break;
            }
        }
        Ok(())
    }
}

impl Drop for KeyWatch {
    fn drop(&mut self) {
        self.calls.context.store.cancel_watch(self.watcher);
    }
}
