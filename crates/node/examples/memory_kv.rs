//! A replicated map in memory, in under a hundred lines: your own machine, three
//! members in one process, and a fourth that replaces one of them.

use std::collections::BTreeMap;
use std::error::Error;

use bytes::Bytes;
use quorate::{
    BadSnapshot, Index, Machine, MachineError, MemberId, MemberInfo, MemoryNetwork, MemoryStorage,
    Node, NodeConfig, SnapshotChunks,
};

/// Commands are `key=value`, queries are keys, a snapshot is one line for each key.
#[derive(Default)]
struct Map(BTreeMap<String, String>);

impl Machine for Map {
    fn apply(&mut self, _: Index, command: &Bytes) -> Result<Bytes, MachineError> {
        let text = String::from_utf8_lossy(command);
        let Some((key, value)) = text.split_once('=') else {
            return Ok("invalid command".into());
        };
        let before = self.0.insert(key.into(), value.into());
        Ok(before.unwrap_or_default().into())
    }

    fn query(&self, query: &Bytes) -> Result<Bytes, MachineError> {
        let key = String::from_utf8_lossy(query);
        Ok(self.0.get(key.as_ref()).cloned().unwrap_or_default().into())
    }

    fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
        let lines: Vec<Bytes> = self.0.iter().map(|(k, v)| format!("{k}={v}").into()).collect();
        Ok(Box::new(lines.into_iter().map(Ok)))
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        self.0.clear();
        for line in chunks {
            self.apply(0, &line).map_err(|_| BadSnapshot)?;
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let network = MemoryNetwork::new();
    let start =
        |config| Node::start(config, MemoryStorage::new(), Map::default(), network.transport());
    let first = [(1, ""), (2, ""), (3, "")]; // Members in memory need no address.
    let mut nodes = Vec::new();
    for id in 1..=3 {
        nodes.push(start(NodeConfig::first(42, id, first)).await?);
    }

    nodes[0].propose("colour=blue").await?;
    let reply = nodes[1].propose("colour=green").await?;
    println!("it was {:?} before entry {}", reply.bytes, reply.index);
    println!("member 3 reads {:?}", nodes[2].read("colour").await?);

    let added = nodes[0].add_learner(MemberId(4), MemberInfo::default()).await?;
    let fourth = start(NodeConfig::join(42, 4, added.index)).await?;
    let voters = [2, 3, 4].map(MemberId);
    for step in fourth.plan(voters, []).await?.steps {
        println!("planned: {}", step.step);
    }
    let ended = fourth.set_goal(voters, [], []).await?;
    println!("members {} since entry {}, and settled", fourth.membership().voters(), ended.at);
    nodes[0].stop().await;

    println!("member 4 reads {:?}", fourth.read("colour").await?);
    Ok(())
}
