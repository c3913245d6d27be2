//! Members in memory: bare cores whose disks are values, and the loop that drives them.
//! Stories, the model checker and recorded traces build on it. [`Cluster`] adds the messages
//! in flight, for random runs: nothing happens by itself there, the caller decides which
//! message arrives, which save completes and which member crashes. Every invariant is checked
//! after every step.

mod disk;
mod drive;
mod member;

use std::collections::BTreeMap;

use quorate_core::message::Message;
use quorate_core::{
    Accepted, Config, Dropped, Envelope, Input, MemberId, Output, Raft, SnapshotMeta,
};

use crate::checkers::{Checked, Invariants, Violation};

pub use disk::{DiskState, LogView};
pub(crate) use drive::MemberDriver;
pub(crate) use member::CoreMember;
pub use member::{HeldWork, WorkKind};

/// The members and what is in flight between them.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    members: BTreeMap<MemberId, ClusterMember>,
    pub network: Vec<Envelope>,
    invariants: Invariants,
    /// What members asked for since the caller was last told.
    outputs: Vec<Output>,
}

#[derive(Clone, Debug)]
struct ClusterMember {
    config: Config,
    core: CoreMember,
}

/// What the core says of an input, if the member is up, and what it asked for.
pub type StepResult = (Option<Result<Accepted, Dropped>>, Vec<Output>);

/// What a member asked for after an input.
pub type Outputs = Result<Vec<Output>, Violation>;

impl Cluster {
    /// Adds a member and starts it from this disk.
    pub fn add(&mut self, config: Config, disk: DiskState) -> Checked {
        let id = config.id;
        let core = CoreMember { held: HeldWork::ALL, ..CoreMember::new(id, disk) };
        self.members.insert(id, ClusterMember { config, core });
        self.start(id).map(drop)
    }

    pub fn ids(&self) -> Vec<MemberId> {
        self.members.keys().copied().collect()
    }

    /// The core of a member that runs.
    pub fn raft(&self, id: MemberId) -> Option<&Raft> {
        self.members.get(&id)?.core.raft.as_ref()
    }

    /// The cores of all members that run.
    pub fn rafts(&self) -> impl Iterator<Item = &Raft> {
        self.members.values().filter_map(|member| member.core.raft.as_ref())
    }

    pub fn config(&self, id: MemberId) -> Option<&Config> {
        self.members.get(&id).map(|member| &member.config)
    }

    pub fn disk(&self, id: MemberId) -> Option<&DiskState> {
        self.members.get(&id).map(|member| &*member.core.disk)
    }

    /// No member waits for its disk or its machine.
    pub fn is_idle(&self, id: MemberId) -> bool {
        self.members.get(&id).is_none_or(|member| member.core.is_idle())
    }

    /// Gives a member an input. A member that is down ignores it.
    pub fn step(&mut self, id: MemberId, input: Input) -> Outputs {
        self.try_step(id, input).map(|(_, outputs)| outputs)
    }

    /// The same, with what the core says of the input.
    pub fn try_step(&mut self, id: MemberId, input: Input) -> Result<StepResult, Violation> {
        let taken = MemberDriver::step(self, id, "input", input)?;
        Ok((taken, self.drained(id)?))
    }

    /// Completes the oldest work of this kind.
    pub fn complete(&mut self, id: MemberId, work: WorkKind) -> Outputs {
        MemberDriver::complete(self, id, work)?;
        self.drained(id)
    }

    fn drained(&mut self, id: MemberId) -> Outputs {
        self.drain(id)?;
        Ok(std::mem::take(&mut self.outputs))
    }

    /// Takes a message off the network. It arrives or is lost; the sender of a snapshot
    /// hears which.
    pub fn deliver(&mut self, position: usize, arrives: bool) -> Outputs {
        let envelope = self.network.remove(position);
        let (from, to) = (envelope.from, envelope.to);
        let snapshot = matches!(envelope.message, Message::Snapshot(_));
        let mut outputs =
            if arrives { self.step(to, Input::Received(envelope))? } else { Vec::new() };
        if snapshot {
            let report = if arrives { Input::SnapshotSent(to) } else { Input::SnapshotLost(to) };
            outputs.extend(self.step(from, report)?);
        }
        Ok(outputs)
    }

    /// The machine's state as of all that is applied is captured durably.
    pub fn snapshot(&mut self, id: MemberId) -> Result<Option<SnapshotMeta>, Violation> {
        let Some(member) = self.members.get_mut(&id) else { return Ok(None) };
        let Some(raft) = &member.core.raft else { return Ok(None) };
        let index = raft.log_status().applied;
        let disk = &member.core.disk;
        if index <= disk.snapshot.id.index || index > disk.applied {
            return Ok(None);
        }
        let captured = member.core.snapshot(index)?;
        self.drained(id)?;
        Ok(captured.ok().flatten())
    }

    /// The process ends, and with it what was not saved.
    pub fn stop(&mut self, id: MemberId) {
        if let Some(member) = self.members.get_mut(&id) {
            member.core.crash(false);
        }
    }

    /// Starts a member from its disk. Half of its log is left out of memory, so that it has
    /// to be loaded.
    pub fn start(&mut self, id: MemberId) -> Outputs {
        let Some(member) = self.members.get_mut(&id) else { return Ok(Vec::new()) };
        let tail = member.core.disk.log.entries.len().div_ceil(2);
        let boot = member.core.start(&member.config, Some(tail));
        let boot = boot.map_err(|why| Violation::new("assert", format!("boot: {why}")))?;
        self.started(id, &boot)?;
        self.drained(id)
    }

    /// Stops a member and starts another one under its id, with an empty disk.
    pub fn replace(&mut self, config: Config) -> Outputs {
        let id = config.id;
        self.stop(id);
        self.invariants.disk_lost(id);
        if let Some(member) = self.members.get_mut(&id) {
            member.config = config;
            member.core.replace_disk(DiskState::default());
        }
        self.start(id)
    }
}

impl MemberDriver for Cluster {
    type Checks = Invariants;

    fn parts(&mut self, id: MemberId) -> Option<(&mut CoreMember, &mut Invariants)> {
        Some((&mut self.members.get_mut(&id)?.core, &mut self.invariants))
    }

    fn send(&mut self, envelopes: Vec<Envelope>) {
        self.network.extend(envelopes);
    }

    fn output(&mut self, _: MemberId, output: &mut Output) {
        self.outputs.push(output.clone());
        self.send(std::mem::take(&mut output.send));
    }
}
