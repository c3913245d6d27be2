//! Compares encoded messages with bytes written by hand from the field numbers that etcd's
//! clients use.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Debug;

use bytes::Bytes;
use prost::Message;
use quorate_proto::authpb::{Permission, permission};
use quorate_proto::etcdserverpb::{self as etcd, ResponseHeader};
use quorate_proto::grpc::health::v1::{HealthCheckResponse, health_check_response::ServingStatus};
use quorate_proto::mvccpb::{Event, KeyValue, event::EventType};
use quorate_proto::quorate::v1;
use quorate_proto::{v3electionpb, v3lockpb};

/// The first byte of a field: field number and wire type.
const fn varint(number: u8) -> u8 {
    number << 3
}
const fn bytes(number: u8) -> u8 {
    number << 3 | 2
}

fn check<M: Message + Default + PartialEq + Debug>(message: M, expected: &[u8]) {
    assert_eq!(message.encode_to_vec(), expected, "{message:?}");
    assert_eq!(M::decode(expected).unwrap(), message);
}

#[test]
fn headers() {
    let header = ResponseHeader { cluster_id: 300, member_id: 2, revision: -1, raft_term: 4 };
    let mut expected = vec![varint(1), 0xac, 0x02, varint(2), 2, varint(3)];
    // Negative numbers take ten bytes.
    expected.extend([0xff; 9]);
    expected.extend([1, varint(4), 4]);
    check(header, &expected);
}

#[test]
fn ranges() {
    let request = etcd::RangeRequest {
        key: "a".into(),
        range_end: "b".into(),
        limit: 3,
        revision: 4,
        sort_order: etcd::range_request::SortOrder::Descend.into(),
        sort_target: etcd::range_request::SortTarget::Value.into(),
        serializable: true,
        keys_only: true,
        count_only: true,
        min_mod_revision: 10,
        max_mod_revision: 11,
        min_create_revision: 12,
        max_create_revision: 13,
    };
    #[rustfmt::skip]
    check(request, &[
        bytes(1), 1, b'a', bytes(2), 1, b'b', varint(3), 3, varint(4), 4, varint(5), 2,
        varint(6), 4, varint(7), 1, varint(8), 1, varint(9), 1,
        varint(10), 10, varint(11), 11, varint(12), 12, varint(13), 13,
    ]);
    let kv = KeyValue {
        key: "k".into(),
        create_revision: 2,
        mod_revision: 3,
        version: 4,
        value: "v".into(),
        lease: 6,
    };
    let response = etcd::RangeResponse { header: None, kvs: vec![kv], more: true, count: 9 };
    #[rustfmt::skip]
    check(response, &[
        bytes(2), 14,
            bytes(1), 1, b'k', varint(2), 2, varint(3), 3, varint(4), 4, bytes(5), 1, b'v',
            varint(6), 6,
        varint(3), 1, varint(4), 9,
    ]);
}

#[test]
fn transactions() {
    let compare = etcd::Compare {
        result: etcd::compare::CompareResult::NotEqual.into(),
        target: etcd::compare::CompareTarget::Lease.into(),
        key: "k".into(),
        range_end: "l".into(),
        target_union: Some(etcd::compare::TargetUnion::Lease(5)),
    };
    let put = etcd::PutRequest { value: "v".into(), ignore_lease: true, ..Default::default() };
    let request = etcd::TxnRequest {
        compare: vec![compare],
        success: vec![etcd::RequestOp {
            request: Some(etcd::request_op::Request::RequestPut(put)),
        }],
        failure: vec![etcd::RequestOp {
            request: Some(etcd::request_op::Request::RequestTxn(etcd::TxnRequest::default())),
        }],
    };
    #[rustfmt::skip]
    check(request, &[
        bytes(1), 13,
            varint(1), 3, varint(2), 4, bytes(3), 1, b'k', varint(8), 5,
            // Number 64 takes two bytes.
            0x82, 0x04, 1, b'l',
        bytes(2), 7, bytes(2), 5, bytes(2), 1, b'v', varint(6), 1,
        bytes(3), 2, bytes(4), 0,
    ]);
}

#[test]
fn watches() {
    let create = etcd::WatchCreateRequest {
        key: "k".into(),
        start_revision: 3,
        progress_notify: true,
        filters: vec![etcd::watch_create_request::FilterType::Nodelete.into()],
        prev_kv: true,
        watch_id: 7,
        fragment: true,
        ..Default::default()
    };
    let request = etcd::WatchRequest {
        request_union: Some(etcd::watch_request::RequestUnion::CreateRequest(create)),
    };
    #[rustfmt::skip]
    check(request, &[
        bytes(1), 16,
            bytes(1), 1, b'k', varint(3), 3, varint(4), 1, bytes(5), 1, 1, varint(6), 1,
            varint(7), 7, varint(8), 1,
    ]);
    let event = Event {
        r#type: EventType::Delete.into(),
        kv: Some(KeyValue { mod_revision: 3, ..Default::default() }),
        prev_kv: Some(KeyValue { version: 4, ..Default::default() }),
    };
    let response = etcd::WatchResponse {
        header: Some(ResponseHeader { revision: 3, ..Default::default() }),
        watch_id: 2,
        created: true,
        canceled: true,
        compact_revision: 5,
        cancel_reason: "x".into(),
        fragment: true,
        events: vec![event],
    };
    #[rustfmt::skip]
    check(response, &[
        bytes(1), 2, varint(3), 3,
        varint(2), 2, varint(3), 1, varint(4), 1, varint(5), 5, bytes(6), 1, b'x', varint(7), 1,
        bytes(11), 10, varint(1), 1, bytes(2), 2, varint(3), 3, bytes(3), 2, varint(4), 4,
    ]);
}

#[test]
fn leases_and_members() {
    let left = etcd::LeaseTimeToLiveResponse {
        header: None,
        id: 2,
        ttl: 3,
        granted_ttl: 4,
        keys: vec![Bytes::from_static(b"k")],
    };
    check(left, &[varint(2), 2, varint(3), 3, varint(4), 4, bytes(5), 1, b'k']);
    let member = etcd::Member {
        id: 1,
        name: "n".into(),
        peer_urls: vec!["p".into(), "q".into()],
        client_urls: vec!["c".into()],
        is_learner: true,
    };
    #[rustfmt::skip]
    check(etcd::MemberAddResponse { header: None, member: Some(member), members: vec![] }, &[
        bytes(2), 16,
            varint(1), 1, bytes(2), 1, b'n', bytes(3), 1, b'p', bytes(3), 1, b'q',
            bytes(4), 1, b'c', varint(5), 1,
    ]);
}

#[test]
fn maintenance_and_users() {
    let status = etcd::StatusResponse {
        version: "v".into(),
        db_size: 3,
        leader: 4,
        raft_index: 5,
        raft_term: 6,
        raft_applied_index: 7,
        db_size_in_use: 9,
        is_learner: true,
        storage_version: "s".into(),
        db_size_quota: 12,
        downgrade_info: Some(etcd::DowngradeInfo { enabled: true, ..Default::default() }),
        ..Default::default()
    };
    #[rustfmt::skip]
    check(status, &[
        bytes(2), 1, b'v', varint(3), 3, varint(4), 4, varint(5), 5, varint(6), 6, varint(7), 7,
        varint(9), 9, varint(10), 1, bytes(11), 1, b's', varint(12), 12,
        bytes(13), 2, varint(1), 1,
    ]);
    let grant = etcd::AuthRoleGrantPermissionRequest {
        name: "r".into(),
        perm: Some(Permission {
            perm_type: permission::Type::Readwrite.into(),
            key: "k".into(),
            range_end: "l".into(),
        }),
    };
    #[rustfmt::skip]
    check(grant, &[
        bytes(1), 1, b'r',
        bytes(2), 8, varint(1), 2, bytes(2), 1, b'k', bytes(3), 1, b'l',
    ]);
}

#[test]
fn locks_elections_and_health() {
    let lock = v3lockpb::LockRequest { name: "n".into(), lease: 2 };
    check(lock, &[bytes(1), 1, b'n', varint(2), 2]);
    let leader = v3electionpb::LeaderKey { name: "n".into(), key: "k".into(), rev: 3, lease: 4 };
    let proclaim = v3electionpb::ProclaimRequest { leader: Some(leader), value: "v".into() };
    #[rustfmt::skip]
    check(proclaim, &[
        bytes(1), 10, bytes(1), 1, b'n', bytes(2), 1, b'k', varint(3), 3, varint(4), 4,
        bytes(2), 1, b'v',
    ]);
    let health = HealthCheckResponse { status: ServingStatus::NotServing.into() };
    check(health, &[varint(1), 2]);
}

#[test]
fn goals() {
    let new = v1::NewMember { name: "n".into(), peer_urls: vec!["p".into()], ..Default::default() };
    let voters = vec![
        v1::TargetMember { member: Some(v1::target_member::Member::Id(7)) },
        v1::TargetMember { member: Some(v1::target_member::Member::New(new)) },
    ];
    let request = v1::SetGoalRequest {
        target: Some(v1::Target { voters, learners: vec![] }),
        wait: true,
        expected: Some(v1::EntryId { term: 1, index: 2 }),
    };
    #[rustfmt::skip]
    check(request, &[
        bytes(1), 14,
            bytes(1), 2, varint(1), 7,
            bytes(1), 8, bytes(3), 6, bytes(1), 1, b'n', bytes(2), 1, b'p',
        varint(2), 1,
        bytes(3), 4, varint(1), 1, varint(2), 2,
    ]);
    let ended = v1::EndedGoal { end: v1::GoalEnd::Cancelled.into(), ..Default::default() };
    let event = Some(v1::membership_event::Event::GoalEnded(ended));
    let reply = v1::WatchReply { header: None, event: Some(v1::MembershipEvent { event }) };
    check(reply, &[bytes(2), 4, bytes(6), 2, varint(2), 2]);
}

/// Decoded values share the memory of the received bytes.
#[test]
fn values_are_not_copied() {
    let request = etcd::PutRequest { key: "k".into(), value: "v".into(), ..Default::default() };
    let encoded = Bytes::from(request.encode_to_vec());
    let decoded = etcd::PutRequest::decode(encoded.clone()).unwrap();
    assert!(encoded.as_ptr_range().contains(&decoded.value.as_ptr()));
}
