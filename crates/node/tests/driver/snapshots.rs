//! Members that need a snapshot: where it comes from, and what they do meanwhile.

use quorate::DriverOptions;
use quorate::driver::{ChangeWait, MachineJob, RequestReply};
use quorate_core::{Change, MemberId};

use super::{SnapshotFrom, TestCluster, value};

/// Member 3 missed entries that are trimmed. It has received a snapshot, which is on its disk;
/// its machine has not installed it yet.
fn snapshot_saved_and_not_installed(name: &str) -> TestCluster {
    let mut options = DriverOptions::default();
    options.snapshot_entries = Some(4);
    let mut cluster = TestCluster::new(name, &[1, 2, 3], options);
    cluster.elect(1);
    cluster.members.remove(&3);
    for number in 0..10 {
        let _ = cluster.put(1, &format!("k{number}"), "v");
    }
    cluster.ticks(60); // The leader stops keeping its log for member 3.
    let _ = cluster.put(1, "last", "v");
    cluster.start(3, 0);
    cluster.member(3).held_jobs = Some(Vec::new());
    cluster.ticks(20);
    let member = cluster.member(3);
    let install = |job: &MachineJob| matches!(job, MachineJob::Install(_));
    assert!(member.held_jobs.iter().flatten().any(install));
    assert_eq!(member.driver.saves_waiting(), 0, "all saves are durable");
    cluster
}

/// Member 3 missed entries that are trimmed, and starts. Returns the index of the snapshot on the
/// leader's disk.
fn member_that_needs_a_snapshot(name: &str, entries_after: u64) -> (TestCluster, u64) {
    let mut options = DriverOptions::default();
    options.snapshot_entries = Some(30);
    let mut cluster = TestCluster::new(name, &[1, 2, 3], options);
    cluster.elect(1);
    cluster.members.remove(&3);
    let stored = |cluster: &mut TestCluster| cluster.member(1).driver.raft().snapshot().id.index;
    let first = stored(&mut cluster);
    for number in 0.. {
        let _ = cluster.put(1, &format!("k{number}"), "v");
        if stored(&mut cluster) > first {
            break;
        }
    }
    cluster.ticks(60); // The leader stops keeping its log for member 3.
    for number in 0..entries_after {
        let _ = cluster.put(1, &format!("after{number}"), "v");
    }
    let stored = stored(&mut cluster);
    cluster.start(3, 0);
    (cluster, stored)
}

#[test]
fn a_peer_gets_the_current_state_instead_of_an_old_snapshot() {
    let (mut cluster, stored) = member_that_needs_a_snapshot("current-state", 20);
    cluster.ticks(20);
    assert_eq!(cluster.snapshots, [(SnapshotFrom::Machine, stored + 20)]);
    assert_eq!(cluster.get(3, "after19"), value("v"));
    let _ = cluster.put(1, "next", "w");
    assert_eq!(cluster.get(3, "next"), value("w"));
    // The member can start from what it received.
    cluster.members.remove(&3);
    cluster.start(3, 0);
    assert_eq!(cluster.member(3).driver.raft().snapshot().id.index, stored + 20);
    assert_eq!(cluster.member(3).applier.machine().get(b"after19"), value("v").as_ref());
}

#[test]
fn a_peer_gets_the_snapshot_on_the_disk_if_little_happened_since() {
    let (mut cluster, stored) = member_that_needs_a_snapshot("stored-snapshot", 2);
    cluster.ticks(20);
    assert_eq!(cluster.snapshots, [(SnapshotFrom::Disk, stored)]);
    assert_eq!(cluster.get(3, "after1"), value("v"));
}

/// A peer may be unable to receive it, or the machine to send it.
#[test]
fn after_a_lost_state_the_snapshot_on_the_disk_is_sent() {
    let (mut cluster, stored) = member_that_needs_a_snapshot("lost-state", 20);
    cluster.lost_from = Some(SnapshotFrom::Machine);
    cluster.ticks(30);
    let sent = [(SnapshotFrom::Machine, stored + 20), (SnapshotFrom::Disk, stored)];
    assert_eq!(cluster.snapshots, sent);
    assert_eq!(cluster.get(3, "after19"), value("v"));
}

/// The current state would replace the entry whose reply the member waits for.
#[test]
fn a_lagging_member_with_open_commands_gets_the_snapshot_on_the_disk_and_its_replies() {
    let (mut cluster, stored) = member_that_needs_a_snapshot("open-command", 20);
    cluster.entries_lost_to = Some(3);
    let token = cluster.put(3, "own", "v");
    cluster.ticks(20);
    assert_eq!(cluster.get(1, "own"), value("v"), "it ran");
    assert_eq!(cluster.outcomes.get(&(3, token)), None);
    cluster.entries_lost_to = None;
    cluster.ticks(30);
    assert_eq!(cluster.snapshots, [(SnapshotFrom::Disk, stored)]);
    let outcome = &cluster.outcomes[&(3, token)];
    assert!(matches!(outcome, Ok(RequestReply::Ran { .. })), "{outcome:?}");
}

/// A leader would otherwise send it an older snapshot, because of the commands.
#[test]
fn a_joining_member_forwards_commands_when_it_has_a_state() {
    let (mut cluster, _) = member_that_needs_a_snapshot("joining-commands", 20);
    cluster.members.remove(&3);
    let learner = Change::add_learner(MemberId(4));
    let _ = cluster.member(1).driver.change(learner, ChangeWait::Committed);
    cluster.ticks(2);
    let added = cluster.member(1).driver.raft().membership().joined_at(MemberId(4));
    cluster.start(4, added);
    // It knows the leader before it has the state.
    cluster.entries_lost_to = Some(4);
    let tokens = [0; 5].map(|_| cluster.put(4, "own", "v"));
    cluster.ticks(10);
    assert_eq!(cluster.member(4).driver.raft().leader(), Some(MemberId(1)));
    cluster.entries_lost_to = None;
    cluster.ticks(20);
    let sent: Vec<_> = cluster.snapshots.iter().map(|(source, _)| *source).collect();
    assert_eq!(sent, [SnapshotFrom::Machine]);
    for token in tokens {
        let outcome = &cluster.outcomes[&(4, token)];
        assert!(matches!(outcome, Ok(RequestReply::Ran { .. })), "{outcome:?}");
    }
}

#[test]
fn a_member_can_lead_while_its_machine_installs_a_snapshot() {
    let mut cluster = snapshot_saved_and_not_installed("installing");
    assert!(!cluster.member(3).driver.raft().log_status().installing, "the snapshot is durable");
    let _ = cluster.member(1).driver.transfer(MemberId(3));
    cluster.ticks(3);
    assert_eq!(cluster.member(1).driver.raft().leader(), Some(MemberId(3)));

    // The machine runs the snapshot first, then the entries after it.
    let held = cluster.member(3).held_jobs.take().unwrap();
    held.into_iter().for_each(|job| cluster.member(3).do_job(job));
    cluster.ticks(20);
    assert_eq!(cluster.get(3, "last"), value("v"));
    let _ = cluster.put(3, "after", "w");
    assert_eq!(cluster.get(1, "after"), value("w"));
}

#[test]
fn a_member_whose_machine_installs_a_snapshot_for_too_long_is_stalled() {
    let mut cluster = snapshot_saved_and_not_installed("installing-long");
    cluster.ticks(40);
    assert!(cluster.member(3).driver.raft().stalled().machine);
    let held = cluster.member(3).held_jobs.take().unwrap();
    held.into_iter().for_each(|job| cluster.member(3).do_job(job));
    cluster.ticks(1);
    assert!(!cluster.member(3).driver.raft().stalled().any());
    assert_eq!(cluster.member(1).driver.raft().leader(), Some(MemberId(1)));
}

#[test]
fn a_crash_between_save_and_install_of_a_snapshot_is_made_up_for_at_the_start() {
    let mut cluster = snapshot_saved_and_not_installed("crash-installing");
    let snapshot = cluster.member(3).driver.raft().snapshot().id;
    cluster.members.remove(&3);
    cluster.start(3, 0);
    assert!(cluster.member(3).applier.applied() >= snapshot.index);
    cluster.ticks(20);
    assert_eq!(cluster.get(3, "last"), value("v"));
}

/// The core counts the entries of a durable snapshot as applied before the machine has them.
#[test]
fn a_barrier_waits_for_a_machine_that_installs_a_snapshot() {
    let mut cluster = snapshot_saved_and_not_installed("barrier-installing");
    let token = cluster.member(3).driver.barrier();
    cluster.ticks(3);
    assert_eq!(cluster.outcomes.get(&(3, token)), None);
    let held = cluster.member(3).held_jobs.take().unwrap();
    held.into_iter().for_each(|job| cluster.member(3).do_job(job));
    cluster.ticks(20);
    assert!(matches!(cluster.outcomes.get(&(3, token)), Some(Ok(RequestReply::Read { .. }))));
}

/// Another change came after its own: the current state would not tell how its own ended.
#[test]
fn a_lagging_member_is_told_how_its_change_ended() {
    let (mut cluster, stored) = member_that_needs_a_snapshot("open-change", 20);
    cluster.entries_lost_to = Some(3);
    let add = |id| Change::add_learner(MemberId(id));
    let token = cluster.member(3).driver.change(add(8), ChangeWait::Committed);
    cluster.ticks(10);
    let _ = cluster.member(1).driver.change(add(9), ChangeWait::Committed);
    cluster.ticks(10);
    let added = cluster.member(1).driver.raft().membership().joined_at(MemberId(8));
    assert!(added > 0 && !cluster.outcomes.contains_key(&(3, token)));
    cluster.entries_lost_to = None;
    cluster.ticks(30);
    assert_eq!(cluster.snapshots, [(SnapshotFrom::Disk, stored)]);
    match &cluster.outcomes[&(3, token)] {
        Ok(RequestReply::ChangeCommitted { id }) => assert_eq!(id.index, added),
        outcome => panic!("{outcome:?}"),
    }
}

/// Each state is a copy of the machine's, or keeps one from being freed.
#[test]
fn the_state_is_sent_to_one_peer_at_a_time() {
    let (mut cluster, stored) = member_that_needs_a_snapshot("one-state", 20);
    cluster.members.remove(&3);
    for learner in [4, 5] {
        let change = Change::add_learner(MemberId(learner));
        let _ = cluster.member(1).driver.change(change, ChangeWait::Committed);
        cluster.ticks(2);
    }
    // The machine does not capture yet.
    cluster.member(1).held_jobs = Some(Vec::new());
    for learner in [4, 5] {
        let added = cluster.member(1).driver.raft().membership().joined_at(MemberId(learner));
        cluster.start(learner, added);
    }
    cluster.ticks(10);
    assert_eq!(cluster.snapshots, [(SnapshotFrom::Disk, stored)]);
    let held = cluster.member(1).held_jobs.take().unwrap();
    let states = held.iter().filter(|job| matches!(job, MachineJob::SendState { .. }));
    assert_eq!(states.count(), 1);
}
