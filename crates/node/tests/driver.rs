//! Three members on real files, driven by hand: what a runtime does, in order.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use quorate::driver::{
    Applier, Driver, MachineJob, MachineJobDone, MemberStartup, RequestOutcome, RequestReply,
    RequestToken, install, start,
};
use quorate::{
    DriverOptions, KvCommand, KvReply, MemoryKv, OutcomeUnknown, RequestError, RequestRefused,
};
use quorate_core::membership::GoalEnd;
use quorate_core::message::Message;
use quorate_core::{Change, Config, Envelope, MemberId, Membership, SnapshotMeta};
use quorate_storage::{FileDisk, Store, StoreConfig};

struct Member {
    driver: Driver,
    applier: Applier<MemoryKv>,
    store: Store<FileDisk>,
}

/// Members that talk without delay, each with a directory of its own.
struct Cluster {
    folder: PathBuf,
    first: Membership,
    members: BTreeMap<u64, Member>,
    answers: BTreeMap<(u64, RequestToken), RequestOutcome>,
    options: DriverOptions,
}

impl Cluster {
    fn new(name: &str, voters: &[u64], options: DriverOptions) -> Self {
        let folder = std::env::temp_dir().join(format!("quorate-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let first = Membership::new(voters.iter().copied().map(MemberId), []);
        let (members, answers) = (BTreeMap::new(), BTreeMap::new());
        let mut cluster = Self { folder, first, members, answers, options };
        voters.iter().for_each(|id| cluster.start(*id, 0));
        cluster
    }

    fn start(&mut self, id: u64, joined_at: u64) {
        let folder: &Path = &self.folder.join(id.to_string());
        let disk = FileDisk::open(folder).unwrap();
        let mut config = Config::new(MemberId(id));
        config.incarnation = 1_000 + id;
        config.joined_at = joined_at;
        config.trim_keep_entries = 0;
        let startup = MemberStartup {
            cluster: 5,
            config,
            options: self.options.clone(),
            store: StoreConfig::new().segment_bytes(16 << 10),
            first: (joined_at == 0).then(|| self.first.clone()),
        };
        let started = start(disk, MemoryKv::default(), startup).unwrap();
        let member =
            Member { driver: started.driver, applier: started.applier, store: started.store };
        self.members.insert(id, member);
    }

    fn member(&mut self, id: u64) -> &mut Member {
        self.members.get_mut(&id).unwrap()
    }

    /// Does everything that anybody wants done, until nobody wants anything.
    fn settle(&mut self) {
        loop {
            let Some(id) =
                self.members.iter().find(|(_, m)| m.driver.has_work()).map(|(id, _)| *id)
            else {
                return;
            };
            let work = self.member(id).driver.take();
            let member = self.member(id);
            if let Some(save) = work.save {
                member.store.write(&save).unwrap();
                member.store.sync().unwrap();
                member.driver.saved(save.id);
            }
            for job in work.jobs {
                member.do_job(job);
            }
            for load in work.load {
                let entries = member.store.load(load.range.clone(), load.bytes_max).unwrap();
                member.driver.loaded(load.target, entries);
            }
            if let Some(index) = work.trim {
                member.store.trim(index).unwrap();
            }
            let answers = work.answers.into_iter();
            let news: Vec<_> = answers.map(|(ticket, answer)| ((id, ticket), answer)).collect();
            for (key, answer) in news {
                assert_eq!(self.answers.insert(key, answer), None, "{key:?} is answered twice");
            }
            for envelope in work.snapshots {
                self.carry_snapshot(id, envelope);
            }
            for envelope in work.send {
                if let Some(to) = self.members.get_mut(&envelope.to.0) {
                    to.driver.receive(envelope);
                }
            }
        }
    }

    fn carry_snapshot(&mut self, from: u64, envelope: Envelope) {
        let Message::Snapshot(meta) = &envelope.message else { panic!("{envelope:?}") };
        let meta = meta.clone();
        let chunks = self.member(from).read_snapshot(&meta);
        let to = envelope.to;
        let arrived = self.members.get_mut(&to.0).map(|member| {
            member.write_snapshot(meta, chunks);
            member.driver.receive(envelope);
        });
        self.member(from).driver.snapshot_sent(to, arrived.is_some());
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

    fn put(&mut self, at: u64, key: &str, value: &str) -> RequestToken {
        let command = KvCommand::Put {
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: Bytes::copy_from_slice(value.as_bytes()),
        };
        let ticket = self.member(at).driver.propose(&command.encode());
        self.settle();
        ticket
    }

    fn get(&mut self, at: u64, key: &str) -> Option<Bytes> {
        let ticket = self.member(at).driver.read(Bytes::copy_from_slice(key.as_bytes()));
        self.settle();
        match self.answers.get(&(at, ticket)) {
            Some(Ok(RequestReply::Read { reply, .. })) => KvReply::decode(reply).unwrap().value,
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.members.clear();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Member {
    fn do_job(&mut self, job: MachineJob) {
        let done = match job {
            MachineJob::Apply(entries) => self.applier.apply(&entries).unwrap(),
            MachineJob::Query(token, query) => self.applier.query(token, query.as_ref()).unwrap(),
            MachineJob::Install(meta) => {
                install(&mut self.store, &mut self.applier, &meta).unwrap()
            }
            MachineJob::Snapshot(meta) => self.applier.capture(meta).unwrap(),
        };
        match done {
            MachineJobDone::Captured { meta, chunks } => {
                let index = meta.id.index;
                self.write_snapshot(meta, chunks.collect());
                self.driver.snapshot_saved(index);
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
    let mut cluster = Cluster::new("every-member", &[1, 2, 3], DriverOptions::default());
    cluster.elect(1);
    for id in 1..=3 {
        let ticket = cluster.put(id, "k", &format!("by {id}"));
        cluster.ticks(2);
        let answer = &cluster.answers[&(id, ticket)];
        assert!(matches!(answer, Ok(RequestReply::Ran { .. })), "{answer:?}");
        assert_eq!(cluster.get(id, "k"), Some(format!("by {id}").into()));
    }
}

#[test]
fn what_was_done_is_there_after_a_restart_of_all() {
    let options = DriverOptions { snapshot_entries: 4, ..DriverOptions::default() };
    let mut cluster = Cluster::new("restart", &[1, 2, 3], options);
    cluster.elect(1);
    for number in 0..10 {
        cluster.put(1, &format!("k{number}"), "v");
    }
    cluster.members.clear();
    (1..=3).for_each(|id| cluster.start(id, 0));
    cluster.ticks(60);
    assert_eq!(cluster.get(3, "k9"), value("v"));
    assert_eq!(cluster.get(3, "k10"), None);
}

#[test]
fn a_goal_replaces_a_member_and_is_done_when_it_is_reached() {
    let options = DriverOptions { snapshot_entries: 5, ..DriverOptions::default() };
    let mut cluster = Cluster::new("goal", &[1, 2, 3], options);
    cluster.elect(1);
    for number in 0..12 {
        cluster.put(1, &format!("k{number}"), "v");
    }
    cluster.members.remove(&3);
    let goal = Change::goal([1, 2, 4].map(MemberId), []);
    // Asked at a follower: it is told as well.
    let ticket = cluster.member(2).driver.change(goal, 1_000);
    cluster.ticks(2);
    let added = cluster.member(1).driver.raft().membership().joined_at(MemberId(4));
    cluster.start(4, added);
    for _ in 0..200 {
        cluster.ticks(1);
    }
    match &cluster.answers[&(2, ticket)] {
        Ok(RequestReply::GoalEnded(ended)) => assert_eq!(ended.end, GoalEnd::Reached),
        other => panic!("{other:?}"),
    }
    let now = cluster.member(4).driver.raft().membership().clone();
    assert!(now.incoming().iter().eq([1, 2, 4].map(MemberId)), "{now}");
    assert_eq!(cluster.get(4, "k11"), value("v"));
}

#[test]
fn nobody_waits_for_ever() {
    let options = DriverOptions { request_ticks: 30, requests_max: 2, ..DriverOptions::default() };
    let mut cluster = Cluster::new("patience", &[1, 2, 3], options);
    // Nobody leads: it surely did not happen.
    let early = cluster.put(1, "k", "early");
    let question = cluster.member(1).driver.read(Bytes::from_static(b"k"));
    let third = cluster.put(1, "k", "one too many");
    cluster.members.retain(|id, _| *id == 1);
    cluster.ticks(31);
    let refused = |refused| Some(&Err(RequestError::Refused(refused))).cloned();
    assert_eq!(cluster.answers.get(&(1, early)).cloned(), refused(RequestRefused::NoLeader));
    assert_eq!(cluster.answers.get(&(1, question)).cloned(), refused(RequestRefused::NoLeader));
    let limit = RequestRefused::TooManyRequests { limit: 2 };
    assert_eq!(cluster.answers.get(&(1, third)).cloned(), refused(limit));
}

#[test]
fn what_a_lost_leader_took_is_unknown_until_somebody_says() {
    let options = DriverOptions { request_ticks: 12, ..DriverOptions::default() };
    let mut cluster = Cluster::new("unknown", &[1, 2, 3], options);
    cluster.elect(1);
    cluster.members.retain(|id, _| *id == 1);
    let ticket = cluster.put(1, "k", "alone");
    cluster.ticks(13);
    assert_eq!(cluster.answers[&(1, ticket)], Err(RequestError::Unknown(OutcomeUnknown::TimedOut)));
    let ticket = cluster.put(1, "k", "again");
    cluster.member(1).driver.stop();
    cluster.settle();
    assert!(cluster.answers.contains_key(&(1, ticket)));
    assert_eq!(cluster.member(1).driver.open_requests(), 0);
}

#[test]
fn a_command_survives_its_leader_and_runs_once() {
    let mut cluster = Cluster::new("survives", &[1, 2, 3], DriverOptions::default());
    cluster.elect(1);
    cluster.put(1, "k", "0");
    // m1 goes before it hears of the command that m2 passes on.
    let gone = cluster.members.remove(&1);
    let command = KvCommand::CompareAndSet {
        key: Bytes::from_static(b"k"),
        expected: value("0"),
        value: Bytes::from_static(b"1"),
    };
    let ticket = cluster.member(2).driver.propose(&command.encode());
    cluster.settle();
    cluster.ticks(15);
    cluster.elect(3);
    cluster.ticks(3);
    match &cluster.answers[&(2, ticket)] {
        Ok(RequestReply::Ran { reply, .. }) => {
            assert_eq!(KvReply::decode(reply), Some(KvReply { done: true, value: value("0") }));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(cluster.get(3, "k"), value("1"));
    drop(gone);
}
