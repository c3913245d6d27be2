//! From arguments to requests.

use quorate_proto::etcdserverpb as etcd;
use quorate_proto::etcdserverpb::range_request as wire;

use crate::kv_arguments::{DeleteOptions, GetOptions, OrderArgument, PutOptions, SortBy};

pub(super) fn put(options: &PutOptions, value: Vec<u8>) -> etcd::PutRequest {
    etcd::PutRequest {
        key: options.key.clone().into(),
        value: value.into(),
        lease: options.lease,
        prev_kv: options.prev_kv,
        ignore_value: options.ignore_value,
        ignore_lease: options.ignore_lease,
    }
}

pub(super) fn range(options: &GetOptions) -> etcd::RangeRequest {
    let (key, range_end) = options.keys.range();
    let sort_target = match options.sort_by {
        Some(SortBy::Create) => wire::SortTarget::Create,
        Some(SortBy::Modify) => wire::SortTarget::Mod,
        Some(SortBy::Value) => wire::SortTarget::Value,
        Some(SortBy::Version) => wire::SortTarget::Version,
        Some(SortBy::Key) | None => wire::SortTarget::Key,
    };
    let sort_order = match (options.order, options.sort_by) {
        (Some(OrderArgument::Descend), _) => wire::SortOrder::Descend,
        (Some(OrderArgument::Ascend), _) => wire::SortOrder::Ascend,
        // As etcdctl: sorted means ascending, and keys are sorted already.
        (None, Some(by)) if by != SortBy::Key => wire::SortOrder::Ascend,
        (None, _) => wire::SortOrder::None,
    };
    etcd::RangeRequest {
        key: key.into(),
        range_end: range_end.into(),
        limit: options.limit,
        revision: options.rev,
        sort_order: sort_order as i32,
        sort_target: sort_target as i32,
        serializable: options.consistency == "s",
        keys_only: options.keys_only,
        count_only: options.count_only,
        ..Default::default()
    }
}

pub(super) fn delete(options: &DeleteOptions) -> etcd::DeleteRangeRequest {
    let (key, range_end) = options.keys.range();
    etcd::DeleteRangeRequest {
        key: key.into(),
        range_end: range_end.into(),
        prev_kv: options.prev_kv,
    }
}
