//! Changes that are requested while the cluster is starting.

use std::sync::Arc;
use std::time::Duration;

use quorate::membership::Operation;
use quorate::{
    Change, KvCommand, MemberId, MemberInfo, MemoryKv, MemoryNetwork, MemoryStorage, Node,
    NodeConfig, NodeError, RequestError, RequestRefused,
};
use tokio::task::JoinSet;

async fn start(network: &MemoryNetwork, config: NodeConfig) -> Result<Node, NodeError> {
    Node::start(config, MemoryStorage::new(), MemoryKv::default(), network.transport()).await
}

/// A new leader logs a change with the disks it has seen; that is no reason to refuse the
/// caller's change.
#[tokio::test]
async fn a_change_may_be_the_first_request() -> Result<(), Box<dyn std::error::Error>> {
    let network = MemoryNetwork::new();
    let node = start(&network, NodeConfig::first(7, 1, [(1, "one")])).await?;
    node.add_learner(MemberId(2), MemberInfo::address("two")).await?;
    assert!(node.membership().is_learner(MemberId(2)));
    Ok(())
}

/// A joining member without messages yet knows no members, not even itself.
#[tokio::test]
async fn a_joining_member_may_wait_until_it_has_caught_up() -> Result<(), Box<dyn std::error::Error>>
{
    let network = MemoryNetwork::new();
    let first = start(&network, NodeConfig::first(7, 1, [(1, "one")])).await?;
    let added = first.add_learner(MemberId(2), MemberInfo::address("two")).await?;
    let second = start(&network, NodeConfig::join(7, 2, added.index)).await?;
    second.wait_caught_up(MemberId(2)).await?;
    assert!(second.membership().is_learner(MemberId(2)));

    let stranger = second.wait_caught_up(MemberId(3)).await;
    assert_eq!(stranger, Err(RequestError::Refused(RequestRefused::NotMember)));
    Ok(())
}

/// Commands wait on the leader until its next batch. A change that the same follower forwards after them
/// must not pass them: the leader takes a request that comes after much newer ones for a repeated one,
/// and its caller would wait until it is sent again.
#[tokio::test]
async fn a_forwarded_change_does_not_pass_the_commands_before_it()
-> Result<(), Box<dyn std::error::Error>> {
    let network = MemoryNetwork::new();
    let mut nodes = Vec::new();
    for id in 1..=3 {
        let config = NodeConfig::first(7, id, (1..=3).map(|id| (id, "")));
        nodes.push(Arc::new(start(&network, config).await?));
    }
    let (leader, follower) = loop {
        let leader = nodes.iter().find(|node| node.is_leader());
        let follower = nodes.iter().find(|node| node.leader().is_some() && !node.is_leader());
        if let (Some(leader), Some(follower)) = (leader, follower) {
            break (leader, follower);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    for round in 0..5 {
        let mut requests = JoinSet::new();
        for number in 0..300 {
            let node = Arc::clone(follower);
            let value = format!("{round}.{number}").into();
            let command = KvCommand::Put { key: "key".into(), value };
            requests.spawn(async move { node.propose(command.encode()).await.map(drop) });
        }
        let node = Arc::clone(follower);
        requests.spawn(async move {
            let info = MemberInfo::address(format!("address {round}"));
            let update = Change::new([Operation::Update(node.id())]).with_info(node.id(), info);
            node.begin_change(update).await.map(drop)
        });
        while let Some(ended) = requests.join_next().await {
            ended??;
        }
    }
    let dropped = leader.metrics().dropped;
    assert_eq!(dropped.get("repeated"), None, "{dropped:?}");
    Ok(())
}
