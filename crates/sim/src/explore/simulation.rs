//! Many members, one thread, one seed: a queue of events.
//!
//! What a real member does on its own threads happens here as events: messages, disk
//! writes, the machine's work, ticks. The driver, storage and applier are those of a real
//! member.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;

use bytes::Bytes;
use quorate::VersionRange;
use quorate_core::message::Message;
use quorate_core::status::RoleKind;
use quorate_core::{EntryId, Envelope, Index, MemberId, Membership, Term};
use quorate_kv::LeaseAnswer;

use super::Trace;
use super::action::{Action, ActionTarget};
use super::admin::Admin;
use super::clients::SimClients;
use super::etcd::EtcdWorld;
use super::member::{DiskWork, MemberHealth, SimMember};
use super::network::SimNetwork;
use super::report::RunReport;
use super::setting::RunSettings;
use super::trial::MakeMachine;
use super::versions::AgreedVersions;
use super::workload::Workload;
use crate::checkers::{Checked, Invariants};
use crate::random::Random;

pub(crate) struct Simulation {
    pub(crate) setting: RunSettings,
    pub(crate) now: u64,
    queue: BinaryHeap<Reverse<ScheduledEvent>>,
    order: u64,
    pub(crate) members: Vec<SimMember>,
    pub(crate) network: SimNetwork,
    pub(crate) machine: MakeMachine,
    /// Makes a machine in the state that the cluster began with, if that is not the empty one.
    pub(crate) first_machine: Option<MakeMachine>,
    /// The id of the cluster.
    pub(crate) cluster: u64,
    pub(crate) clients: SimClients,
    pub(crate) admin: Admin,
    /// Only where the members run etcd's data model.
    pub(crate) etcd: Option<EtcdWorld>,
    pub(crate) invariants: Invariants,
    pub(crate) versions: AgreedVersions,
    pub(crate) report: RunReport,
    pub(crate) random: Random,
    /// For hints alone.
    pub(crate) hints: Random,
    /// The membership of the cluster's first members.
    pub(crate) first: Arc<Membership>,
    /// The first members were started.
    pub(crate) begun: bool,
    /// Members whose logs a leader found to lack what they confirmed.
    pub(crate) noticed_rollbacks: BTreeSet<MemberId>,
    /// Goals that were reported as ended.
    pub(crate) ended_goals: BTreeSet<EntryId>,
    /// The goal that must be finished now.
    pub(crate) finishing: Option<EntryId>,
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
    Arrives {
        place: usize,
        envelope: Envelope,
    },
    SnapshotArrives {
        place: usize,
        envelope: Envelope,
        chunks: Vec<Bytes>,
    },
    SnapshotReported {
        place: usize,
        run: u64,
        to: MemberId,
        arrived: bool,
    },
    ConnectionLost {
        place: usize,
        run: u64,
        to: MemberId,
    },
    Tick {
        place: usize,
        run: u64,
    },
    DiskDone {
        place: usize,
        run: u64,
    },
    MachineDone {
        place: usize,
        run: u64,
    },
    Resumes {
        place: usize,
        run: u64,
        ticks: u64,
    },
    Starts {
        place: usize,
    },
    Client(usize),
    /// A client that holds a lease.
    Holder(usize),
    /// A client that watches.
    Watcher(usize),
    /// A member asks another one about a lease: the number of the question.
    LeaseAsked {
        place: usize,
        from: usize,
        question: usize,
    },
    LeaseAnswered {
        place: usize,
        from: usize,
        question: usize,
        answer: LeaseAnswer,
    },
    /// Requests of a member about leases have ended.
    LeaseTasks {
        place: usize,
        run: u64,
    },
    /// A leader asks a member which cluster versions its program supports.
    VersionAsked {
        place: usize,
        from: usize,
        round: u64,
    },
    VersionAnswered {
        place: usize,
        from: usize,
        round: u64,
        supported: VersionRange,
    },
    Act(Action),
}

impl SimEvent {
    /// The member that these events concern and that cannot handle them while it is paused.
    pub(super) fn member_when_paused(&self) -> Option<usize> {
        match self {
            Self::Arrives { place, .. }
            | Self::SnapshotArrives { place, .. }
            | Self::SnapshotReported { place, .. }
            | Self::ConnectionLost { place, .. }
            | Self::Tick { place, .. }
            | Self::LeaseAsked { place, .. }
            | Self::LeaseAnswered { place, .. }
            | Self::LeaseTasks { place, .. }
            | Self::VersionAsked { place, .. }
            | Self::VersionAnswered { place, .. }
            | Self::DiskDone { place, .. }
            | Self::MachineDone { place, .. }
            | Self::Resumes { place, .. } => Some(*place),
            _ => None,
        }
    }
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
            first_machine: None,
            cluster: 7,
            clients: SimClients::new(setting, workload),
            admin: Admin::new(setting),
            etcd: None,
            invariants: Invariants::default(),
            versions: AgreedVersions::default(),
            report: RunReport::default(),
            random: Random::stream(setting.seed, 4),
            hints: Random::stream(setting.seed, 6),
            first: Arc::default(),
            begun: false,
            noticed_rollbacks: BTreeSet::new(),
            ended_goals: BTreeSet::new(),
            finishing: None,
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

    /// Gives every scheduled event the time that the function returns.
    pub(super) fn reschedule(&mut self, mut time: impl FnMut(u64, &mut SimEvent) -> u64) {
        let mut events = std::mem::take(&mut self.queue).into_vec();
        for Reverse(due) in &mut events {
            due.at = time(due.at, &mut due.what);
        }
        self.queue = events.into();
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
            SimEvent::Holder(holder) => self.on_holder(holder),
            SimEvent::Watcher(watcher) => self.on_watcher(watcher),
            SimEvent::LeaseAsked { place, from, question } => {
                self.on_lease_asked(place, from, question)
            }
            SimEvent::LeaseAnswered { place, from, question, answer } => {
                self.on_lease_answered(place, from, question, answer);
                Ok(())
            }
            SimEvent::LeaseTasks { place, run } => self.on_lease_tasks(place, run),
            SimEvent::VersionAsked { place, from, round } => {
                self.on_version_asked(place, from, round);
                Ok(())
            }
            SimEvent::VersionAnswered { place, from, round, supported } => {
                self.on_version_answered(place, from, round, supported)
            }
            SimEvent::Act(action) => self.act(action),
        }
    }

    /// Events of a paused member wait until it continues.
    fn unless_paused(&mut self, what: SimEvent) -> Option<SimEvent> {
        let waits = !matches!(what, SimEvent::Resumes { .. });
        let Some(place) = what.member_when_paused().filter(|_| waits) else { return Some(what) };
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
        self.pump(place)?;
        self.poll_versions(place)?;
        self.poll_leases(place)
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
