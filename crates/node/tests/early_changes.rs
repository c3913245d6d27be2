//! Changes that are asked for while the cluster is still finding itself.

use quorate::{
    MemberId, MemberInfo, MemoryKv, MemoryNetwork, MemoryStorage, Node, NodeConfig, NodeError,
    RequestError, RequestRefused,
};

async fn start(network: &MemoryNetwork, config: NodeConfig) -> Result<Node, NodeError> {
    Node::start(config, MemoryStorage::new(), MemoryKv::default(), network.transport()).await
}

/// The leader names the disks that it has seen as soon as it leads: a change of its own,
/// which is no reason to refuse ours.
#[tokio::test]
async fn a_change_may_be_the_first_thing_that_is_asked() -> Result<(), Box<dyn std::error::Error>> {
    let network = MemoryNetwork::new();
    let node = start(&network, NodeConfig::first(7, 1, [(1, "one")])).await?;
    node.add_learner(MemberId(2), MemberInfo::address("two")).await?;
    assert!(node.membership().is_learner(MemberId(2)));
    Ok(())
}

/// A joiner that has heard nothing knows no members, not even itself.
#[tokio::test]
async fn a_joiner_may_wait_for_itself() -> Result<(), Box<dyn std::error::Error>> {
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
