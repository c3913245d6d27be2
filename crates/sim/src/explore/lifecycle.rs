//! How members start, die and restart.

use std::sync::Arc;

use quorate::DriverOptions;
use quorate::driver::{MemberStartup, StartError, StartedMember};
use quorate_core::{EntryId, MemberId, Membership};
use quorate_storage::{MovedDirectory, OpenError, StoreConfig, StoreError};

use super::action::ActionKind;
use super::etcd::{SimStore, empty_store};
use super::machine::RecordingMachine;
use super::member::{MemberHealth, MemberProcess, SimMember, Stall};
use super::setting::{RunSettings, TICK};
use super::simulation::{SimEvent, Simulation, place_of};
use super::versions::{first_program, needed_version};
use crate::checkers::{Checked, Violation};
use crate::faulty_disk::SharedDisk;
use crate::random::Random;

impl Simulation {
    /// The first members, and the clients.
    pub(crate) fn begin(&mut self) -> Checked {
        let voters = self.setting.voters.max(1);
        let all = voters + self.setting.learners;
        for _ in 0..all {
            self.add_place(ActionKind::AddLearner);
        }
        let member = |number: u64| MemberId(number);
        let first = Membership::new((1..=voters).map(member), (voters + 1..=all).map(member))
            .with_activation(self.setting.activation());
        self.first = Arc::new(first);
        for place in 0..self.members.len() {
            self.start(place)?;
        }
        self.begun = true;
        for client in 0..self.clients.count() {
            let at = self.clients.pause();
            self.schedule(at, SimEvent::Client(client));
        }
        self.begin_etcd();
        Ok(())
    }

    /// Adds a member that may be started later.
    pub(crate) fn add_place(&mut self, what: ActionKind) -> MemberId {
        let place = self.members.len();
        let id = MemberId(place as u64 + 1);
        let mut random = Random::stream(self.setting.seed, 100 + id.0);
        let drift = random.below(2 * self.setting.drift + 1);
        let tick_every = TICK + drift * TICK / 1_000 - self.setting.drift * TICK / 1_000;
        self.members.push(SimMember {
            id,
            incarnation: random.next_u64() | 1,
            joined_at: 0,
            added_after: 0,
            process: None,
            disk: self.new_disk(),
            health: MemberHealth::NotStarted,
            ghost: what == ActionKind::AddGhost,
            spoiled: false,
            flipped: false,
            wiped: false,
            run: 0,
            paused_from: 0,
            paused_until: 0,
            tick_every,
            clock_jumped_ms: 0,
            disk_delay: self.setting.disk_delay.max(1),
            stall: Stall::default(),
            held: Vec::new(),
            tears_snapshot: false,
            backup: None,
            accepts_move: false,
            program: first_program(self.setting.seed, id),
            random,
        });
        id
    }

    /// An empty disk.
    pub(crate) fn new_disk(&self) -> SharedDisk {
        let disk = SharedDisk::default();
        if self.setting.places == 1 {
            disk.inner().tell_places();
        }
        disk
    }

    /// A membership was committed: the members it adds start some time later.
    pub(crate) fn on_membership(&mut self, id: EntryId, membership: &Membership) {
        for member in membership.members().iter() {
            let place = place_of(member);
            let Some(found) = self.members.get_mut(place) else { continue };
            let is_new = found.health == MemberHealth::NotStarted && found.joined_at == 0;
            if is_new && !found.ghost && id.index > found.added_after {
                found.joined_at = id.index;
                let at = self.now + self.random.below(5 * TICK);
                self.schedule(at, SimEvent::Starts { place });
            }
        }
    }

    /// Starts a member's process, unless it has no disk to start from.
    pub(crate) fn start(&mut self, place: usize) -> Checked {
        let member = &mut self.members[place];
        let lost = member.health == MemberHealth::Lost && !member.wiped;
        let not_added =
            member.health == MemberHealth::NotStarted && member.joined_at == 0 && self.begun;
        if member.is_up() || lost || not_added {
            return Ok(());
        }
        if member.stall.disk {
            member.held.push(SimEvent::Starts { place });
            return Ok(());
        }
        member.run += 1;
        member.paused_until = 0;
        member.repair_disk();
        if member.health == MemberHealth::NotStarted {
            self.prepare_program(place);
        }
        let startup = self.startup(place);
        let disk = self.members[place].disk.clone();
        match quorate::driver::start(disk, self.new_machine(), startup) {
            Ok(started) => self.on_started(place, started),
            Err(why) => self.on_not_started(place, &why),
        }
    }

    pub(crate) fn new_machine(&self) -> RecordingMachine {
        match &self.etcd {
            Some(_) => RecordingMachine::with_store(SimStore::new(empty_store())),
            None => RecordingMachine::new((self.machine)()),
        }
    }

    pub(crate) fn startup(&self, place: usize) -> MemberStartup {
        let RunSettings { segment_bytes, tail_bytes, .. } = self.setting;
        let member = &self.members[place];
        let mut config = self.setting.config(member.id, member.incarnation, member.run);
        config.joined_at = member.joined_at;
        let moved =
            if member.accepts_move { MovedDirectory::Accept } else { MovedDirectory::Refuse };
        let mut options = DriverOptions::default();
        options.request_ticks = 6 * self.setting.election_ticks;
        options.retry_ticks = 2 * self.setting.election_ticks;
        options.snapshot_entries = Some(self.setting.snapshot_entries_of(member.id));
        MemberStartup {
            cluster: self.cluster,
            config,
            options,
            store: StoreConfig::new()
                .segment_bytes(segment_bytes)
                .tail_bytes_max(tail_bytes)
                .moved(moved),
            first: (!self.begun).then(|| (*self.first).clone()),
            versions: self.supported_by(place),
        }
    }

    fn on_started(
        &mut self,
        place: usize,
        started: StartedMember<SharedDisk, RecordingMachine>,
    ) -> Checked {
        let StartedMember { driver, applier, store, boot } = started;
        let resumed = boot.applied.max(applier.resumed());
        let member = &mut self.members[place];
        let (id, run) = (member.id, member.run);
        let mut process = MemberProcess::new(driver, applier, store);
        if let Some(etcd) = &self.etcd {
            process.lessor = etcd.new_lessor();
        }
        member.process = Some(process);
        member.flipped = false;
        member.accepts_move = false;
        if member.health == MemberHealth::NotStarted {
            member.health = MemberHealth::Healthy;
        }
        let tick_every = member.tick_every;
        self.say(|| {
            format!(
                "{id} starts with {:?}, commit {}",
                boot.hard_state.term, boot.hard_state.commit
            )
        });
        if let Some(process) = &self.members[place].process {
            self.invariants.started(process.driver.raft(), &boot)?;
        }
        self.note_version_at_start(place)?;
        self.clients.answers.resumed(id, resumed);
        let first = 1 + self.members[place].random.below(tick_every);
        self.schedule(self.now + first, SimEvent::Tick { place, run });
        self.pump(place)
    }

    /// Damage is reported only where damage was done, and is never overlooked (D4, D5).
    fn on_not_started(&mut self, place: usize, why: &StartError) -> Checked {
        if let Some(needs) = needed_version(why) {
            return self.needs_newer_program(place, needs);
        }
        let member = &mut self.members[place];
        let id = member.id;
        let damaged = matches!(
            why,
            StartError::Open(OpenError::Corrupt(_) | OpenError::UnsupportedVersion { .. })
                | StartError::Read(StoreError::Corrupt(_))
        );
        if damaged && member.flipped {
            member.health = MemberHealth::Lost;
            self.report.count("corruption reported");
            self.invariants.disk_lost(self.members[place].id);
            return Ok(());
        }
        let failed = matches!(
            why,
            StartError::Open(OpenError::Failed(_)) | StartError::Read(StoreError::Failed(_))
        );
        if failed && member.spoiled {
            // It died again while it was starting.
            self.members[place].lose_unsynced();
            return Ok(());
        }
        Err(Violation::new("D5", format!("{id} does not start: {why}")))
    }

    /// The power fails: the process dies, and with it what its disk did not hold.
    pub(crate) fn crash(&mut self, place: usize) -> Result<bool, Violation> {
        if !self.kill(place)? {
            return Ok(false);
        }
        self.lose_what_was_not_synced(place)?;
        Ok(true)
    }

    /// The process dies; what it has written is written.
    pub(crate) fn kill(&mut self, place: usize) -> Result<bool, Violation> {
        let member = &mut self.members[place];
        if member.process.take().is_none() {
            return Ok(false);
        }
        // A disk that hangs outlives the process, the rest does not.
        member.stall = Stall { disk: member.stall.disk, ..Stall::default() };
        member.held.clear();
        let run = member.run;
        self.hint_of_death(place);
        self.admin.lost(place, run);
        let clients = self.clients.lost(place, run);
        for client in clients.map_err(|why| Violation::new("R2", why))? {
            self.wake(client);
        }
        Ok(true)
    }

    /// The process ends by itself and replies to all waiting clients.
    pub(crate) fn end(&mut self, place: usize, why: &str) -> Checked {
        let id = self.members[place].id;
        self.say(|| format!("{id} ends: {why}"));
        self.report.count("member ended by its disk");
        if !self.members[place].spoiled {
            return Err(Violation::new("D5", format!("{id} ends: {why}")));
        }
        self.reply_at_end(place)?;
        self.crash(place).map(|_| ())
    }

    /// The process ends as asked. What it has written is written.
    pub(crate) fn stop(&mut self, place: usize) -> Checked {
        self.reply_at_end(place)?;
        self.kill(place).map(|_| ())
    }

    fn reply_at_end(&mut self, place: usize) -> Checked {
        let Some(process) = &mut self.members[place].process else { return Ok(()) };
        process.driver.stop();
        let answers = process.driver.take_output().outcomes;
        for (ticket, answer) in answers {
            self.on_answer(place, ticket, &answer)?;
        }
        Ok(())
    }

    /// An empty disk under an old name.
    pub(crate) fn wipe(&mut self, place: usize) {
        let disk = self.new_disk();
        let member = &mut self.members[place];
        member.disk = disk;
        member.backup = None;
        member.incarnation = member.random.next_u64() | 1;
        member.joined_at = 0;
        member.health = MemberHealth::Lost;
        member.wiped = true;
        self.invariants.disk_lost(self.members[place].id);
        let at = self.now + self.random.below(5 * TICK);
        self.schedule(at, SimEvent::Starts { place });
    }

    /// Each is started with the other's disk, which must be refused, and then with its
    /// own.
    pub(crate) fn swap_disks(&mut self, one: usize, other: usize) -> Result<bool, Violation> {
        let both = [one, other];
        let well = |place: &usize| {
            let member = &self.members[*place];
            let good = !member.flipped && !member.disk.inner().is_lying();
            member.health == MemberHealth::Healthy && good
        };
        if one == other || !both.iter().all(well) {
            return Ok(false);
        }
        for place in both {
            self.crash(place)?;
        }
        for (place, foreign) in [(one, other), (other, one)] {
            let disk = self.members[foreign].disk.copy();
            disk.inner().heal();
            disk.inner().stop_after(None);
            let started = quorate::driver::start(disk, self.new_machine(), self.startup(place));
            // A disk that was moved before is refused for that.
            let refused = matches!(
                started,
                Err(StartError::Open(OpenError::OtherMember { .. } | OpenError::Moved))
            );
            if !refused {
                let id = self.members[place].id;
                return Err(Violation::new("D4", format!("{id} starts with another's disk")));
            }
            self.schedule(self.now, SimEvent::Starts { place });
        }
        Ok(true)
    }
}

impl SimMember {
    pub(crate) fn lose_unsynced(&mut self) {
        self.disk.inner().crash(&mut self.random);
    }

    /// The disk works again.
    pub(crate) fn repair_disk(&mut self) {
        self.spoiled = false;
        let mut disk = self.disk.inner();
        disk.heal();
        disk.stop_after(None);
    }
}
