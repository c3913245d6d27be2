//! Clusters of bare cores in memory: members whose disks are values, and the messages in
//! flight between them. Nothing happens by itself: the caller decides which message
//! arrives, which save completes and which member crashes. Every invariant is checked
//! after every step.

mod disk;
mod member;

use std::collections::BTreeMap;

use quorate_core::message::Message;
use quorate_core::{
    Accepted, Config, Dropped, Envelope, Input, MemberId, Output, Raft, SnapshotMeta,
};

use crate::checkers::{Checked, Invariants, Violation};

pub use disk::{DiskState, LogView};
pub(crate) use member::CoreMember;

/// The members and what is in flight between them.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    members: BTreeMap<MemberId, ClusterMember>,
    pub network: Vec<Envelope>,
    invariants: Invariants,
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
        let core = CoreMember::new(id, disk);
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
        self.members.get(&id).is_none_or(|member| {
            let core = &member.core;
            core.saves.is_empty() && core.applies.is_empty() && core.loads.is_empty()
        })
    }

    /// Gives a member an input. A member that is down ignores it.
    pub fn step(&mut self, id: MemberId, input: Input) -> Outputs {
        self.try_step(id, input).map(|(_, outputs)| outputs)
    }

    /// The same, with what the core says of the input.
    pub fn try_step(&mut self, id: MemberId, input: Input) -> Result<StepResult, Violation> {
        let up = self.members.get_mut(&id).filter(|member| member.core.raft.is_some());
        let Some(member) = up else { return Ok((None, Vec::new())) };
        let taken = member.core.step(input)?;
        Ok((Some(taken), self.drain(id)?))
    }

    /// Takes what a member asks for. Its saves, applies and loads wait to be completed.
    fn drain(&mut self, id: MemberId) -> Outputs {
        let mut outputs = Vec::new();
        let Some(member) = self.members.get_mut(&id) else { return Ok(outputs) };
        while let Some(output) = member.core.take_output(&mut self.invariants)? {
            let Output { save, send, apply, load, trim, .. } = output.clone();
            self.network.extend(send);
            member.core.saves.extend(save);
            member.core.applies.extend((!apply.is_empty()).then_some(apply));
            member.core.loads.extend(load);
            if let Some(to) = trim {
                member.core.trim(to);
            }
            outputs.push(output);
        }
        Ok(outputs)
    }

    /// The oldest save is on disk.
    pub fn complete_save(&mut self, id: MemberId) -> Outputs {
        let Some(member) = self.members.get_mut(&id) else { return Ok(Vec::new()) };
        let Some(save) = member.core.write_save(&mut self.invariants)? else {
            return Ok(Vec::new());
        };
        self.network.extend(save.then_send);
        let installed = save.install.filter(|_| member.config.stall_timeouts > 0);
        let mut outputs = self.step(id, Input::Saved(save.id))?;
        if let Some(meta) = installed {
            outputs.extend(self.step(id, Input::Applied(meta.id.index))?);
        }
        Ok(outputs)
    }

    /// The machine has run its oldest entries.
    pub fn complete_apply(&mut self, id: MemberId) -> Outputs {
        let Some(member) = self.members.get_mut(&id) else { return Ok(Vec::new()) };
        if !member.core.may_apply(&member.config) {
            return Ok(Vec::new());
        }
        match member.core.run_apply() {
            Some(last) => self.step(id, Input::Applied(last)),
            None => Ok(Vec::new()),
        }
    }

    /// The oldest load is read from disk.
    pub fn complete_load(&mut self, id: MemberId) -> Outputs {
        match self.members.get_mut(&id).and_then(|member| member.core.read_load()) {
            Some(loaded) => self.step(id, loaded),
            None => Ok(Vec::new()),
        }
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
        self.drain(id)?;
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
        if let Some(raft) = &member.core.raft {
            self.invariants.started(raft, &boot)?;
        }
        self.drain(id)
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
