//! Every checker can fail: one planted wrong view each, next to one that is right.

use std::sync::Arc;

use bytes::Bytes;
use quorate_core::config::Activation;
use quorate_core::membership::LoggedChange;
use quorate_core::message::{AppendReply, Message, Vote, VoteReply};
use quorate_core::status::RoleKind;
use quorate_core::{
    Change, Entry, EntryId, Envelope, HardState, Index, MemberId, Membership, Payload,
    SnapshotMeta, Term,
};

use super::electable::{self, Elector, Rules};
use super::*;

fn membership(majorities: &[&[u64]], learners: &[u64]) -> Membership {
    let majorities = majorities.iter().map(|ids| ids.iter().copied().map(MemberId).collect());
    let learners = learners.iter().copied().map(MemberId).collect();
    Membership::from_parts(majorities.collect(), learners, Default::default(), false)
}

fn command(term: Term, index: Index) -> Entry {
    Entry { id: EntryId::new(term, index), payload: Payload::Command(Bytes::new()) }
}

fn change(term: Term, index: Index, to: &Membership) -> Entry {
    let logged = LoggedChange { change: Change::leave(), membership: Arc::new(to.clone()) };
    Entry { id: EntryId::new(term, index), payload: Payload::Change(Arc::new(logged)) }
}

/// A follower of a cluster of three, everything on disk and nothing wrong.
fn view(id: u64, entries: Vec<Entry>, commit: Index) -> MemberView {
    let first = EntryId::new(1, 1);
    let counting = Arc::new(membership(&[&[1, 2, 3]], &[4]));
    let snapshot = SnapshotMeta { id: first, membership: Arc::clone(&counting) };
    let term = entries.last().map_or(1, |entry| entry.id.term);
    let log = LogView { base: first, entries };
    let hard_state = HardState { term, vote: None, commit };
    let durable =
        Durable { hard_state, snapshot: snapshot.clone(), log: log.clone(), applied: commit };
    MemberView {
        id: MemberId(id),
        up: true,
        activation: Activation::OnApply,
        role: RoleKind::Follower,
        term,
        vote: None,
        commit,
        applying: commit,
        applied: commit,
        installing: false,
        membership: counting,
        settled: 0,
        holds_newer_log: false,
        joined_at: 0,
        snapshot,
        log,
        durable,
    }
}

fn leading(mut view: MemberView, term: Term) -> MemberView {
    (view.role, view.term) = (RoleKind::Leader, term);
    view
}

fn rule(checked: Result<(), Violation>) -> &'static str {
    checked.map_or_else(|violation| violation.rule, |()| "fine")
}

#[test]
fn i1_two_leaders_of_one_term() {
    let mut history = History::default();
    assert_eq!(rule(history.note(&leading(view(1, vec![], 1), 2))), "fine");
    assert_eq!(rule(history.note(&leading(view(2, vec![], 1), 3))), "fine");
    assert_eq!(rule(history.note(&leading(view(2, vec![], 1), 2))), "I1");
}

#[test]
fn i1_a_second_vote_in_one_term() {
    let mut before = view(1, vec![], 1);
    before.durable.hard_state.vote = Some(MemberId(2));
    let mut after = before.clone();
    assert_eq!(rule(marks_never_fall(&before, &after, true)), "fine");
    after.durable.hard_state.vote = Some(MemberId(3));
    assert_eq!(rule(marks_never_fall(&before, &after, true)), "I1");
}

#[test]
fn i2_logs_that_differ_below_a_shared_entry() {
    let ours = view(1, vec![command(1, 2), command(2, 3)], 1);
    assert_eq!(rule(logs_match(&ours, &view(2, vec![command(2, 2)], 1))), "fine");
    let theirs = view(2, vec![command(2, 2), command(2, 3)], 1);
    assert_eq!(rule(logs_match(&ours, &theirs)), "I2");
    let mut other = command(2, 3);
    other.payload = Payload::Command(Bytes::from_static(b"x"));
    assert_eq!(rule(logs_match(&ours, &view(2, vec![command(1, 2), other], 1))), "I2");
}

#[test]
fn i3_a_leader_that_loses_an_entry() {
    let before = leading(view(1, vec![command(2, 2), command(2, 3)], 1), 2);
    assert_eq!(rule(leader_only_appends(&before, &before)), "fine");
    let after = leading(view(1, vec![command(2, 2)], 1), 2);
    assert_eq!(rule(leader_only_appends(&before, &after)), "I3");
    assert_eq!(rule(leader_only_appends(&before, &leading(after, 3))), "fine");
}

#[test]
fn i4_a_leader_without_a_committed_entry() {
    let mut history = History::default();
    assert_eq!(rule(history.note(&view(1, vec![command(2, 2)], 2))), "fine");
    let lacks = view(3, vec![command(1, 2)], 1);
    // A leader of the same term or before need not have it.
    assert_eq!(rule(history.clone().note(&leading(lacks.clone(), 2))), "fine");
    assert_eq!(rule(history.note(&leading(lacks, 3))), "I4");
}

#[test]
fn i5_another_entry_is_committed() {
    let mut history = History::default();
    assert_eq!(rule(history.note(&view(1, vec![command(2, 2)], 2))), "fine");
    assert_eq!(rule(history.note(&view(2, vec![command(3, 2)], 1))), "fine");
    assert_eq!(rule(history.note(&view(2, vec![command(3, 2)], 2))), "I5");
}

#[test]
fn i6_neighbours_that_do_not_meet() {
    let next = |majorities: &[&[u64]]| {
        rule(neighbours_overlap(&view(1, vec![change(2, 2, &membership(majorities, &[]))], 1)))
    };
    assert_eq!(next(&[&[1, 2, 3, 4]]), "fine");
    assert_eq!(next(&[&[1, 4, 5], &[1, 2, 3]]), "fine");
    assert_eq!(next(&[&[1, 2, 3, 4, 5]]), "I6");
}

#[test]
fn i7_two_changes_pending() {
    let (one, two) = (membership(&[&[1, 2, 3, 4]], &[]), membership(&[&[1, 2, 3]], &[4]));
    let entries = vec![change(2, 2, &one), change(2, 3, &two)];
    assert_eq!(rule(one_change_pending(&leading(view(1, entries.clone(), 2), 2))), "fine");
    assert_eq!(rule(one_change_pending(&view(1, entries.clone(), 1))), "fine");
    assert_eq!(rule(one_change_pending(&leading(view(1, entries, 1), 2))), "I7");
}

#[test]
fn i8_a_membership_that_is_not_in_the_log() {
    let next = membership(&[&[1, 2, 3, 4]], &[]);
    let mut member = view(1, vec![change(2, 2, &next)], 1);
    assert_eq!(rule(memberships_are_derived(&member)), "fine");
    member.activation = Activation::OnAppend;
    assert_eq!(rule(memberships_are_derived(&member)), "I8");
    member.membership = Arc::new(next);
    assert_eq!(rule(memberships_are_derived(&member)), "fine");
    member.activation = Activation::OnApply;
    assert_eq!(rule(memberships_are_derived(&member)), "I8");
}

#[test]
fn i9_marks_out_of_order_and_falling() {
    let member = view(1, vec![command(2, 2), command(2, 3)], 2);
    assert_eq!(rule(marks_are_in_order(&member)), "fine");
    for spoil in [
        (|view| view.commit = 4) as fn(&mut MemberView),
        |view| view.applied = 3,
        |view| view.applying = 3,
        |view| view.durable.hard_state.commit = 4,
        |view| view.log.base.index = 2,
    ] {
        let mut wrong = member.clone();
        spoil(&mut wrong);
        assert_eq!(rule(marks_are_in_order(&wrong)), "I9");
    }
    for spoil in [
        (|view| view.term = 1) as fn(&mut MemberView),
        |view| view.commit = 1,
        |view| view.applied = 1,
        |view| view.durable.hard_state.term = 1,
        |view| view.durable.applied = 1,
    ] {
        let mut wrong = member.clone();
        spoil(&mut wrong);
        assert_eq!(rule(marks_never_fall(&member, &wrong, false)), "I9");
    }
    let mut restarted = member.clone();
    restarted.commit = 1;
    assert_eq!(rule(marks_never_fall(&member, &restarted, true)), "fine");
}

#[test]
fn i10_a_commit_on_too_few_disks() {
    let members = [1, 2, 3].map(|id| view(id, vec![command(2, 2)], 1));
    let counting = Arc::clone(&members[0].membership);
    let entry = EntryId::new(2, 2);
    let raised = Raised { by: MemberId(1), entry, memberships: [Arc::clone(&counting), counting] };
    let durable = |count: u64| {
        let members = &members;
        move |id: MemberId| {
            members.iter().find(|view| view.id == id && id.0 <= count).map(|view| &view.durable)
        }
    };
    assert_eq!(rule(commit_is_on_quorum(&raised, durable(2))), "fine");
    assert_eq!(rule(commit_is_on_quorum(&raised, durable(1))), "I10");
}

#[test]
fn i11_who_may_not_stand_or_lead() {
    let mut learner = view(4, vec![], 1);
    assert_eq!(rule(role_is_allowed(&learner)), "fine");
    learner.role = RoleKind::Candidate;
    assert_eq!(rule(role_is_allowed(&learner)), "I11");
    learner.activation = Activation::OnAppend;
    assert_eq!(rule(role_is_allowed(&learner)), "I11");
    learner.holds_newer_log = true;
    assert_eq!(rule(role_is_allowed(&learner)), "fine");
    let mut leader = leading(view(4, vec![], 1), 2);
    assert_eq!(rule(role_is_allowed(&leader)), "fine");
    leader.settled = 1;
    assert_eq!(rule(role_is_allowed(&leader)), "I11");
}

#[test]
fn i12_promises_before_they_are_kept() {
    let sent = |term, message| {
        let (from, to) = (MemberId(1), MemberId(2));
        Envelope { from, to, term, incarnation: 0, joined_at: 0, message }
    };
    let grant = sent(2, Message::VoteReply(VoteReply { granted: true, committed: EntryId::ZERO }));
    let matches = |index| sent(2, Message::AppendReply(AppendReply::Matches { index, commit: 0 }));
    let asks =
        |last| sent(2, Message::Vote(Vote { last, forced: false, committed: EntryId::ZERO }));
    let mut disk = view(1, vec![command(2, 2)], 1).durable;
    assert_eq!(rule(promise_is_durable(&grant, &disk)), "I12");
    disk.hard_state.vote = Some(MemberId(2));
    assert_eq!(rule(promise_is_durable(&grant, &disk)), "fine");
    assert_eq!(rule(promise_is_durable(&matches(2), &disk)), "fine");
    assert_eq!(rule(promise_is_durable(&matches(3), &disk)), "I12");
    assert_eq!(rule(candidacy_is_durable(&asks(EntryId::new(2, 2)), &disk)), "I12");
    disk.hard_state.vote = Some(MemberId(1));
    assert_eq!(rule(candidacy_is_durable(&asks(EntryId::new(2, 2)), &disk)), "fine");
    assert_eq!(rule(candidacy_is_durable(&asks(EntryId::new(2, 3)), &disk)), "I12");
}

#[test]
fn i13_settled_that_too_few_disks_know() {
    let next = membership(&[&[1, 2, 3, 4]], &[]);
    let members =
        [1, 2, 3, 4].map(|id| view(id, vec![change(2, 2, &next)], if id < 4 { 2 } else { 1 }));
    let disk = |count: u64| {
        let members = &members;
        move |id: MemberId| {
            members.iter().find(|view| view.id == id && id.0 >= count).map(|view| &view.durable)
        }
    };
    let entry = EntryId::new(2, 2);
    assert_eq!(rule(settled_is_known(MemberId(1), entry, &next, disk(1))), "fine");
    assert_eq!(rule(settled_is_known(MemberId(1), entry, &next, disk(2))), "I13");
}

/// The second example of the seeds: m4 was promoted, m3 alone knows it, m1 is down.
#[test]
fn l1_a_promoted_member_that_nobody_tells() {
    let next = membership(&[&[1, 2, 3, 4]], &[]);
    let log = |count| [change(2, 2, &next), command(2, 3), command(2, 4)][..count].to_vec();
    let views = [view(1, log(3), 2), view(2, log(0), 1), view(3, log(2), 2), view(4, log(3), 1)];
    let mut history = History::default();
    views.iter().for_each(|view| history.note(view).unwrap());
    let all = views.each_ref().map(Elector::of);
    let live = &all[1..];
    let rules = Rules { activation: Activation::OnApply, votes_tell_commit: true, settles: true };
    assert_eq!(electable::check(live, &all, &history, rules), Ok(()));
    let silent = Rules { votes_tell_commit: false, ..rules };
    let stuck = electable::check(live, &all, &history, silent).unwrap_err();
    assert_eq!(stuck.members, [2, 3, 4].map(MemberId));
}

/// A learner that alone holds the newest log: whoever refuses it must be able to stand.
#[test]
fn l1_a_learner_with_the_newest_log() {
    let next = membership(&[&[1, 2, 3, 4]], &[]);
    let append = |mut view: MemberView| {
        view.activation = Activation::OnAppend;
        view
    };
    let one = append(view(1, vec![change(1, 2, &next)], 1));
    let three = append(view(3, vec![], 1));
    let four = append(view(4, vec![command(2, 2)], 1));
    let rules = Rules { activation: Activation::OnAppend, votes_tell_commit: true, settles: true };
    let live = [one, three, four].each_ref().map(Elector::of);
    assert!(electable::can_elect(&live, rules));
    // Without the learner's log nobody is in the way; without its voice nobody wins.
    assert!(!electable::can_elect(&live[..2], rules));
}

#[test]
fn quorums_by_hand_agree_with_those_of_the_core() {
    let sets: Vec<Vec<u64>> = (1..16_u64)
        .map(|bits| (0..4).filter(|at| bits >> at & 1 == 1).map(|at| at + 1).collect())
        .collect();
    for one in &sets {
        for other in &sets {
            let joint = membership(&[one, other], &[]);
            for yes in 0..16_u64 {
                let says = |id: MemberId| yes >> (id.0 - 1) & 1 == 1;
                assert_eq!(has_quorum(&joint, says), joint.quorum(says), "{joint} {yes:b}");
            }
        }
    }
    assert!(!has_quorum(&Membership::default(), |_| true));
}
