//! Entry points for the fuzz targets in `fuzz/` and for the short version of them in
//! `tests/parsers.rs`. Not part of the public API.

use std::io::Cursor;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue};
use bytes::Bytes;
use prost::Message;
use quorate_core::membership::LoggedChange;
use quorate_core::{Entries, Membership, Refusal, SnapshotMeta};
use quorate_etcd_files::{EtcdDatabase, WalEntry};
use quorate_kv::{AnyTable, Command, Kv, KvCommandReply, MemoryTable, Put, Query, check};
use quorate_proto::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, TxnRequest, WatchRequest,
};
use quorate_proto::quorate::v1::Target;
use quorate_storage::codec::Codec;

use crate::auth::{AuthTokenConfig, JwtTokens};
use crate::config::file;
use crate::etcd_import::{apply_entry, import_database};
use crate::gateway;
use crate::grpc_timeout::CallTimeout;
use crate::service::kv::convert;
use crate::snapshot_file::{SnapshotFile, SnapshotFileWriter, SnapshotHeader};
use crate::url::Url;

/// Parses the text of a configuration file. Returns whether it is valid.
pub fn parse_config_file(text: &str) -> bool {
    file::parse("file", text).is_ok()
}

/// Parses a URL. What it prints is the same URL.
pub fn parse_url(text: &str) {
    if let Ok(url) = Url::parse(text) {
        assert_eq!(Url::parse(&url.to_string()).as_ref(), Ok(&url));
    }
}

/// Parses the timeout of a call.
pub fn parse_timeout(bytes: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(bytes) else { return };
    let mut headers = HeaderMap::new();
    headers.insert("grpc-timeout", value);
    let _ = CallTimeout::of(&headers);
}

/// Parses the value of `--auth-token`.
pub fn parse_token_flag(text: &str) {
    let _ = AuthTokenConfig::parse(text, |_| Some(Duration::from_secs(1)));
}

/// Checks a token of a client. Returns whether it is valid.
pub fn check_jwt(text: &str) -> bool {
    JwtTokens::with_secret(SECRET).check(text).is_some()
}

/// A token that is valid for [`check_jwt`].
pub fn sign_jwt() -> Option<String> {
    JwtTokens::with_secret(SECRET).sign("user", 7)
}

const SECRET: &[u8] = b"a secret of the fuzz targets";

/// Decodes requests of clients, and checks and runs those that can be read.
pub fn run_requests(bytes: &[u8]) {
    let Ok(kv) = Kv::open(AnyTable::default()) else { return };
    if let Ok(request) = RangeRequest::decode(bytes)
        && let Ok(range) = convert::range(request)
        && check::range(&range).is_ok()
    {
        let _ = kv.start_range(range);
    }
    if let Ok(request) = TxnRequest::decode(bytes)
        && let Ok(txn) = convert::txn(request)
    {
        let _ = check::txn(&txn, 128);
    }
    if let Ok(request) = PutRequest::decode(bytes) {
        let _ = check::put(&convert::put(request));
    }
    if let Ok(request) = DeleteRangeRequest::decode(bytes) {
        let _ = check::delete_range(&convert::delete_range(request));
    }
    let _ = WatchRequest::decode(bytes);
    let _ = Target::decode(bytes);
}

/// Decodes and applies a command, runs a query, and decodes a reply. What can be decoded is encoded
/// as the same value.
pub fn run_command(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    let Ok(mut kv) = Kv::open(MemoryTable::default()) else { return };
    if let Ok(command) = Command::decode(&bytes) {
        assert_eq!(Command::decode(&command.encode()), Ok(command));
    }
    if let Ok(applied) = kv.apply_bytes(1, &bytes) {
        let reply = KvCommandReply::decode(&applied.reply.encode());
        assert_eq!(reply, Some(applied.reply));
    }
    if let Some(query) = Query::decode(&bytes) {
        assert_eq!(Query::decode(&query.encode()).as_ref(), Some(&query));
        assert!(kv.query(&query).is_ok());
    }
    if let Some(reply) = KvCommandReply::decode(&bytes) {
        assert_eq!(KvCommandReply::decode(&reply.encode()), Some(reply));
    }
}

/// Decodes bytes as each value of the core. What can be decoded is encoded as the same bytes.
pub fn decode_core_values(bytes: &[u8]) {
    fn check<T: Codec>(bytes: &[u8]) {
        if let Ok(value) = T::from_bytes(bytes.to_vec().into()) {
            assert_eq!(value.to_bytes(), bytes);
        }
    }
    check::<LoggedChange>(bytes);
    check::<Membership>(bytes);
    check::<SnapshotMeta>(bytes);
    check::<Entries>(bytes);
    check::<Refusal>(bytes);
}

/// Reads a text as each JSON request of the gateway. What is written again is the same message.
pub fn parse_json(text: &[u8]) {
    gateway::convert_for_fuzzing(text);
}

/// Writes bytes as each JSON response of the gateway.
pub fn write_json(bytes: &[u8]) {
    gateway::read_for_fuzzing(bytes);
}

/// A backup of a store with a few keys.
pub fn sample_backup() -> Vec<u8> {
    let Ok(mut kv) = Kv::open(AnyTable::default()) else { return Vec::new() };
    for index in 1..9 {
        let (key, value) = (format!("key {index}").into(), "value".into());
        let put = Put { key, value, ..Put::default() };
        let _ = kv.apply_bytes(index, &Command::Put(put).encode());
    }
    let header = SnapshotHeader { cluster_id: 7, revision: kv.revision(), applied: 8 };
    let Ok(chunks) = kv.snapshot() else { return Vec::new() };
    SnapshotFileWriter::new(header, chunks).flatten().collect()
}

/// Reads a backup, and installs it without its checksum.
pub fn restore_backup(bytes: &[u8]) {
    let _ = SnapshotFile::open(Cursor::new(bytes));
    let Ok(file) = SnapshotFile::open_unchecked(Cursor::new(bytes)) else { return };
    let Ok(mut kv) = Kv::open(AnyTable::default()) else { return };
    if let Ok(mut chunks) = file.chunks() {
        let _ = kv.install(&mut chunks);
    }
}

/// Imports a database of etcd. Returns whether it is valid.
pub fn import_etcd_database(bytes: &[u8]) -> bool {
    let Ok(mut kv) = Kv::open(MemoryTable::default()) else { return false };
    let Ok(mut database) = EtcdDatabase::open_unchecked(Cursor::new(bytes)) else { return false };
    import_database(&mut kv, &mut database).is_ok()
}

/// Applies these bytes as an entry of etcd's log. Returns whether they are a request.
pub fn apply_etcd_entry(bytes: &[u8]) -> bool {
    let Ok(mut kv) = Kv::open(MemoryTable::default()) else { return false };
    let data = Bytes::copy_from_slice(bytes);
    let entry = WalEntry { kind: 0, term: 1, index: 1, data };
    apply_entry(&mut kv, &entry, false).is_ok()
}
