//! Commands, queries and replies round-trip, and applying a command never panics.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use quorate_kv::{Command, Kv, KvCommandReply, MemoryTable, Query};

fuzz_target!(|bytes: &[u8]| {
    let bytes = Bytes::copy_from_slice(bytes);
    let mut kv = Kv::open(MemoryTable::default()).expect("memory does not fail");
    if let Ok(command) = Command::decode(&bytes) {
        assert_eq!(Command::decode(&command.encode()), Ok(command));
    }
    let applied = kv.apply_bytes(1, &bytes).expect("memory does not fail");
    let reply = KvCommandReply::decode(&applied.reply.encode());
    assert_eq!(reply, Some(applied.reply));
    if let Some(query) = Query::decode(&bytes) {
        assert_eq!(Query::decode(&query.encode()), Some(query.clone()));
        kv.query(&query).expect("memory does not fail");
    }
    if let Some(reply) = KvCommandReply::decode(&bytes) {
        assert_eq!(KvCommandReply::decode(&reply.encode()), Some(reply));
    }
});
