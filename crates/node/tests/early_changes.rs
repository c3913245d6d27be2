//! Changes that are requested while the cluster is starting.

use quorate::{
    MemberId, MemberInfo, MemoryKv, MemoryNetwork, MemoryStorage, Node, NodeConfig, NodeError,
    RequestError, RequestRefused,
};

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
