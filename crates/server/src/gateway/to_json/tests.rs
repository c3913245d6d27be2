use prost::Message;
use quorate_proto::etcdserverpb::response_op::Response;
use quorate_proto::etcdserverpb::{
    HashKvResponse, Member, MemberListResponse, RangeResponse, ResponseHeader, ResponseOp,
    TxnResponse, WatchResponse,
};
use quorate_proto::mvccpb::{Event, KeyValue};
use quorate_proto::quorate::v1;
use serde_json::{Value, json};

use super::*;
use crate::gateway::paths::{find, find_path};

/// The JSON of a message that arrives in pieces of this size.
fn json_in_pieces(path: &str, bytes: &[u8], size: usize) -> String {
    let mut json = Vec::new();
    let mut writer = JsonWriter::new(find(path).unwrap().schema.response, &mut json);
    for piece in bytes.chunks(size) {
        writer.write(piece, &mut json).unwrap();
    }
    writer.finish(&mut json).unwrap();
    String::from_utf8(json).unwrap()
}

fn check(path: &str, message: &impl Message, expected: Value) {
    let bytes = message.encode_to_vec();
    for size in 1..=bytes.len().max(1) {
        let json = json_in_pieces(path, &bytes, size);
        let read: Value = serde_json::from_str(&json).unwrap_or_else(|e| panic!("{e}: {json}"));
        assert_eq!(read, expected, "in pieces of {size}");
    }
}

#[test]
fn messages_are_the_same_wherever_they_are_cut() {
    let header = Some(ResponseHeader { cluster_id: u64::MAX, revision: -1, ..Default::default() });
    let kv = |value: &[u8]| KeyValue {
        key: "k".into(),
        value: value.to_vec().into(),
        create_revision: 300,
        ..KeyValue::default()
    };
    let kvs = vec![kv(b""), kv(b"a"), kv(b"ab"), kv(b"abc"), kv(&[255; 10])];
    let range = RangeResponse { header, kvs, more: true, count: 5 };
    let key = |value: &str| json!({ "key": "aw==", "create_revision": "300", "value": value });
    let range_json = json!({
        "header": { "cluster_id": "18446744073709551615", "revision": "-1" },
        "kvs": [
            { "key": "aw==", "create_revision": "300" }, key("YQ=="), key("YWI="), key("YWJj"),
            key("/////////////w=="),
        ],
        "more": true,
        "count": "5",
    });
    check("kv/range", &range, range_json.clone());
    check("kv/range", &RangeResponse::default(), json!({}));
    let nested = TxnResponse { succeeded: true, ..TxnResponse::default() };
    let operation = |response| ResponseOp { response: Some(response) };
    let txn = TxnResponse {
        header: Some(ResponseHeader::default()),
        responses: vec![
            operation(Response::ResponseRange(range)),
            ResponseOp::default(),
            operation(Response::ResponseTxn(nested)),
        ],
        ..TxnResponse::default()
    };
    let expected = json!({
        "header": {},
        "responses": [
            { "response_range": range_json }, {}, { "response_txn": { "succeeded": true } },
        ],
    });
    check("kv/txn", &txn, expected);
    let events = vec![
        Event { r#type: 0, kv: Some(kv(b"")), prev_kv: None },
        Event { r#type: 1, kv: None, prev_kv: None },
        Event { r#type: 9, kv: None, prev_kv: None },
    ];
    let watch =
        WatchResponse { events, cancel_reason: "a \"\u{e4}\"\n".into(), ..Default::default() };
    let expected = json!({
        "cancel_reason": "a \"\u{e4}\"\n",
        "events": [
            { "kv": { "key": "aw==", "create_revision": "300" } }, { "type": "DELETE" }, { "type": 9 },
        ],
    });
    check("watch", &watch, expected);
    let hash = HashKvResponse { hash: u32::MAX, compact_revision: -1, ..Default::default() };
    let expected = json!({ "hash": 4_294_967_295_u32, "compact_revision": "-1" });
    check("maintenance/hashkv", &hash, expected);
    let peer_urls = vec!["http://a".into(), String::new()];
    let members = vec![Member { id: 1, peer_urls, ..Member::default() }];
    let list = MemberListResponse { header: None, members };
    let expected = json!({ "members": [{ "ID": "1", "peerURLs": ["http://a", ""] }] });
    check("cluster/member/list", &list, expected);
}

#[test]
fn packed_lists_of_numbers_are_lists() {
    let set = |ids: &[u64]| v1::MemberIds { ids: ids.to_vec() };
    let tolerance = v1::Tolerance {
        stops_commits: vec![set(&[1, u64::MAX]), set(&[]), set(&[300])],
        ..Default::default()
    };
    let membership =
        v1::MembershipRecord { learners: vec![7, 8], removed: vec![9], ..Default::default() };
    let status = v1::StatusReply {
        tolerance: Some(tolerance),
        membership: Some(membership),
        settled: true,
        ..Default::default()
    };
    let bytes = status.encode_to_vec();
    let message = find_path("/quorate/v1/membership/status").unwrap().unwrap().schema.response;
    for size in 1..=bytes.len() {
        let mut json = Vec::new();
        let mut writer = JsonWriter::new(message, &mut json);
        bytes.chunks(size).for_each(|piece| writer.write(piece, &mut json).unwrap());
        writer.finish(&mut json).unwrap();
        let read: Value = serde_json::from_slice(&json).unwrap();
        let expected = json!({
            "membership": { "learners": ["7", "8"], "removed": ["9"] },
            "settled": true,
            "tolerance": {
                "stops_commits": [{ "ids": ["1", "18446744073709551615"] }, {}, { "ids": ["300"] }],
            },
        });
        assert_eq!(read, expected, "in pieces of {size}");
    }
    // A number that is cut off by the end of its list.
    let mut json = Vec::new();
    let mut writer = JsonWriter::new(message, &mut json);
    let cut = [0x12, 0x03, 0x1a, 0x01, 0x80];
    assert!(writer.write(&cut, &mut json).and_then(|()| writer.finish(&mut json)).is_err());
}

#[test]
fn bytes_that_are_no_message_are_an_error() {
    let message = find("kv/range").unwrap().schema.response;
    for bytes in [
        &[0x0a, 0x05, 0x08][..],         // ends within the header
        &[0x0a, 0x02, 0x08, 0x80, 0x01], // a number that ends behind its message
        &[0x0a, 0x02, 0x0a, 0x7f],       // a field that is longer than its message
        &[0xff; 12],                     // a key of more than 64 bits
        &[0x0b],                         // a group
        &[0x20],                         // a key without its number
    ] {
        let mut json = Vec::new();
        let mut writer = JsonWriter::new(message, &mut json);
        let written = writer.write(bytes, &mut json);
        assert!(written.and_then(|()| writer.finish(&mut json)).is_err(), "{bytes:?}");
    }
    // Unknown fields are skipped.
    let unknown = [0xf8, 0x07, 0x01, 0xfa, 0x07, 0x02, 0x00, 0x00, 0xfa, 0x07, 0x00, 0x18, 0x01];
    assert_eq!(json_in_pieces("kv/range", &unknown, 1), r#"{"more":true}"#);
}
