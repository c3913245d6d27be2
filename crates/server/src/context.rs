//! What every service holds: the member, its data, and who it is.

use bytes::Bytes;
use quorate::Node;
use quorate_kv::{Command, MemoryTable, Reply, SharedKv};
use quorate_proto::etcdserverpb::ResponseHeader;
use tonic::Status;

use crate::errors::{failed, refused};

/// The data of this member, shared with the node that runs commands on it.
pub(crate) type Store = SharedKv<MemoryTable>;

/// What every service holds. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) node: Node,
    pub(crate) store: Store,
    pub(crate) cluster_id: u64,
}

impl Context {
    /// The header of a reply that shows this revision.
    pub(crate) fn header(&self, revision: i64) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.node.id().0,
            revision,
            raft_term: self.node.term(),
        }
    }

    /// Runs a command on every member, once, and decodes what the data model said.
    pub(crate) async fn run(&self, command: &Command) -> Result<Reply, Status> {
        let reply = self.node.propose(command.encode()).await.map_err(|why| failed(&why))?;
        let reply = Reply::decode(&reply.bytes);
        let reply = reply.ok_or_else(|| Status::internal("etcdserver: reply not understood"))?;
        if let Err(why) = &reply.result {
            return Err(refused(why));
        }
        Ok(reply)
    }

    /// After this the store shows everything that was done before it was called.
    pub(crate) async fn catch_up(&self) -> Result<(), Status> {
        let confirmed = self.node.read(Bytes::new()).await;
        confirmed.map(|_| ()).map_err(|why| failed(&why))
    }
}
