//! The machine of simulated members: the one that is tried, and a note of what ran.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate::storage::StoreIdentity;
use quorate::{ClusterVersion, Machine, MachineError, SnapshotChunks};
use quorate_core::{Index, Membership};

use super::etcd::SimStore;
use crate::checkers::Violation;

/// Runs commands on a machine and remembers which of them ran since it was last asked.
pub(crate) struct RecordingMachine {
    inner: Box<dyn Machine>,
    /// The same machine, where it is etcd's data model.
    store: Option<SimStore>,
    pub(crate) ran: Vec<RanCommand>,
    /// The cluster version.
    version: u32,
}

/// A command that was given to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RanCommand {
    pub(crate) index: Index,
    /// The number of the client's operation.
    pub(crate) operation: u64,
    /// The cluster version that it needs.
    pub(crate) needs: u32,
    /// The cluster did not have that version, so it had no effect.
    pub(crate) too_early: bool,
}

/// The reply to a command that came too early.
pub(crate) const TOO_EARLY: &[u8] = b"too early";

/// A command with the number of the client's operation in front.
pub(crate) fn numbered(operation: u64, command: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(8 + command.len());
    bytes.put_u64_le(operation);
    bytes.put_slice(command);
    bytes.freeze()
}

/// The same command, marked with the cluster version that it needs.
pub(crate) fn needing(version: u32, command: &Bytes) -> Bytes {
    let mut bytes = BytesMut::from(&command[..]);
    if let Some(highest) = bytes.get_mut(7) {
        *highest = version as u8;
    }
    bytes.freeze()
}

impl RecordingMachine {
    pub(crate) fn new(inner: Box<dyn Machine>) -> Self {
        Self { inner, store: None, ran: Vec::new(), version: ClusterVersion::FIRST }
    }

    pub(crate) fn with_store(store: SimStore) -> Self {
        Self { store: Some(store.clone()), ..Self::new(Box::new(store)) }
    }

    pub(crate) fn store(&self) -> Option<SimStore> {
        self.store.clone()
    }

    /// A machine that is made of a snapshot is the one that was captured.
    pub(crate) fn survives_capture(&self, mut fresh: Box<dyn Machine>) -> Result<(), Violation> {
        let failed = |error: MachineError| Violation::new("restore", error.to_string());
        let all = |chunks: SnapshotChunks| chunks.collect::<Result<Vec<Bytes>, _>>();
        let chunks = self.inner.snapshot().and_then(all).map_err(failed)?;
        let refused = fresh.install(&mut chunks.iter().cloned());
        if refused.is_err() {
            return Err(Violation::new("restore", "a machine refuses its own snapshot"));
        }
        if fresh.snapshot().and_then(all).map_err(failed)? == chunks {
            return Ok(());
        }
        Err(Violation::new("restore", "a machine made of a snapshot captures another one"))
    }
}

impl Machine for RecordingMachine {
    fn resume(&mut self, owner: &StoreIdentity) -> Result<Index, MachineError> {
        self.inner.resume(owner)
    }

    fn save(&mut self) -> Result<(), MachineError> {
        self.inner.save()
    }

    fn apply(&mut self, index: Index, command: &Bytes) -> Result<Bytes, MachineError> {
        let mut command = command.clone();
        if let Ok(head) = command.try_get_u64_le() {
            let (operation, needs) = (head & !(0xff << 56), (head >> 56) as u32);
            let too_early = needs > self.version;
            self.ran.push(RanCommand { index, operation, needs: needs.max(1), too_early });
            if too_early {
                return Ok(Bytes::from_static(TOO_EARLY));
            }
        }
        self.inner.apply(index, &command)
    }

    fn query(&self, query: &Bytes) -> Result<Bytes, MachineError> {
        self.inner.query(query)
    }

    fn on_membership(&mut self, index: Index, membership: &Membership) {
        self.inner.on_membership(index, membership);
    }

    fn on_cluster_version(&mut self, _index: Index, version: u32) {
        self.version = version;
        // The machine itself has one version.
    }

    fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
        self.inner.snapshot()
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        self.inner.install(chunks)
    }
}
