//! Every parser of bytes that come from outside, on random and on damaged valid input: none panics.
//! The short version of the fuzz targets in `fuzz/`, with a fixed seed. For longer:
//! `QUORATE_FUZZ_INPUTS=1000000 cargo test --release -p quorate-server --test parsers`.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::fs;
use std::path::Path;

use prost::Message;
use quorate::tcp::fuzzing as tcp;
use quorate_core::{Entries, Entry, MemberId, Membership};
use quorate_etcd_files::WalReader;
use quorate_kv::{Command, Compact, Put};
use quorate_proto::etcdserverpb::request_op::Request;
use quorate_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};
use quorate_server::fuzzing;
use quorate_storage::codec::Codec;

/// The name of a parser, the parser, and valid inputs.
type Parser = (&'static str, fn(&[u8]), Vec<Vec<u8>>);

/// The fuzz targets, and where the normal tests have their short version.
const TARGETS: [(&str, &str); 16] = [
    ("wal", "crates/sim/tests/damage.rs"),
    ("snapshot", "crates/sim/tests/damage.rs"),
    ("peer_frame", HERE),
    ("http2", "crates/http2/tests/serve/random.rs"),
    ("scenario", "crates/sim/tests/scenarios.rs"),
    ("core_codec", HERE),
    ("kv_command", HERE),
    ("handshake", HERE),
    ("requests", HERE),
    ("backup", HERE),
    ("config_file", HERE),
    ("url", HERE),
    ("token", HERE),
    ("json", HERE),
    ("etcd_database", HERE),
    ("etcd_log", HERE),
];
const HERE: &str = "crates/server/tests/parsers.rs";

fn parsers() -> Vec<Parser> {
    let text = |samples: &[&str]| samples.iter().map(|text| text.as_bytes().to_vec()).collect();
    let jwt = fuzzing::sign_jwt().unwrap();
    assert!(fuzzing::check_jwt(&jwt));
    let yaml = [
        "name: a\ndata-dir: b\nlisten-client-urls: http://127.0.0.1:1\n",
        "client-transport-security:\n  cert-file: a\n  allowed-cn: [a, b]\n",
        "auto-compaction-retention: 1h\nquota-backend-bytes: 12\n",
    ];
    assert!(yaml.iter().all(|text| fuzzing::parse_config_file(text)));
    vec![
        ("frames of peers", tcp::decode_frames, vec![vec![0; 64]]),
        ("messages of peers", tcp::decode_message, vec![vec![4, 0, 8, 1, 16, 1, 0, 0]]),
        ("handshakes", tcp::decode_handshake, vec![vec![8, 1, 16, 2, 26, 1, 97]]),
        ("records of the log", quorate_storage::fuzzing::decode_record_body, vec![vec![7; 40]]),
        ("values of the core", fuzzing::decode_core_values, core_values()),
        ("commands of the machine", fuzzing::run_command, commands()),
        ("requests", fuzzing::run_requests, requests()),
        ("timeouts", fuzzing::parse_timeout, text(&["5S", "99999999n", "0m"])),
        (
            "URLs",
            |bytes| with_text(bytes, fuzzing::parse_url),
            text(&["http://[::1]:1", "https://h:2"]),
        ),
        (
            "files",
            |bytes| with_text(bytes, |text| _ = fuzzing::parse_config_file(text)),
            text(&yaml),
        ),
        ("tokens", |bytes| with_text(bytes, |text| _ = fuzzing::check_jwt(text)), text(&[&jwt])),
        (
            "--auth-token",
            |bytes| with_text(bytes, fuzzing::parse_token_flag),
            text(&["jwt,sign-method=RS256,pub-key=a,priv-key=b,ttl=1m"]),
        ),
        ("JSON requests", fuzzing::parse_json, text(&json_requests())),
        ("JSON responses", fuzzing::write_json, requests()),
        ("backups", fuzzing::restore_backup, vec![fuzzing::sample_backup()]),
        (
            "databases of etcd",
            |bytes| _ = fuzzing::import_etcd_database(bytes),
            vec![etcd_file("snapshot.db")],
        ),
        (
            "logs of etcd",
            |bytes| _ = quorate_etcd_files::fuzzing::read_log(bytes),
            vec![etcd_file("data/member/wal/0000000000000000-0000000000000000.wal")],
        ),
        ("entries of etcd", |bytes| _ = fuzzing::apply_etcd_entry(bytes), etcd_entries()),
    ]
}

fn core_values() -> Vec<Vec<u8>> {
    let membership = Membership::new([MemberId(1), MemberId(2)], [MemberId(3)]);
    let entries: Entries = vec![Entry::command(2, 7, vec![7; 9])].into();
    vec![membership.to_bytes().to_vec(), entries.to_bytes().to_vec()]
}

fn commands() -> Vec<Vec<u8>> {
    let (key, value) = ("key".into(), "value".into());
    let put = Put { key, value, ..Put::default() };
    let compact = Compact { revision: 3 };
    [Command::Put(put), Command::Compact(compact)].map(|it| it.encode().to_vec()).to_vec()
}

fn json_requests() -> [&'static str; 3] {
    [
        r#"{"key":"Zm9v","range_end":"Zm9w","limit":"7","sort_order":"DESCEND","x":[{}]}"#,
        r#"{"compare":[{"key":"YQ==","version":"0"}],"success":[{"request_put":{"key":"YQ=="}}]}"#,
        r#"{"create_request":{"key":"YQ==","filters":["NOPUT",1],"progressNotify":true}}"#,
    ]
}

fn etcd_file(name: &str) -> Vec<u8> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../etcd-files/tests/fixtures");
    fs::read(fixtures.join("v3.7").join(name)).unwrap()
}

/// All requests of a log.
fn etcd_entries() -> Vec<Vec<u8>> {
    let mut log = WalReader::new(0);
    let file = etcd_file("data/member/wal/0000000000000000-0000000000000000.wal");
    log.read("file", &file[..], true).unwrap();
    log.finish().entries.into_iter().map(|entry| entry.data.to_vec()).collect()
}

fn with_text(bytes: &[u8], parse: impl Fn(&str)) {
    parse(&String::from_utf8_lossy(bytes));
}

fn requests() -> Vec<Vec<u8>> {
    let (key, range_end) = ("a".into(), "b".into());
    let range = RangeRequest { key, range_end, limit: 3, sort_order: 1, ..Default::default() };
    let put = PutRequest { key: "k".into(), value: "v".into(), lease: 7, ..Default::default() };
    let delete = DeleteRangeRequest { key: "k".into(), prev_kv: true, ..Default::default() };
    let inner = [Request::RequestPut(put.clone()), Request::RequestDeleteRange(delete.clone())];
    let operation = |request| RequestOp { request: Some(request) };
    let success = inner.into_iter().map(operation).collect();
    let txn = TxnRequest { compare: vec![Compare::default()], success, failure: Vec::new() };
    let nested = operation(Request::RequestTxn(txn.clone()));
    let nested = TxnRequest { failure: vec![nested], ..Default::default() };
    vec![
        range.encode_to_vec(),
        put.encode_to_vec(),
        delete.encode_to_vec(),
        txn.encode_to_vec(),
        nested.encode_to_vec(),
    ]
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }

    /// A sample with a few changes: flipped bits, other bytes, parts removed or repeated.
    fn damage(&mut self, sample: &[u8]) -> Vec<u8> {
        let mut bytes = sample.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            match self.below(5) {
                0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
                1 if !bytes.is_empty() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                2 => bytes.truncate(at),
                3 => {
                    let length = self.below(9);
                    let more = self.bytes(length);
                    bytes.splice(at..at, more);
                }
                _ => {
                    let part = bytes[at..(at + 8).min(bytes.len())].to_vec();
                    bytes.extend(part);
                }
            }
        }
        bytes
    }
}

#[test]
fn no_parser_of_foreign_bytes_panics() {
    let inputs = std::env::var("QUORATE_FUZZ_INPUTS").ok().and_then(|text| text.parse().ok());
    let inputs: usize = inputs.unwrap_or(3_000);
    for (name, parse, samples) in parsers() {
        let mut random = Random(7);
        samples.iter().for_each(|sample| parse(sample));
        for number in 0..inputs {
            let input = match number % 4 {
                0 => {
                    let length = random.below(200);
                    random.bytes(length)
                }
                _ => random.damage(&samples[number % samples.len()]),
            };
            let outcome = std::panic::catch_unwind(|| parse(&input));
            assert!(outcome.is_ok(), "{name}: input {number} panics: {input:?}");
        }
    }
}

#[test]
fn every_fuzz_target_has_a_short_version() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let manifest = fs::read_to_string(root.join("fuzz/Cargo.toml")).unwrap();
    let (_, targets) = manifest.split_once("[[bin]]").unwrap();
    let names: Vec<&str> = targets
        .lines()
        .filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
        .collect();
    let mut missing = names.iter().filter(|name| !TARGETS.iter().any(|(known, _)| known == *name));
    assert_eq!(missing.next(), None);
    assert_eq!(names.len(), TARGETS.len());
    for (name, file) in TARGETS {
        assert!(root.join(file).exists(), "{name}: {file}");
    }
}
