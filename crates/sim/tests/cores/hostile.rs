//! Hostile input from peers, clients and disks: no panic, no endless loop, no unbounded
//! growth, and the core's own invariants hold.

use std::sync::Arc;

use quorate_core::membership::{LoggedChange, Operation};
use quorate_core::message::{
    Append, AppendReply, Heartbeat, HeartbeatReply, Identity, Message, Proposal, Vote, VoteReply,
};
use quorate_core::{
    Boot, Change, Config, Entries, Entry, EntryId, Envelope, HardState, Input, LoadTarget,
    MemberId, MemberSet, Membership, Payload, Raft, Refusal, RequestId, SaveId, SnapshotMeta,
    Stalled, invariants,
};

use quorate_sim::random::Random;

use crate::random::RandomCluster;
use crate::settings::Settings;
use crate::{for_seeds, pick};

/// Numbers at which mistakes are likely: small ones, those around the member's own marks,
/// and the ends of the range.
fn number(random: &mut Random, raft: &Raft) -> u64 {
    let status = raft.status();
    let marks = [status.term, status.log.last.index, status.log.commit, status.log.base.index];
    match pick(random, 8) {
        0 => u64::MAX - random.below(3),
        1 => (1 << 62) - random.below(3),
        2 => random.below(4),
        kind => (marks[kind % 4] + random.below(4)).saturating_sub(1),
    }
}

fn id(random: &mut Random) -> MemberId {
    MemberId(match pick(random, 10) {
        9 => u64::MAX,
        small => small as u64,
    })
}

fn entry_id(random: &mut Random, raft: &Raft) -> EntryId {
    EntryId::new(number(random, raft), number(random, raft))
}

fn members(random: &mut Random) -> MemberSet {
    (0..pick(random, 4)).map(|_| id(random)).collect()
}

fn membership(random: &mut Random) -> Arc<Membership> {
    let majorities = (0..pick(random, 4)).map(|_| members(random)).collect();
    let (learners, next) = (members(random), members(random));
    let membership = Membership::from_parts(majorities, learners, next);
    Arc::new(if pick(random, 2) == 0 { membership.with_auto_leave() } else { membership })
}

fn change(random: &mut Random) -> Change {
    let operations = (0..pick(random, 4)).map(|_| {
        let id = id(random);
        match pick(random, 4) {
            0 => Operation::Voter(id),
            1 => Operation::Learner(id),
            2 => Operation::Remove(id),
            _ => Operation::Update(id),
        }
    });
    Change::new(operations.collect::<Vec<_>>())
}

/// Entries that mostly follow `after`, so that some get past the first check.
fn entries(random: &mut Random, raft: &Raft, after: EntryId) -> Entries {
    let mut before = after;
    let made = (0..pick(random, 6)).map(|_| {
        let follows = EntryId::new(before.term, before.index.wrapping_add(1));
        let id = match pick(random, 6) {
            0 => entry_id(random, raft),
            1 => EntryId::new(before.term.wrapping_add(1), before.index.wrapping_add(1)),
            _ => follows,
        };
        before = id;
        let payload = if pick(random, 4) == 0 {
            let (change, membership) = (change(random), membership(random));
            Payload::Change(Arc::new(LoggedChange { change, membership }))
        } else {
            Payload::Command("x".into())
        };
        Entry { id, payload }
    });
    made.collect::<Vec<_>>().into()
}

fn message(random: &mut Random, raft: &Raft) -> Message {
    let request = RequestId(number(random, raft));
    let granted = pick(random, 2) == 0;
    let committed = entry_id(random, raft);
    let vote = Vote { last: entry_id(random, raft), forced: granted, committed };
    match pick(random, 16) {
        0 => Message::PreVote(vote),
        1 => Message::PreVoteReply(VoteReply { granted, committed }),
        2 => Message::Vote(vote),
        3 => Message::VoteReply(VoteReply { granted, committed }),
        4..=6 => {
            let prev = match pick(random, 3) {
                0 => raft.status().log.last,
                1 => raft.status().log.base,
                _ => entry_id(random, raft),
            };
            let entries = entries(random, raft, prev);
            Message::Append(Append { prev, entries, commit: number(random, raft) })
        }
        7 => Message::AppendReply(AppendReply::Matches {
            index: number(random, raft),
            commit: number(random, raft),
        }),
        8 => {
            let (prev, hint) = (number(random, raft), entry_id(random, raft));
            let sent_at = number(random, raft);
            Message::AppendReply(match pick(random, 2) {
                0 => AppendReply::Differs { prev, hint },
                _ => AppendReply::Missing { confirmed: prev, hint, sent_at },
            })
        }
        9 => {
            let (round, sent_at) = (number(random, raft), number(random, raft));
            let (commit, settled) = (number(random, raft), number(random, raft));
            Message::Heartbeat(Heartbeat { commit, round, sent_at, settled })
        }
        10 => {
            let (round, sent_at) = (number(random, raft), number(random, raft));
            let (commit, applied) = (number(random, raft), number(random, raft));
            let stalled = Stalled { disk: pick(random, 4) == 0, machine: pick(random, 4) == 0 };
            let reply = HeartbeatReply { round, sent_at, commit, applied, stalled };
            Message::HeartbeatReply(reply)
        }
        11 => {
            let id = entry_id(random, raft);
            Message::Snapshot(SnapshotMeta { id, membership: membership(random) })
        }
        12 => Message::TimeoutNow,
        13 => Message::Propose(request, Proposal::Change(Box::new(change(random)))),
        14 => Message::Read(request),
        _ => match pick(random, 5) {
            4 => {
                let (incarnation, joined_at) = (Some(number(random, raft)), number(random, raft));
                Message::IdentityRejected(Identity { incarnation, joined_at })
            }
            0 => Message::ReadReply(request, Ok(number(random, raft))),
            1 => Message::ProposeReply(request, Ok(entry_id(random, raft))),
            2 => Message::ProposeReply(request, Err(Refusal::LeaderRemoved)),
            _ => Message::Transfer(id(random)),
        },
    }
}

fn input(random: &mut Random, raft: &Raft) -> Input {
    match pick(random, 14) {
        0 => Input::Saved(SaveId(number(random, raft))),
        1 => Input::Applied(number(random, raft)),
        2 => Input::Snapshotted(number(random, raft)),
        3 => Input::Trim(number(random, raft)),
        4 => {
            let reader = if pick(random, 2) == 0 {
                LoadTarget::Machine
            } else {
                LoadTarget::Peer(id(random))
            };
            let after = entry_id(random, raft);
            Input::Loaded(reader, entries(random, raft, after))
        }
        5 => Input::Change(RequestId(1), change(random)),
        6 => Input::Tick,
        _ => {
            let to = if pick(random, 12) == 0 { id(random) } else { raft.status().id };
            let from = id(random);
            let term = number(random, raft);
            let incarnation = number(random, raft);
            let joined_at = number(random, raft);
            let message = message(random, raft);
            Input::Received(Envelope { from, to, term, incarnation, joined_at, message })
        }
    }
}

/// Steps hostile inputs and checks the member after each.
fn attack(random: &mut Random, raft: &mut Raft, inputs: u64) {
    for _ in 0..random.below(inputs) {
        let before = raft.status();
        let hostile = input(random, raft);
        let shown = format!("{hostile:?}");
        let _ = raft.step(hostile);
        invariants::check(raft).unwrap_or_else(|why| panic!("{why} after {shown}"));
        let after = raft.status();
        assert!(after.term >= before.term && after.log.commit >= before.log.commit, "{shown}");
        assert!(after.log.applied >= before.log.applied, "{shown}");
        if random.below(3) != 0 {
            continue;
        }
        let output = raft.take_output();
        // What one input may cause is bounded by the members it knows.
        assert!(output.send.len() < 2_000, "{} messages after {shown}", output.send.len());
        invariants::check(raft).unwrap_or_else(|why| panic!("{why} after taking {shown}"));
        if let (Some(save), 0) = (output.save, random.below(2)) {
            let _ = raft.step(Input::Saved(save.id));
        }
        if let (Some(last), 0) = (output.apply.last(), random.below(5)) {
            let _ = raft.step(Input::Applied(last.id.index));
        }
    }
}

#[test]
fn no_input_breaks_a_member() {
    for_seeds(300, |random| {
        let mut cluster = RandomCluster::new(Settings::Any, random);
        cluster.run(400, random);
        let victim = MemberId(random.between(1, 5));
        if let Some(raft) = cluster.cluster.raft(victim) {
            attack(random, &mut raft.clone(), 900);
        }
    });
}

#[test]
fn no_disk_breaks_a_start() {
    for_seeds(300, |random| {
        let healthy = Boot::first(Membership::new([MemberId(1), MemberId(2)], []));
        let raft = Raft::new(Config::new(MemberId(1)), healthy).unwrap();
        let base = entry_id(random, &raft);
        let boot = Boot {
            hard_state: HardState {
                term: number(random, &raft),
                vote: Some(id(random)),
                commit: number(random, &raft),
            },
            snapshot: SnapshotMeta {
                id: if random.below(2) == 0 { base } else { entry_id(random, &raft) },
                membership: membership(random),
            },
            base,
            terms: (0..random.below(3)).map(|_| entry_id(random, &raft)).collect(),
            memberships: (0..random.below(2))
                .map(|_| (entry_id(random, &raft), membership(random)))
                .collect(),
            tail: entries(random, &raft, base),
            applied: number(random, &raft),
        };
        if let Ok(mut raft) = Raft::new(Config::new(MemberId(1)), boot) {
            invariants::check(&raft).unwrap();
            attack(random, &mut raft, 100);
        }
    });
}

#[test]
fn waiting_reads_are_bounded() {
    let id = MemberId(1);
    let mut config = Config::new(id);
    config.reads_waiting_max = 10;
    let mut raft = Raft::new(config, Boot::first(Membership::new([id], []))).unwrap();
    raft.step(Input::Campaign).unwrap();
    let save = raft.take_output().save.unwrap();
    raft.step(Input::Saved(save.id)).unwrap();
    // It leads, but its first entry is not committed: reads wait.
    let taken = (0..100).filter(|read| raft.step(Input::Read(RequestId(*read))).is_ok()).count();
    assert_eq!(taken, 10);
}
