//! Worlds whose members run etcd's data model ([`quorate_kv`]): clients of all kinds of
//! requests, clients that hold leases, and clients that watch.
//!
//! The leader's work on leases is the server's ([`Lessor`]), driven by the clock of each member.

mod clients;
mod holders;
mod leases;
mod ledger;
mod watchers;

pub use clients::EtcdClients;

use quorate_kv::{Command, Kv, KvError, Lessor, LessorConfig, MemoryTable, SharedKv, WatchEvent};

use self::holders::LeaseHolder;
pub(crate) use self::leases::{LeaseTask, LeaseTaskDone};
use self::ledger::LeaseLedger;
use self::watchers::WatchClient;
use super::setting::RunSettings;
use super::simulation::Simulation;
use super::workload::{Exchange, WorkloadRequest};
use crate::checkers::{Checked, Violation};
use crate::random::Random;

/// The store of a simulated member, for the parts of a server that read it beside the log.
pub(crate) type SimStore = SharedKv<MemoryTable>;

/// The milliseconds of a tick.
pub(crate) const TICK_MS: u64 = 100;

/// What a world with etcd's data model has in addition.
pub(crate) struct EtcdWorld {
    random: Random,
    lessor: LessorConfig,
    pub(crate) ledger: LeaseLedger,
    holders: Vec<LeaseHolder>,
    watchers: Vec<WatchClient>,
    next_lease: i64,
}

impl EtcdWorld {
    pub(crate) fn new(setting: &RunSettings) -> Self {
        let mut random = Random::stream(setting.seed, 10);
        let lessor = LessorConfig {
            grace_ms: random.below(3) * 500,
            checkpoint_every_ms: random.below(4) * 700,
        };
        let holders = (0..setting.holders).map(|_| LeaseHolder::default()).collect();
        let watchers = (0..setting.watchers).map(|_| WatchClient::draw(&mut random)).collect();
        let ledger = LeaseLedger::default();
        Self { random, lessor, ledger, holders, watchers, next_lease: FIRST_HELD_LEASE }
    }

    pub(crate) fn new_lessor(&self) -> Lessor {
        Lessor::new(self.lessor)
    }
}

/// Leases below this are granted and revoked by all clients, and not kept alive.
const FIRST_HELD_LEASE: i64 = 1_000;

/// An empty store. A table in memory does not fail.
pub(crate) fn empty_store() -> Kv<MemoryTable> {
    match Kv::open(MemoryTable::default()) {
        Ok(kv) => kv,
        Err(error) => unreachable!("an empty table is opened: {error}"),
    }
}

/// The log once more, on a store that never restarted.
struct RerunStore {
    kv: Kv<MemoryTable>,
    /// All writes, in order.
    events: Vec<WatchEvent>,
    /// The commands that revoked a lease, by their number: whether the lease existed.
    revoked: Vec<(usize, i64, bool)>,
}

impl RerunStore {
    fn of(mut kv: Kv<MemoryTable>, history: &[Exchange]) -> Result<Self, Violation> {
        let mut commands: Vec<(u64, usize, &bytes::Bytes)> = Vec::new();
        for (number, exchange) in history.iter().enumerate() {
            if let (WorkloadRequest::Command(command), Some(index)) =
                (&exchange.request, exchange.ran_at)
            {
                commands.push((index, number, command));
            }
        }
        commands.sort_unstable_by_key(|(index, number, _)| (*index, *number));
        let (mut events, mut revoked) = (Vec::new(), Vec::new());
        for (index, number, bytes) in commands {
            let applied = kv.apply_bytes(index, bytes);
            let applied = applied.map_err(|why| Violation::new("replay", why.to_string()))?;
            events.extend(applied.events);
            if let Ok(Command::LeaseRevoke(id)) = Command::decode(bytes) {
                let missing = matches!(applied.reply.result, Err(KvError::LeaseNotFound));
                revoked.push((number, id, !missing));
            }
        }
        Ok(Self { kv, events, revoked })
    }
}

impl Simulation {
    /// Begins with the clients that hold leases and watch.
    pub(crate) fn begin_etcd(&mut self) {
        let Some(etcd) = &self.etcd else { return };
        for holder in 0..etcd.holders.len() {
            self.schedule_holder(holder, 1);
        }
        for watcher in 0..self.etcd.as_ref().map_or(0, |etcd| etcd.watchers.len()) {
            self.schedule_watcher(watcher);
        }
    }

    /// What the clients that hold leases and watch were told is what the log says.
    pub(crate) fn check_etcd(&mut self, judged: bool) -> Checked {
        // In a cluster that continues another one, only replies and states are compared.
        if self.etcd.is_none() || self.first_machine.is_some() {
            return Ok(());
        }
        if judged {
            self.drain_watchers()?;
        }
        let history = &self.clients.history;
        let rerun = RerunStore::of(empty_store(), history)?;
        let Some(etcd) = &self.etcd else { return Ok(()) };
        etcd.ledger.check(history, &rerun.revoked)?;
        watchers::check(&etcd.watchers, &rerun, judged)?;
        if judged { no_key_without_lease(&rerun.kv) } else { Ok(()) }
    }
}

/// Every lease is gone at the end, and its keys with it.
fn no_key_without_lease(kv: &Kv<MemoryTable>) -> Checked {
    use quorate_kv::{KeyRange, KvOutcome, Query, Range};
    let all = Range { keys: KeyRange::all(), ..Range::default() };
    let found = kv.query(&Query::Range(all));
    let found = found.map_err(|why| Violation::new("replay", why.to_string()))?;
    let Ok(KvOutcome::Range(found)) = found.result else { return Ok(()) };
    match found.kvs.iter().find(|found| found.lease != 0 && kv.lease(found.lease).is_none()) {
        None => Ok(()),
        Some(left) => {
            let (key, lease) = (&left.key, left.lease);
            let what = format!("the lease {lease} is gone, and its key {key:?} is there");
            Err(Violation::new("K2", what))
        }
    }
}
