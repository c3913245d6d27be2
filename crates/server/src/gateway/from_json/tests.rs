use prost::Message;
use quorate_proto::etcdserverpb::compare::TargetUnion;
use quorate_proto::etcdserverpb::request_op::Request;
use quorate_proto::etcdserverpb::{
    Compare, LeaseGrantRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
    WatchCreateRequest, WatchRequest, watch_request,
};

use super::*;
use crate::gateway::paths::find;

fn encode_as(path: &str, text: &str) -> Result<Vec<u8>, String> {
    encode(find(path).unwrap().schema.request, text.as_bytes())
}

fn range(text: &str) -> RangeRequest {
    RangeRequest::decode(&encode_as("kv/range", text).unwrap()[..]).unwrap()
}

fn refused(path: &str, text: &str) -> String {
    encode_as(path, text).unwrap_err()
}

#[test]
fn both_names_of_a_field_are_read() {
    let expected = RangeRequest {
        key: "a".into(),
        range_end: "b".into(),
        limit: 7,
        sort_order: 2,
        ..RangeRequest::default()
    };
    assert_eq!(range(r#"{"key":"YQ==","range_end":"Yg==","limit":7,"sort_order":2}"#), expected);
    let camel = r#"{"key":"YQ","rangeEnd":"Yg","limit":"7","sortOrder":"DESCEND"}"#;
    assert_eq!(range(camel), expected);
    let grant = encode_as("lease/grant", r#"{"TTL":"5","ID":-1}"#).unwrap();
    assert_eq!(
        LeaseGrantRequest::decode(&grant[..]).unwrap(),
        LeaseGrantRequest { ttl: 5, id: -1 }
    );
}

#[test]
fn unknown_fields_nulls_and_zeros_are_left_out() {
    assert_eq!(encode_as("kv/range", ""), Ok(Vec::new()));
    assert_eq!(encode_as("kv/range", " \n"), Ok(Vec::new()));
    let nothing = r#"{"x":{"y":[1,{}]},"key":null,"limit":0,"serializable":false,"rangeEnd":""}"#;
    assert_eq!(encode_as("kv/range", nothing), Ok(Vec::new()));
    // What follows the first value is ignored.
    assert_eq!(range(r#"{"limit":1} {"limit":2}"#).limit, 1);
}

#[test]
fn nested_messages_lists_and_oneofs_are_read() {
    let text = r#"{"compare":[{"key":"YQ==","target":"VERSION","version":"0"}],
        "success":[{"requestPut":{"key":"YQ==","value":"Yg=="}},
                   {"request_txn":{"failure":[{}]}}]}"#;
    let txn = TxnRequest::decode(&encode_as("kv/txn", text).unwrap()[..]).unwrap();
    let put = PutRequest { key: "a".into(), value: "b".into(), ..PutRequest::default() };
    let nested = TxnRequest { failure: vec![RequestOp::default()], ..TxnRequest::default() };
    let expected = TxnRequest {
        compare: vec![Compare {
            key: "a".into(),
            // Zero, and not missing.
            target_union: Some(TargetUnion::Version(0)),
            ..Compare::default()
        }],
        success: vec![
            RequestOp { request: Some(Request::RequestPut(put)) },
            RequestOp { request: Some(Request::RequestTxn(nested)) },
        ],
        failure: Vec::new(),
    };
    assert_eq!(txn, expected);
    let watch = r#"{"create_request":{"filters":["NOPUT",1],"progressNotify":true}}"#;
    let watch = WatchRequest::decode(&encode_as("watch", watch).unwrap()[..]).unwrap();
    let create =
        WatchCreateRequest { filters: vec![0, 1], progress_notify: true, ..Default::default() };
    let create = watch_request::RequestUnion::CreateRequest(create);
    assert_eq!(watch.request_union, Some(create));
}

/// Hostile and wrong requests, each with a part of the error.
#[test]
fn what_is_wrong_is_refused_with_the_reason() {
    let deep =
        format!("{}{{}}{}", r#"{"success":[{"requestTxn":"#.repeat(3_000), "}]}".repeat(3_000));
    let deep_unknown = format!(r#"{{"x":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    let long_number = format!(r#"{{"limit":{}}}"#, "9".repeat(100_000));
    let long_text = format!(r#"{{"limit":"{}"}}"#, "9".repeat(100_000));
    for (path, text, expected) in [
        ("kv/range", "abc", "expected value"),
        ("kv/range", "{", "EOF while parsing"),
        ("kv/range", "[]", "expected an object"),
        ("kv/range", "null", "expected an object"),
        ("kv/range", r#"{"key":5}"#, "bytes field key: 5"),
        ("kv/range", r#"{"key":"Z m"}"#, "not base64"),
        ("kv/range", r#"{"key":"Zm9v=="}"#, "not base64"),
        ("kv/range", r#"{"key":["Zm9v"]}"#, "bytes field key: a list"),
        ("kv/range", r#"{"key":{}}"#, "bytes field key: an object"),
        ("kv/range", r#"{"key":"YQ==","key":"Yg=="}"#, "duplicate field \"key\""),
        ("kv/range", r#"{"range_end":"YQ==","rangeEnd":"Yg=="}"#, "duplicate field"),
        ("kv/range", r#"{"limit":1.5}"#, "int64 field limit: 1.5"),
        ("kv/range", r#"{"limit":"9223372036854775808"}"#, "int64 field limit"),
        ("kv/range", r#"{"limit":-9223372036854775809}"#, "int64 field limit"),
        ("kv/range", r#"{"limit":1e400}"#, "number out of range"),
        ("kv/range", r#"{"limit":"1e999999999"}"#, "int64 field limit"),
        ("kv/range", r#"{"limit":"1e-999999999"}"#, "int64 field limit"),
        ("kv/range", r#"{"limit":" 1"}"#, "int64 field limit"),
        ("kv/range", r#"{"limit":true}"#, "int64 field limit: true"),
        ("kv/range", r#"{"serializable":"true"}"#, "bool field serializable"),
        ("kv/range", r#"{"sort_order":"UP"}"#, "enum field sort_order: \"UP\""),
        ("kv/range", r#"{"sort_order":4294967296}"#, "enum field sort_order"),
        ("kv/range", &long_number, "number out of range"),
        ("kv/range", &long_text, "int64 field limit"),
        ("kv/txn", &deep, "recursion limit"),
        ("kv/txn", r#"{"compare":[null]}"#, "field compare: null"),
        ("kv/txn", r#"{"compare":{}}"#, "repeated field compare"),
        ("kv/txn", r#"{"compare":[{"version":1,"lease":1}]}"#, "oneof is already set"),
        ("auth/user/add", r#"{"name":7}"#, "string field name: 7"),
    ] {
        let error = refused(path, text);
        assert!(error.contains(expected), "{error}");
        assert!(error.len() < 300, "an error of {} bytes", error.len());
    }
    // Unknown fields are skipped without recursion, however deep they are.
    assert_eq!(encode_as("kv/range", &deep_unknown), Ok(Vec::new()));
    let not_text = encode(find("auth/user/add").unwrap().schema.request, b"{\"name\":\"\xff\"}");
    assert!(not_text.unwrap_err().contains("invalid"), "not UTF-8");
}

/// The smallest texts of list elements: no request takes more memory than its text.
#[test]
fn a_message_is_not_larger_than_its_text() {
    for (path, element) in
        [("kv/txn", "success"), ("kv/txn", "compare"), ("cluster/member/add", "peerURLs")]
    {
        let value = if element == "peerURLs" { "\"\"" } else { "{}" };
        let text = format!("{{\"{element}\":[{}{value}]}}", format!("{value},").repeat(9_999));
        let bytes = encode_as(path, &text).unwrap();
        assert!(bytes.len() >= 20_000 && bytes.len() <= text.len(), "{}", bytes.len());
    }
}

#[test]
fn numbers_are_read_exactly() {
    for (text, expected) in [
        ("0", Some(0)),
        ("-0", Some(0)),
        ("12", Some(12)),
        ("9223372036854775807", Some(i128::from(i64::MAX))),
        ("18446744073709551615", Some(i128::from(u64::MAX))),
        ("1.0", Some(1)),
        ("1.50e1", Some(15)),
        ("1e3", Some(1_000)),
        ("1200e-2", Some(12)),
        ("0e999999999", Some(0)),
        ("1e19", Some(10_i128.pow(19))),
        ("1e20", None),
        ("1.5", None),
        ("15e-1", None),
        ("01", None),
        ("1.", None),
        (".5", None),
        ("+1", None),
        ("", None),
        ("-", None),
        ("1e", None),
        ("0x10", None),
        ("1_000", None),
    ] {
        assert_eq!(integer(text), expected, "{text}");
    }
}
