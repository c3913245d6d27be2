//! Answers and options as JSON: what they look like, and that they come back.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fmt::Debug;

use bytes::Bytes;
use quorate::driver::{RequestReply, RequestToken};
use quorate::{DriverOptions, OutcomeUnknown, RequestError, RequestRefused};
use quorate_core::membership::{EndedGoal, GoalEnd};
use quorate_core::{EntryId, MemberId, Refusal};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The value is written as this JSON, which is read as the value.
#[track_caller]
fn assert_json<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T, json: Value) {
    assert_eq!(serde_json::to_value(&value).unwrap(), json);
    assert_eq!(serde_json::from_value::<T>(json.clone()).unwrap(), value);
    assert_eq!(serde_json::from_str::<T>(&json.to_string()).unwrap(), value);
}

#[test]
fn done() {
    let id = EntryId::new(2, 9);
    let id_json = json!({"term": 2, "index": 9});
    assert_json(
        RequestReply::Ran { index: 9, reply: Bytes::from_static(b"ok") },
        json!({"ran": {"index": 9, "reply": "ok"}}),
    );
    assert_json(
        RequestReply::Read { index: 4, reply: Bytes::from_static(&[0, 255]) },
        json!({"read": {"index": 4, "reply": [0, 255]}}),
    );
    assert_json(RequestReply::Changed { id }, json!({"changed": {"id": id_json}}));
    assert_json(
        RequestReply::GoalEnded(EndedGoal { id, end: GoalEnd::Reached, at: id }),
        json!({"goal_ended": {"id": id_json, "end": "reached", "at": id_json}}),
    );
    assert_json(RequestReply::Transferred { to: MemberId(2) }, json!({"transferred": {"to": 2}}));
}

#[test]
fn not_done() {
    assert_json(
        RequestError::Refused(RequestRefused::ByLeader(Refusal::TooManyReads { limit: 4 })),
        json!({"refused": {"by_leader": {"too_many_reads": {"limit": 4}}}}),
    );
    assert_json(RequestRefused::NoLeader, json!("no_leader"));
    assert_json(
        RequestRefused::TooManyRequests { limit: 1 },
        json!({"too_many_requests": {"limit": 1}}),
    );
    assert_json(RequestError::Unknown(OutcomeUnknown::TimedOut), json!({"unknown": "timed_out"}));
    assert_json(
        OutcomeUnknown::NotSettledInTime { id: EntryId::new(1, 3) },
        json!({"not_settled_in_time": {"id": {"term": 1, "index": 3}}}),
    );
    assert_json(RequestToken(5), json!(5));
}

#[test]
fn options() {
    assert_json(
        DriverOptions::default(),
        json!({
            "request_ticks": 100,
            "retry_ticks": 20,
            "requests_max": 65_536,
            "command_bytes_max": 33_554_432,
            "snapshot_entries": null,
            "snapshot_bytes": 134_217_728,
            "trim_keep_bytes": 67_108_864,
        }),
    );
    let short: DriverOptions = serde_json::from_value(json!({"retry_ticks": 5})).unwrap();
    let mut expected = DriverOptions::default();
    expected.retry_ticks = 5;
    assert_eq!(short, expected);
    let wrong = serde_json::from_value::<DriverOptions>(json!({"retry_tick": 5})).unwrap_err();
    assert!(wrong.to_string().contains("unknown field `retry_tick`"));
}
