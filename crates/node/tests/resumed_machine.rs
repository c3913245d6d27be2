//! A machine with its own disk: commands whose effect it has do not run again, wherever its state
//! stands beside the log and the snapshots.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;

use bytes::Bytes;
use quorate::driver::{Applier, CommandId, MachineJobDone, MemberStartup, StartError, start};
use quorate::storage::StoreIdentity;
use quorate::{
    BadSnapshot, Config, DriverOptions, EntryId, Index, Machine, MachineError, MemberId,
    Membership, SnapshotChunks, VersionRange,
};
use quorate_core::{BootError, Entries, Entry, Payload, SnapshotMeta};
use quorate_storage::{FileDisk, StoreConfig};

const OWNER: StoreIdentity =
    StoreIdentity { cluster: 5, member: MemberId(1), incarnation: 9, joined_at: 0 };

/// Remembers which commands ran, and how often it was asked to save.
#[derive(Default)]
struct Runs {
    resumed_at: Index,
    ran: Vec<Index>,
    prepared: Vec<Index>,
    memberships: Vec<Index>,
    saved: u32,
}

impl Machine for Runs {
    fn resume(&mut self, owner: &StoreIdentity) -> Result<Index, MachineError> {
        assert_eq!((owner.cluster, owner.member), (OWNER.cluster, OWNER.member));
        Ok(self.resumed_at)
    }

    fn save(&mut self) -> Result<(), MachineError> {
        self.saved += 1;
        Ok(())
    }

    fn prepare(&mut self, commands: &[(Index, &[u8])]) {
        assert!(commands.iter().all(|(_, command)| *command == b"command"));
        assert!(commands.iter().all(|(index, _)| !self.ran.contains(index)));
        self.prepared.extend(commands.iter().map(|(index, _)| index));
    }

    fn apply(&mut self, index: Index, command: &Bytes) -> Result<Bytes, MachineError> {
        self.ran.push(index);
        Ok(command.clone())
    }

    fn query(&self, query: &Bytes) -> Result<Bytes, MachineError> {
        Ok(query.clone())
    }

    fn on_membership(&mut self, index: Index, _membership: &Membership) {
        self.memberships.push(index);
    }

    fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
        let indexes = self.ran.iter().flat_map(|index| index.to_le_bytes());
        Ok(Box::new(std::iter::once(Ok(indexes.collect()))))
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        let chunk = chunks.next().ok_or(BadSnapshot)?;
        let indexes = chunk.chunks_exact(8).map(|index| index.try_into().unwrap());
        self.ran = indexes.map(u64::from_le_bytes).collect();
        Ok(())
    }
}

fn command_id(start: u64, sequence: u64) -> CommandId {
    let StoreIdentity { member, incarnation, .. } = OWNER;
    CommandId { member, incarnation, start, sequence, open_from: 0 }
}

fn membership() -> Arc<Membership> {
    Arc::new(Membership::new([OWNER.member], []))
}

fn meta(index: Index) -> SnapshotMeta {
    SnapshotMeta { id: EntryId::new(1, index), membership: membership() }
}

/// A member that is started for the second time, at the beginning of its log.
fn resumed(resumed_at: Index) -> Applier<Runs> {
    let machine = Runs { resumed_at, ..Runs::default() };
    let mut applier = Applier::new(machine, command_id(2, 0));
    applier.resume(&OWNER).unwrap();
    let _ = applier.install(&meta(1), std::iter::empty()).unwrap();
    applier
}

/// Commands that were asked before that start, each the request of its own index.
fn commands(indexes: impl IntoIterator<Item = Index>) -> Entries {
    let entry = |index| Entry {
        id: EntryId::new(1, index),
        payload: Payload::Command(command_id(1, index).prepend_to(b"command")),
    };
    indexes.into_iter().map(entry).collect()
}

#[test]
fn entries_up_to_the_resumed_index_do_not_run_again() {
    let mut applier = resumed(5);
    let _ = applier.apply(&commands(2..=7)).unwrap();
    assert_eq!((applier.applied(), applier.resumed()), (7, 5));
    assert_eq!(applier.machine().ran, [6, 7]);
    assert_eq!(applier.machine().prepared, [6, 7]);
    // That the others ran is known, though it was not seen.
    assert!((2..=7).all(|number| applier.dedup().has_run(command_id(1, number))));
}

#[test]
fn the_machine_learns_which_commands_come_next() {
    let mut applier = resumed(0);
    let _ = applier.apply(&commands(2..=60)).unwrap();
    assert_eq!(applier.machine().prepared, (2..=60).collect::<Vec<_>>());
    assert_eq!(applier.machine().ran, applier.machine().prepared);
    let _ = applier.apply(&commands([61])).unwrap();
    assert_eq!(applier.machine().prepared.len(), 59, "nothing is gained for a single one");
}

#[test]
fn no_snapshot_of_an_older_state_than_the_resumed_one() {
    let mut applier = resumed(5);
    let _ = applier.apply(&commands(2..=4)).unwrap();
    assert!(
        matches!(applier.capture(meta(4)).unwrap(), MachineJobDone::TooLate(at) if at.id.index == 4)
    );
    assert_eq!(applier.machine().saved, 0);
    let _ = applier.apply(&commands(5..=5)).unwrap();
    assert!(matches!(applier.capture(meta(5)).unwrap(), MachineJobDone::Captured { .. }));
    assert_eq!(applier.machine().saved, 1);
}

#[test]
fn only_a_newer_snapshot_is_installed() {
    let capture = |index| {
        let mut applier = resumed(0);
        let _ = applier.apply(&commands(2..=index)).unwrap();
        let MachineJobDone::Captured { chunks, .. } = applier.capture(meta(index)).unwrap() else {
            panic!()
        };
        chunks.map(Result::unwrap).collect::<Vec<_>>()
    };
    let mut applier = resumed(5);
    let _ = applier.install(&meta(4), capture(4).into_iter()).unwrap();
    assert_eq!(applier.machine().ran, []);
    // What the snapshot says beside the machine's state counts: a request that ran before it
    // does not run again, in whatever entry it comes.
    let again = Entry {
        id: EntryId::new(1, 6),
        payload: Payload::Command(command_id(1, 3).prepend_to(b"command")),
    };
    let _ = applier.apply(&commands(5..=5)).unwrap();
    let _ = applier.apply(&Entries::from(vec![again])).unwrap();
    let _ = applier.apply(&commands(7..=7)).unwrap();
    assert_eq!(applier.machine().ran, [7]);
    let _ = applier.install(&meta(9), capture(9).into_iter()).unwrap();
    assert_eq!(applier.machine().ran, (2..=9).collect::<Vec<_>>());
    assert_eq!(applier.machine().memberships, [1, 4, 9]);
}

fn startup(apply_unsaved: bool) -> MemberStartup {
    let mut config = Config::new(OWNER.member);
    config.incarnation = OWNER.incarnation;
    config.apply_unsaved = apply_unsaved;
    MemberStartup {
        cluster: OWNER.cluster,
        config,
        options: DriverOptions::default(),
        store: StoreConfig::default(),
        first: Some((*membership()).clone()),
        versions: VersionRange::default(),
    }
}

/// What runs is durable before: a machine that is further than the log shows that the log
/// has lost what others count on. Unless entries run before they are durable.
#[test]
fn a_log_that_ends_before_the_machine_is_an_error() {
    for apply_unsaved in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let disk = || FileDisk::open(folder.path().join("log")).unwrap();
        drop(start(disk(), Runs::default(), startup(apply_unsaved)).unwrap());
        let ahead = Runs { resumed_at: 2, ..Runs::default() };
        let started = start(disk(), ahead, startup(apply_unsaved));
        match started {
            Ok(started) => assert!(apply_unsaved && started.applier.resumed() == 2),
            Err(why) => {
                let expected = BootError::AppliedBeyondLog { applied: 2, last: 1 };
                assert!(matches!(why, StartError::Boot(found) if found == expected));
                assert!(!apply_unsaved);
            }
        }
    }
}
