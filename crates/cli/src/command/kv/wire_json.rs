//! Replies in the JSON of etcdctl: the field names of etcd's Go types, bytes in base64, and
//! fields without a value left out. Scripts that read etcdctl's output can read this.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use quorate_proto::etcdserverpb as etcd;
use quorate_proto::etcdserverpb::response_op::Response;
use quorate_proto::mvccpb;
use serde_json::{Map, Value, json};

pub(crate) fn base64_text(bytes: &[u8]) -> Value {
    STANDARD.encode(bytes).into()
}

/// The header of a reply.
pub(crate) fn go_header(header: Option<&etcd::ResponseHeader>) -> Value {
    let Some(header) = header else { return json!({}) };
    object([
        ("cluster_id", header.cluster_id.into()),
        ("member_id", header.member_id.into()),
        ("revision", header.revision.into()),
        ("raft_term", header.raft_term.into()),
    ])
}

pub(super) fn put(reply: &etcd::PutResponse) -> Value {
    object([
        ("header", go_header(reply.header.as_ref())),
        ("prev_kv", reply.prev_kv.as_ref().map(pair).into()),
    ])
}

pub(super) fn range(reply: &etcd::RangeResponse) -> Value {
    object([
        ("header", go_header(reply.header.as_ref())),
        ("kvs", reply.kvs.iter().map(pair).collect()),
        ("more", reply.more.into()),
        ("count", reply.count.into()),
    ])
}

pub(super) fn delete(reply: &etcd::DeleteRangeResponse) -> Value {
    object([
        ("header", go_header(reply.header.as_ref())),
        ("deleted", reply.deleted.into()),
        ("prev_kvs", reply.prev_kvs.iter().map(pair).collect()),
    ])
}

pub(super) fn txn(reply: &etcd::TxnResponse) -> Value {
    let responses = reply.responses.iter().filter_map(|one| one.response.as_ref());
    let responses = responses.map(|response| {
        let (name, value) = match response {
            Response::ResponsePut(reply) => ("ResponsePut", put(reply)),
            Response::ResponseRange(reply) => ("ResponseRange", range(reply)),
            Response::ResponseDeleteRange(reply) => ("ResponseDeleteRange", delete(reply)),
            Response::ResponseTxn(reply) => ("ResponseTxn", txn(reply)),
        };
        json!({ "Response": { name: value } })
    });
    object([
        ("header", go_header(reply.header.as_ref())),
        ("succeeded", reply.succeeded.into()),
        ("responses", responses.collect()),
    ])
}

pub(super) fn watch(reply: &etcd::WatchResponse) -> Value {
    let event = |event: &mvccpb::Event| {
        object([
            ("type", event.r#type.into()),
            ("kv", event.kv.as_ref().map(pair).into()),
            ("prev_kv", event.prev_kv.as_ref().map(pair).into()),
        ])
    };
    json!({
        "Header": go_header(reply.header.as_ref()),
        "Events": reply.events.iter().map(event).collect::<Vec<_>>(),
        "CompactRevision": reply.compact_revision,
        "Canceled": reply.canceled,
        "Created": reply.created,
    })
}

fn pair(pair: &mvccpb::KeyValue) -> Value {
    let bytes = |bytes: &[u8]| if bytes.is_empty() { Value::Null } else { base64_text(bytes) };
    object([
        ("key", bytes(&pair.key)),
        ("create_revision", pair.create_revision.into()),
        ("mod_revision", pair.mod_revision.into()),
        ("version", pair.version.into()),
        ("value", bytes(&pair.value)),
        ("lease", pair.lease.into()),
    ])
}

/// Fields with Go's zero value are left out.
fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let is_zero = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_u64() == Some(0),
        Value::Array(list) => list.is_empty(),
        _ => false,
    };
    let fields = fields.into_iter().filter(|(_, value)| !is_zero(value));
    Value::Object(fields.map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
}
