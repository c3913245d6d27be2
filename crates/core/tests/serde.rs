//! Values as JSON: their form, round trips, and what is refused.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use quorate_core::config::{Activation, EtcdCompat, Liveness, ReadMode};
use quorate_core::event::{AbortReason, SettledEvidence};
use quorate_core::membership::{
    ChangeKind, ChangeRefusal, EndedGoal, GoalEnd, GoalStep, MemberInfo, MembershipError,
    MembershipParts, Operation, PlanContext, Transition, plan,
};
use quorate_core::message::Identity;
use quorate_core::refusal::{CampaignBlocked, Malformed};
use quorate_core::status::{
    AwaitedMember, AwaitedReason, Flow, GoalStatus, LogStatus, PeerStatus, RoleKind,
};
use quorate_core::{
    Boot, Change, Config, ConfigError, Dropped, EntryId, Event, Input, MemberId, MemberSet,
    Membership, Raft, Refusal, RequestId, SaveId, SnapshotMeta, Status,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The value looks like this, and this is read as the value.
#[track_caller]
fn both_ways<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T, json: Value) {
    assert_eq!(serde_json::to_value(&value).unwrap(), json);
    assert_eq!(serde_json::from_value::<T>(json.clone()).unwrap(), value);
    assert_eq!(serde_json::from_str::<T>(&json.to_string()).unwrap(), value);
}

#[track_caller]
fn comes_back<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T) {
    let json = serde_json::to_string_pretty(&value).unwrap();
    assert_eq!(serde_json::from_str::<T>(&json).unwrap(), value, "{json}");
}

/// Reading this fails with this text.
#[track_caller]
fn refused<T: DeserializeOwned + Debug>(json: Value, why: &str) {
    let said = serde_json::from_value::<T>(json).unwrap_err().to_string();
    assert!(said.contains(why), "{said}");
}

fn id(number: u64) -> MemberId {
    MemberId(number)
}

fn info(text: &'static str, zone: &'static [u8]) -> MemberInfo {
    MemberInfo { info: text.into(), zone: Bytes::from_static(zone) }
}

#[test]
fn ids() {
    both_ways(id(7), json!(7));
    both_ways(id(u64::MAX), json!(u64::MAX));
    both_ways(EntryId::new(2, 9), json!({"term": 2, "index": 9}));
    both_ways(RequestId(1 << 60), json!(1u64 << 60));
    both_ways(SaveId(3), json!(3));
    both_ways(MemberSet::from([1, 2, 3]), json!([1, 2, 3]));
    both_ways(
        Identity { incarnation: None, joined_at: 4 },
        json!({"incarnation": null, "joined_at": 4}),
    );
}

#[test]
fn a_set_is_sorted_however_it_was_written() {
    let set: MemberSet = serde_json::from_value(json!([3, 1, 2, 3])).unwrap();
    assert_eq!(set, MemberSet::from([1, 2, 3]));
    assert!(set.contains(id(1)));
}

#[test]
fn settings() {
    comes_back(Config::new(id(1)));
    comes_back(Config::etcd(id(u64::MAX)));
    both_ways(Activation::OnAppend, json!("on_append"));
    both_ways(ReadMode::Quorum, json!("quorum"));
    both_ways(
        ReadMode::LeaderLease { drift_ticks: 2 },
        json!({"leader_lease": {"drift_ticks": 2}}),
    );
    both_ways(
        Liveness { settle: false, ..Liveness::ALL },
        json!({"votes_tell_commit": true, "demote_before_removal": true, "settle": false}),
    );
    comes_back(EtcdCompat::etcd());
}

#[test]
fn missing_config_fields_have_defaults() {
    let written = json!({"id": 3, "election_ticks": 20, "etcd_compat": {"coalesce": false}});
    let read: Config = serde_json::from_value(written).unwrap();
    let etcd_compat = EtcdCompat { coalesce: false, ..EtcdCompat::default() };
    assert_eq!(read, Config { election_ticks: 20, etcd_compat, ..Config::new(id(3)) });
    refused::<Config>(json!({"id": 3, "electoin_ticks": 20}), "unknown field `electoin_ticks`");
    let without_id: Config = serde_json::from_value(json!({})).unwrap();
    assert_eq!(without_id.check(), Err(ConfigError::MemberZero));
}

#[test]
fn memberships() {
    let membership = Membership::new([id(1), id(2)], [id(3)])
        .with_activation(Activation::OnAppend)
        .set_goal(&[1, 4].into(), &[3].into())
        .unwrap()
        .with_ended_goal(EndedGoal {
            id: EntryId::new(1, 2),
            end: GoalEnd::Reached,
            at: EntryId::new(1, 5),
        })
        .with_incarnation(id(2), 77)
        .with_joined(id(3), 8)
        .with_info(id(1), info("http://a", b"z\xff"));
    both_ways(
        membership.clone(),
        json!({
            "majorities": [[1, 2]],
            "learners": [3],
            "learners_next": [],
            "auto_leave": false,
            "since": {"term": 0, "index": 0},
            "activation": "on_append",
            "goal": {
                "id": {"term": 0, "index": 0},
                "voters": [1, 4],
                "learners": [3],
                "from_voters": [1, 2],
                "from_learners": [3],
                "cancels": false,
            },
            "ended": [{
                "id": {"term": 1, "index": 2},
                "end": "reached",
                "at": {"term": 1, "index": 5},
            }],
            "incarnations": [[2, 77]],
            "joined": [[3, 8]],
            "removed": [],
            "infos": [[1, {"info": "http://a", "zone": [122, 255]}]],
        }),
    );
    comes_back(MembershipParts::from(membership.clone()));
    comes_back(SnapshotMeta { id: EntryId::new(1, 1), membership: Arc::new(membership) });
    // Of a member that has not joined yet.
    comes_back(Membership::default());
    comes_back(Membership::default().with_activation(Activation::OnAppend));
}

#[test]
fn a_membership_may_be_partial_and_in_any_order() {
    let short = json!({
        "majorities": [[2, 1]],
        "infos": [[2, {"info": "b"}], [1, {"zone": "east"}]],
    });
    let read: Membership = serde_json::from_value(short).unwrap();
    let expected = Membership::new([id(1), id(2)], []).with_info(id(1), info("", b"east"));
    assert_eq!(read, expected.with_info(id(2), info("b", b"")));
    assert_eq!(read.info(id(1)), Some(&info("", b"east")));
}

#[test]
fn an_invalid_membership_is_refused() {
    let no_voters = "a majority has no voters";
    refused::<Membership>(
        json!({"majorities": [[1, 2]], "learners": [2]}),
        "0000000000000002 is both voter and learner",
    );
    refused::<Membership>(json!({"majorities": [[0, 1]]}), "member id 0 is not valid");
    refused::<Membership>(json!({"majorities": [[1], []]}), no_voters);
    refused::<Membership>(json!({"learners": [1]}), no_voters);
    refused::<Membership>(
        json!({"majorities": [[1]], "auto_leave": true}),
        "auto-leave is set on a membership that is not joint",
    );
    refused::<Membership>(
        json!({"majorities": [[1]], "joined": [[1, 4], [1, 5]]}),
        "0000000000000001 is listed twice",
    );
    refused::<Membership>(json!({"voters": [1]}), "unknown field `voters`");
    // The same check for values that contain one.
    let at = json!({"term": 1, "index": 1});
    let both = json!({"majorities": [[1]], "learners": [1]});
    refused::<SnapshotMeta>(
        json!({"id": at, "membership": both}),
        "0000000000000001 is both voter and learner",
    );
}

#[test]
fn changes() {
    both_ways(
        Change::goal([id(1), id(2)], [id(4)])
            .expecting(EntryId::new(3, 10))
            .with_context("why")
            .with_info(id(4), info("http://d", b"west")),
        json!({
            "kind": {"goal": {"voters": [1, 2], "learners": [4]}},
            "context": "why",
            "expected": {"term": 3, "index": 10},
            "infos": [[4, {"info": "http://d", "zone": "west"}]],
        }),
    );
    let operations = vec![
        Operation::Voter(id(1)),
        Operation::Learner(id(2)),
        Operation::Remove(id(3)),
        Operation::Update(id(4)),
    ];
    both_ways(
        ChangeKind::Operations { operations, transition: Transition::JointExplicit },
        json!({"operations": {
            "operations": [{"voter": 1}, {"learner": 2}, {"remove": 3}, {"update": 4}],
            "transition": "joint_explicit",
        }}),
    );
    both_ways(ChangeKind::V1(Operation::Voter(id(5))), json!({"v1": {"voter": 5}}));
    both_ways(
        ChangeKind::Majorities(vec![[1, 2].into(), [1, 3].into()]),
        json!({"majorities": [[1, 2], [1, 3]]}),
    );
    both_ways(ChangeKind::AddLearners([4].into()), json!({"add_learners": [4]}));
    both_ways(
        ChangeKind::SetVoters { voters: [1].into(), retain: true },
        json!({"set_voters": {"voters": [1], "retain": true}}),
    );
    both_ways(
        ChangeKind::EditVoters { add: [4].into(), remove: [1].into(), retain: false },
        json!({"edit_voters": {"add": [4], "remove": [1], "retain": false}}),
    );
    both_ways(ChangeKind::Cancel, json!("cancel"));
}

#[test]
fn a_change_needs_a_kind_and_has_no_unknown_fields() {
    let short: Change = serde_json::from_value(json!({"kind": "cancel"})).unwrap();
    assert_eq!(short, Change::cancel());
    refused::<Change>(json!({"context": "nothing else"}), "missing field `kind`");
    refused::<Change>(json!({"kind": "cancel", "expecting": null}), "unknown field `expecting`");
    refused::<Change>(
        json!({"kind": {"set_voters": {"voters": [1], "retain": true, "joint": true}}}),
        "unknown field `joint`",
    );
}

#[test]
fn plans_and_steps() {
    let now = Membership::new([id(1), id(2), id(3)], []);
    let view = PlanContext {
        leader: id(1),
        caught_up: [1, 2, 3].into(),
        catching_up: MemberSet::new(),
        settled: true,
    };
    let way = plan(&now, &view, &[2, 3, 4].into(), &MemberSet::new()).unwrap();
    assert!(way.steps.len() > 3);
    let json = serde_json::to_value(&way).unwrap();
    assert_eq!(json["steps"][0]["step"], json!({"add_learners": [4]}));
    assert_eq!(json["steps"][0]["membership"]["learners"], json!([4]));
    comes_back(way);
    comes_back(view);
    both_ways(GoalStep::CatchUp([4].into()), json!({"catch_up": [4]}));
    both_ways(GoalStep::HandOver([2].into()), json!({"hand_over": [2]}));
    both_ways(
        GoalStep::MoveVotes(vec![Operation::Learner(id(1))]),
        json!({"move_votes": [{"learner": 1}]}),
    );
    both_ways(GoalStep::Leave, json!("leave"));
    both_ways(GoalStep::Settle, json!("settle"));
    both_ways(GoalStep::RemoveLearners([1].into()), json!({"remove_learners": [1]}));
}

/// A single leader, with a goal that waits for a member that never starts.
fn leader_with_goal() -> Raft {
    let boot = Boot::first(Membership::new([id(1)], []));
    let mut raft = Raft::new(Config::new(id(1)), boot).unwrap();
    raft.step(Input::Campaign).unwrap();
    do_all(&mut raft);
    raft.step(Input::Change(RequestId(1), Change::goal([id(1), id(2)], []))).unwrap();
    do_all(&mut raft);
    raft
}

fn do_all(raft: &mut Raft) {
    while raft.has_output() {
        let output = raft.take_output();
        if let Some(save) = output.save {
            raft.step(Input::Saved(save.id)).unwrap();
        }
        if let Some(last) = output.apply.last() {
            raft.step(Input::Applied(last.id.index)).unwrap();
        }
    }
}

#[test]
fn a_status_of_a_leader_with_a_goal() {
    let status: Status = leader_with_goal().status();
    let json = serde_json::to_value(&status).unwrap();
    assert_eq!(json["id"], json!(1));
    assert_eq!(json["role"], json!("leader"));
    assert_eq!(json["goal"]["step"], json!({"catch_up": [2]}));
    assert_eq!(json["membership"]["goal"]["voters"], json!([1, 2]));
    assert_eq!(json["peers"][1]["flow"], json!("probe"));
    comes_back::<LogStatus>(status.log);
    comes_back::<PeerStatus>(status.peers[1]);
    comes_back(status);
    let joining = Raft::new(Config::new(id(9)), Boot::empty()).unwrap();
    comes_back(joining.status());
}

#[test]
fn parts_of_a_status() {
    both_ways(RoleKind::PreCandidate, json!("pre_candidate"));
    both_ways(Flow::Replicate, json!("replicate"));
    both_ways(Flow::Snapshot(12), json!({"snapshot": 12}));
    both_ways(
        GoalStatus {
            step: GoalStep::Leave,
            since_ticks: 4,
            held_up: Some(ChangeRefusal::QuorumNotReady { voters: 3, quorum: 2, live: 1 }),
            awaited: vec![
                AwaitedMember { id: id(2), reason: AwaitedReason::Silent { ticks: 9 } },
                AwaitedMember { id: id(3), reason: AwaitedReason::DiskStalled },
            ],
            behind: vec![(id(2), 100, 1)],
        },
        json!({
            "step": "leave",
            "since_ticks": 4,
            "held_up": {"quorum_not_ready": {"voters": 3, "quorum": 2, "live": 1}},
            "awaited": [
                {"id": 2, "reason": {"silent": {"ticks": 9}}},
                {"id": 3, "reason": "disk_stalled"},
            ],
            "behind": [[2, 100, 1]],
        }),
    );
    both_ways(GoalEnd::Cancelled, json!("cancelled"));
}

#[test]
fn refusals() {
    both_ways(Refusal::NotLeader { leader: Some(id(2)) }, json!({"not_leader": {"leader": 2}}));
    both_ways(Refusal::LeaderRemoved, json!("leader_removed"));
    both_ways(
        Refusal::Change(ChangeRefusal::InvalidMembership(MembershipError::VoterAndLearner(id(3)))),
        json!({"change": {"invalid_membership": {"voter_and_learner": 3}}}),
    );
    both_ways(
        ChangeRefusal::Stale { newest: EntryId::new(2, 5) },
        json!({"stale": {"newest": {"term": 2, "index": 5}}}),
    );
    both_ways(
        Dropped::OldTerm { term: 1, current: 2 },
        json!({"old_term": {"term": 1, "current": 2}}),
    );
    both_ways(Dropped::Malformed(Malformed::FromSelf), json!({"malformed": "from_self"}));
    both_ways(
        Dropped::MayNotCampaign(CampaignBlocked::NotVoter),
        json!({"may_not_campaign": "not_voter"}),
    );
}

#[test]
fn events() {
    let membership = Arc::new(Membership::new([id(1)], []));
    let at = EntryId::new(1, 1);
    both_ways(
        Event::Role { from: RoleKind::Candidate, to: RoleKind::Leader, term: 2 },
        json!({"role": {"from": "candidate", "to": "leader", "term": 2}}),
    );
    comes_back(Event::Leader { leader: None, term: 2 });
    comes_back(Event::Membership { id: at, membership: Arc::clone(&membership) });
    comes_back(Event::Settled {
        id: at,
        membership: Arc::clone(&membership),
        evidence: SettledEvidence::Counted(vec![(id(1), 4)]),
    });
    comes_back(Event::Settled { id: at, membership, evidence: SettledEvidence::ReportedBy(id(2)) });
    both_ways(Event::GoalStep { step: GoalStep::Settle }, json!({"goal_step": {"step": "settle"}}));
    comes_back(Event::GoalEnded(EndedGoal { id: at, end: GoalEnd::Replaced, at }));
    comes_back(Event::IdentityRejected {
        by: id(2),
        known: Identity { incarnation: Some(1), joined_at: 0 },
    });
    comes_back(Event::TransferBegan { to: id(2) });
    both_ways(
        Event::TransferAborted { to: id(2), reason: AbortReason::TimedOut },
        json!({"transfer_aborted": {"to": 2, "reason": "timed_out"}}),
    );
    comes_back(Event::SnapshotInstalled(at));
}

#[test]
fn opaque_bytes_are_text_where_they_are_text() {
    for bytes in [&b""[..], b"plain", "t\u{e9}xt \"\\ \u{1f980}\n\0".as_bytes(), b"\xff\x00"] {
        let change = Change::cancel().with_context(Bytes::from_static(bytes));
        let json = serde_json::to_value(&change).unwrap();
        assert_eq!(json["context"].is_string(), std::str::from_utf8(bytes).is_ok());
        comes_back(change);
    }
    refused::<Change>(json!({"kind": "cancel", "context": [256]}), "expected u8");
    refused::<Change>(json!({"kind": "cancel", "context": 7}), "expected text or a list of bytes");
}
