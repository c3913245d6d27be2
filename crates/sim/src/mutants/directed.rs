//! Direct checks of what random runs reach too rarely: logs that hold a request more than once
//! or a request of another disk, and logs with changes of the cluster version, run on one machine;
//! a capture at the wrong moment; and a leader that is deposed while it renews a lease.

use std::sync::Arc;

use bytes::Bytes;
use quorate::driver::{
    Applier, CommandId, Driver, DriverOutput, MachineJob, MachineJobDone, VersionChange,
};
use quorate::{ClusterVersion, DriverOptions, Machine, MachineError, SnapshotChunks, VersionRange};
use quorate_core::message::{Append, Message};
use quorate_core::{
    Boot, Config, Entries, Entry, EntryId, Envelope, Index, MemberId, Membership, SnapshotMeta,
};
use quorate_kv::{
    Command, Kv, LeaseGrant, LeaseInquiry, LeaseInquiryStep, LeaseQuery, LeaseWork, Lessor,
    LessorConfig, MemoryTable, SharedKv,
};

/// Counts the commands that it runs.
#[derive(Clone, Debug, Default)]
struct Counter(u64);

impl Machine for Counter {
    fn apply(&mut self, _: Index, _: &Bytes) -> Result<Bytes, MachineError> {
        self.0 += 1;
        Ok(Bytes::new())
    }

    fn query(&self, _: &Bytes) -> Result<Bytes, MachineError> {
        Ok(Bytes::new())
    }

    fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
        Ok(Box::new(std::iter::empty()))
    }

    fn install(&mut self, _: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        Ok(())
    }
}

/// A request from the member's start number `start`, as the log holds it.
fn request(start: u64, sequence: u64) -> Bytes {
    CommandId { member: MemberId(1), incarnation: 7, start, sequence, open_from: 1 }
        .prepend_to(b"x")
}

fn applier() -> Result<Applier<Counter>, String> {
    let origin =
        CommandId { member: MemberId(1), incarnation: 7, start: 3, sequence: 0, open_from: 0 };
    let mut applier = Applier::new(Counter::default(), origin);
    let membership = Membership::new([MemberId(1)], []).with_incarnation(MemberId(1), 7);
    let membership = Arc::new(membership);
    let first = SnapshotMeta { id: EntryId::new(1, 1), membership };
    let _ = applier.install(&first, std::iter::empty()).map_err(|why| why.to_string())?;
    Ok(applier)
}

fn entries(first: Index, requests: &[(u64, u64)]) -> Entries {
    let numbered = (first..).zip(requests);
    let entries =
        numbered.map(|(at, (boot, number))| Entry::command(1, at, request(*boot, *number)));
    entries.collect::<Vec<Entry>>().into()
}

/// After a restart the log is handed out from an entry that is older than the machine's state.
pub(super) fn entries_run_once() -> Result<(), String> {
    let mut applier = applier()?;
    let _ = applier.apply(&entries(2, &[(1, 1), (1, 2), (1, 3)])).map_err(|why| why.to_string())?;
    let _ = applier.apply(&entries(3, &[(1, 2), (1, 3), (1, 4)])).map_err(|why| why.to_string())?;
    expect(&applier, 4)
}

/// A copy of a request arrives after its member was restarted.
pub(super) fn copies_from_before_a_restart_do_not_run() -> Result<(), String> {
    let mut applier = applier()?;
    let _ = applier
        .apply(&entries(2, &[(1, 1), (2, 1), (1, 1), (2, 1)]))
        .map_err(|why| why.to_string())?;
    expect(&applier, 2)
}

/// The membership names the disk of incarnation 7. A command of another one is not run: its
/// member may have been replaced.
pub(super) fn commands_of_another_disk_do_not_run() -> Result<(), String> {
    let mut applier = applier()?;
    let _ = applier.apply(&entries(2, &[(1, 1)])).map_err(|why| why.to_string())?;
    let foreign =
        CommandId { member: MemberId(1), incarnation: 8, start: 1, sequence: 2, open_from: 1 };
    let entry = Entry::command(1, 3, foreign.prepend_to(b"x"));
    let _ = applier.apply(&vec![entry].into()).map_err(|why| why.to_string())?;
    expect(&applier, 1)
}

/// While a peer's snapshot replaces the log, the membership of an older entry is not known:
/// the machine must not be captured as of it.
pub(super) fn no_capture_while_a_snapshot_installs() -> Result<(), String> {
    let (leader, own) = (MemberId(1), MemberId(2));
    let membership = Membership::new([leader, own], []);
    let boot = Boot::first(membership.clone());
    let first = boot.snapshot.clone();
    let mut driver = Driver::new(Config::new(own), boot, 1, DriverOptions::default())
        .map_err(|why| why.to_string())?;
    let mut applier = Applier::new(Counter::default(), driver.command_id());
    let _ = applier.install(&first, std::iter::empty()).map_err(|why| why.to_string())?;
    let receive = |driver: &mut Driver, message: Message| {
        let (incarnation, joined_at) = (0, 0);
        let envelope = Envelope { from: leader, to: own, term: 2, incarnation, joined_at, message };
        driver.receive(envelope).map_or(Ok(()), |dropped| Err(dropped.to_string()))
    };
    let entries = vec![Entry::command(2, 2, request(1, 1))].into();
    let append = Append { prev: first.id, entries, commit: 2 };
    receive(&mut driver, Message::Append(append))?;
    while driver.has_output() {
        let DriverOutput { save, jobs, .. } = driver.take_output();
        if let Some(save) = save {
            driver.saved(save.id);
        }
        for job in jobs {
            if let MachineJob::Apply(entries) = job {
                driver.job_done(applier.apply(&entries).map_err(|why| why.to_string())?);
            }
        }
    }
    let meta = SnapshotMeta { id: EntryId::new(2, 9), membership: Arc::new(membership) };
    receive(&mut driver, Message::Snapshot(meta))?;
    driver.capture();
    let captures = |job: &MachineJob| matches!(job, MachineJob::Snapshot(_));
    if driver.take_output().jobs.iter().any(captures) {
        return Err("the machine is captured while a snapshot installs".to_owned());
    }
    Ok(())
}

/// A program that does not support a version stops at it; a change for another version than the
/// current one has no effect; a snapshot carries the version.
pub(super) fn versions_are_kept() -> Result<(), String> {
    let version = |version, downgrading| ClusterVersion { version, downgrading };
    let change = |sequence, from, to| {
        let id =
            CommandId { member: MemberId(1), incarnation: 7, start: 1, sequence, open_from: 1 };
        id.prepend_to_version(VersionChange { from, to })
    };
    let raise = change(1, version(1, false), version(2, false));
    let stale = change(2, version(1, false), version(1, true));
    let log: Vec<Entry> =
        (2..).zip([raise, stale]).map(|(at, bytes)| Entry::command(1, at, bytes)).collect();
    let mut newer = applier()?.with_versions(VersionRange::new(1, 2));
    let _ = newer.apply(&log.clone().into()).map_err(|why| why.to_string())?;
    expect_version(&newer, version(2, false))?;
    let mut older = applier()?.with_versions(VersionRange::new(1, 1));
    if older.apply(&log.into()).is_ok() {
        return Err("a program runs on at a version that it does not support".into());
    }
    let membership = Arc::new(Membership::new([MemberId(1)], []));
    let meta = SnapshotMeta { id: EntryId::new(1, 3), membership };
    let captured = newer.capture(meta.clone()).map_err(|why| why.to_string())?;
    let MachineJobDone::Captured { chunks, .. } = captured else {
        return Err("no snapshot was captured".into());
    };
    let chunks: Vec<Bytes> = chunks.collect::<Result<_, _>>().map_err(|why| why.to_string())?;
    let mut restored = applier()?.with_versions(VersionRange::new(1, 2));
    let _ = restored.install(&meta, chunks.iter().cloned()).map_err(|why| why.to_string())?;
    expect_version(&restored, version(2, false))?;
    let mut older = applier()?.with_versions(VersionRange::new(1, 1));
    match older.install(&meta, chunks.into_iter()) {
        Ok(_) => Err("a program starts from a version that it does not support".into()),
        Err(_) => Ok(()),
    }
}

fn expect_version(applier: &Applier<Counter>, expected: ClusterVersion) -> Result<(), String> {
    let found = applier.cluster_version();
    let text = || format!("the cluster version is {found}, expected {expected}");
    if found == expected { Ok(()) } else { Err(text()) }
}

fn expect(applier: &Applier<Counter>, expected: u64) -> Result<(), String> {
    let ran = applier.machine().0;
    if ran == expected { Ok(()) } else { Err(format!("{ran} commands ran, expected {expected}")) }
}

/// A leader is deposed between the renewal of a lease and its answer: the next leader does not
/// know of the renewal, so the client must not be told that it happened.
pub(super) fn deposed_leaders_do_not_renew() -> Result<(), String> {
    let table = Kv::open(MemoryTable::default()).map_err(|error| error.to_string())?;
    let store = SharedKv::new(table);
    let grant = Command::LeaseGrant(LeaseGrant { id: LEASE, ttl: 60 });
    store.clone().apply(1, &grant.encode()).map_err(|error| error.to_string())?;
    for (leads, expected) in [(Some(TERM), true), (Some(TERM + 1), false), (None, false)] {
        let mut lessor = Lessor::new(LessorConfig { grace_ms: 0, checkpoint_every_ms: 0 });
        lessor.poll(&store, &store.read(), Some(TERM), 0, 1);
        lessor.start(&store, &store.read(), TERM, 0);
        let begun =
            LeaseInquiry::begin(&mut lessor, &store, &store.read(), LeaseQuery::Renew(LEASE), 0);
        let (mut inquiry, _) = begun.ok_or("the leader does not answer")?;
        let step = inquiry.proceed(&mut lessor, &store, &store.read(), true, leads, 0);
        if matches!(step, LeaseInquiryStep::Answer(_)) != expected {
            return Err(format!("a renewal in term {TERM} by a leader of {leads:?}: {step:?}"));
        }
    }
    Ok(())
}

/// Renewals clear the logged remaining time of a lease, each of them until a clearing has run, and
/// again when another time was logged after it: the next leader would count from it.
pub(super) fn renewals_clear_checkpoints() -> Result<(), String> {
    let table = Kv::open(MemoryTable::default()).map_err(|error| error.to_string())?;
    let store = SharedKv::new(table);
    let grant = Command::LeaseGrant(LeaseGrant { id: LEASE, ttl: 60 });
    store.clone().apply(1, &grant.encode()).map_err(|error| error.to_string())?;
    let mut lessor = Lessor::new(LessorConfig { grace_ms: 0, checkpoint_every_ms: 1_000 });
    lessor.start(&store, &store.read(), TERM, 0);
    let checkpoint =
        |lessor: &mut Lessor, now| match lessor.poll(&store, &store.read(), Some(TERM), now, 1) {
            LeaseWork::Propose { checkpoints, .. } if !checkpoints.is_empty() => Ok(()),
            other => Err(format!("no checkpoint is due: {other:?}")),
        };
    let renew = |lessor: &mut Lessor, now| -> Result<LeaseInquiry, String> {
        match LeaseInquiry::begin(lessor, &store, &store.read(), LeaseQuery::Renew(LEASE), now) {
            Some((inquiry, LeaseInquiryStep::Propose(..))) => Ok(inquiry),
            other => Err(format!("the renewal at {now} clears no checkpoint: {other:?}")),
        }
    };
    checkpoint(&mut lessor, 1_000)?;
    let mut first = renew(&mut lessor, 1_001)?;
    renew(&mut lessor, 1_002)?;
    checkpoint(&mut lessor, 2_002)?;
    first.proceed(&mut lessor, &store, &store.read(), true, Some(TERM), 2_003);
    renew(&mut lessor, 2_004).map(drop)
}

const LEASE: i64 = 7;
const TERM: u64 = 3;
