//! Three members in one thread: drivers, appliers with the key-value machine, and logs on disks
//! in memory. Everything that a put costs, except for threads, sockets and a client.

use std::collections::VecDeque;

use bytes::Bytes;
use quorate::DriverOptions;
use quorate::VersionRange;
use quorate::driver::{Applier, Driver, MachineJob, MemberStartup, start};
use quorate_core::{Config, Envelope, MemberId, Membership};
use quorate_kv::{Kv, MemoryTable, SharedKv};
use quorate_storage::{Store, StoreConfig};

use crate::cluster::{MEMBERS, expect_ok};
use crate::memory_disk::MemoryDisk;

pub(crate) struct MemberCluster {
    members: [DrivenMember; MEMBERS],
    messages: VecDeque<Envelope>,
    answered: u64,
}

struct DrivenMember {
    driver: Driver,
    applier: Applier<SharedKv<MemoryTable>>,
    store: Store<MemoryDisk>,
}

impl DrivenMember {
    fn new(id: u64) -> Self {
        let mut config = Config::new(MemberId(id));
        config.incarnation = 1_000 + id;
        let startup = MemberStartup {
            cluster: 5,
            config,
            options: DriverOptions::default(),
            store: StoreConfig::new().segment_bytes(4 << 20),
            first: Some(Membership::new([1, 2, 3].map(MemberId), [])),
            versions: VersionRange::default(),
        };
        let machine = SharedKv::new(expect_ok("open", Kv::open(MemoryTable::default())));
        let started = expect_ok("start", start(MemoryDisk::default(), machine, startup));
        Self { driver: started.driver, applier: started.applier, store: started.store }
    }

    /// Does everything that the driver asks for. Returns how many requests have ended.
    fn turn(&mut self, messages: &mut VecDeque<Envelope>) -> u64 {
        let mut answered = 0;
        while self.driver.has_output() {
            let output = self.driver.take_output();
            messages.extend(output.send);
            if let Some(save) = output.save {
                expect_ok("write", self.store.write(&save));
                expect_ok("sync", self.store.sync());
                self.driver.saved(save.id);
            }
            for job in output.jobs {
                match job {
                    MachineJob::Apply(entries) => {
                        let done = expect_ok("apply", self.applier.apply(&entries));
                        self.driver.job_done(done);
                    }
                    other => panic!("no query and no snapshot was asked for: {other:?}"),
                }
            }
            for (_, outcome) in output.outcomes {
                assert!(outcome.is_ok(), "{outcome:?}");
                answered += 1;
            }
        }
        answered
    }
}

impl MemberCluster {
    /// A cluster whose first member leads.
    pub(crate) fn new() -> Self {
        let members = [1, 2, 3].map(DrivenMember::new);
        let mut cluster = Self { members, messages: VecDeque::new(), answered: 0 };
        cluster.members[0].driver.campaign();
        cluster.settle();
        assert_eq!(cluster.members[0].driver.raft().leader(), Some(MemberId(1)));
        cluster
    }

    /// Proposes this many commands, each batch at once and the batches in turn at every member.
    pub(crate) fn run(&mut self, batch: u64, operations: u64, make: impl Fn(u64) -> Bytes) {
        let mut done = 0;
        while done < operations {
            let at = (done / batch) as usize % MEMBERS;
            for number in done..done + batch {
                let _ = self.members[at].driver.propose(make(number));
            }
            done += batch;
            self.settle();
        }
        assert_eq!(self.answered, done, "requests answered");
    }

    /// Until no member has anything to do.
    fn settle(&mut self) {
        loop {
            for member in &mut self.members {
                self.answered += member.turn(&mut self.messages);
            }
            let Some(envelope) = self.messages.pop_front() else { return };
            let to = envelope.to.0 as usize - 1;
            self.members[to].driver.receive(envelope);
            while let Some(next) = self.messages.front()
                && next.to.0 as usize - 1 == to
            {
                let Some(next) = self.messages.pop_front() else { break };
                self.members[to].driver.receive(next);
            }
        }
    }
}
