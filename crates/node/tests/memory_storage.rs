//! What is special about the storage in memory: clones, crashes, and members that restart.
//! `storage_suite` shows that it follows all rules of a storage.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use quorate::storage::Storage;
use quorate::transport::{
    Inbox, MemberKey, OutgoingSnapshot, PeerMessage, RejectReason, Transport, TransportError,
};
use quorate::{KvCommand, MemoryKv, MemoryStorage, Node, NodeConfig};
use quorate_core::membership::MemberInfo;
use quorate_core::{Boot, Entry, EntryId, MemberId, Save, SaveId, SnapshotMeta};
use quorate_storage::StoreIdentity;

#[tokio::test]
async fn a_member_that_is_started_again_finds_its_data() {
    let place = MemoryStorage::new();
    let put = |key: &str, value: &str| {
        let (key, value) = (Bytes::copy_from_slice(key.as_bytes()), value.to_owned().into());
        KvCommand::Put { key, value }.encode()
    };
    let node = start(&place).await;
    node.propose(put("a", "1")).await.unwrap();
    node.snapshot().await.unwrap();
    node.propose(put("b", "2")).await.unwrap();
    let [a, b] = [node.read("a").await.unwrap(), node.read("b").await.unwrap()];
    node.stop().await;
    for crashes in [false, true] {
        let node = start(&place).await;
        assert_eq!(
            [node.read("a").await.unwrap(), node.read("b").await.unwrap()],
            [a.clone(), b.clone()]
        );
        if crashes {
            // Everything that was acknowledged is synced.
            node.propose(put("c", "3")).await.unwrap();
            place.crash();
        }
        node.stop_now().await;
    }
    let node = start(&place).await;
    assert_ne!(node.read("c").await.unwrap(), node.read("nothing").await.unwrap());
    node.stop().await;
}

async fn start(place: &MemoryStorage) -> Node {
    let config = NodeConfig::first(7, 1, [(1, "here")]).with_tick(Duration::from_millis(10));
    Node::start(config, place.clone(), MemoryKv::default(), Alone).await.unwrap()
}

/// A transport for a cluster of one member, which has no peers.
struct Alone;

impl Transport for Alone {
    fn start(&self, _: Inbox) -> Result<(), TransportError> {
        Ok(())
    }

    fn add_member(&self, _: MemberKey, _: u64) {}

    fn remove_member(&self, _: MemberKey) {}

    fn set_peers(&self, _: MemberKey, _: Vec<(MemberId, MemberInfo)>) {}

    fn send(&self, _: MemberKey, _: Vec<PeerMessage>) {}

    fn send_snapshot(&self, _: MemberKey, _: OutgoingSnapshot) {}

    fn reject(&self, _: MemberKey, _: MemberId, _: RejectReason) {}

    fn counts(&self) -> BTreeMap<&'static str, u64> {
        BTreeMap::new()
    }

    fn stop(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {})
    }
}

#[test]
fn one_handle_at_a_time_is_open() {
    let place = MemoryStorage::new();
    let (mut one, mut other) = (place.clone(), place.clone());
    one.open(MARK, &Boot::empty()).unwrap();
    assert_eq!(
        other.open(MARK, &Boot::empty()).unwrap_err().to_string(),
        "the storage is already open"
    );
    drop(one);
    assert_eq!(other.open(MARK, &Boot::empty()).unwrap().boots, 2);
}

#[test]
fn a_handle_from_before_a_crash_fails() {
    let place = MemoryStorage::new();
    let mut old = place.clone();
    old.open(MARK, &Boot::empty()).unwrap();
    let sink = old.begin_snapshot(SnapshotMeta::default()).unwrap();
    place.crash();
    let mut new = place.clone();
    new.open(MARK, &Boot::empty()).unwrap();
    let crashed = "the storage has crashed since it was opened";
    assert_eq!(old.sync().unwrap_err().to_string(), crashed);
    assert_eq!(sink.finish().unwrap_err().to_string(), crashed);
    // Dropping the old handle does not close the new one.
    drop(old);
    assert!(place.clone().open(MARK, &Boot::empty()).is_err());
    new.close().unwrap();
}

#[test]
fn what_does_not_continue_the_log_is_refused() {
    let mut storage = MemoryStorage::new();
    storage.open(MARK, &Boot::empty()).unwrap();
    let save = |id: EntryId| Save {
        id: SaveId(1),
        hard_state: None,
        entries: vec![Entry::command(id.term, id.index, "x")].into(),
        install: None,
        must_sync: true,
        then_send: Vec::new(),
    };
    storage.write(&save(EntryId::new(2, 1))).unwrap();
    for id in [EntryId::new(2, 3), EntryId::new(1, 2), EntryId::new(2, 0)] {
        let why = storage.write(&save(id)).unwrap_err().to_string();
        assert_eq!(why, "entries do not continue the log, which ends at 2.1", "{id}");
    }
    assert_eq!(
        storage.trim(1).unwrap_err().to_string(),
        "no snapshot covers the entries; the newest is at 0"
    );
}

const MARK: StoreIdentity =
    StoreIdentity { cluster: 1, member: MemberId(1), incarnation: 5, joined_at: 0 };
