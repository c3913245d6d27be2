//! What applications ask each other, beside the log.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use bytes::Bytes;
use quorate::{Failed, MemoryKv, MemoryNetwork, MemoryStorage, Node, NodeConfig, Refused};

const MEMBERS: u64 = 3;

async fn start() -> Vec<Node> {
    let network = MemoryNetwork::new();
    let mut nodes = Vec::new();
    for id in 1..=MEMBERS {
        let first = (1..=MEMBERS).map(|id| (id, ""));
        let config = NodeConfig::first(7, id, first).with_tick(Duration::from_millis(20));
        let machine = MemoryKv::default();
        let storage = MemoryStorage::new();
        nodes.push(Node::start(config, storage, machine, network.transport()).await.unwrap());
    }
    nodes
}

/// Everybody knows who leads.
async fn leader(nodes: &[Node]) -> &Node {
    for node in nodes {
        let mut leader = node.watch_leader();
        let known = leader.wait_for(Option::is_some);
        tokio::time::timeout(Duration::from_secs(60), known).await.unwrap().unwrap();
    }
    nodes.iter().find(|node| node.is_leader()).unwrap()
}

async fn until_answered(node: &Node, question: &str) -> Bytes {
    let asked = async {
        loop {
            match node.ask_leader(question.to_owned()).await {
                Ok(answer) => return answer,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asked).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_answers_whoever_asks() {
    let nodes = start().await;
    for node in &nodes {
        let mut inquiries = node.inquiries().unwrap();
        assert!(node.inquiries().is_none(), "taken once");
        let id = node.id();
        tokio::spawn(async move {
            while let Some(inquiry) = inquiries.recv().await {
                let question = String::from_utf8_lossy(inquiry.question()).into_owned();
                let from = inquiry.from();
                inquiry.answer(format!("{question} of {from} heard by {id}"));
            }
        });
    }
    leader(&nodes).await;
    for node in &nodes {
        let answer = until_answered(node, "a question").await;
        let by_leader = nodes.iter().any(|leader| {
            answer == format!("a question of {} heard by {}", node.id(), leader.id())
        });
        assert!(by_leader, "{answer:?}");
    }
    for node in &nodes {
        node.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gets_no_answer_is_told_so() {
    let nodes = start().await;
    let leader = leader(&nodes).await;
    let large = leader.ask_leader(vec![0; 65 << 10]).await;
    assert!(matches!(large, Err(Failed::Refused(Refused::TooManyRequests { .. }))), "{large:?}");
    // Nobody takes them: whether asked here or elsewhere, the wait ends.
    for node in &nodes {
        let asked = tokio::time::timeout(Duration::from_secs(60), node.ask_leader("anyone?"));
        assert!(matches!(asked.await.unwrap(), Err(Failed::Refused(_))));
    }
    // An application that drops what it is asked refuses.
    drop(leader.inquiries().unwrap());
    let dropped = leader.ask_leader("anyone?").await;
    assert_eq!(dropped, Err(Failed::Refused(Refused::NoLeader)));
    for node in &nodes {
        node.end().await;
    }
}
