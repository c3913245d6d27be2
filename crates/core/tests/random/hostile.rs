//! Whatever a peer, a client or a disk says: no panic, no endless loop, no growth
//! without bound, and the member's own house stays in order.

use std::sync::Arc;

use proptest::prelude::*;
use quorate_core::membership::{LoggedChange, Operation};
use quorate_core::message::{
    Append, AppendReply, Heartbeat, HeartbeatReply, Identity, Message, Proposal, Vote, VoteReply,
};
use quorate_core::{
    Boot, Change, Config, Entries, Entry, EntryId, Envelope, HardState, Input, LoadTarget,
    MemberId, MemberSet, Membership, Payload, Raft, Refusal, RequestId, SaveId, SnapshotMeta,
    invariants,
};

use crate::cases;
use crate::world::{Tape, World};

/// Numbers where mistakes live: small ones, those around the member's own marks,
/// and the ends of the range.
fn number(tape: &mut Tape<'_>, raft: &Raft) -> u64 {
    let status = raft.status();
    let marks = [status.term, status.log.last.index, status.log.commit, status.log.base.index];
    match tape.pick(8) {
        0 => u64::MAX - tape.pick(3) as u64,
        1 => (1 << 62) - tape.pick(3) as u64,
        2 => tape.pick(4) as u64,
        kind => (marks[kind % 4] + tape.pick(4) as u64).saturating_sub(1),
    }
}

fn id(tape: &mut Tape<'_>) -> MemberId {
    MemberId(match tape.pick(10) {
        9 => u64::MAX,
        small => small as u64,
    })
}

fn entry_id(tape: &mut Tape<'_>, raft: &Raft) -> EntryId {
    EntryId::new(number(tape, raft), number(tape, raft))
}

fn members(tape: &mut Tape<'_>) -> MemberSet {
    (0..tape.pick(4)).map(|_| id(tape)).collect()
}

fn membership(tape: &mut Tape<'_>) -> Arc<Membership> {
    let majorities = (0..tape.pick(4)).map(|_| members(tape)).collect();
    let (learners, next) = (members(tape), members(tape));
    Arc::new(Membership::from_parts(majorities, learners, next, tape.pick(2) == 0))
}

fn change(tape: &mut Tape<'_>) -> Change {
    let operations = (0..tape.pick(4)).map(|_| {
        let id = id(tape);
        match tape.pick(4) {
            0 => Operation::Voter(id),
            1 => Operation::Learner(id),
            2 => Operation::Remove(id),
            _ => Operation::Update(id),
        }
    });
    Change::new(operations.collect::<Vec<_>>())
}

/// Entries that mostly follow `after`, so that some get past the first check.
fn entries(tape: &mut Tape<'_>, raft: &Raft, after: EntryId) -> Entries {
    let mut before = after;
    let made = (0..tape.pick(6)).map(|_| {
        let follows = EntryId::new(before.term, before.index.wrapping_add(1));
        let id = match tape.pick(6) {
            0 => entry_id(tape, raft),
            1 => EntryId::new(before.term.wrapping_add(1), before.index.wrapping_add(1)),
            _ => follows,
        };
        before = id;
        let payload = if tape.pick(4) == 0 {
            let (change, membership) = (change(tape), membership(tape));
            Payload::Change(Arc::new(LoggedChange { change, membership }))
        } else {
            Payload::Command("x".into())
        };
        Entry { id, payload }
    });
    made.collect::<Vec<_>>().into()
}

fn message(tape: &mut Tape<'_>, raft: &Raft) -> Message {
    let request = RequestId(number(tape, raft));
    let granted = tape.pick(2) == 0;
    let committed = entry_id(tape, raft);
    let vote = Vote { last: entry_id(tape, raft), forced: granted, committed };
    match tape.pick(16) {
        0 => Message::PreVote(vote),
        1 => Message::PreVoteReply(VoteReply { granted, committed }),
        2 => Message::Vote(vote),
        3 => Message::VoteReply(VoteReply { granted, committed }),
        4..=6 => {
            let prev = match tape.pick(3) {
                0 => raft.status().log.last,
                1 => raft.status().log.base,
                _ => entry_id(tape, raft),
            };
            let entries = entries(tape, raft, prev);
            Message::Append(Append { prev, entries, commit: number(tape, raft) })
        }
        7 => Message::AppendReply(AppendReply::Matches {
            index: number(tape, raft),
            commit: number(tape, raft),
        }),
        8 => {
            let (prev, hint) = (number(tape, raft), entry_id(tape, raft));
            Message::AppendReply(AppendReply::Differs { prev, hint })
        }
        9 => {
            let (round, sent_at) = (number(tape, raft), number(tape, raft));
            let (commit, settled) = (number(tape, raft), number(tape, raft));
            Message::Heartbeat(Heartbeat { commit, round, sent_at, settled })
        }
        10 => {
            let (round, sent_at) = (number(tape, raft), number(tape, raft));
            Message::HeartbeatReply(HeartbeatReply { round, sent_at, commit: number(tape, raft) })
        }
        11 => {
            let id = entry_id(tape, raft);
            Message::Snapshot(SnapshotMeta { id, membership: membership(tape) })
        }
        12 => Message::TimeoutNow,
        13 => Message::Propose(request, Proposal::Change(Box::new(change(tape)))),
        14 => Message::Read(request),
        _ => match tape.pick(5) {
            4 => {
                let (incarnation, joined_at) = (Some(number(tape, raft)), number(tape, raft));
                Message::IdentityRejected(Identity { incarnation, joined_at })
            }
            0 => Message::ReadReply(request, Ok(number(tape, raft))),
            1 => Message::ProposeReply(request, Ok(entry_id(tape, raft))),
            2 => Message::ProposeReply(request, Err(Refusal::LeaderRemoved)),
            _ => Message::Transfer(id(tape)),
        },
    }
}

fn input(tape: &mut Tape<'_>, raft: &Raft) -> Input {
    match tape.pick(14) {
        0 => Input::Saved(SaveId(number(tape, raft))),
        1 => Input::Applied(number(tape, raft)),
        2 => Input::Snapshotted(number(tape, raft)),
        3 => Input::Trim(number(tape, raft)),
        4 => {
            let reader =
                if tape.pick(2) == 0 { LoadTarget::Machine } else { LoadTarget::Peer(id(tape)) };
            let after = entry_id(tape, raft);
            Input::Loaded(reader, entries(tape, raft, after))
        }
        5 => Input::Change(RequestId(1), change(tape)),
        6 => Input::Tick,
        _ => {
            let to = if tape.pick(12) == 0 { id(tape) } else { raft.status().id };
            let from = id(tape);
            let term = number(tape, raft);
            let incarnation = number(tape, raft);
            let joined_at = number(tape, raft);
            let message = message(tape, raft);
            Input::Received(Envelope { from, to, term, incarnation, joined_at, message })
        }
    }
}

/// Steps hostile inputs and looks at the member after each.
fn attack(tape: &mut Tape<'_>, raft: &mut Raft) {
    let mut steps = 0;
    while let Some(number) = tape.next() {
        let before = raft.status();
        let hostile = input(tape, raft);
        let shown = format!("{hostile:?}");
        let _ = raft.step(hostile);
        invariants::check(raft).unwrap_or_else(|why| panic!("{why} after {shown}"));
        let after = raft.status();
        assert!(after.term >= before.term && after.log.commit >= before.log.commit, "{shown}");
        assert!(after.log.applied >= before.log.applied, "{shown}");
        if number % 3 == 0 {
            let output = raft.take_output();
            // What one input may cause is bounded by the members it knows.
            assert!(output.send.len() < 2_000, "{} messages after {shown}", output.send.len());
            invariants::check(raft).unwrap_or_else(|why| panic!("{why} after taking {shown}"));
            if let (Some(save), 0) = (output.save, number % 2) {
                let _ = raft.step(Input::Saved(save.id));
            }
            if let (Some(last), 0) = (output.apply.last(), number % 5) {
                let _ = raft.step(Input::Applied(last.id.index));
            }
        }
        steps += 1;
        if steps > 4_000 {
            break;
        }
    }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn no_input_breaks_a_member(
        story in prop::collection::vec(any::<u32>(), 0..600),
        attack_numbers in prop::collection::vec(any::<u32>(), 20..3000),
        victim in 1u64..6,
    ) {
        let mut tape = Tape::new(&story);
        let mut world = World::new(&mut tape);
        world.play(&mut tape);
        let member = world.members.get_mut(&MemberId(victim)).and_then(|member| member.raft.take());
        if let Some(mut raft) = member {
            attack(&mut Tape::new(&attack_numbers), &mut raft);
        }
    }

    #[test]
    fn no_disk_breaks_a_start(numbers in prop::collection::vec(any::<u32>(), 10..300)) {
        let mut tape = Tape::new(&numbers);
        let healthy = Boot::first(Membership::new([MemberId(1), MemberId(2)], []));
        let raft = Raft::new(Config::new(MemberId(1)), healthy).unwrap();
        let base = entry_id(&mut tape, &raft);
        let boot = Boot {
            hard_state: HardState {
                term: number(&mut tape, &raft),
                vote: Some(id(&mut tape)),
                commit: number(&mut tape, &raft),
            },
            snapshot: SnapshotMeta {
                id: if tape.pick(2) == 0 { base } else { entry_id(&mut tape, &raft) },
                membership: membership(&mut tape),
            },
            base,
            terms: (0..tape.pick(3)).map(|_| entry_id(&mut tape, &raft)).collect(),
            memberships: (0..tape.pick(2))
                .map(|_| (entry_id(&mut tape, &raft), membership(&mut tape)))
                .collect(),
            tail: entries(&mut tape, &raft, base),
            applied: number(&mut tape, &raft),
        };
        if let Ok(mut raft) = Raft::new(Config::new(MemberId(1)), boot) {
            invariants::check(&raft).unwrap();
            attack(&mut tape, &mut raft);
        }
    }
}

#[test]
fn a_flood_of_reads_is_bounded() {
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
