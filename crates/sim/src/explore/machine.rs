//! The machine of simulated members: the one that is tried, and a note of what ran.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate::storage::StoreIdentity;
use quorate::{Machine, MachineError, SnapshotChunks};
use quorate_core::{Index, Membership};

use crate::checkers::Violation;

/// Runs commands on a machine and remembers which of them ran since it was last asked.
pub(crate) struct RecordingMachine {
    inner: Box<dyn Machine>,
    /// The index, and the number of the client's operation.
    pub(crate) ran: Vec<(Index, u64)>,
}

/// A command with the number of the client's operation in front.
pub(crate) fn numbered(operation: u64, command: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(8 + command.len());
    bytes.put_u64_le(operation);
    bytes.put_slice(command);
    bytes.freeze()
}

impl RecordingMachine {
    pub(crate) fn new(inner: Box<dyn Machine>) -> Self {
        Self { inner, ran: Vec::new() }
    }

    /// A machine that is made of a snapshot is the one that was captured.
    pub(crate) fn survives_capture(&self, mut fresh: Box<dyn Machine>) -> Result<(), Violation> {
        let failed = |error: MachineError| Violation::new("restore", error.to_string());
        let chunks: Vec<Bytes> = self.inner.snapshot().map_err(failed)?.collect();
        let refused = fresh.install(&mut chunks.iter().cloned());
        if refused.is_err() {
            return Err(Violation::new("restore", "a machine refuses its own snapshot"));
        }
        if fresh.snapshot().map_err(failed)?.eq(chunks) {
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
        if let Ok(operation) = command.try_get_u64_le() {
            self.ran.push((index, operation));
        }
        self.inner.apply(index, &command)
    }

    fn query(&self, query: &Bytes) -> Result<Bytes, MachineError> {
        self.inner.query(query)
    }

    fn on_membership(&mut self, index: Index, membership: &Membership) {
        self.inner.on_membership(index, membership);
    }

    fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
        self.inner.snapshot()
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        self.inner.install(chunks)
    }
}
