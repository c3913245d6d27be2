//! Watches: several on one stream, history, filters, progress, cancellation, compaction.

use etcd_client::{
    Client, DeleteOptions, EventType, WatchFilterType, WatchOptions, WatchResponse, WatchStream,
};

use crate::with_cluster;

#[test]
fn several_watches_share_one_stream() {
    with_cluster("watches", |mut client, endpoints| async move {
        // Reads from another member than it writes to.
        let mut writer = Client::connect(&endpoints[..1], None).await.unwrap();
        let mut reader = Client::connect(&endpoints[1..2], None).await.unwrap();
        client.put("a", "0", None).await.unwrap();

        let past = WatchOptions::new().with_start_revision(2).with_prev_key();
        let mut watch = reader.watch("a", Some(past)).await.unwrap();
        assert!(next(&mut watch).await.created());
        assert_eq!(events(&next(&mut watch).await), ["put a 0 -"]);
        let deletes = WatchOptions::new()
            .with_prefix()
            .with_watch_id(9)
            .with_prev_key()
            .with_filters([WatchFilterType::NoPut]);
        watch.watch("a", Some(deletes)).await.unwrap();
        let created = next(&mut watch).await;
        assert_eq!((created.watch_id(), created.created()), (9, true));

        writer.put("a", "1", None).await.unwrap();
        let response = next(&mut watch).await;
        assert_eq!((response.watch_id(), events(&response)), (0, vec!["put a 1 0".to_owned()]));
        writer.put("ab", "1", None).await.unwrap();
        writer.delete("a", Some(DeleteOptions::new().with_prefix())).await.unwrap();
        let mut responses = [next(&mut watch).await, next(&mut watch).await];
        responses.sort_by_key(WatchResponse::watch_id);
        assert_eq!(events(&responses[0]), ["delete a  1"]);
        assert_eq!(events(&responses[1]), ["delete a  1", "delete ab  1"]);

        progress_and_cancel(&mut watch, &mut writer).await;
        refusals(&mut watch, &mut writer).await;
    });
}

async fn progress_and_cancel(watch: &mut WatchStream, writer: &mut Client) {
    let revision = writer.put("elsewhere", "1", None).await.unwrap().header().unwrap().revision();
    loop {
        watch.request_progress().await.unwrap();
        let response = next(watch).await;
        assert!(response.events().is_empty());
        // This member may receive the last put a little later.
        if response.header().unwrap().revision() >= revision {
            break;
        }
    }
    watch.cancel(9).await.unwrap();
    let cancelled = next(watch).await;
    assert_eq!((cancelled.watch_id(), cancelled.canceled()), (9, true));
    writer.put("a", "2", None).await.unwrap();
    writer.delete("a", None).await.unwrap();
    assert_eq!(events(&next(watch).await), ["put a 2 -"]);
    assert_eq!(events(&next(watch).await), ["delete a  2"]);
}

async fn refusals(watch: &mut WatchStream, writer: &mut Client) {
    watch.watch("x", Some(WatchOptions::new().with_watch_id(5))).await.unwrap();
    assert!(next(watch).await.created());
    watch.watch("y", Some(WatchOptions::new().with_watch_id(5))).await.unwrap();
    let refused = next(watch).await;
    assert!(refused.created() && refused.canceled());
    assert_eq!(refused.cancel_reason(), "mvcc: duplicate watch ID provided on the WatchStream");
    watch.watch("y", Some(WatchOptions::new().with_range("x"))).await.unwrap();
    let refused = next(watch).await;
    assert!(refused.created() && refused.canceled());

    let revision = writer.put("x", "1", None).await.unwrap().header().unwrap().revision();
    assert_eq!(events(&next(watch).await), ["put x 1 -"]);
    writer.compact(revision, None).await.unwrap();
    loop {
        let old = WatchOptions::new().with_start_revision(2).with_watch_id(6);
        watch.watch("zzz", Some(old)).await.unwrap();
        assert!(next(watch).await.created());
        // This member may compact a little later; until then the watch is valid.
        watch.request_progress().await.unwrap();
        let response = next(watch).await;
        if response.canceled() {
            assert_eq!((response.watch_id(), response.compact_revision()), (6, revision));
            break;
        }
        watch.cancel(6).await.unwrap();
        assert!(next(watch).await.canceled());
    }
}

async fn next(watch: &mut WatchStream) -> WatchResponse {
    watch.message().await.unwrap().unwrap()
}

fn events(response: &WatchResponse) -> Vec<String> {
    let one = |event: &etcd_client::Event| {
        let kind = if event.event_type() == EventType::Put { "put" } else { "delete" };
        let kv = event.kv().unwrap();
        let previous = event.prev_kv().map_or("-", |kv| kv.value_str().unwrap());
        format!("{kind} {} {} {previous}", kv.key_str().unwrap(), kv.value_str().unwrap())
    };
    response.events().iter().map(one).collect()
}
