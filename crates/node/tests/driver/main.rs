//! Three members on real files, driven by hand in one thread, in the order of a runtime.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod snapshots;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use quorate::driver::{
    Applier, ChangeWait, Driver, MachineJob, MachineJobDone, MemberStartup, RequestOutcome,
    RequestReply, RequestToken, install, start,
};
use quorate::{
    DriverOptions, KvCommand, KvReply, MemoryKv, OutcomeUnknown, RequestError, RequestRefused,
    VersionRange,
};
use quorate_core::membership::GoalEnd;
use quorate_core::message::Message;
use quorate_core::{Change, Config, Envelope, MemberId, Membership, SnapshotMeta};
use quorate_storage::{FileDisk, Store, StoreConfig};

struct TestMember {
    driver: Driver,
    applier: Applier<MemoryKv>,
    store: Store<FileDisk>,
    /// While this is set, jobs wait here: the machine is busy.
    held_jobs: Option<Vec<MachineJob>>,
}

/// Members whose messages arrive at once, each with its own directory.
struct TestCluster {
    folder: PathBuf,
    first: Membership,
    members: BTreeMap<u64, TestMember>,
    outcomes: BTreeMap<(u64, RequestToken), RequestOutcome>,
    options: DriverOptions,
    trim_keep_entries: u64,
    /// The snapshots that were sent, and where their bytes came from.
    snapshots: Vec<(SnapshotFrom, u64)>,
    /// Snapshots from here are lost.
    lost_from: Option<SnapshotFrom>,
    /// Entries for this member are lost.
    entries_lost_to: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SnapshotFrom {
    Disk,
    Machine,
}

impl TestCluster {
    fn new(name: &str, voters: &[u64], options: DriverOptions) -> Self {
        Self::keeping(name, voters, options, 0)
    }

    /// Members that keep this many entries before a snapshot.
    fn keeping(name: &str, voters: &[u64], options: DriverOptions, keep: u64) -> Self {
        let folder = std::env::temp_dir().join(format!("quorate-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let first = Membership::new(voters.iter().copied().map(MemberId), []);
        let (members, outcomes) = (BTreeMap::new(), BTreeMap::new());
        let trim_keep_entries = keep;
        let mut cluster = Self {
            folder,
            first,
            members,
            outcomes,
            options,
            trim_keep_entries,
            snapshots: Vec::new(),
            lost_from: None,
            entries_lost_to: None,
        };
        voters.iter().for_each(|id| cluster.start(*id, 0));
        cluster
    }

    fn start(&mut self, id: u64, joined_at: u64) {
        let folder: &Path = &self.folder.join(id.to_string());
        let disk = FileDisk::open(folder).unwrap();
        let mut config = Config::new(MemberId(id));
        config.incarnation = 1_000 + id;
        config.joined_at = joined_at;
        config.trim_keep_entries = self.trim_keep_entries;
        let startup = MemberStartup {
            cluster: 5,
            config,
            options: self.options.clone(),
            store: StoreConfig::new().segment_bytes(16 << 10),
            first: (joined_at == 0).then(|| self.first.clone()),
            versions: VersionRange::default(),
        };
        let started = start(disk, MemoryKv::default(), startup).unwrap();
        let (driver, applier, store) = (started.driver, started.applier, started.store);
        let member = TestMember { driver, applier, store, held_jobs: None };
        self.members.insert(id, member);
    }

    fn member(&mut self, id: u64) -> &mut TestMember {
        self.members.get_mut(&id).unwrap()
    }

    /// Does what the drivers ask for, until no driver has output.
    fn settle(&mut self) {
        loop {
            let Some(id) =
                self.members.iter().find(|(_, m)| m.driver.has_output()).map(|(id, _)| *id)
            else {
                return;
            };
            let output = self.member(id).driver.take_output();
            let member = self.member(id);
            if let Some(save) = output.save {
                member.store.write(&save).unwrap();
                member.store.sync().unwrap();
                member.driver.saved(save.id);
            }
            let mut states = Vec::new();
            for job in output.jobs {
                match (&mut member.held_jobs, job) {
                    (Some(held), job) => held.push(job),
                    (None, MachineJob::SendState { envelope, stored }) => {
                        match member.applier.state_to_send(&envelope, stored).unwrap() {
                            Some(state) => {
                                states.push((envelope, state.map(Result::unwrap).collect()))
                            }
                            None => member.driver.snapshot_lost(envelope.to),
                        }
                    }
                    (None, job) => member.do_job(job),
                }
            }
            for load in output.load {
                let entries = member.store.load(load.range.clone(), load.bytes_max).unwrap();
                member.driver.loaded(load.target, entries);
            }
            if let Some(index) = output.trim {
                member.store.trim(index).unwrap();
            }
            let ended = output.outcomes.into_iter();
            let outcomes: Vec<_> = ended.map(|(token, outcome)| ((id, token), outcome)).collect();
            for (key, outcome) in outcomes {
                assert_eq!(self.outcomes.insert(key, outcome), None, "{key:?} ends twice");
            }
            for envelope in output.snapshots {
                self.carry_stored_snapshot(id, envelope);
            }
            for (envelope, chunks) in states {
                self.carry_snapshot(id, envelope, SnapshotFrom::Machine, chunks);
            }
            for envelope in output.send {
                let has_entries = matches!(envelope.message, Message::Append(_));
                if has_entries && self.entries_lost_to == Some(envelope.to.0) {
                    continue;
                }
                if let Some(to) = self.members.get_mut(&envelope.to.0) {
                    to.driver.receive(envelope);
                }
            }
        }
    }

    fn carry_stored_snapshot(&mut self, from: u64, envelope: Envelope) {
        let Message::Snapshot(meta) = &envelope.message else { panic!("{envelope:?}") };
        let chunks = self.member(from).read_snapshot(meta);
        self.carry_snapshot(from, envelope, SnapshotFrom::Disk, chunks);
    }

    fn carry_snapshot(
        &mut self,
        from: u64,
        envelope: Envelope,
        source: SnapshotFrom,
        chunks: Vec<Bytes>,
    ) {
        let Message::Snapshot(meta) = &envelope.message else { panic!("{envelope:?}") };
        let meta = meta.clone();
        let to = envelope.to;
        self.snapshots.push((source, meta.id.index));
        let receiver = self.members.get_mut(&to.0).filter(|_| self.lost_from != Some(source));
        let arrived = receiver.map(|member| {
            member.write_snapshot(meta, chunks);
            member.driver.receive(envelope);
        });
        match arrived {
            Some(()) => self.member(from).driver.snapshot_sent(to),
            None => self.member(from).driver.snapshot_lost(to),
        }
    }

    fn ticks(&mut self, count: u64) {
        for _ in 0..count {
            self.members.values_mut().for_each(|member| member.driver.tick());
            self.settle();
        }
    }

    fn elect(&mut self, id: u64) {
        self.member(id).driver.campaign();
        self.settle();
        assert_eq!(self.member(id).driver.raft().leader(), Some(MemberId(id)));
    }

    fn put(&mut self, id: u64, key: &str, value: &str) -> RequestToken {
        let command = KvCommand::Put {
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: Bytes::copy_from_slice(value.as_bytes()),
        };
        let token = self.member(id).driver.propose(command.encode());
        self.settle();
        token
    }

    fn get(&mut self, id: u64, key: &str) -> Option<Bytes> {
        let token = self.member(id).driver.read(Bytes::copy_from_slice(key.as_bytes()));
        self.settle();
        match self.outcomes.get(&(id, token)) {
            Some(Ok(RequestReply::Read { reply, .. })) => KvReply::decode(reply).unwrap().value,
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        self.members.clear();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl TestMember {
    fn do_job(&mut self, job: MachineJob) {
        let done = match job {
            MachineJob::Apply(entries) => self.applier.apply(&entries).unwrap(),
            MachineJob::Query(token, query) => self.applier.query(token, query.as_ref()).unwrap(),
            MachineJob::Install(meta) => {
                install(&mut self.store, &mut self.applier, &meta).unwrap()
            }
            MachineJob::Snapshot(meta) => self.applier.capture(meta).unwrap(),
            MachineJob::SendState { envelope, .. } => panic!("{envelope:?}"),
        };
        match done {
            MachineJobDone::Captured { meta, chunks } => {
                let index = meta.id.index;
                let chunks: Vec<Bytes> = chunks.map(Result::unwrap).collect();
                let bytes = chunks.iter().map(|chunk| chunk.len() as u64).sum();
                self.write_snapshot(meta, chunks);
                self.driver.snapshot_saved(index, bytes);
            }
            done => self.driver.job_done(done),
        }
    }

    fn read_snapshot(&mut self, meta: &SnapshotMeta) -> Vec<Bytes> {
        let mut reader = self.store.open_snapshot(meta.id).unwrap();
        std::iter::from_fn(|| self.store.read_snapshot(&mut reader).unwrap()).collect()
    }

    fn write_snapshot(&mut self, meta: SnapshotMeta, chunks: Vec<Bytes>) {
        let mut writer = self.store.begin_snapshot(meta).unwrap();
        for chunk in chunks {
            self.store.append_snapshot(&mut writer, &chunk).unwrap();
        }
        self.store.finish_snapshot(writer).unwrap();
    }
}

fn value(text: &'static str) -> Option<Bytes> {
    Some(Bytes::from_static(text.as_bytes()))
}

#[test]
fn requests_are_done_at_every_member() {
    let mut cluster = TestCluster::new("every-member", &[1, 2, 3], DriverOptions::default());
    cluster.elect(1);
    for id in 1..=3 {
        let token = cluster.put(id, "k", &format!("by {id}"));
        cluster.ticks(2);
        let answer = &cluster.outcomes[&(id, token)];
        assert!(matches!(answer, Ok(RequestReply::Ran { .. })), "{answer:?}");
        assert_eq!(cluster.get(id, "k"), Some(format!("by {id}").into()));
    }
}

#[test]
fn acknowledged_writes_survive_a_restart_of_all_members() {
    let mut options = DriverOptions::default();
    options.snapshot_entries = Some(4);
    let mut cluster = TestCluster::new("restart", &[1, 2, 3], options);
    cluster.elect(1);
    for number in 0..10 {
        let _ = cluster.put(1, &format!("k{number}"), "v");
    }
    cluster.members.clear();
    (1..=3).for_each(|id| cluster.start(id, 0));
    cluster.ticks(60);
    assert_eq!(cluster.get(3, "k9"), value("v"));
    assert_eq!(cluster.get(3, "k10"), None);
}

/// With large entries, both limits in entries would be reached much later. The state is smaller
/// than the limit in bytes: see the next test for a larger one.
#[test]
fn the_log_is_bounded_in_bytes() {
    let mut options = DriverOptions::default();
    (options.snapshot_bytes, options.trim_keep_bytes) = (8_000, 4_000);
    let mut cluster = TestCluster::keeping("bytes", &[1], options, 5_000);
    cluster.elect(1);
    let large = "v".repeat(1_000);
    let mut kept_max = 0;
    for number in 0..100 {
        let _ = cluster.put(1, &format!("k{}", number % 6), &large);
        let log = cluster.member(1).driver.raft().log_status();
        kept_max = kept_max.max(log.last.index - log.base.index);
    }
    assert!((8..=16).contains(&kept_max), "{kept_max} entries of 1,000 bytes");
    // The state is complete after a restart from the snapshot and the kept entries.
    cluster.members.clear();
    // A restarted member uses its numbers of requests again.
    cluster.outcomes.clear();
    cluster.start(1, 0);
    cluster.ticks(60);
    assert_eq!(cluster.get(1, "k0"), Some(Bytes::from(large.clone())));
    assert_eq!(cluster.get(1, "k5"), Some(Bytes::from(large.clone())));

    // The limit in entries applies to small ones.
    for number in 0..200 {
        let _ = cluster.put(1, &format!("k{number}"), "");
    }
    let log = cluster.member(1).driver.raft().log_status();
    assert!(log.last.index - log.base.index > 16, "{log:?}");
}

/// A state that is larger than the limit in bytes is not written again for every few entries,
/// and the log stays bounded by its size.
#[test]
fn a_large_state_is_captured_after_as_many_bytes_of_entries() {
    let mut options = DriverOptions::default();
    (options.snapshot_bytes, options.trim_keep_bytes) = (4_000, 1_000);
    let mut cluster = TestCluster::keeping("large-state", &[1], options, 5_000);
    cluster.elect(1);
    let large = "v".repeat(1_000);
    for number in 0..100 {
        let _ = cluster.put(1, &format!("k{number}"), &large);
    }
    // 100 keys of 1,000 bytes: about 100 kB. Overwrite all of them four times.
    let mut snapshots = std::collections::BTreeSet::new();
    let mut kept_max = 0;
    for number in 0..400 {
        let _ = cluster.put(1, &format!("k{}", number % 100), &large);
        let raft = cluster.member(1).driver.raft();
        snapshots.insert(raft.snapshot().id.index);
        kept_max = kept_max.max(raft.log_status().last.index - raft.log_status().base.index);
    }
    assert!((3..=6).contains(&snapshots.len()), "{} snapshots", snapshots.len());
    assert!((80..=130).contains(&kept_max), "{kept_max} entries of 1,000 bytes");
    // The size is known again after a restart.
    cluster.members.clear();
    cluster.outcomes.clear();
    cluster.start(1, 0);
    cluster.ticks(60);
    let before = cluster.member(1).driver.raft().snapshot().id.index;
    for number in 0..30 {
        let _ = cluster.put(1, &format!("k{number}"), &large);
    }
    let since = cluster.member(1).driver.raft().snapshot().id.index - before;
    assert!(since == 0 || since > 60, "a snapshot after {since} entries");
    assert_eq!(cluster.get(1, "k99"), Some(Bytes::from(large)));
}

#[test]
fn a_goal_replaces_a_member_and_ends_when_it_is_reached() {
    let mut options = DriverOptions::default();
    options.snapshot_entries = Some(5);
    let mut cluster = TestCluster::new("goal", &[1, 2, 3], options);
    cluster.elect(1);
    for number in 0..12 {
        let _ = cluster.put(1, &format!("k{number}"), "v");
    }
    cluster.members.remove(&3);
    let goal = Change::goal([1, 2, 4].map(MemberId), []);
    // Sent to a follower: it hears of the end as well.
    let token = cluster.member(2).driver.change(goal, ChangeWait::Settled { ticks: 1_000 });
    cluster.ticks(2);
    let added = cluster.member(1).driver.raft().membership().joined_at(MemberId(4));
    cluster.start(4, added);
    for _ in 0..200 {
        cluster.ticks(1);
    }
    match &cluster.outcomes[&(2, token)] {
        Ok(RequestReply::GoalEnded(ended)) => assert_eq!(ended.end, GoalEnd::Reached),
        other => panic!("{other:?}"),
    }
    let now = cluster.member(4).driver.raft().membership().clone();
    assert!(now.incoming().iter().eq([1, 2, 4].map(MemberId)), "{now}");
    assert_eq!(cluster.get(4, "k11"), value("v"));
}

#[test]
fn each_of_two_changes_is_reported_at_its_own_commit() {
    let mut cluster = TestCluster::new("committed", &[1, 2, 3], DriverOptions::default());
    cluster.elect(1);
    let add = |id| Change::add_learner(MemberId(id));
    let tokens = [2, 3].map(|at| {
        let change = add(10 + at);
        (at, cluster.member(at).driver.change(change, ChangeWait::Committed))
    });
    cluster.ticks(10);
    let [first, second] = tokens.map(|key| match &cluster.outcomes[&key] {
        Ok(RequestReply::ChangeCommitted { id }) => *id,
        other => panic!("{other:?}"),
    });
    let now = cluster.member(2).driver.raft().membership().clone();
    assert_eq!(first.index, now.joined_at(MemberId(12)));
    assert_eq!(second.index, now.joined_at(MemberId(13)));
}

#[test]
fn a_change_that_a_lost_leader_did_not_acknowledge_is_soon_unknown() {
    let mut options = DriverOptions::default();
    options.request_ticks = 1_000;
    options.retry_ticks = 10;
    let mut cluster = TestCluster::new("lost-change", &[1, 2, 3], options);
    cluster.elect(1);
    cluster.ticks(2);
    cluster.members.remove(&1);
    let change = Change::add_learner(MemberId(4));
    let token = cluster.member(2).driver.change(change, ChangeWait::Committed);
    cluster.ticks(60);
    let leader = cluster.member(2).driver.raft().leader();
    assert!(leader.is_some_and(|leader| leader != MemberId(1)), "{leader:?}");
    assert_eq!(cluster.outcomes[&(2, token)], Err(RequestError::Unknown(OutcomeUnknown::TimedOut)));
    // The caller sees that it did not happen.
    assert!(!cluster.member(2).driver.raft().membership().contains(MemberId(4)));
}

#[test]
fn requests_without_a_leader_are_refused_at_their_deadline() {
    let mut options = DriverOptions::default();
    options.request_ticks = 30;
    options.requests_max = 2;
    let mut cluster = TestCluster::new("no-leader", &[1, 2, 3], options);
    // No member leads, so the command certainly did not run.
    let early = cluster.put(1, "k", "early");
    let query = cluster.member(1).driver.read(Bytes::from_static(b"k"));
    let third = cluster.put(1, "k", "one too many");
    cluster.members.retain(|id, _| *id == 1);
    cluster.ticks(31);
    let refused = |refused| Some(&Err(RequestError::Refused(refused))).cloned();
    assert_eq!(cluster.outcomes.get(&(1, early)).cloned(), refused(RequestRefused::NoLeader));
    assert_eq!(cluster.outcomes.get(&(1, query)).cloned(), refused(RequestRefused::NoLeader));
    let limit = RequestRefused::TooManyRequests { limit: 2 };
    assert_eq!(cluster.outcomes.get(&(1, third)).cloned(), refused(limit));
}

#[test]
fn a_command_that_a_cut_off_leader_logged_has_an_unknown_outcome() {
    let mut options = DriverOptions::default();
    options.request_ticks = 12;
    let mut cluster = TestCluster::new("unknown", &[1, 2, 3], options);
    cluster.elect(1);
    cluster.members.retain(|id, _| *id == 1);
    let token = cluster.put(1, "k", "alone");
    cluster.ticks(13);
    assert_eq!(cluster.outcomes[&(1, token)], Err(RequestError::Unknown(OutcomeUnknown::TimedOut)));
    let token = cluster.put(1, "k", "again");
    cluster.member(1).driver.stop();
    cluster.settle();
    assert!(cluster.outcomes.contains_key(&(1, token)));
    assert_eq!(cluster.member(1).driver.open_requests(), 0);
}

#[test]
fn a_forwarded_command_is_retried_with_the_next_leader_and_runs_once() {
    let mut cluster = TestCluster::new("survives", &[1, 2, 3], DriverOptions::default());
    cluster.elect(1);
    let _ = cluster.put(1, "k", "0");
    // Member 1 stops before the command that member 2 forwards arrives.
    let gone = cluster.members.remove(&1);
    let command = KvCommand::CompareAndSet {
        key: Bytes::from_static(b"k"),
        expected: value("0"),
        value: Bytes::from_static(b"1"),
    };
    let token = cluster.member(2).driver.propose(command.encode());
    cluster.settle();
    cluster.ticks(15);
    cluster.elect(3);
    cluster.ticks(3);
    match &cluster.outcomes[&(2, token)] {
        Ok(RequestReply::Ran { reply, .. }) => {
            assert_eq!(KvReply::decode(reply), Some(KvReply { done: true, value: value("0") }));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(cluster.get(3, "k"), value("1"));
    drop(gone);
}

#[test]
fn a_barrier_whose_entries_have_run_needs_no_job_of_the_machine() {
    let mut cluster = TestCluster::new("barrier-idle", &[1, 2, 3], DriverOptions::default());
    cluster.elect(1);
    let _ = cluster.put(1, "k", "1");
    cluster.ticks(3);
    let ran = cluster.member(2).driver.raft().log_status().applied;
    cluster.member(2).held_jobs = Some(Vec::new());
    let token = cluster.member(2).driver.barrier();
    cluster.ticks(3);
    let expected = RequestReply::Read { index: ran, reply: Bytes::new() };
    assert_eq!(cluster.outcomes.get(&(2, token)), Some(&Ok(expected)));
    // One with an entry that has not run waits for it.
    let _ = cluster.put(1, "k", "2");
    let token = cluster.member(2).driver.barrier();
    cluster.ticks(3);
    assert_eq!(cluster.outcomes.get(&(2, token)), None);
}

/// A runtime does not wake a member for its own save otherwise.
#[test]
fn a_leader_waits_for_its_own_save_only_for_entries_that_others_hold() {
    let mut cluster = TestCluster::new("own-save", &[1, 2, 3], DriverOptions::default());
    cluster.elect(1);
    cluster.ticks(2);
    let command = KvCommand::Put { key: "k".into(), value: "v".into() }.encode();
    let leader = &mut cluster.member(1).driver;
    let _ = leader.propose(command);
    let output = leader.take_output();
    let save = output.save.unwrap();
    assert!(!leader.raft().is_own_copy_awaited() && !leader.messages_wait_for_saves());
    let append = output.send.into_iter().find(|envelope| envelope.to == MemberId(2)).unwrap();
    let follower = &mut cluster.member(2).driver;
    assert_eq!(follower.receive(append), None);
    let saved = follower.take_output().save.unwrap();
    assert!(follower.messages_wait_for_saves() && follower.raft().is_own_copy_awaited());
    follower.saved(saved.id);
    let confirmation = follower.take_output().send.remove(0);
    let leader = &mut cluster.member(1).driver;
    assert_eq!(leader.receive(confirmation), None);
    assert!(leader.raft().is_own_copy_awaited());
    let before = leader.raft().log_status().commit;
    leader.saved(save.id);
    assert!(leader.raft().log_status().commit > before);
    assert!(!leader.raft().is_own_copy_awaited());
}

#[test]
fn the_only_voter_always_waits_for_its_own_save() {
    let mut cluster = TestCluster::new("only-voter", &[1], DriverOptions::default());
    cluster.elect(1);
    let leader = &mut cluster.member(1).driver;
    let _ = leader.change(Change::add_learner(MemberId(2)), ChangeWait::Committed);
    cluster.ticks(3);
    let command = KvCommand::Put { key: "k".into(), value: "v".into() }.encode();
    let leader = &mut cluster.member(1).driver;
    assert!(leader.raft().membership().contains(MemberId(2)));
    let _ = leader.propose(command);
    assert!(leader.take_output().save.is_some());
    assert!(leader.raft().is_own_copy_awaited());
}
