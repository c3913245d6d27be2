//! Every checker can fail: each test has one planted error next to a correct state.

use std::sync::Arc;

use bytes::Bytes;
use quorate_core::config::Activation;
use quorate_core::membership::LoggedChange;
use quorate_core::message::{AppendReply, Message, Vote, VoteReply};
use quorate_core::status::RoleKind;
use quorate_core::{
    Boot, Change, Config, Entry, EntryId, Envelope, HardState, Index, Input, MemberId, Membership,
    Payload, Raft, Save, SaveId, SnapshotMeta, Term,
};

use super::electable::{self, Elector, Rules};
use super::*;
use crate::cluster::{DiskState, LogView};

fn membership(majorities: &[&[u64]], learners: &[u64]) -> Membership {
    let majorities = majorities.iter().map(|ids| ids.iter().copied().map(MemberId).collect());
    let learners = learners.iter().copied().map(MemberId).collect();
    Membership::from_parts(majorities.collect(), learners, Default::default())
}

fn command(term: Term, index: Index) -> Entry {
    Entry { id: EntryId::new(term, index), payload: Payload::Command(Bytes::new()) }
}

fn change(term: Term, index: Index, to: &Membership) -> Entry {
    let logged = LoggedChange { change: Change::leave(), membership: Arc::new(to.clone()) };
    Entry { id: EntryId::new(term, index), payload: Payload::Change(Arc::new(logged)) }
}

/// A correct follower of a cluster of three, with everything on disk.
fn view(id: u64, entries: Vec<Entry>, commit: Index) -> MemberView {
    let first = EntryId::new(1, 1);
    let active = Arc::new(membership(&[&[1, 2, 3]], &[4]));
    let snapshot = SnapshotMeta { id: first, membership: Arc::clone(&active) };
    let term = entries.last().map_or(1, |entry| entry.id.term);
    let log = LogView { base: first, entries };
    let hard_state = HardState { term, vote: None, commit };
    let durable = Arc::new(DiskState {
        hard_state,
        snapshot: snapshot.clone(),
        log: log.clone(),
        applied: commit,
    });
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
        membership: active,
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

fn rule<T>(checked: Result<T, Violation>) -> &'static str {
    checked.map_or_else(|violation| violation.rule, |_| "fine")
}

fn record(view: &MemberView) -> MemberRecord {
    let mut config = Config::new(view.id);
    config.activation = view.activation;
    MemberRecord::of_view(&config, view)
}

fn save(hard_state: Option<HardState>, entries: Vec<Entry>) -> Save {
    let (id, then_send) = (SaveId(1), Vec::new());
    Save { id, hard_state, entries: entries.into(), install: None, must_sync: true, then_send }
}

/// The only member of a cluster, which leads term 2, and its record.
fn leader() -> (Raft, MemberRecord) {
    let (config, boot) =
        (Config::new(MemberId(1)), Boot::first(Membership::new([MemberId(1)], [])));
    let mut record = MemberRecord::new(&config);
    record.started(&config, &boot).unwrap();
    let mut raft = Raft::new(config, boot).unwrap();
    raft.step(Input::Campaign).unwrap();
    while raft.has_output() {
        let output = raft.take_output();
        if let Some(save) = &output.save {
            record.save_requested(&raft, save).unwrap();
            record.saved(save, true).unwrap();
            raft.step(Input::Saved(save.id)).unwrap();
        }
    }
    record.stepped(&raft).unwrap();
    assert_eq!(record.leads(), Some(2));
    (raft, record)
}

#[test]
fn i1_two_leaders_of_one_term() {
    let mut history = ClusterHistory::default();
    assert_eq!(rule(history.note(&leading(view(1, vec![], 1), 2))), "fine");
    assert_eq!(rule(history.note(&leading(view(2, vec![], 1), 3))), "fine");
    assert_eq!(rule(history.note(&leading(view(2, vec![], 1), 2))), "I1");
}

#[test]
fn i1_a_second_vote_in_one_term() {
    let voted = |term, id| Some(HardState { term, vote: Some(MemberId(id)), commit: 1 });
    let mut member = record(&view(1, vec![], 1));
    assert_eq!(rule(member.saved(&save(voted(2, 2), vec![]), true)), "fine");
    assert_eq!(rule(member.clone().saved(&save(voted(2, 2), vec![]), true)), "fine");
    assert_eq!(rule(member.clone().saved(&save(voted(1, 2), vec![]), true)), "I9");
    assert_eq!(rule(member.saved(&save(voted(2, 3), vec![]), true)), "I1");
}

#[test]
fn i2_logs_that_differ_below_a_shared_entry() {
    let first = view(1, vec![command(1, 2), command(2, 3)], 1);
    let compare = |entries: Vec<Entry>| {
        let second = view(2, entries, 1);
        rule(logs_match((first.id, &first.log), (second.id, &second.log)))
    };
    assert_eq!(compare(vec![command(2, 2)]), "fine");
    assert_eq!(compare(vec![command(2, 2), command(2, 3)]), "I2");
    let mut other = command(2, 3);
    other.payload = Payload::Command(Bytes::from_static(b"x"));
    assert_eq!(compare(vec![command(1, 2), other]), "I2");
}

#[test]
fn i3_a_leader_that_replaces_an_entry() {
    let (raft, mut record) = leader();
    let last = raft.log_status().last.index;
    let logs = |record: &mut MemberRecord, index| {
        rule(record.save_requested(&raft, &save(None, vec![command(2, index)])))
    };
    assert_eq!(logs(&mut record, last + 1), "fine");
    assert_eq!(logs(&mut record, last + 1), "I3");
}

#[test]
fn i4_a_leader_without_a_committed_entry() {
    let mut history = ClusterHistory::default();
    assert_eq!(rule(history.note(&view(1, vec![command(2, 2)], 2))), "fine");
    let lacks = view(3, vec![command(1, 2)], 1);
    // A leader of the same or an earlier term need not have it.
    assert_eq!(rule(history.clone().note(&leading(lacks.clone(), 2))), "fine");
    assert_eq!(rule(history.note(&leading(lacks, 3))), "I4");
}

#[test]
fn i5_another_entry_is_committed() {
    let mut history = ClusterHistory::default();
    assert_eq!(rule(history.note(&view(1, vec![command(2, 2)], 2))), "fine");
    assert_eq!(rule(history.note(&view(2, vec![command(3, 2)], 1))), "fine");
    assert_eq!(rule(history.note(&view(2, vec![command(3, 2)], 2))), "I5");
}

#[test]
fn i6_consecutive_memberships_without_a_common_quorum() {
    let next = |majorities: &[&[u64]]| {
        let (raft, mut record) = leader();
        let entry = change(2, 3, &membership(majorities, &[]));
        rule(record.save_requested(&raft, &save(None, vec![entry])))
    };
    assert_eq!(next(&[&[1, 2]]), "fine");
    assert_eq!(next(&[&[1, 2, 3], &[1]]), "fine");
    assert_eq!(next(&[&[2, 3]]), "I6");
}

#[test]
fn i7_two_changes_pending() {
    let (raft, mut record) = leader();
    let (one, two) = (membership(&[&[1]], &[4]), membership(&[&[1]], &[]));
    let first = save(None, vec![change(2, 3, &one)]);
    assert_eq!(rule(record.save_requested(&raft, &first)), "fine");
    let second = save(None, vec![change(2, 4, &two)]);
    assert_eq!(rule(record.save_requested(&raft, &second)), "I7");
}

#[test]
fn i8_a_membership_that_is_not_in_the_log() {
    let (raft, record) = leader();
    let mut fresh = MemberRecord::new(raft.config());
    fresh.started(raft.config(), &Boot::first(Membership::new([MemberId(1)], []))).unwrap();
    assert_eq!(rule(fresh.stepped(&raft)), "fine");
    let next = membership(&[&[1, 2]], &[]);
    let planted = view(1, vec![change(2, 2, &next)], 1);
    let mut wrong = MemberRecord::of_view(raft.config(), &planted);
    wrong.forget_membership();
    assert_eq!(rule(wrong.stepped(&raft)), "I8");
    assert_eq!(rule(record.clone().stepped(&raft)), "fine");
}

#[test]
fn i9_indexes_that_decrease() {
    let (raft, record) = leader();
    assert_eq!(rule(record.clone().stepped(&raft)), "fine");
    for corrupt in [
        (|view| view.term = 3) as fn(&mut MemberView),
        |view| view.commit = 4,
        |view| view.applied = 4,
    ] {
        let mut wrong = view(1, vec![command(2, 2), command(2, 3), command(2, 4)], 1);
        corrupt(&mut wrong);
        let mut wrong = MemberRecord::of_view(raft.config(), &wrong);
        assert_eq!(rule(wrong.stepped(&raft)), "I9");
    }
    let ahead = HardState { term: 3, vote: None, commit: 9 };
    assert_eq!(rule(record.clone().saved(&save(Some(ahead), vec![]), true)), "I9");
}

#[test]
fn i10_a_commit_on_too_few_disks() {
    let disks = [1, 2, 3].map(|id| {
        let view = view(id, vec![command(2, 2)], 1);
        (view.id, DiskRecord::of_view(&view.durable))
    });
    let active = Arc::new(membership(&[&[1, 2, 3]], &[]));
    let raised = RaisedCommit {
        by: MemberId(1),
        term: 2,
        entry: EntryId::new(2, 2),
        led_before: true,
        memberships: [Arc::clone(&active), active],
    };
    let on = |count: u64| {
        let disks = &disks;
        let disk = move |id: MemberId| {
            disks.iter().find(|(other, _)| *other == id && id.0 <= count).map(|(_, disk)| disk)
        };
        rule(commit_is_on_quorum(&raised, disk))
    };
    assert_eq!((on(2), on(1)), ("fine", "I10"));
}

#[test]
fn i10_a_commit_of_an_older_term() {
    let mut history = ClusterHistory::default();
    let active = Arc::new(membership(&[&[1, 2, 3]], &[]));
    let entry = EntryId::new(2, 2);
    let raised = |term| RaisedCommit {
        by: MemberId(1),
        term,
        entry,
        led_before: true,
        memberships: [Arc::clone(&active), Arc::clone(&active)],
    };
    assert_eq!(rule(history.commit_is_of_own_term(&raised(2))), "fine");
    assert_eq!(rule(history.commit_is_of_own_term(&raised(3))), "I10");
    // Another member knew it before: the leader only learned it.
    history.note(&view(2, vec![command(2, 2)], 2)).unwrap();
    assert_eq!(rule(history.commit_is_of_own_term(&raised(3))), "fine");
}

#[test]
fn i12_messages_before_their_save() {
    let sent = |term, message| {
        let (from, to) = (MemberId(1), MemberId(2));
        Envelope { from, to, term, incarnation: 0, joined_at: 0, message }
    };
    let grant = sent(2, Message::VoteReply(VoteReply { granted: true, committed: EntryId::ZERO }));
    let matches = |index| sent(2, Message::AppendReply(AppendReply::Matches { index, commit: 0 }));
    let asks =
        |last| sent(2, Message::Vote(Vote { last, forced: false, committed: EntryId::ZERO }));
    let mut member = view(1, vec![command(2, 2)], 1);
    let sends = |member: &MemberView, envelope| rule(record(member).sent(&envelope));
    assert_eq!(sends(&member, grant.clone()), "I12");
    Arc::make_mut(&mut member.durable).hard_state.vote = Some(MemberId(2));
    assert_eq!(sends(&member, grant), "fine");
    assert_eq!(sends(&member, matches(2)), "fine");
    assert_eq!(sends(&member, matches(3)), "I12");
    assert_eq!(sends(&member, asks(EntryId::new(2, 2))), "I12");
    Arc::make_mut(&mut member.durable).hard_state.vote = Some(MemberId(1));
    assert_eq!(sends(&member, asks(EntryId::new(2, 2))), "fine");
    assert_eq!(sends(&member, asks(EntryId::new(2, 3))), "I12");
    // The leader of the term has replaced the entry that a late request names.
    assert_eq!(sends(&member, asks(EntryId::new(1, 3))), "fine");
    let mut candidate = view(1, vec![command(1, 2)], 1);
    let vote = Some(MemberId(1));
    Arc::make_mut(&mut candidate.durable).hard_state = HardState { term: 2, vote, commit: 1 };
    assert_eq!(sends(&candidate, asks(EntryId::new(1, 3))), "I12");
}

#[test]
fn i12_a_membership_sent_as_committed_before_it_is_durable() {
    let mut member = view(1, vec![change(2, 2, &membership(&[&[1, 2]], &[]))], 2);
    let message = Message::AppendReply(AppendReply::Matches { index: 2, commit: 2 });
    let (from, to) = (MemberId(1), MemberId(2));
    let reply = Envelope { from, to, term: 2, incarnation: 0, joined_at: 0, message };
    assert_eq!(rule(record(&member).sent(&reply)), "fine");
    Arc::make_mut(&mut member.durable).hard_state.commit = 1;
    assert_eq!(rule(record(&member).sent(&reply)), "I12");
}

#[test]
fn d1_d2_a_disk_that_loses_saved_state() {
    let saved = view(1, vec![command(2, 2)], 1);
    let config = Config::new(saved.id);
    let starts = |hard_state, tail: Vec<Entry>| {
        let boot = Boot {
            hard_state,
            snapshot: saved.snapshot.clone(),
            base: saved.log.base,
            tail: tail.into(),
            applied: 1,
            ..Boot::empty()
        };
        rule(record(&saved).started(&config, &boot))
    };
    let (kept, forgotten) =
        (saved.durable.hard_state, HardState { term: 1, vote: None, commit: 1 });
    assert_eq!(starts(kept, vec![command(2, 2)]), "fine");
    assert_eq!(starts(kept, vec![]), "D1");
    assert_eq!(starts(forgotten, vec![command(2, 2)]), "D2");
}

#[test]
fn i13_settled_on_too_few_disks() {
    let next = membership(&[&[1, 2, 3, 4]], &[]);
    let disks = [1, 2, 3, 4].map(|id| {
        let view = view(id, vec![change(2, 2, &next)], if id < 4 { 2 } else { 1 });
        (view.id, DiskRecord::of_view(&view.durable))
    });
    let from = |first: u64| {
        let disks = &disks;
        let disk = move |id: MemberId| {
            disks.iter().find(|(other, _)| *other == id && id.0 >= first).map(|(_, disk)| disk)
        };
        rule(settled_is_known(MemberId(1), EntryId::new(2, 2), &next, disk))
    };
    assert_eq!((from(1), from(2)), ("fine", "I13"));
}

/// m4 was promoted, only m3 knows that this is committed, m1 is down.
#[test]
fn l1_a_promoted_member_that_does_not_learn_of_its_promotion() {
    let next = membership(&[&[1, 2, 3, 4]], &[]);
    let log = |count| [change(2, 2, &next), command(2, 3), command(2, 4)][..count].to_vec();
    let views = [view(1, log(3), 2), view(2, log(0), 1), view(3, log(2), 2), view(4, log(3), 1)];
    let mut history = ClusterHistory::default();
    views.iter().for_each(|view| history.note(view).unwrap());
    let all = views.each_ref().map(Elector::of);
    let live = &all[1..];
    let rules = Rules { activation: Activation::OnApply, votes_tell_commit: true, settles: true };
    assert_eq!(electable::check(live, &all, &history, rules), Ok(()));
    let without_commit = Rules { votes_tell_commit: false, ..rules };
    let stuck = electable::check(live, &all, &history, without_commit).unwrap_err();
    assert_eq!(stuck.members, [2, 3, 4].map(MemberId));
}

/// A learner that alone holds the newest log must be able to campaign.
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
    // Without the learner no member wins.
    assert!(!electable::can_elect(&live[..2], rules));
}

#[test]
fn quorums_agree_with_those_of_the_core() {
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

#[test]
fn the_first_membership_counts_once() {
    let first = Arc::new(membership(&[&[1, 2, 3]], &[]));
    let snapshot =
        |index| SnapshotMeta { id: EntryId::new(1, index), membership: Arc::clone(&first) };
    let mut history = ClusterHistory::default();
    for index in [1, 1, 7, 9] {
        history.note_snapshot(MemberId(1), &snapshot(index)).unwrap();
    }
    assert_eq!(history.memberships().count(), 1);
    history.note_membership(EntryId::new(1, 12), &Arc::new(membership(&[&[1, 2]], &[])));
    assert_eq!(history.memberships().count(), 2);
}

#[test]
fn a_lost_disk_counts_until_the_member_is_added_again() {
    let first = view(1, vec![command(1, 2)], 2);
    let held = EntryId::new(1, 2);
    let mut member = record(&first);
    member.disk_lost();
    assert!(member.disk().log.covers(held));
    let boot = Boot::default();
    let mut empty = Config::new(MemberId(1));
    empty.joined_at = Config::NEVER_JOINED;
    // The new process has an empty disk and was not added: its id stands for the old disk.
    for _ in 0..2 {
        member.started(&empty, &boot).unwrap();
        assert!(member.disk().log.covers(held));
    }
    let mut added = Config::new(MemberId(1));
    added.joined_at = 9;
    member.started(&added, &boot).unwrap();
    assert!(!member.disk().log.covers(held));
}
