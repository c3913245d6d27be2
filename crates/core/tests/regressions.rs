//! Holes that a review found and that are closed, each in a few steps: who stands
//! with which disk, what a crash may forget, where goals and cancels end.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use quorate_core::config::*;
use quorate_core::membership::*;
use quorate_core::message::*;
use quorate_core::refusal::*;
use quorate_core::status::*;
use quorate_core::*;

fn member(id: u64) -> MemberId {
    MemberId(id)
}
fn ids(v: &[u64]) -> Vec<MemberId> {
    v.iter().map(|i| member(*i)).collect()
}
fn set(v: &[u64]) -> MemberSet {
    v.iter().map(|i| member(*i)).collect()
}
fn command(t: u64, i: u64, s: &'static str) -> Entry {
    Entry { id: EntryId::new(t, i), payload: Payload::Command(s.into()) }
}
fn boot(ms: &Membership, tail: Vec<Entry>, term: u64) -> Boot {
    let mut b = Boot::first(ms.clone()).with_tail(tail);
    b.hard_state.term = term;
    b
}
/// Takes output; saves at once; applies at once; returns everything sent.
fn run(r: &mut Raft) -> Vec<Envelope> {
    let mut all = vec![];
    while r.has_output() {
        let o = r.take_output();
        all.extend(o.send);
        if let Some(s) = o.save {
            all.extend(s.then_send.clone());
            let _ = r.step(Input::Saved(s.id));
        }
        if let Some(l) = o.apply.last() {
            let _ = r.step(Input::Applied(l.id.index));
        }
    }
    all
}
fn deliver(r: &mut Raft, e: &Envelope) -> Vec<Envelope> {
    let _ = r.step(Input::Received(e.clone()));
    run(r)
}
fn pump(rs: &mut [&mut Raft], mut net: Vec<Envelope>) {
    let mut n = 0;
    while !net.is_empty() && n < 5000 {
        n += 1;
        let e = net.remove(0);
        if let Some(r) = rs.iter_mut().find(|r| r.config().id == e.to) {
            net.extend(deliver(r, &e));
        }
    }
}
/// Time passes for the first member, and everything it says is answered.
fn turns(members: &mut [Raft], count: usize) {
    for _ in 0..count {
        let _ = members[0].step(Input::Tick);
        let sent = run(&mut members[0]);
        pump(&mut members.iter_mut().collect::<Vec<_>>(), sent);
    }
}
/// Three members, of which the first leads.
fn led_by_the_first(membership: &Membership) -> Vec<Raft> {
    let member = |id| Raft::new(config(id), boot(membership, vec![], 1)).unwrap();
    let mut members: Vec<Raft> = (1..=3).map(member).collect();
    members[0].step(Input::Campaign).unwrap();
    turns(&mut members, 3);
    members
}
fn config(id: u64) -> Config {
    let mut c = Config::new(member(id));
    c.election_ticks = 10;
    c
}

/// OnAppend: a non-voter wins a term that its disk never heard of, crashes, and wins it again.
#[test]
fn nonvoter_leads_one_term_twice() {
    let ms = Membership::new(ids(&[1, 2, 3]), ids(&[4])).with_activation(Activation::OnAppend);
    let mk = |id: u64, tail| {
        let mut c = config(id);
        c.activation = Activation::OnAppend;
        Raft::new(c, boot(&ms, tail, 1)).unwrap()
    };
    let mut v: Vec<Raft> = (1..=3).map(|i| mk(i, vec![])).collect();
    let reign = |say: &'static str,
                 v: &mut Vec<Raft>,
                 only: &[u64],
                 appends: &[u64]|
     -> Vec<(EntryId, String)> {
        let mut four = mk(4, vec![command(1, 2, "x")]); // what its disk holds, before and after the crash
        // 3 asks for its vote and is refused for the newer log
        let _ = four.step(Input::Received(Envelope {
            from: member(3),
            to: member(4),
            term: 2,
            incarnation: 0,
            joined_at: 0,
            message: Message::PreVote(Vote {
                last: EntryId::new(1, 1),
                forced: false,
                committed: EntryId::ZERO,
            }),
        }));
        four.step(Input::Campaign).unwrap();
        let mut sent: Vec<(EntryId, String)> = vec![];
        let mut proposed = false;
        for _ in 0..6 {
            let o = four.take_output(); // o.save is NEVER completed
            for e in o.send {
                if let Message::Append(a) = &e.message {
                    for en in a.entries.iter() {
                        sent.push((en.id, format!("{:?}", en.payload)));
                    }
                }
                if !only.contains(&e.to.0)
                    || matches!(e.message, Message::Append(_) | Message::Heartbeat(_))
                        && !appends.contains(&e.to.0)
                {
                    continue;
                }
                for back in deliver(&mut v[e.to.0 as usize - 1], &e) {
                    if back.to == member(4) {
                        let _ = four.step(Input::Received(back));
                    }
                }
            }
            if four.status().role == RoleKind::Leader && !proposed {
                proposed = true;
                let _ = four.step(Input::Propose(RequestId(1), say.into()));
            }
        }
        sent
    };
    let first = reign("a", &mut v, &[1, 2], &[1]);
    let second = reign("b", &mut v, &[2, 3], &[2, 3]);
    for (id, p) in &first {
        for (id2, p2) in &second {
            assert!(id != id2 || p == p2, "two entries {id}: {p} and {p2}");
        }
    }
}

/// A vote that was asked for with a log that the disk never got.
#[test]
fn vote_granted_for_a_lost_log() {
    let ms = Membership::new(ids(&[1, 2, 3]), []);
    let mk = |id: u64, tail: Vec<Entry>| {
        let mut c = config(id);
        c.pre_vote = false;
        Raft::new(c, boot(&ms, tail, 1)).unwrap()
    };
    // e=(1,2) is on 1 and 2: committed by 1. 3 has it in memory only.
    let mut two = mk(2, vec![command(1, 2, "e")]);
    let mut three = mk(3, vec![]);
    three
        .step(Input::Received(Envelope {
            from: member(1),
            to: member(3),
            term: 1,
            incarnation: 0,
            joined_at: 0,
            message: Message::Append(Append {
                prev: EntryId::new(1, 1),
                entries: vec![command(1, 2, "e")].into(),
                commit: 1,
            }),
        }))
        .unwrap();
    let _ = three.take_output(); // save not durable
    three.step(Input::Campaign).unwrap();
    let asks = three.take_output().send;
    let mut late = vec![];
    for e in asks.iter().filter(|e| e.to == member(2)) {
        late.extend(deliver(&mut two, e));
    }
    assert!(late.is_empty() || matches!(late[0].message, Message::VoteReply(_)));
    // 3 crashes
    let mut three = mk(3, vec![]);
    three.step(Input::Campaign).unwrap();
    let _ = run(&mut three);
    for e in late {
        let _ = deliver(&mut three, &e);
    }
    let s = three.status();
    assert!(
        s.role != RoleKind::Leader,
        "leader of {} with last {} lacks the committed (1,2)",
        s.term,
        s.log.last
    );
}

/// A disk restored from a backup votes for itself.
#[test]
fn restored_backup_elects_itself() {
    let mut ms = Membership::new(ids(&[1, 2, 3]), []);
    for i in 1..=3 {
        ms = ms.with_incarnation(member(i), 10 + i);
    }
    let mk = |id: u64, inc: u64, tail: Vec<Entry>| {
        let mut c = config(id);
        c.incarnation = inc;
        Raft::new(c, boot(&ms, tail, 1)).unwrap()
    };
    // (1,2) was committed on 1 and 3; 3 is then restored from a backup: new incarnation 99.
    let mut two = mk(2, 12, vec![]);
    let mut three = mk(3, 99, vec![]);
    let _ = three.step(Input::Campaign);
    let net = run(&mut three);
    pump(&mut [&mut two, &mut three], net);
    assert!(
        three.status().role != RoleKind::Leader,
        "restored 3 leads term {} without (1,2)",
        three.status().term
    );
}

/// A wiped voter, named in the membership, confirms a read round of a deposed leader.
#[test]
fn wiped_voter_confirms_a_read() {
    let mut ms = Membership::new(ids(&[1, 2, 3]), []);
    for i in 1..=3 {
        ms = ms.with_incarnation(member(i), 10 + i);
    }
    let mk = |id: u64, inc: u64| {
        let mut c = config(id);
        c.incarnation = inc;
        Raft::new(c, boot(&ms, vec![], 1)).unwrap()
    };
    let (mut one, mut two, mut three) = (mk(1, 11), mk(2, 12), mk(3, 13));
    one.step(Input::Campaign).unwrap();
    let net = run(&mut one);
    pump(&mut [&mut one, &mut two, &mut three], net);
    assert_eq!(one.status().role, RoleKind::Leader);
    // 1 is cut off; 2 leads the next term with 3.
    for r in [&mut two, &mut three] {
        for _ in 0..40 {
            let _ = r.step(Input::Tick);
        }
        let _ = run(r);
    }
    for _ in 0..3 {
        if two.status().role != RoleKind::Leader {
            let _ = two.step(Input::Campaign);
            let net = run(&mut two);
            pump(&mut [&mut two, &mut three], net);
        }
    }
    assert_eq!(two.status().role, RoleKind::Leader);
    two.step(Input::Propose(RequestId(9), "new".into())).unwrap();
    let net = run(&mut two);
    pump(&mut [&mut two, &mut three], net);
    let committed = two.status().log.commit;
    // 3 is restored from a backup of before that vote.
    let mut wiped = {
        let mut c = config(3);
        c.incarnation = 99;
        Raft::new(c, boot(&ms, vec![command(2, 2, "")], 2)).unwrap()
    };
    one.step(Input::Read(RequestId(1))).unwrap();
    let out = one.take_output();
    for e in out.send.iter().filter(|e| e.to == member(3)) {
        for back in deliver(&mut wiped, e) {
            let _ = one.step(Input::Received(back));
        }
    }
    let served = one.take_output().served;
    assert!(
        served.iter().all(|(_, i)| *i >= committed),
        "stale read: served {served:?}, committed {committed}"
    );
}

/// A learner's disk is swapped; what the old one acknowledged counts for the new one.
#[test]
fn swapped_learner_disk_keeps_its_match() {
    let ms = Membership::new(ids(&[1, 2]), ids(&[3])).with_activation(Activation::OnAppend);
    let mk = |id: u64, inc: u64, b: Boot| {
        let mut c = config(id);
        c.incarnation = inc;
        c.activation = Activation::OnAppend;
        Raft::new(c, b).unwrap()
    };
    let b = || boot(&ms, vec![], 1);
    let (mut one, mut two, mut three) = (mk(1, 11, b()), mk(2, 12, b()), mk(3, 13, b()));
    one.step(Input::Campaign).unwrap();
    let net = run(&mut one);
    pump(&mut [&mut one, &mut two, &mut three], net);
    assert_eq!(one.status().role, RoleKind::Leader);
    // e reaches only 3
    one.step(Input::Propose(RequestId(9), "e".into())).unwrap();
    let net = run(&mut one);
    pump(&mut [&mut one, &mut three], net);
    let e = one.status().log.last;
    assert!(one.status().log.commit < e.index);
    // 3's disk is swapped; it answers a heartbeat
    let mut three = mk(3, 99, Boot::empty());
    one.step(Input::Propose(RequestId(10), "f".into())).unwrap();
    let net = run(&mut one);
    pump(&mut [&mut one, &mut three], net);
    let _ = one.step(Input::Change(RequestId(8), Change::add_voters(ids(&[3]))));
    let net = run(&mut one); // nothing arrives anywhere
    drop(net);
    let c = one.status().log.commit;
    assert!(c < e.index, "{e} is committed ({c}) but only 1 holds it");
}

/// A goal brings back an id that was removed.
#[test]
fn goal_reuses_an_id() {
    let ms = Membership::new(ids(&[1]), ids(&[2]));
    let mut one = Raft::new(config(1), boot(&ms, vec![], 1)).unwrap();
    one.step(Input::Campaign).unwrap();
    run(&mut one);
    one.step(Input::Change(RequestId(1), Change::new([Operation::Remove(member(2))]))).unwrap();
    run(&mut one);
    assert_eq!(one.membership().removed(), &[member(2)]);
    assert!(one.step(Input::Change(RequestId(2), Change::add_learner(member(2)))).is_err());
    let r = one.step(Input::Change(RequestId(3), Change::goal(ids(&[1]), ids(&[2]))));
    run(&mut one);
    assert!(
        r.is_err() && !one.membership().contains(member(2)),
        "id 2 is back: {} removed {:?}",
        one.membership(),
        one.membership().removed()
    );
}

/// Cancel of a joint entered by hand
#[test]
fn cancel_by_hand_keeps_learners() {
    let ms = Membership::new(ids(&[1]), ids(&[2, 3]));
    let mut members = led_by_the_first(&ms);
    members[0]
        .step(Input::Change(
            RequestId(1),
            Change::new([Operation::Voter(member(2)), Operation::Voter(member(3))])
                .with_transition(Transition::JointExplicit),
        ))
        .unwrap();
    turns(&mut members, 3);
    members[0].step(Input::Change(RequestId(2), Change::cancel())).unwrap();
    turns(&mut members, 10);
    assert_eq!(members[0].membership().learners(), &set(&[2, 3]));
}

/// Cancel of an extended joint
#[test]
fn cancel_extended_goes_where_it_began() {
    let ms = Membership::new(ids(&[1]), ids(&[2, 3]));
    let mut members = led_by_the_first(&ms);
    members[0]
        .step(Input::Change(RequestId(1), Change::majorities([set(&[3]), set(&[2]), set(&[1])])))
        .unwrap();
    turns(&mut members, 3);
    let r = members[0].step(Input::Change(RequestId(2), Change::cancel()));
    turns(&mut members, 10);
    assert!(
        r.is_err() || members[0].membership().incoming() == &set(&[1]),
        "cancel went to {}",
        members[0].membership()
    );
}

/// Hand-over to an heir that may not campaign blocks every write
#[test]
fn hand_over_leaves_room_for_writes() {
    let ms = Membership::new(ids(&[1, 2, 3]), []);
    let mut rs: Vec<Raft> =
        (1..=3).map(|i| Raft::new(config(i), boot(&ms, vec![], 1)).unwrap()).collect();
    let (a, rest) = rs.split_at_mut(1);
    let (b, c) = rest.split_at_mut(1);
    let (one, two, three) = (&mut a[0], &mut b[0], &mut c[0]);
    one.step(Input::Campaign).unwrap();
    let net = run(one);
    pump(&mut [one, two, three], net);
    one.step(Input::Change(RequestId(1), Change::goal(ids(&[2, 3]), []))).unwrap();
    let mut taken = 0;
    // TimeoutNow to 2 is lost every time (or 2's machine is slow: campaign barred); 3 would be fine
    let mut net = run(one);
    for t in 0..500 {
        let mut n = 0;
        while !net.is_empty() && n < 2000 {
            n += 1;
            let e = net.remove(0);
            if e.to == member(2) && e.message == Message::TimeoutNow {
                continue;
            }
            let r: &mut Raft = match e.to.0 {
                1 => one,
                2 => two,
                _ => three,
            };
            net.extend(deliver(r, &e));
        }
        if t > 20
            && one.status().role == RoleKind::Leader
            && one.step(Input::Propose(RequestId(5), "w".into())).is_ok()
        {
            taken += 1;
        }
        if one.status().role != RoleKind::Leader {
            taken += 1;
            break;
        }
        for r in [&mut *one, &mut *two, &mut *three] {
            let _ = r.step(Input::Tick);
            net.extend(run(r));
        }
    }
    assert!(taken > 0, "no write taken in 480 ticks, {}", one.status());
}

/// Goals without condition 3
#[test]
fn goal_ends_without_settle() {
    let ms = Membership::new(ids(&[1]), ids(&[2]));
    let mut c = config(1);
    c.liveness.settle = false;
    let mut one = Raft::new(c, boot(&ms, vec![], 1)).unwrap();
    one.step(Input::Campaign).unwrap();
    run(&mut one);
    one.step(Input::Change(RequestId(3), Change::goal(ids(&[1]), []))).unwrap();
    run(&mut one);
    for _ in 0..100 {
        let _ = one.step(Input::Tick);
        run(&mut one);
    }
    assert!(one.membership().goal().is_none(), "{} stuck", one.membership());
}

/// Compare-and-set after a snapshot and restart
#[test]
fn membership_id_survives_a_snapshot() {
    let ms = Membership::new(ids(&[1]), []);
    let mut one = Raft::new(config(1), boot(&ms, vec![], 1)).unwrap();
    one.step(Input::Campaign).unwrap();
    run(&mut one);
    let taken = one.step(Input::Change(RequestId(1), Change::add_learner(member(2)))).unwrap();
    let Accepted::Logged(change) = taken else { panic!("{taken:?}") };
    run(&mut one);
    for _ in 0..5 {
        one.step(Input::Propose(RequestId(1), "w".into())).unwrap();
    }
    run(&mut one);
    let at = one.status().log.last;
    let meta = SnapshotMeta { id: at, membership: one.membership_at(at.index) };
    let mut b = Boot::from_snapshot(meta);
    b.hard_state.term = at.term;
    let mut one = Raft::new(config(1), b).unwrap();
    one.step(Input::Campaign).unwrap();
    run(&mut one);
    let wish = Change::add_learner(member(3)).expecting(change);
    let taken = one.step(Input::Change(RequestId(1), wish));
    assert!(taken.is_ok(), "{taken:?}");
}

/// A cancel whose way back waits for a dead member freezes the membership
#[test]
fn cancelled_goal_can_be_left() {
    let ms = Membership::new(ids(&[1, 2, 3]), []);
    let mut one = Raft::new(config(1), boot(&ms, vec![], 1)).unwrap();
    let mut two = Raft::new(config(2), boot(&ms, vec![], 1)).unwrap();
    let mut three = Raft::new(config(3), boot(&ms, vec![], 1)).unwrap();
    one.step(Input::Campaign).unwrap();
    let net = run(&mut one);
    pump(&mut [&mut one, &mut two, &mut three], net);
    for _ in 0..40 {
        for r in 0..2 {
            let x = if r == 0 { &mut one } else { &mut two };
            let _ = x.step(Input::Tick);
            let net = run(x);
            pump(&mut [&mut one, &mut two], net);
        }
    }
    one.step(Input::Change(RequestId(1), Change::goal(ids(&[1, 2]), []))).unwrap();
    let mut net = run(&mut one);
    let mut cancelled = false;
    for _ in 0..300 {
        while !net.is_empty() {
            let e = net.remove(0);
            if e.to == member(3) || e.from == member(3) {
                continue;
            } // dead
            let r = if e.to == member(1) { &mut one } else { &mut two };
            net.extend(deliver(r, &e));
            if !cancelled && one.membership().is_learner(member(3)) {
                cancelled = one.step(Input::Change(RequestId(2), Change::cancel())).is_ok();
                net.extend(run(&mut one));
            }
        }
        for r in [&mut one, &mut two] {
            let _ = r.step(Input::Tick);
            net.extend(run(r));
        }
    }
    assert!(cancelled);
    let tries = [
        Change::cancel(),
        Change::goal(ids(&[1, 2]), []),
        Change::new([Operation::Remove(member(3))]),
        Change::add_learner(member(4)),
    ];
    let answers: Vec<_> =
        tries.into_iter().map(|c| one.step(Input::Change(RequestId(3), c))).collect();
    assert!(answers.iter().any(|a| a.is_ok()), "{answers:?}");
}

/// A leader shows the way to a goal without taking it, by what it sees of its members.
#[test]
fn a_leader_plans_without_acting() {
    let everybody = Membership::new(ids(&[1, 2]), ids(&[3]));
    let mut one = Raft::new(config(1), boot(&everybody, vec![], 1)).unwrap();
    let mut two = Raft::new(config(2), boot(&everybody, vec![], 1)).unwrap();
    assert!(matches!(one.plan(&set(&[2, 3]), &set(&[])), Err(Refusal::NotLeader { .. })));
    one.step(Input::Campaign).unwrap();
    let sent = run(&mut one);
    pump(&mut [&mut one, &mut two], sent);
    let before = one.clone();
    let plan = one.plan(&set(&[2, 3]), &set(&[])).unwrap();
    assert_eq!(one, before);
    let steps: Vec<String> = plan.steps.iter().map(|planned| planned.step.to_string()).collect();
    // The learner never answered, so the plan begins by waiting for it.
    assert_eq!(steps[0], "wait until (0000000000000003) have caught up");
    assert_eq!(steps[1], "hand over to one of (0000000000000002)");
    let refused = one.plan(&set(&[1, 2]), &set(&[3]));
    assert_eq!(refused, Err(Refusal::Change(ChangeRefusal::AlreadyReached)));
}
