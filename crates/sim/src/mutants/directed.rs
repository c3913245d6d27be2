//! Direct checks of what random runs reach too rarely: logs that hold a request more than once,
//! run on one machine.

use std::sync::Arc;

use bytes::Bytes;
use quorate::driver::{Applier, CommandId};
use quorate::{Machine, MachineError, SnapshotChunks};
use quorate_core::{Entries, Entry, EntryId, Index, MemberId, Membership, SnapshotMeta};

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
    let membership = Arc::new(Membership::new([MemberId(1)], []));
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

fn expect(applier: &Applier<Counter>, expected: u64) -> Result<(), String> {
    let ran = applier.machine().0;
    if ran == expected { Ok(()) } else { Err(format!("{ran} commands ran, expected {expected}")) }
}
