//! Watchers when the leader dies: those of others notice nothing, its own go on elsewhere.

use std::sync::Arc;
use std::sync::Mutex;

use quorate_proto::etcdserverpb::watch_client::WatchClient;
use quorate_proto::etcdserverpb::watch_request::RequestUnion;
use quorate_proto::etcdserverpb::{WatchCreateRequest, WatchRequest, WatchResponse};
use tokio_stream::StreamExt;
use tonic::{Status, Streaming};

use crate::client::{Client, surely, wait_for};
use crate::members::{Members, place};
use crate::writers::Writers;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_see_every_event_once_and_in_order_though_the_leader_dies() {
    let place = place("watches");
    let mut members = Members::three(&place).await;
    let leader = members.leader().await;
    let others = members.others(leader);
    let seen_at_leader = Seen::default();
    let seen_at_follower = Seen::default();
    let mut stream = watch(members.client(leader), 1).await.unwrap();
    let moved = tokio::spawn({
        let (seen, next) = (seen_at_leader.clone(), members.client(others[1]).clone());
        async move {
            let ended = follow(&mut stream, &seen).await;
            // Somewhere else, and from the revision behind the last that was seen.
            let mut stream = watch(&next, seen.next_revision()).await.unwrap();
            (ended, follow(&mut stream, &seen).await)
        }
    });
    let mut stream = watch(members.client(others[0]), 1).await.unwrap();
    let stayed = tokio::spawn({
        let seen = seen_at_follower.clone();
        async move { follow(&mut stream, &seen).await }
    });

    let writers = Writers::start(3, &members.clients());
    writers.go_on(100).await;
    members.kill(leader);
    writers.go_on(100).await;
    let written = writers.finish().await;
    let follower = members.client(others[0]);
    let revision = surely("a revision", async || follower.revision().await).await;

    let all = Seen::default();
    let mut stream = watch(members.client(others[0]), 1).await.unwrap();
    let history = tokio::spawn({
        let seen = all.clone();
        async move { follow(&mut stream, &seen).await }
    });
    for seen in [&all, &seen_at_leader, &seen_at_follower] {
        let complete = async || (seen.next_revision() > revision).then_some(());
        wait_for("a watcher has seen everything", complete).await;
    }
    assert!(!stayed.is_finished(), "the follower's watcher was disturbed");
    for task in [stayed.abort_handle(), moved.abort_handle(), history.abort_handle()] {
        task.abort();
    }
    let all = all.events();
    assert!(all.windows(2).all(|pair| pair[0].0 < pair[1].0), "out of order, or twice");
    // Nothing else happens here: each revision is one event.
    assert_eq!(all.first().map(|event| event.0), Some(2));
    assert_eq!(all.len() as i64, revision - 1);
    for (key, value) in &written {
        assert!(all.iter().any(|(_, k, v)| (k, v) == (key, value)), "no event for {key}");
    }
    assert_eq!(seen_at_follower.events(), all);
    assert_eq!(seen_at_leader.events(), all);
}

/// Events as they came: revision, key, value.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<(i64, String, String)>>>);

impl Seen {
    fn events(&self) -> Vec<(i64, String, String)> {
        self.0.lock().unwrap().clone()
    }

    fn next_revision(&self) -> i64 {
        self.0.lock().unwrap().last().map_or(1, |event| event.0 + 1)
    }
}

async fn watch(client: &Client, revision: i64) -> Result<Streaming<WatchResponse>, Status> {
    let create = WatchCreateRequest {
        key: vec![0].into(),
        range_end: vec![0].into(),
        start_revision: revision,
        ..Default::default()
    };
    let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = tokio_stream::once(request).chain(tokio_stream::pending());
    let stream = WatchClient::new(client.channel.clone()).watch(requests).await?;
    Ok(stream.into_inner())
}

/// Until the stream ends, and why.
async fn follow(stream: &mut Streaming<WatchResponse>, seen: &Seen) -> Option<Status> {
    loop {
        match stream.message().await {
            Ok(Some(response)) => {
                assert!(!response.canceled, "{response:?}");
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let events = response.events.into_iter().filter_map(|event| event.kv);
                let events = events.map(|kv| (kv.mod_revision, text(&kv.key), text(&kv.value)));
                seen.0.lock().unwrap().extend(events);
            }
            Ok(None) => return None,
            Err(why) => return Some(why),
        }
    }
}
