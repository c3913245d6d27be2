//! Fixed workloads whose instructions are counted and compared with a file in the repository:
//! the core, the key-value machine, three members without sockets and threads, and calls of a client
//! from the bytes of its requests to those of the responses.
//!
//! Commands and requests are prepared before: a short run prepares as many as a long one, so that their
//! difference, which is what counts, has only the work on them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use quorate::Machine;
use quorate_kv::{
    Command, CommandObserver, Compare, CompareOperator, CompareTarget, KeyRange, Kv, MemoryTable,
    Put, Range, SharedKv, Txn, TxnOperation,
};
use quorate_server::counted::{CountedCall, CountedFront};

use crate::cluster::Shape;
use crate::library::Library;
use crate::member_cluster::MemberCluster;

/// Keys that are written before the measured operations, and then again and again.
const KEYS: u64 = 10_000;
const VALUE_BYTES: usize = 256;

/// One row of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedWorkload {
    /// Proposals of 64 bytes on three bare cores, in batches.
    Core { batch: u64 },
    /// A put, applied on one machine.
    ApplyPut,
    /// The same where a watcher waits for other keys.
    ApplyPutWatched,
    /// A transaction that compares a revision, reads and writes.
    ApplyTxn,
    /// A put through three members with their logs, in batches.
    MemberPut { batch: u64 },
    /// A call of a client through the front of a server with one member, 64 at a time.
    Front(CountedCall),
}

impl CountedWorkload {
    pub(crate) const ALL: [Self; 11] = [
        Self::Core { batch: 1 },
        Self::Core { batch: 16 },
        Self::Core { batch: 256 },
        Self::ApplyPut,
        Self::ApplyPutWatched,
        Self::ApplyTxn,
        Self::MemberPut { batch: 1 },
        Self::MemberPut { batch: 64 },
        Self::Front(CountedCall::Put),
        Self::Front(CountedCall::SerializableGet),
        Self::Front(CountedCall::Txn),
    ];

    /// How many times as many operations it needs as others. A server has tasks and a thread for its log, so
    /// that a run takes a few percent more or less.
    pub(crate) fn length(self) -> u64 {
        if let Self::Front(_) = self { 4 } else { 1 }
    }

    /// Runs this many operations.
    pub(crate) fn run(self, operations: u64) {
        match self {
            Self::Core { batch } => {
                Library::Ours.cluster().run(Shape { size: 64, batch }, operations);
            }
            Self::ApplyPut => apply(operations, false, put),
            Self::ApplyPutWatched => apply(operations, true, put),
            Self::ApplyTxn => apply(operations, false, txn),
            Self::MemberPut { batch } => {
                let commands = PreparedCommands::new(put);
                MemberCluster::new().run(batch, operations, |number| commands.get(number));
            }
            Self::Front(call) => {
                CountedFront::start(call, KEYS, VALUE_BYTES).run(operations);
            }
        }
    }
}

/// Applies commands on one machine, as the member does that the client asked.
fn apply(operations: u64, watched: bool, make: impl Fn(u64) -> Command) {
    let kv = crate::cluster::expect_ok("open", Kv::open(MemoryTable::default()));
    let mut machine = SharedKv::new(kv);
    machine.observe(Arc::new(NoObserver));
    if watched {
        let keys = KeyRange { key: "other".into(), range_end: Bytes::new() };
        let request = quorate_kv::WatchRequest { keys, ..Default::default() };
        machine.watch(request, Arc::new(|_| {}));
    }
    let commands = PreparedCommands::new(make);
    for number in 0..KEYS + operations {
        let command = commands.get(number);
        let reply = crate::cluster::expect_ok("apply", machine.apply(number + 1, &command));
        std::hint::black_box(reply);
    }
    assert_eq!(machine.read().revision(), (KEYS + operations + 1) as i64, "every command writes");
}

/// One encoded command for each key.
struct PreparedCommands(Vec<Bytes>);

impl PreparedCommands {
    fn new(make: impl Fn(u64) -> Command) -> Self {
        Self((0..KEYS).map(|number| make(number).encode()).collect())
    }

    /// The command with this number: the same again after one for each key.
    fn get(&self, number: u64) -> Bytes {
        self.0[(number % KEYS) as usize].clone()
    }
}

/// As the server's metrics, without a clock.
struct NoObserver;

impl CommandObserver for NoObserver {
    fn begin(&self) -> u64 {
        0
    }

    fn applied(&self, _began: u64, applied: &quorate_kv::Applied) {
        std::hint::black_box(applied.operation);
    }
}

fn key(number: u64) -> Bytes {
    // A fixed order that is not that of the keys.
    let key = number.wrapping_mul(7_919) % KEYS;
    format!("bench/{key:012}").into()
}

fn value(number: u64) -> Bytes {
    vec![number as u8; VALUE_BYTES].into()
}

fn put(number: u64) -> Command {
    Command::Put(Put { key: key(number), value: value(number), ..Put::default() })
}

fn txn(number: u64) -> Command {
    let key = key(number);
    let keys = KeyRange { key: key.clone(), range_end: Bytes::new() };
    let operator = CompareOperator::NotEqual;
    let compare = Compare { keys: keys.clone(), operator, target: CompareTarget::Mod(1) };
    let write = Put { key, value: value(number), ..Put::default() };
    Command::Txn(Txn {
        compare: vec![compare],
        success: vec![
            TxnOperation::Range(Range { keys, ..Range::default() }),
            TxnOperation::Put(write),
        ],
        failure: Vec::new(),
    })
}

impl fmt::Display for CountedWorkload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Core { batch } => write!(f, "core-{batch}"),
            Self::ApplyPut => write!(f, "apply-put"),
            Self::ApplyPutWatched => write!(f, "apply-put-watched"),
            Self::ApplyTxn => write!(f, "apply-txn"),
            Self::MemberPut { batch } => write!(f, "member-put-{batch}"),
            Self::Front(CountedCall::Put) => write!(f, "front-put"),
            Self::Front(CountedCall::SerializableGet) => write!(f, "front-get"),
            Self::Front(CountedCall::Txn) => write!(f, "front-txn"),
        }
    }
}

impl FromStr for CountedWorkload {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|workload| workload.to_string() == name).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_runs_and_has_a_name() {
        for workload in CountedWorkload::ALL {
            workload.run(64);
            assert_eq!(workload.to_string().parse(), Ok(workload));
        }
    }
}
