//! Many members, one thread, one seed: a queue of events.
//!
//! What a real member does on its own threads happens here as events: messages, disk
//! writes, the machine's work, ticks. The driver, storage and applier are those of a real
//! member.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;

use bytes::Bytes;
use quorate::driver::{DriverOutput, MachineJob, RequestOutcome, RequestToken};
use quorate_core::message::{AppendReply, Message};
use quorate_core::status::RoleKind;
use quorate_core::{Entries, EntryId, Envelope, Event, Index, MemberId, Membership, Payload, Term};
use quorate_storage::{Store, StoreError};

use super::Trace;
use super::action::{Action, ActionTarget};
use super::admin::Admin;
use super::clients::SimClients;
use super::member::{DiskWork, MemberHealth, SimMember};
use super::network::SimNetwork;
use super::report::RunReport;
use super::setting::{RunSettings, TICK};
use super::trial::MakeMachine;
use super::workload::{Workload, WorkloadRequest};
use crate::checkers::{Checked, Invariants, Violation};
use crate::faulty_disk::SharedDisk;
use crate::random::Random;

pub(crate) struct Simulation {
    pub(crate) setting: RunSettings,
    pub(crate) now: u64,
    queue: BinaryHeap<Reverse<ScheduledEvent>>,
    order: u64,
    pub(crate) members: Vec<SimMember>,
    pub(crate) network: SimNetwork,
    pub(crate) machine: MakeMachine,
    pub(crate) clients: SimClients,
    pub(crate) admin: Admin,
    pub(crate) invariants: Invariants,
    pub(crate) report: RunReport,
    pub(crate) random: Random,
    /// For hints alone.
    pub(crate) hints: Random,
    /// The membership of the cluster's first members.
    pub(crate) first: Arc<Membership>,
    /// The first members were started.
    pub(crate) begun: bool,
    /// Goals that were reported as ended.
    pub(crate) ended_goals: BTreeSet<EntryId>,
    /// The changes that were committed so far, and the newest one that is settled.
    pub(crate) committed_changes: BTreeSet<Index>,
    pub(crate) settled: Index,
    /// The faults end now: the member at this place knew first of the last change.
    pub(crate) over_at: Option<usize>,
    /// Faults are over.
    pub(crate) healed: bool,
    /// Clients send no further requests.
    pub(crate) quiet: bool,
    /// Receives a line for each event, for a run that is traced.
    pub(crate) trace: Option<Trace>,
}

struct ScheduledEvent {
    at: u64,
    order: u64,
    what: SimEvent,
}

/// Something that happens. What belongs to a process names the run of that process.
pub(crate) enum SimEvent {
    Arrives { place: usize, envelope: Envelope },
    SnapshotArrives { place: usize, envelope: Envelope, chunks: Vec<Bytes> },
    SnapshotReported { place: usize, run: u64, to: MemberId, arrived: bool },
    ConnectionLost { place: usize, run: u64, to: MemberId },
    Tick { place: usize, run: u64 },
    DiskDone { place: usize, run: u64 },
    MachineDone { place: usize, run: u64 },
    Resumes { place: usize, run: u64, ticks: u64 },
    Starts { place: usize },
    Client(usize),
    Act(Action),
}

impl PartialEq for ScheduledEvent {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for ScheduledEvent {}

impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScheduledEvent {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl Simulation {
    pub(crate) fn new(
        setting: &RunSettings,
        machine: MakeMachine,
        workload: Box<dyn Workload>,
    ) -> Self {
        Self {
            now: 0,
            queue: BinaryHeap::new(),
            order: 0,
            members: Vec::new(),
            network: SimNetwork::new(setting),
            machine,
            clients: SimClients::new(setting, workload),
            admin: Admin::new(setting),
            invariants: Invariants::default(),
            report: RunReport::default(),
            random: Random::stream(setting.seed, 4),
            hints: Random::stream(setting.seed, 6),
            first: Arc::default(),
            begun: false,
            ended_goals: BTreeSet::new(),
            committed_changes: BTreeSet::new(),
            settled: 0,
            over_at: None,
            healed: false,
            quiet: false,
            trace: None,
            setting: setting.clone(),
        }
    }

    pub(crate) fn say(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace(self.now, &what());
        }
    }

    pub(crate) fn schedule(&mut self, at: u64, what: SimEvent) {
        self.order += 1;
        self.queue.push(Reverse(ScheduledEvent { at: at.max(self.now), order: self.order, what }));
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

    /// Drops scheduled events of this kind.
    pub(crate) fn drop_events(&mut self, kind: impl Fn(&SimEvent) -> bool) {
        self.queue.retain(|Reverse(due)| !kind(&due.what));
    }

    /// Handles all events up to this time.
    pub(crate) fn run_until(&mut self, end: u64) -> Checked {
        while self.queue.peek().is_some_and(|Reverse(due)| due.at <= end) {
            let Some(Reverse(due)) = self.queue.pop() else { break };
            self.now = due.at;
            self.report.note(due.at, due.order);
            self.handle(due.what)?;
            if self.over_at.is_some() && !self.healed {
                return Ok(());
            }
        }
        self.now = end;
        Ok(())
    }

    fn handle(&mut self, what: SimEvent) -> Checked {
        let Some(what) = self.unless_paused(what) else { return Ok(()) };
        match what {
            SimEvent::Arrives { place, envelope } => self.on_arrival(place, envelope),
            SimEvent::SnapshotArrives { place, envelope, chunks } => {
                self.on_snapshot_arrival(place, envelope, chunks)
            }
            SimEvent::SnapshotReported { place, run, to, arrived } => {
                self.with_process(place, run, |process| match arrived {
                    true => process.driver.snapshot_sent(to),
                    false => process.driver.snapshot_lost(to),
                })
            }
            SimEvent::ConnectionLost { place, run, to } => {
                self.with_process(place, run, |process| process.driver.connection_lost(to))
            }
            SimEvent::Tick { place, run } => self.on_tick(place, run),
            SimEvent::DiskDone { place, run } => self.on_disk_done(place, run),
            SimEvent::MachineDone { place, run } => self.on_machine_done(place, run),
            SimEvent::Resumes { place, run, ticks } => self.with_process(place, run, |process| {
                (0..ticks).for_each(|_| process.driver.tick());
            }),
            SimEvent::Starts { place } => self.start(place),
            SimEvent::Client(client) => self.on_client(client),
            SimEvent::Act(action) => self.act(action),
        }
    }

    /// Events of a paused member wait until it continues.
    fn unless_paused(&mut self, what: SimEvent) -> Option<SimEvent> {
        let place = match &what {
            SimEvent::Arrives { place, .. }
            | SimEvent::SnapshotArrives { place, .. }
            | SimEvent::SnapshotReported { place, .. }
            | SimEvent::ConnectionLost { place, .. }
            | SimEvent::Tick { place, .. }
            | SimEvent::DiskDone { place, .. }
            | SimEvent::MachineDone { place, .. } => *place,
            _ => return Some(what),
        };
        let member = &self.members[place];
        if member.stall.is_any() {
            return self.unless_stalled(place, what);
        }
        let until = member.paused_until;
        if until <= self.now {
            return Some(what);
        }
        self.schedule(until, what);
        None
    }

    /// Does something with a process, if it is still the same one.
    fn with_process(
        &mut self,
        place: usize,
        run: u64,
        act: impl FnOnce(&mut super::member::MemberProcess),
    ) -> Checked {
        let member = &mut self.members[place];
        if member.run != run {
            return Ok(());
        }
        let Some(process) = &mut member.process else { return Ok(()) };
        act(process);
        self.report.events += 1;
        self.pump(place)
    }

    fn on_arrival(&mut self, place: usize, envelope: Envelope) -> Checked {
        if self.network.is_cut(place_of(envelope.from), place) {
            return Ok(());
        }
        let run = self.members[place].run;
        self.with_process(place, run, |process| {
            process.driver.receive(envelope);
        })
    }

    fn on_snapshot_arrival(
        &mut self,
        place: usize,
        envelope: Envelope,
        chunks: Vec<Bytes>,
    ) -> Checked {
        let from = place_of(envelope.from);
        let Message::Snapshot(meta) = &envelope.message else { return Ok(()) };
        let meta = meta.clone();
        let torn = std::mem::take(&mut self.members[place].tears_snapshot);
        let received = !self.network.is_cut(from, place) && self.members[place].is_up();
        let arrived = received && !torn;
        let report = SimEvent::SnapshotReported {
            place: from,
            run: self.members[from].run,
            to: self.members[place].id,
            arrived,
        };
        let at = self.now + 1 + self.random.below(self.setting.delay);
        self.schedule(at, report);
        if !received {
            return Ok(());
        }
        let work = if torn {
            self.report.count("torn snapshot");
            DiskWork::ReceiveTorn(meta, chunks)
        } else {
            DiskWork::Receive(envelope, meta, chunks)
        };
        let run = self.members[place].run;
        self.with_process(place, run, |process| process.disk_waits.push(work))
    }

    fn on_tick(&mut self, place: usize, run: u64) -> Checked {
        let member = &mut self.members[place];
        if member.run != run {
            return Ok(());
        }
        let Some(process) = &mut member.process else { return Ok(()) };
        process.driver.tick();
        // An idle tick is no event worth counting.
        self.report.events += u64::from(process.driver.has_output());
        let at = self.now + member.tick_every;
        self.schedule(at, SimEvent::Tick { place, run });
        self.hint_falsely(place);
        self.pump(place)
    }

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
                MachineJob::Query(..) | MachineJob::Snapshot(_) => {}
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
            self.send_snapshot(place, envelope)?;
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

    fn send_snapshot(&mut self, place: usize, envelope: Envelope) -> Checked {
        let (to, id) = (place_of(envelope.to), envelope.to);
        let run = self.members[place].run;
        let Message::Snapshot(meta) = &envelope.message else { return Ok(()) };
        let Some(process) = &mut self.members[place].process else { return Ok(()) };
        // A newer one may have taken its place; anything else is the disk's fault.
        let read = read_snapshot(&mut process.store, meta.id).ok();
        if let Some(why) = process.store.failed() {
            return self.end(place, &why.to_string());
        }
        let known = to < self.members.len();
        let arrival = if known { self.network.send(place, to, self.now)[0] } else { None };
        match (read, arrival) {
            (Some(chunks), Some(at)) => {
                self.report.snapshots_sent += 1;
                self.schedule(at, SimEvent::SnapshotArrives { place: to, envelope, chunks });
            }
            _ => {
                let what = SimEvent::SnapshotReported { place, run, to: id, arrived: false };
                self.schedule(self.now + TICK, what);
            }
        }
        Ok(())
    }

    pub(crate) fn on_answer(
        &mut self,
        place: usize,
        ticket: RequestToken,
        answer: &RequestOutcome,
    ) -> Checked {
        let asked = (place, self.members[place].run, ticket);
        if let Some(fits) = self.admin.answered(asked, answer, &mut self.report) {
            return fits.map_err(|why| Violation::new("R2", why));
        }
        let client = self.clients.answered(asked, answer);
        if let Some(client) = client.map_err(|why| Violation::new("R2", why))? {
            self.wake(client);
        }
        Ok(())
    }

    /// A client pauses, then sends its next request.
    pub(crate) fn wake(&mut self, client: usize) {
        if client < self.clients.count() && !self.quiet {
            let at = self.now + self.clients.pause();
            self.schedule(at, SimEvent::Client(client));
        }
    }

    fn on_client(&mut self, client: usize) -> Checked {
        self.report.events += 1;
        let up: Vec<usize> =
            (0..self.members.len()).filter(|place| self.is_awake(*place)).collect();
        let to_leader = self.clients.draw(2) == 0;
        let leader = self.leader().filter(|place| to_leader && self.is_awake(*place));
        let drawn = self.clients.draw(up.len() as u64) as usize;
        let Some(place) = leader.or_else(|| up.get(drawn).copied()) else {
            self.wake(client);
            return Ok(());
        };
        let (number, request) = self.clients.next_request(client);
        self.submit(place, number, request)
    }

    pub(crate) fn submit(
        &mut self,
        place: usize,
        number: usize,
        request: WorkloadRequest,
    ) -> Checked {
        let run = self.members[place].run;
        let Some(process) = &mut self.members[place].process else { return Ok(()) };
        let ticket = match request {
            WorkloadRequest::Command(command) => process.driver.propose(&command),
            WorkloadRequest::Query(query) => process.driver.read(query),
        };
        let submitted = self.clients.on_submitted((place, run, ticket), number);
        submitted.map_err(|why| Violation::new("R2", why))?;
        self.pump(place)
    }

    fn on_event(&mut self, place: usize, event: &Event) -> Checked {
        let id = self.members[place].id;
        self.report.on_event(event);
        self.note_ended_goal(event)?;
        if let Event::Settled { id: entry, .. } = event {
            self.settled = self.settled.max(entry.index);
        }
        self.say(|| format!("{id} {event:?}"));
        if let Event::Role { to: RoleKind::Leader, .. } = event {
            let now = self.membership();
            self.report.interrupted += u64::from(now.goal().is_some() || now.is_joint());
        }
        self.invariants.event(id, event)
    }

    /// The member runs and is neither paused nor frozen.
    pub(crate) fn is_awake(&self, place: usize) -> bool {
        let member = &self.members[place];
        member.is_up() && member.paused_until <= self.now && member.stall.frozen.is_none()
    }

    /// The member that leads the newest term.
    pub(crate) fn leader(&self) -> Option<usize> {
        let leads = |member: &SimMember| -> Option<Term> {
            let raft = member.process.as_ref()?.driver.raft();
            (raft.role() == RoleKind::Leader).then(|| raft.term())
        };
        let leaders = self
            .members
            .iter()
            .enumerate()
            .filter_map(|(place, member)| leads(member).map(|term| (term, place)));
        leaders.max().map(|(_, place)| place)
    }

    pub(crate) fn find(&self, who: ActionTarget) -> Option<usize> {
        match who {
            ActionTarget::Leader => {
                self.leader().or_else(|| self.members.iter().position(SimMember::is_up))
            }
            ActionTarget::Member(number) => {
                let count = self.members.len();
                (count > 0).then(|| number as usize % count)
            }
        }
    }

    /// The newest committed membership.
    pub(crate) fn membership(&self) -> Arc<Membership> {
        self.invariants
            .membership()
            .map(|(_, membership)| Arc::clone(membership))
            .unwrap_or_default()
    }

    pub(crate) fn is_lost(&self, id: MemberId) -> bool {
        let member = self.members.get(place_of(id));
        member.is_none_or(|member| member.health != MemberHealth::Healthy)
    }
}

/// Member `m1` stands at place 0.
pub(crate) fn place_of(id: MemberId) -> usize {
    usize::try_from(id.0.wrapping_sub(1)).unwrap_or(usize::MAX)
}

fn read_snapshot(store: &mut Store<SharedDisk>, id: EntryId) -> Result<Vec<Bytes>, StoreError> {
    let mut reader = store.open_snapshot(id)?;
    let mut chunks = Vec::new();
    while let Some(chunk) = store.read_snapshot(&mut reader)? {
        chunks.push(chunk);
    }
    Ok(chunks)
}
