use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quorate::*;
use quorate_core::{MemberId, MemberInfo};

#[derive(Clone, Default)]
struct Net(Arc<Mutex<BTreeMap<MemberKey, Inbox>>>);
struct Tr {
    net: Net,
    inbox: Mutex<Option<Inbox>>,
}
impl Transport for Tr {
    fn start(&self, inbox: Inbox) -> Result<(), TransportError> {
        *self.inbox.lock().unwrap() = Some(inbox);
        Ok(())
    }
    fn add_member(&self, key: MemberKey, _: u64) {
        let i = self.inbox.lock().unwrap().clone().unwrap();
        self.net.0.lock().unwrap().insert(key, i);
    }
    fn remove_member(&self, key: MemberKey) {
        self.net.0.lock().unwrap().remove(&key);
    }
    fn set_peers(&self, _: MemberKey, _: Vec<(MemberId, MemberInfo)>) {}
    fn send(&self, key: MemberKey, parcels: Vec<Parcel>) {
        for p in parcels {
            let to = MemberKey { member: p.to(), ..key };
            if let Some(i) = self.net.0.lock().unwrap().get(&to).cloned() {
                tokio::spawn(async move {
                    let _ = i.deliver(to, vec![p]).await;
                });
            }
        }
    }
    fn send_snapshot(&self, key: MemberKey, mut s: OutgoingSnapshot) {
        let to = MemberKey { member: s.envelope().to, ..key };
        if let Some(i) = self.net.0.lock().unwrap().get(&to).cloned() {
            tokio::spawn(async move {
                let mut l = i.begin_snapshot(to, s.envelope().clone()).await.unwrap();
                while let Some(c) = s.next_chunk().await.unwrap() {
                    l.append(c).await.unwrap();
                }
                l.finish().await.unwrap();
                s.arrived();
            });
        }
    }
    fn turn_away(&self, _: MemberKey, _: MemberId, _: Rejected) {}
    fn counts(&self) -> BTreeMap<&'static str, u64> {
        BTreeMap::new()
    }
    fn stop(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {})
    }
}

fn put(k: &str, v: &str) -> bytes::Bytes {
    KvCommand::Put { key: k.to_owned().into(), value: v.to_owned().into() }.encode()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn smoke() {
    let dir = tempfile::tempdir().unwrap();
    let net = Net::default();
    let mut nodes = Vec::new();
    let tr = || Tr { net: net.clone(), inbox: Mutex::default() };
    for id in 1..=3 {
        let mut c = NodeConfig::first(7, id, [(1, "a"), (2, "b"), (3, "c")])
            .with_tick(Duration::from_millis(10));
        c.options.snapshot_entries = 5_000;
        nodes.push(
            Node::start(
                c,
                DirectoryStorage::at(dir.path().join(id.to_string())).unwrap(),
                MemoryKv::default(),
                tr(),
            )
            .await
            .unwrap(),
        );
    }
    let began = Instant::now();
    println!("{:?}", nodes[0].propose(put("a", "1")).await);
    println!("{:?} {:?}", nodes[2].read("a").await, began.elapsed());
    for n in [1usize, 64, 256] {
        let began = Instant::now();
        let mut set = tokio::task::JoinSet::new();
        let per = 10_000 / n.max(10);
        for w in 0..n {
            let node = nodes.iter().find(|n| n.is_leader()).unwrap().clone();
            set.spawn(async move {
                for i in 0..per {
                    node.propose(put(&format!("k{w}"), &format!("{i}"))).await.unwrap();
                }
            });
        }
        while set.join_next().await.is_some() {}
        let ops = n * per;
        println!(
            "{n}: {ops} in {:?} = {:.0}/s",
            began.elapsed(),
            ops as f64 / began.elapsed().as_secs_f64()
        );
    }
    println!("{:?}", nodes[0].metrics());
    // add a fourth, replace 1.
    let added = nodes[1].add_learner(MemberId(4), at("d"), false).await.unwrap();
    println!("added {added}");
    let c = NodeConfig::join(7, 4, added.index).with_tick(Duration::from_millis(10));
    let four = Node::start(
        c,
        DirectoryStorage::at(dir.path().join("4")).unwrap(),
        MemoryKv::default(),
        tr(),
    )
    .await
    .unwrap();
    nodes[2].caught_up(MemberId(4)).await.unwrap();
    println!(
        "plan {:?}",
        nodes[2]
            .plan([2, 3, 4].map(MemberId), [])
            .await
            .unwrap()
            .steps
            .iter()
            .map(|s| s.step.to_string())
            .collect::<Vec<_>>()
    );
    let mut watch = nodes[2].watch_membership();
    println!("{:?}", nodes[2].set_goal([2, 3, 4].map(MemberId), [], []).await);
    println!("{:?}", four.read("k1").await);
    println!("{}", four.status().await.unwrap().raft);
    println!("snap {:?}", four.snapshot().await);
    for _ in 0..4 {
        println!("{:?}", watch.next().await);
    }
    println!("{:?}", nodes[0].status().await.unwrap().raft.to_string());
    for n in nodes {
        println!("{:?}", n.stop().await);
    }
}
