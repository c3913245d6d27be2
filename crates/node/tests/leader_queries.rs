//! What only the leader may do: reply to queries of applications beside the log, and log
//! commands of its term.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

use std::time::Duration;

use bytes::Bytes;
use quorate::{
    KvCommand, MemoryKv, MemoryNetwork, MemoryStorage, Node, NodeConfig, Refusal, RequestError,
    RequestRefused,
};

const MEMBERS: u64 = 3;

async fn start() -> Vec<Node> {
    let network = MemoryNetwork::new();
    let mut nodes = Vec::new();
    for id in 1..=MEMBERS {
        let first = (1..=MEMBERS).map(|id| (id, ""));
        let config = NodeConfig::first(7, id, first).with_tick(Duration::from_millis(50));
        let machine = MemoryKv::default();
        let storage = MemoryStorage::new();
        nodes.push(Node::start(config, storage, machine, network.transport()).await.unwrap());
    }
    nodes
}

/// The leader, once all members know of one.
async fn leader(nodes: &[Node]) -> &Node {
    let found = async {
        loop {
            if nodes.iter().all(|node| node.leader().is_some())
                && let Some(leader) = nodes.iter().find(|node| node.is_leader())
            {
                return leader;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), found).await.unwrap()
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
async fn the_leader_replies_to_queries_of_all_members() {
    let nodes = start().await;
    for node in &nodes {
        let mut queries = node.leader_queries().unwrap();
        assert!(node.leader_queries().is_none(), "taken once");
        let id = node.id();
        tokio::spawn(async move {
            while let Some(query) = queries.recv().await {
                let question = String::from_utf8_lossy(query.payload()).into_owned();
                let from = query.from();
                query.reply(format!("{question} of {from} heard by {id}"));
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
        node.stop_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_without_a_reply_fails() {
    let nodes = start().await;
    let leader = leader(&nodes).await;
    let large = leader.ask_leader(vec![0; 65 << 10]).await;
    assert!(
        matches!(large, Err(RequestError::Refused(RequestRefused::TooLarge { .. }))),
        "{large:?}"
    );
    // No application takes the queries: local and remote callers get an error.
    for node in &nodes {
        let asked = tokio::time::timeout(Duration::from_secs(60), node.ask_leader("anyone?"));
        assert!(matches!(asked.await.unwrap(), Err(RequestError::Refused(_))));
    }
    // An application that drops a query refuses it.
    drop(leader.leader_queries().unwrap());
    let dropped = leader.ask_leader("anyone?").await;
    assert_eq!(dropped, Err(RequestError::Refused(RequestRefused::NoLeader)));
    for node in &nodes {
        node.stop_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_for_one_term_is_run_by_its_leader_or_never() {
    let nodes = start().await;
    let command = KvCommand::Put { key: "a".into(), value: "1".into() }.encode();
    let (leader, term) = loop {
        let leader = leader(&nodes).await;
        let term = leader.term();
        if leader.propose_in(term, command.clone()).await.is_ok() {
            break (leader, term);
        }
    };
    let follower = nodes.iter().find(|node| node.id() != leader.id()).unwrap();
    for (node, term) in [(follower, term), (leader, term - 1), (leader, term + 99)] {
        let refused = node.propose_in(term, command.clone()).await;
        let Err(RequestError::Refused(RequestRefused::ByLeader(why))) = refused else {
            panic!("{refused:?}")
        };
        assert!(matches!(why, Refusal::NotLeader { .. }), "{why:?}");
    }
    // A member that transferred its leadership logs nothing more in its term.
    let handed = tokio::time::timeout(Duration::from_secs(60), async {
        while leader.transfer(follower.id()).await.is_err() {}
    });
    handed.await.unwrap();
    let late = leader.propose_in(term, command).await;
    assert!(matches!(late, Err(RequestError::Refused(RequestRefused::ByLeader(_)))), "{late:?}");
    for node in &nodes {
        node.stop_now().await;
    }
}
