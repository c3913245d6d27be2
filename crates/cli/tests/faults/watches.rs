//! Watches when the leader is killed: those at followers continue, those at the leader resume
//! at another member.

use std::sync::Arc;
use std::sync::Mutex;

use quorate_proto::etcdserverpb::watch_client::WatchClient;
use quorate_proto::etcdserverpb::watch_request::RequestUnion;
use quorate_proto::etcdserverpb::{WatchCreateRequest, WatchRequest, WatchResponse};
use tokio_stream::StreamExt;
use tonic::{Status, Streaming};

use crate::client::{FaultClient, retry_until_ok, wait_for};
use crate::cluster::{FaultCluster, test_directory};
use crate::writers::FaultWriters;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_receive_every_event_once_and_in_order_when_the_leader_is_killed() {
    let directory = test_directory("watches");
    let mut cluster = FaultCluster::three(&directory).await;
    let leader = cluster.leader().await;
    let others = cluster.others(leader);
    let leader_events = EventLog::default();
    let follower_events = EventLog::default();
    let mut stream = watch_all(cluster.client(leader), 1).await.unwrap();
    let moved = tokio::spawn({
        let (log, next) = (leader_events.clone(), cluster.client(others[1]).clone());
        async move {
            let ended = follow(&mut stream, &log).await;
            // At another member, from the revision after the last received one.
            let mut stream = watch_all(&next, log.next_revision().unwrap_or(1)).await.unwrap();
            (ended, follow(&mut stream, &log).await)
        }
    });
    let mut stream = watch_all(cluster.client(others[0]), 1).await.unwrap();
    let stayed = tokio::spawn({
        let log = follower_events.clone();
        async move { follow(&mut stream, &log).await }
    });

    let writers = FaultWriters::start(3, &cluster.clients());
    writers.wait_for_writes(100).await;
    cluster.kill(leader);
    writers.wait_for_writes(100).await;
    let written = writers.finish().await;
    let follower = cluster.client(others[0]);
    let revision = retry_until_ok("a revision", async || follower.revision().await).await;

    let all = EventLog::default();
    let mut stream = watch_all(cluster.client(others[0]), 1).await.unwrap();
    let history = tokio::spawn({
        let log = all.clone();
        async move { follow(&mut stream, &log).await }
    });
    for log in [&all, &leader_events, &follower_events] {
        let complete = async || (log.next_revision() > Some(revision)).then_some(());
        wait_for("a watcher has received all events", complete).await;
    }
    assert!(!stayed.is_finished(), "the watch at the follower ended");
    for task in [stayed.abort_handle(), moved.abort_handle(), history.abort_handle()] {
        task.abort();
    }
    let all = all.events();
    assert!(all.windows(2).all(|pair| pair[0].0 < pair[1].0), "events out of order or duplicated");
    // There are no other writes: each revision is one event.
    assert_eq!(all.first().map(|event| event.0), Some(2));
    assert_eq!(all.len() as i64, revision - 1);
    for (key, value) in &written {
        assert!(all.iter().any(|(_, k, v)| (k, v) == (key, value)), "no event for {key}");
    }
    assert_eq!(follower_events.events(), all);
    assert_eq!(leader_events.events(), all);
}

/// Received events: revision, key, value.
#[derive(Clone, Default)]
pub(crate) struct EventLog(Arc<Mutex<Vec<(i64, String, String)>>>);

impl EventLog {
    pub(crate) fn events(&self) -> Vec<(i64, String, String)> {
        self.0.lock().unwrap().clone()
    }

    /// The revision from which a watch resumes; None before the first event.
    pub(crate) fn next_revision(&self) -> Option<i64> {
        self.0.lock().unwrap().last().map(|event| event.0 + 1)
    }
}

async fn watch_all(
    client: &FaultClient,
    revision: i64,
) -> Result<Streaming<WatchResponse>, Status> {
    watch(client, (vec![0], vec![0]), revision).await
}

/// Watches the keys from the first one up to, but not including, the second one.
pub(crate) async fn watch(
    client: &FaultClient,
    (from, to): (Vec<u8>, Vec<u8>),
    revision: i64,
) -> Result<Streaming<WatchResponse>, Status> {
    let create = WatchCreateRequest {
        key: from.into(),
        range_end: to.into(),
        start_revision: revision,
        ..Default::default()
    };
    let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = tokio_stream::once(request).chain(tokio_stream::pending());
    let stream = WatchClient::new(client.channel.clone()).watch(requests).await?;
    Ok(stream.into_inner())
}

/// Records events until the stream ends. Returns the error, if any.
pub(crate) async fn follow(
    stream: &mut Streaming<WatchResponse>,
    log: &EventLog,
) -> Option<Status> {
    loop {
        match stream.message().await {
            Ok(Some(response)) => {
                assert!(!response.canceled, "{response:?}");
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let events = response.events.into_iter().filter_map(|event| event.kv);
                let events = events.map(|kv| (kv.mod_revision, text(&kv.key), text(&kv.value)));
                log.0.lock().unwrap().extend(events);
            }
            Ok(None) => return None,
            Err(status) => return Some(status),
        }
    }
}
