//! Regression tests that need calls which stories do not have: saves that never complete, a
//! disk from another cluster state, plans. All other regressions are stories.

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

/// On append: a non-voter must not win a term that is not on its disk, crash, and win it again.
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

/// A wiped voter must not confirm a read round of a deposed leader.
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

/// A cancel of an extended joint is refused or returns to where it began.
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

/// A leader plans a goal from what it sees of its peers, without acting.
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
