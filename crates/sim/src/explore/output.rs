//! What a member's driver asks for: saves, messages, work for the machine, and events.

use bytes::Bytes;
use quorate::driver::{DriverOutput, MachineJob};
use quorate_core::message::{AppendReply, Message};
use quorate_core::status::RoleKind;
use quorate_core::{Entries, EntryId, Envelope, Event, Payload};
use quorate_storage::{Store, StoreError};

use super::member::DiskWork;
use super::setting::TICK;
use super::simulation::{SimEvent, Simulation, place_of};
use crate::checkers::{Checked, Violation};
use crate::faulty_disk::SharedDisk;

impl Simulation {
    /// Does what this member's driver asks for, until it asks for nothing.
    pub(crate) fn pump(&mut self, place: usize) -> Checked {
        while let Some(process) = &mut self.members[place].process {
            if !process.driver.has_output() {
                break;
            }
            let work = process.driver.take_output();
            self.route(place, work)?;
        }
        self.begin_disk(place)?;
        self.begin_machine(place);
        Ok(())
    }

    fn route(&mut self, place: usize, work: DriverOutput) -> Checked {
        let DriverOutput { save, send, snapshots, jobs, load, trim, outcomes, events } = work;
        let Some(process) = &mut self.members[place].process else { return Ok(()) };
        if let Some(save) = save {
            let raft = process.driver.raft();
            self.invariants.save_requested(raft, &save)?;
            process.disk_waits.push(DiskWork::Save(save));
        }
        self.invariants.stepped(process.driver.raft())?;
        process.disk_waits.extend(load.into_iter().map(DiskWork::Load));
        process.disk_waits.extend(trim.map(DiskWork::Trim));
        let id = self.members[place].id;
        for job in &jobs {
            match job {
                MachineJob::Apply(entries) => {
                    self.invariants.applying(id, entries)?;
                    self.on_committed(place, entries)?;
                }
                MachineJob::Install(meta) => self.invariants.installing(id, meta.id.index),
                MachineJob::Query(..) | MachineJob::Snapshot(_) | MachineJob::SendState { .. } => {}
            }
        }
        if self.over_at == Some(place) && !self.healed {
            // It dies before it tells anybody.
            return self.crash(place).map(drop);
        }
        if let Some(process) = &mut self.members[place].process {
            process.jobs.extend(jobs);
        }
        for envelope in send {
            self.send(place, envelope)?;
        }
        for envelope in snapshots {
            self.send_stored_snapshot(place, envelope)?;
        }
        for (ticket, answer) in outcomes {
            self.on_answer(place, ticket, &answer)?;
        }
        for event in &events {
            self.on_event(place, event)?;
        }
        Ok(())
    }

    /// Changes of membership among committed entries.
    fn on_committed(&mut self, place: usize, entries: &Entries) -> Checked {
        for entry in entries.iter() {
            if let Payload::Change(change) = &entry.payload {
                let applied = self.admin.applied(entry.id.index, &change.change.context);
                applied.map_err(|why| Violation::new("R2", why))?;
                self.on_membership(entry.id, &change.membership);
                let is_new = self.committed_changes.insert(entry.id.index);
                if is_new && self.committed_changes.len() as u64 == self.setting.end_at_change {
                    self.over_at = Some(place);
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, place: usize, envelope: Envelope) -> Checked {
        self.invariants.sent(&envelope)?;
        self.say_rare(&envelope);
        let to = place_of(envelope.to);
        if to >= self.members.len() {
            return Ok(());
        }
        let [first, second] = self.network.send(place, to, self.now);
        if let Some(at) = second {
            let envelope = envelope.clone();
            self.report.count("duplicated message");
            self.schedule(at, SimEvent::Arrives { place: to, envelope });
        }
        match first {
            Some(at) => self.schedule(at, SimEvent::Arrives { place: to, envelope }),
            None => self.report.count("lost message"),
        }
        Ok(())
    }

    fn send_stored_snapshot(&mut self, place: usize, envelope: Envelope) -> Checked {
        let Message::Snapshot(meta) = &envelope.message else { return Ok(()) };
        let Some(process) = &mut self.members[place].process else { return Ok(()) };
        // A newer one may have taken its place; anything else is the disk's fault.
        let read = read_snapshot(&mut process.store, meta.id).ok();
        if let Some(why) = process.store.failed() {
            return self.end(place, &why.to_string());
        }
        self.send_snapshot(place, envelope, read);
        Ok(())
    }

    /// Without chunks, or if the network loses it, the sender is told so.
    pub(super) fn send_snapshot(
        &mut self,
        place: usize,
        envelope: Envelope,
        chunks: Option<Vec<Bytes>>,
    ) {
        let (to, id) = (place_of(envelope.to), envelope.to);
        let run = self.members[place].run;
        let known = to < self.members.len();
        let arrival = if known { self.network.send(place, to, self.now)[0] } else { None };
        match (chunks, arrival) {
            (Some(chunks), Some(at)) => {
                self.report.snapshots_sent += 1;
                self.schedule(at, SimEvent::SnapshotArrives { place: to, envelope, chunks });
            }
            _ => {
                let what = SimEvent::SnapshotReported { place, run, to: id, arrived: false };
                self.schedule(self.now + TICK, what);
            }
        }
    }

    /// Traces messages other than the frequent ones.
    fn say_rare(&mut self, envelope: &Envelope) {
        let usual = matches!(
            envelope.message,
            Message::Append(_)
                | Message::AppendReply(AppendReply::Matches { .. })
                | Message::Heartbeat(_)
                | Message::HeartbeatReply(_)
                | Message::Propose(..)
                | Message::ProposeReply(..)
                | Message::Read(_)
                | Message::ReadReply(..)
        );
        if !usual {
            let Envelope { from, to, term, message, .. } = envelope;
            self.say(|| format!("{from} -> {to} term {term} {message:?}"));
        }
    }

    fn on_event(&mut self, place: usize, event: &Event) -> Checked {
        let id = self.members[place].id;
        self.report.on_event(event);
        self.note_ended_goal(event)?;
        match event {
            Event::PeerLostLog { peer, .. } => {
                self.noticed_rollbacks.insert(*peer);
            }
            // A snapshot that is on its way may fill its log before the leader hears of it.
            Event::LogLost { .. } => {
                self.noticed_rollbacks.insert(id);
            }
            _ => {}
        }
        if let Event::Settled { id: entry, .. } = event {
            self.settled = self.settled.max(entry.index);
        }
        self.say(|| format!("{id} {event:?}"));
        if let Event::Role { to: RoleKind::Leader, .. } = event {
            let now = self.membership();
            self.report.interrupted += u64::from(now.goal().is_some() || now.is_joint());
            self.no_other_leader_has_a_lease(place)?;
        }
        self.invariants.event(id, event)
    }

    /// I14: while a leader may serve reads without asking, no other one is elected. A leader
    /// that does not run at the moment sees first how much time has passed.
    fn no_other_leader_has_a_lease(&self, elected: usize) -> Checked {
        if self.setting.lease_reads == 0 {
            return Ok(());
        }
        for (place, member) in self.members.iter().enumerate() {
            let Some(process) = &member.process else { continue };
            if place != elected && self.is_awake(place) && process.driver.raft().holds_lease() {
                let (id, other) = (self.members[elected].id, member.id);
                let term = process.driver.raft().term();
                let what = format!("{id} is elected while {other} has a lease in term {term}");
                return Err(Violation::new("I14", what));
            }
        }
        Ok(())
    }
}

fn read_snapshot(store: &mut Store<SharedDisk>, id: EntryId) -> Result<Vec<Bytes>, StoreError> {
    let mut reader = store.open_snapshot(id)?;
    let mut chunks = Vec::new();
    while let Some(chunk) = store.read_snapshot(&mut reader)? {
        chunks.push(chunk);
    }
    Ok(chunks)
}
