//! The majority is lost: one member's disk becomes a new cluster, as `--force-new-cluster` and
//! `quorate recover` do it, and new members join. It is a simulation of its own, which begins
//! with what that disk held.

use std::rc::Rc;

use bytes::Bytes;
use quorate::Machine;
use quorate::driver::{ReplayedLog, replay_log, seed};
use quorate_core::{MemberId, MemberSet, Membership};
use quorate_storage::{StoreConfig, StoreIdentity};

use super::action::ActionKind;
use super::etcd::EtcdWorld;
use super::member::MemberHealth;
use super::setting::{RunSettings, TICK};
use super::simulation::{SimEvent, Simulation};
use super::trial::MakeMachine;
use super::workload::Workload;
use crate::checkers::{Checked, Violation};

/// The id of the new cluster.
const NEW_CLUSTER: u64 = 8;

impl Simulation {
    /// Everything else was judged: any disk that holds all of the log may continue alone.
    pub(crate) fn force_new_cluster(&mut self, workload: Box<dyn Workload>) -> Checked {
        let commit = self.invariants.commit();
        let is_complete = |place: &usize| {
            let process = self.members[*place].process.as_ref();
            process.is_some_and(|process| process.applier.applied() == commit)
        };
        let complete: Vec<usize> = (0..self.members.len()).filter(is_complete).collect();
        let Some(place) = self.random.pick(&complete).copied() else { return Ok(()) };
        for place in 0..self.members.len() {
            self.crash(place)?;
        }
        let disk = self.members[place].disk.copy();
        disk.inner().heal();
        disk.inner().stop_after(None);
        let failed = |error: quorate::driver::StartError| {
            Violation::new("D5", format!("a new cluster cannot be made: {error}"))
        };
        let startup = self.startup(place);
        let replayed = replay_log(disk, self.new_machine(), startup).map_err(failed)?;
        let ReplayedLog { applier, .. } = replayed;
        let (last, version) = (applier.applied(), applier.cluster_version().version);
        if last < commit {
            let what = format!("the new cluster has {last} entries of {commit} committed ones");
            return Err(Violation::new("D1", what));
        }
        let machine = applier.into_machine();
        let chunks = machine.snapshot().and_then(Iterator::collect::<Result<Vec<Bytes>, _>>);
        let chunks = chunks.map_err(|error| Violation::new("replay", error.to_string()))?;
        let mut next = self.begin_again(&chunks, workload);
        let own = MemberId(1);
        let voters: MemberSet = (1..=3).map(MemberId).collect();
        let first = Membership::new([own], []).with_activation(self.setting.activation());
        let first = first.set_goal(&voters, &MemberSet::new());
        let first = first.map_err(|why| Violation::new("L2", why.to_string()))?;
        let identity = StoreIdentity {
            cluster: NEW_CLUSTER,
            member: own,
            incarnation: next.members[0].incarnation,
            joined_at: 0,
        };
        let mut disk = next.members[0].disk.clone();
        let config = StoreConfig::new();
        seed(&mut disk, identity, first, machine, last, version, &config).map_err(failed)?;
        self.report.count("force-new-cluster");
        let checked = next.run_forced();
        self.report.events += next.report.events;
        self.report.goals_reached += next.report.goals_reached;
        checked
    }

    /// A simulation without faults, whose machines continue from this state.
    fn begin_again(&self, chunks: &[Bytes], workload: Box<dyn Workload>) -> Self {
        let setting = RunSettings {
            voters: 1,
            learners: 0,
            loss: 0,
            duplication: 0,
            gray: 0,
            rollback: 0,
            forced: 0,
            absent: 0,
            end_at_change: 0,
            focus: 0,
            ..self.setting.clone()
        };
        let mut next = Self::new(&setting, Rc::clone(&self.machine), workload);
        let (empty, chunks) = (Rc::clone(&self.machine), chunks.to_vec());
        let first: MakeMachine = Rc::new(move || {
            let mut machine = empty();
            let installed = machine.install(&mut chunks.iter().cloned());
            assert!(installed.is_ok(), "a machine refuses its own snapshot");
            machine
        });
        next.first_machine = Some(first);
        next.etcd = self.etcd.as_ref().map(|_| EtcdWorld::new(&setting));
        next.cluster = NEW_CLUSTER;
        for _ in 0..3 {
            next.add_place(ActionKind::AddLearner);
        }
        next.members[0].health = MemberHealth::Healthy;
        next.begun = true;
        next
    }

    /// The member leads alone, the others join, and clients are served.
    fn run_forced(&mut self) -> Checked {
        self.start(0)?;
        for client in 0..self.clients.count() {
            self.schedule(TICK, SimEvent::Client(client));
        }
        self.run_until(20 * self.setting.election_ticks_max() * TICK)?;
        self.heal()
    }
}
