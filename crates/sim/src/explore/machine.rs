//! The machine of simulated members: the small map, and a note of what ran.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate::{BadSnapshot, Chunks, KvCommand, Machine, MemoryKv};
use quorate_core::Index;

/// Runs commands on a map and remembers which of them ran since it was last asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct NotingKv {
    pub(crate) kv: MemoryKv,
    /// The index, and the number of the client's operation.
    pub(crate) ran: Vec<(Index, u64)>,
}

/// A command with the number of the client's operation in front.
pub(crate) fn numbered(operation: u64, command: &KvCommand) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u64_le(operation);
    bytes.put_slice(&command.encode());
    bytes.freeze()
}

impl Machine for NotingKv {
    fn apply(&mut self, index: Index, command: &Bytes) -> Bytes {
        let mut command = command.clone();
        if let Ok(operation) = command.try_get_u64_le() {
            self.ran.push((index, operation));
        }
        self.kv.apply(index, &command)
    }

    fn query(&self, question: &Bytes) -> Bytes {
        self.kv.query(question)
    }

    fn snapshot(&self) -> Chunks {
        self.kv.snapshot()
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), BadSnapshot> {
        self.kv.install(chunks)
    }
}
