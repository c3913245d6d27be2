//! A small key-value map in memory, as an example of a [`Machine`] and for tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate_core::Index;

use crate::machine::{
    BadSnapshot, LoadedState, Machine, MachineError, SnapshotChunks, SnapshotLoader,
};

/// Keys and values, each with the index of the command that wrote it last.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MemoryKv {
    // Shared with snapshots that are being written; copied on the next write.
    map: Arc<BTreeMap<Bytes, (Bytes, Index)>>,
}

/// A command for the map.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KvCommand {
    /// Writes a value.
    Put {
        /// The key.
        key: Bytes,
        /// The new value.
        value: Bytes,
    },
    /// Deletes a key, if it exists.
    Delete {
        /// The key.
        key: Bytes,
    },
    /// Puts `value` if the key's value is `expected`.
    CompareAndSet {
        /// The key.
        key: Bytes,
        /// The expected value; `None` if the key must not exist.
        expected: Option<Bytes>,
        /// The new value.
        value: Bytes,
    },
}

/// A query to the map.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KvQuery {
    /// The key whose value is returned.
    pub key: Bytes,
}

/// The reply to a command or a query.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KvReply {
    /// Whether a compare-and-set took effect. Other commands always do.
    pub done: bool,
    /// The value before the command, or the queried value.
    pub value: Option<Bytes>,
}

impl MemoryKv {
    /// The value of a key on this member, which may be stale.
    pub fn get(&self, key: &[u8]) -> Option<&Bytes> {
        self.map.get(key).map(|(value, _)| value)
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    fn run(&mut self, index: Index, command: KvCommand) -> KvReply {
        let map = Arc::make_mut(&mut self.map);
        let value = |old: Option<(Bytes, Index)>| old.map(|(value, _)| value);
        match command {
            KvCommand::Put { key, value: new } => {
                KvReply { done: true, value: value(map.insert(key, (new, index))) }
            }
            KvCommand::Delete { key } => KvReply { done: true, value: value(map.remove(&key)) },
            KvCommand::CompareAndSet { key, expected, value: new } => {
                let old = map.get(&key).map(|(value, _)| value.clone());
                let done = old == expected;
                if done {
                    map.insert(key, (new, index));
                }
                KvReply { done, value: old }
            }
        }
    }
}

impl Machine for MemoryKv {
    fn apply(&mut self, index: Index, command: &Bytes) -> Result<Bytes, MachineError> {
        // Invalid commands do nothing, on every member alike.
        let reply = KvCommand::decode(command).map(|command| self.run(index, command));
        Ok(reply.unwrap_or(KvReply { done: false, value: None }).encode())
    }

    fn query(&self, query: &Bytes) -> Result<Bytes, MachineError> {
        let value = self.map.get(query).map(|(value, _)| value.clone());
        Ok(KvReply { done: true, value }.encode())
    }

    fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
        let map = Arc::clone(&self.map);
        let mut from = Some(Bytes::new());
        Ok(Box::new(std::iter::from_fn(move || {
            let mut chunk = BytesMut::new();
            let start = from.take()?;
            for (key, (value, index)) in map.range(start..) {
                if chunk.len() >= CHUNK_BYTES {
                    from = Some(key.clone());
                    break;
                }
                put(&mut chunk, key);
                put(&mut chunk, value);
                chunk.put_u64_le(*index);
            }
            (!chunk.is_empty()).then(|| Ok(chunk.freeze()))
        })))
    }

    fn snapshot_loader(&self) -> SnapshotLoader {
        Box::new(|chunks| {
            let mut loaded = Self::default();
            loaded.install(chunks)?;
            Ok(Some(LoadedState::new(loaded)))
        })
    }

    fn install_loaded(&mut self, state: LoadedState) -> Result<(), MachineError> {
        let loaded: Self = state.downcast().ok_or(BadSnapshot)?;
        self.map = loaded.map;
        Ok(())
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        let mut map = BTreeMap::new();
        for mut chunk in chunks {
            while !chunk.is_empty() {
                let key = take(&mut chunk).ok_or(BadSnapshot)?;
                let value = take(&mut chunk).ok_or(BadSnapshot)?;
                let index = chunk.try_get_u64_le().map_err(|_| BadSnapshot)?;
                map.insert(key, (value, index));
            }
        }
        self.map = Arc::new(map);
        Ok(())
    }
}

const CHUNK_BYTES: usize = 64 << 10;

const PUT: u8 = 1;
const DELETE: u8 = 2;
const COMPARE_AND_SET: u8 = 3;

impl KvCommand {
    /// The bytes to propose.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Self::Put { key, value } => {
                out.put_u8(PUT);
                put(&mut out, key);
                put(&mut out, value);
            }
            Self::Delete { key } => {
                out.put_u8(DELETE);
                put(&mut out, key);
            }
            Self::CompareAndSet { key, expected, value } => {
                out.put_u8(COMPARE_AND_SET);
                put(&mut out, key);
                put_option(&mut out, expected.as_ref());
                put(&mut out, value);
            }
        }
        out.freeze()
    }

    /// None if the bytes are not a command.
    pub fn decode(bytes: &Bytes) -> Option<Self> {
        let mut from = bytes.clone();
        let command = match from.try_get_u8().ok()? {
            PUT => Self::Put { key: take(&mut from)?, value: take(&mut from)? },
            DELETE => Self::Delete { key: take(&mut from)? },
            COMPARE_AND_SET => Self::CompareAndSet {
                key: take(&mut from)?,
                expected: take_option(&mut from)?,
                value: take(&mut from)?,
            },
            _ => return None,
        };
        from.is_empty().then_some(command)
    }
}

impl KvQuery {
    /// The bytes of the query.
    pub fn encode(&self) -> Bytes {
        self.key.clone()
    }
}

impl KvReply {
    /// The bytes of the reply.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(u8::from(self.done));
        put_option(&mut out, self.value.as_ref());
        out.freeze()
    }

    /// None if the bytes are not a reply.
    pub fn decode(bytes: &Bytes) -> Option<Self> {
        let mut from = bytes.clone();
        let done = from.try_get_u8().ok()? == 1;
        let value = take_option(&mut from)?;
        from.is_empty().then_some(Self { done, value })
    }
}

fn put(out: &mut BytesMut, bytes: &Bytes) {
    out.put_u32_le(bytes.len() as u32);
    out.put_slice(bytes);
}

fn take(from: &mut Bytes) -> Option<Bytes> {
    let length = from.try_get_u32_le().ok()? as usize;
    (length <= from.len()).then(|| from.split_to(length))
}

fn put_option(out: &mut BytesMut, bytes: Option<&Bytes>) {
    out.put_u8(u8::from(bytes.is_some()));
    if let Some(bytes) = bytes {
        put(out, bytes);
    }
}

fn take_option(from: &mut Bytes) -> Option<Option<Bytes>> {
    match from.try_get_u8().ok()? {
        0 => Some(None),
        1 => Some(Some(take(from)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put_command(key: &'static str, value: &'static str) -> Bytes {
        KvCommand::Put { key: key.into(), value: value.into() }.encode()
    }

    #[test]
    fn commands_and_replies_survive_encoding() {
        let key = Bytes::from_static(b"k");
        let value = Bytes::from_static(b"v");
        let commands = [
            KvCommand::Put { key: key.clone(), value: value.clone() },
            KvCommand::Delete { key: key.clone() },
            KvCommand::CompareAndSet { key: key.clone(), expected: None, value: value.clone() },
            KvCommand::CompareAndSet { key, expected: Some(value.clone()), value: value.clone() },
        ];
        for command in commands {
            let bytes = command.encode();
            assert_eq!(KvCommand::decode(&bytes), Some(command));
            for cut in 0..bytes.len() {
                assert_eq!(KvCommand::decode(&bytes.slice(..cut)), None);
            }
        }
        let reply = KvReply { done: true, value: Some(value) };
        assert_eq!(KvReply::decode(&reply.encode()), Some(reply));
    }

    #[test]
    fn a_snapshot_shows_the_state_when_it_was_taken() {
        let mut kv = MemoryKv::default();
        kv.apply(1, &put_command("a", "1")).unwrap();
        let captured = kv.clone();
        let mut chunks = kv.snapshot().unwrap().map(Result::unwrap);
        kv.apply(2, &put_command("a", "2")).unwrap();
        let mut other = MemoryKv::default();
        other.apply(1, &put_command("b", "9")).unwrap();
        other.install(&mut chunks).unwrap();
        assert_eq!(other, captured);
    }

    #[test]
    fn a_large_map_is_captured_in_many_chunks() {
        let mut kv = MemoryKv::default();
        for number in 0..5_000u64 {
            let key = Bytes::copy_from_slice(&number.to_be_bytes());
            let value = Bytes::from(vec![7; 60]);
            kv.apply(number, &KvCommand::Put { key, value }.encode()).unwrap();
        }
        let chunks: Vec<Bytes> = kv.snapshot().unwrap().map(Result::unwrap).collect();
        assert!(chunks.len() > 3);
        let mut other = MemoryKv::default();
        other.install(&mut chunks.clone().into_iter()).unwrap();
        assert_eq!(other, kv);
        let mut cut = chunks;
        let last = cut.pop().unwrap();
        cut.push(last.slice(..last.len() - 1));
        assert!(other.install(&mut cut.into_iter()).unwrap_err().is::<BadSnapshot>());
    }

    #[test]
    fn invalid_commands_do_nothing() {
        let mut kv = MemoryKv::default();
        let reply = kv.apply(1, &Bytes::from_static(b"\x01garbage")).unwrap();
        assert_eq!(KvReply::decode(&reply), Some(KvReply { done: false, value: None }));
        assert!(kv.is_empty());
    }
}
