//! Conversions between etcd's messages and the data model's. Keys and values are moved, never
//! copied.

use quorate_kv::{
    Compare, CompareOperator, CompareTarget, DeleteRange, DeleteRangeOutcome, KeyRange, KeyValue,
    KvError, KvOutcome, Put, PutOutcome, Range, RangeOutcome, SortOrder, SortTarget, Txn,
    TxnOperation, TxnOperationReply, TxnOutcome,
};
use quorate_proto::etcdserverpb::{self as pb, compare, range_request, request_op, response_op};
use quorate_proto::mvccpb;

/// An unknown sort order or target is an error. As in etcd, an empty key is reported first.
pub(crate) fn range(request: pb::RangeRequest) -> Result<Range, KvError> {
    let bad_sort = || match request.key.is_empty() {
        true => KvError::EmptyKey,
        false => KvError::InvalidSortOption,
    };
    let sort_order = match range_request::SortOrder::try_from(request.sort_order) {
        Ok(range_request::SortOrder::None) => SortOrder::None,
        Ok(range_request::SortOrder::Ascend) => SortOrder::Ascend,
        Ok(range_request::SortOrder::Descend) => SortOrder::Descend,
        Err(_) => return Err(bad_sort()),
    };
    let sort_target = match range_request::SortTarget::try_from(request.sort_target) {
        Ok(range_request::SortTarget::Key) => SortTarget::Key,
        Ok(range_request::SortTarget::Version) => SortTarget::Version,
        Ok(range_request::SortTarget::Create) => SortTarget::Create,
        Ok(range_request::SortTarget::Mod) => SortTarget::Mod,
        Ok(range_request::SortTarget::Value) => SortTarget::Value,
        Err(_) => return Err(bad_sort()),
    };
    Ok(Range {
        keys: KeyRange { key: request.key, range_end: request.range_end },
        limit: request.limit,
        revision: request.revision,
        sort_order,
        sort_target,
        keys_only: request.keys_only,
        count_only: request.count_only,
        min_mod_revision: request.min_mod_revision,
        max_mod_revision: request.max_mod_revision,
        min_create_revision: request.min_create_revision,
        max_create_revision: request.max_create_revision,
    })
}

pub(crate) fn put(request: pb::PutRequest) -> Put {
    Put {
        key: request.key,
        value: request.value,
        lease: request.lease,
        prev_kv: request.prev_kv,
        ignore_value: request.ignore_value,
        ignore_lease: request.ignore_lease,
    }
}

pub(crate) fn delete_range(request: pb::DeleteRangeRequest) -> DeleteRange {
    let keys = KeyRange { key: request.key, range_end: request.range_end };
    DeleteRange { keys, prev_kv: request.prev_kv }
}

/// An operation without content is refused with etcd's error.
pub(crate) fn txn(request: pb::TxnRequest) -> Result<Txn, KvError> {
    Ok(Txn {
        compare: request.compare.into_iter().map(compare).collect(),
        success: requests(request.success)?,
        failure: requests(request.failure)?,
    })
}

fn requests(requests: Vec<pb::RequestOp>) -> Result<Vec<TxnOperation>, KvError> {
    let converted = requests.into_iter().map(|request| {
        Ok(match request.request.ok_or(KvError::KeyNotFound)? {
            request_op::Request::RequestRange(request) => TxnOperation::Range(range(request)?),
            request_op::Request::RequestPut(request) => TxnOperation::Put(put(request)),
            request_op::Request::RequestDeleteRange(request) => {
                TxnOperation::DeleteRange(delete_range(request))
            }
            request_op::Request::RequestTxn(request) => TxnOperation::Txn(txn(request)?),
        })
    });
    converted.collect()
}

/// The target decides what is compared. As in etcd, a value of another kind counts as the
/// default value.
fn compare(request: pb::Compare) -> Compare {
    use compare::TargetUnion;
    if let Some(compare) = unknown_comparison(&request) {
        return compare;
    }
    let operator = match request.result() {
        compare::CompareResult::Equal => CompareOperator::Equal,
        compare::CompareResult::Greater => CompareOperator::Greater,
        compare::CompareResult::Less => CompareOperator::Less,
        compare::CompareResult::NotEqual => CompareOperator::NotEqual,
    };
    let target = match (request.target(), request.target_union) {
        (compare::CompareTarget::Version, Some(TargetUnion::Version(version))) => {
            CompareTarget::Version(version)
        }
        (compare::CompareTarget::Version, _) => CompareTarget::Version(0),
        (compare::CompareTarget::Create, Some(TargetUnion::CreateRevision(revision))) => {
            CompareTarget::Create(revision)
        }
        (compare::CompareTarget::Create, _) => CompareTarget::Create(0),
        (compare::CompareTarget::Mod, Some(TargetUnion::ModRevision(revision))) => {
            CompareTarget::Mod(revision)
        }
        (compare::CompareTarget::Mod, _) => CompareTarget::Mod(0),
        (compare::CompareTarget::Value, Some(TargetUnion::Value(value))) => {
            CompareTarget::Value(value)
        }
        (compare::CompareTarget::Value, _) => CompareTarget::Value(Default::default()),
        (compare::CompareTarget::Lease, Some(TargetUnion::Lease(lease))) => {
            CompareTarget::Lease(lease)
        }
        (compare::CompareTarget::Lease, _) => CompareTarget::Lease(0),
    };
    let keys = KeyRange { key: request.key, range_end: request.range_end };
    Compare { keys, operator, target }
}

/// What etcd does with numbers that it does not know, as a comparison that it does: an unknown
/// target is equal to every value, and an unknown operator always holds, except between a value
/// and keys that do not exist. Versions are never negative.
fn unknown_comparison(request: &pb::Compare) -> Option<Compare> {
    let known_operator = compare::CompareResult::try_from(request.result).ok();
    let known_target = compare::CompareTarget::try_from(request.target).ok();
    let (operator, version) = match (known_operator, known_target) {
        (Some(_), Some(_)) => return None,
        (None, Some(compare::CompareTarget::Value)) => (CompareOperator::Greater, 0),
        (None, _) | (Some(compare::CompareResult::Equal), None) => (CompareOperator::NotEqual, -1),
        (Some(_), None) => (CompareOperator::Equal, -1),
    };
    let keys = KeyRange { key: request.key.clone(), range_end: request.range_end.clone() };
    Some(Compare { keys, operator, target: CompareTarget::Version(version) })
}

pub(crate) fn key_value(kv: KeyValue) -> mvccpb::KeyValue {
    mvccpb::KeyValue {
        key: kv.key,
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        value: kv.value,
        lease: kv.lease,
    }
}

type Header = Option<pb::ResponseHeader>;

pub(crate) fn range_response(header: Header, found: RangeOutcome) -> pb::RangeResponse {
    let kvs = found.kvs.into_iter().map(key_value).collect();
    pb::RangeResponse { header, kvs, more: found.more, count: found.count }
}

pub(crate) fn put_response(header: Header, done: PutOutcome) -> pb::PutResponse {
    pb::PutResponse { header, prev_kv: done.previous.map(key_value) }
}

pub(crate) fn delete_response(header: Header, done: DeleteRangeOutcome) -> pb::DeleteRangeResponse {
    let prev_kvs = done.previous.into_iter().map(key_value).collect();
    pb::DeleteRangeResponse { header, deleted: done.deleted, prev_kvs }
}

pub(crate) fn txn_response(header: Header, done: TxnOutcome) -> pb::TxnResponse {
    let responses = done.responses.into_iter().map(response).collect();
    pb::TxnResponse { header, succeeded: done.succeeded, responses }
}

/// Headers inside a transaction carry only the revision.
fn response(part: TxnOperationReply) -> pb::ResponseOp {
    let header = Some(pb::ResponseHeader { revision: part.revision, ..Default::default() });
    let response = match part.outcome {
        KvOutcome::Range(found) => {
            Some(response_op::Response::ResponseRange(range_response(header, found)))
        }
        KvOutcome::Put(done) => {
            Some(response_op::Response::ResponsePut(put_response(header, done)))
        }
        KvOutcome::DeleteRange(done) => {
            Some(response_op::Response::ResponseDeleteRange(delete_response(header, done)))
        }
        KvOutcome::Txn(done) => {
            Some(response_op::Response::ResponseTxn(txn_response(header, done)))
        }
        _ => None,
    };
    pb::ResponseOp { response }
}
