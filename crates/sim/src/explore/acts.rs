//! Executes actions on a simulation.

use std::collections::BTreeSet;
use std::sync::Arc;

use quorate::driver::ChangeWait;
use quorate_core::{Change, MemberId, Membership};

use super::action::{Action, ActionKind};
use super::etcd::TICK_MS;
use super::member::MemberHealth;
use super::setting::TICK;
use super::simulation::{SimEvent, Simulation, place_of};
use crate::checkers::{Checked, Violation, has_quorum};
use crate::faulty_disk::Fault;

impl Simulation {
    pub(crate) fn act(&mut self, action: Action) -> Checked {
        if self.healed {
            return Ok(());
        }
        let Some(place) = self.find(action.who) else { return Ok(()) };
        let id = self.members[place].id;
        self.say(|| format!("-- {} {id} {}", action.what.name(), action.number));
        self.report.events += 1;
        let done = match action.what {
            ActionKind::Crash => self.crash(place)?,
            ActionKind::CrashInWrite => self.crash_in_write(place, action.number),
            ActionKind::Restart => {
                let down = !self.members[place].is_up();
                self.schedule(self.now, SimEvent::Starts { place });
                down
            }
            ActionKind::Pause => {
                self.pause(place, 1 + action.number % (4 * self.setting.election_ticks))
            }
            ActionKind::JumpClock => self.jump_clock(place, action.number)?,
            ActionKind::Isolate
            | ActionKind::Deafen
            | ActionKind::Mute
            | ActionKind::Split
            | ActionKind::Bridge
            | ActionKind::CutLink
            | ActionKind::Reconnect => self.cut(action.what, place, action.number),
            ActionKind::FailWrite
            | ActionKind::FailSync
            | ActionKind::FillDisk
            | ActionKind::BadRead
            | ActionKind::FailDirSync
            | ActionKind::SlowDisk => self.spoil_disk(action.what, place, action.number),
            ActionKind::FlipBit
            | ActionKind::LoseDisk
            | ActionKind::WipeDisk
            | ActionKind::SwapDisks => self.damage(action.what, place, action.number)?,
            ActionKind::HangDisk
            | ActionKind::HangMachine
            | ActionKind::Freeze
            | ActionKind::CrawlDisk
            | ActionKind::SlowLink
            | ActionKind::Relieve => self.strike_gray(action.what, place, action.number),
            ActionKind::LieAboutSync => self.lie_about_sync(place),
            ActionKind::TearSnapshot => {
                let member = &mut self.members[place];
                !std::mem::replace(&mut member.tears_snapshot, true)
            }
            ActionKind::ReuseId => self.reuse_id(action.number)?,
            ActionKind::CopyDisk | ActionKind::MoveDisk | ActionKind::RestoreDisk => {
                self.copy_or_move(action.what, place)?
            }
            ActionKind::NewerProgram
            | ActionKind::OlderProgram
            | ActionKind::LowerVersion
            | ActionKind::KeepVersion => {
                self.operate_versions(action.what, place, action.number)?
            }
            ActionKind::Transfer | ActionKind::Campaign | ActionKind::Burst | ActionKind::Trim => {
                self.operate(action.what, place, action.number)?
            }
            _ => self.change_members(action.what, place, action.number)?,
        };
        if done {
            self.report.count(action.what.name());
        }
        Ok(())
    }

    fn crash_in_write(&mut self, place: usize, number: u64) -> bool {
        let member = &mut self.members[place];
        member.spoiled = true;
        member.disk.inner().stop_after(Some(number % 12));
        member.is_up()
    }

    fn pause(&mut self, place: usize, ticks: u64) -> bool {
        let ticks_max = self.resume_ticks_max();
        let member = &mut self.members[place];
        if !member.is_up() || member.paused_until > self.now {
            return false;
        }
        let until = self.now + ticks * TICK;
        (member.paused_from, member.paused_until) = (self.now, until);
        // Time has passed: on resume the clock ticks before any other event.
        let (run, ticks) = (member.run, ticks.min(ticks_max));
        self.schedule(until, SimEvent::Resumes { place, run, ticks });
        true
    }

    /// A pause ends now instead of later. The clock first sees how much time has passed: a leader
    /// that continued without it would believe in a lease that is over.
    pub(super) fn end_pause(&mut self, place: usize) {
        let (now, ticks_max) = (self.now, self.resume_ticks_max());
        let member = &mut self.members[place];
        let until = member.paused_until;
        if until <= now {
            return;
        }
        member.paused_until = now;
        let passed = ((now - member.paused_from) / TICK).min(ticks_max);
        self.reschedule(|at, what| {
            if at != until || what.member_when_paused() != Some(place) {
                return at;
            }
            if let SimEvent::Resumes { ticks, .. } = what {
                *ticks = passed;
            }
            now
        });
    }

    /// More ticks than these at once have no further effect.
    fn resume_ticks_max(&self) -> u64 {
        2 * self.setting.election_ticks
    }

    /// Clocks do not jump in runs with lease reads, because leader leases rely on clocks.
    fn jump_clock(&mut self, place: usize, number: u64) -> Result<bool, Violation> {
        if self.setting.lease_reads == 1 {
            return Ok(false);
        }
        let ticks = 1 + number % (3 * self.setting.election_ticks);
        if !self.is_awake(place) {
            return Ok(false);
        }
        let Some(process) = &mut self.members[place].process else { return Ok(false) };
        (0..ticks).for_each(|_| process.driver.tick());
        self.members[place].clock_jumped_ms += ticks * TICK_MS;
        self.pump(place)?;
        Ok(true)
    }

    fn cut(&mut self, kind: ActionKind, place: usize, number: u64) -> bool {
        let count = self.members.len();
        let other = number as usize % count;
        let side = |place: usize| number >> (place % 16) & 1;
        let network = &mut self.network;
        match kind {
            ActionKind::Isolate => {
                network.cut_where(count, |from, to| from == place || to == place)
            }
            ActionKind::Deafen => network.cut_where(count, |_, to| to == place),
            ActionKind::Mute => network.cut_where(count, |from, _| from == place),
            ActionKind::Split => network.cut_where(count, |from, to| side(from) != side(to)),
            ActionKind::Bridge => network.cut_where(count, |from, to| {
                side(from) != side(to) && from != place && to != place
            }),
            ActionKind::CutLink => network.cut(place, other),
            _ => network.reconnect(),
        }
        true
    }

    fn spoil_disk(&mut self, kind: ActionKind, place: usize, number: u64) -> bool {
        let member = &mut self.members[place];
        if !member.is_up() {
            return false;
        }
        if kind == ActionKind::SlowDisk {
            member.disk_delay = (member.disk_delay * 10).min(20 * TICK);
            return true;
        }
        member.spoiled = true;
        let mut disk = member.disk.inner();
        let skip = (number / 8 % 6) as u32;
        let fault = match (kind, number % 2) {
            (ActionKind::FailWrite, 0) => Fault::WriteError,
            (ActionKind::FailWrite, _) => Fault::ShortWrite,
            (ActionKind::FailDirSync, _) => Fault::SyncDirError,
            (ActionKind::FailSync, 0) => Fault::SyncError,
            (ActionKind::FailSync, _) => Fault::SyncErrorUnseen,
            (ActionKind::BadRead, 0) => Fault::ReadError,
            (ActionKind::BadRead, _) => Fault::FlippedRead,
            _ => {
                disk.set_capacity(Some(0));
                return true;
            }
        };
        disk.inject(fault, skip);
        true
    }

    /// Damages a disk, unless no quorum of good disks would be left.
    fn damage(&mut self, kind: ActionKind, place: usize, number: u64) -> Result<bool, Violation> {
        if self.members[place].health != MemberHealth::Healthy {
            return Ok(false);
        }
        if kind == ActionKind::SwapDisks {
            return self.swap_disks(place, number as usize % self.members.len());
        }
        if !self.quorums_survive(place) {
            return Ok(false);
        }
        match kind {
            ActionKind::FlipBit => {
                // The process stops without a power loss, and all writes are durable. After
                // a power loss the store could not tell damage to the last write from a torn
                // write.
                if !self.kill(place)? {
                    return Ok(false);
                }
                let member = &mut self.members[place];
                member.disk.inner().flush();
                let flipped = member.disk.inner().flip_bit(&mut member.random);
                let Some((file, offset)) = flipped else { return Ok(false) };
                member.flipped = true;
                self.say(|| format!("-- flip a bit of {file}, byte {offset}"));
            }
            ActionKind::LoseDisk => {
                self.crash(place)?;
                self.members[place].health = MemberHealth::Lost;
                self.invariants.disk_lost(self.members[place].id);
            }
            _ => {
                self.crash(place)?;
                self.wipe(place);
            }
        }
        Ok(true)
    }

    /// All memberships that are active, or may become active, at a member.
    pub(crate) fn memberships_in_use(&self) -> Vec<Arc<Membership>> {
        let known = self.invariants.memberships().take(3).map(|(_, membership)| membership.clone());
        let newest = self.invariants.membership().map_or(0, |(id, _)| id.index);
        let rafts = self.members.iter().filter_map(|member| member.process.as_ref());
        let logged = rafts.map(|process| process.driver.raft().membership_at(u64::MAX));
        known.chain(logged.filter(|membership| membership.since().index > newest)).collect()
    }

    pub(crate) fn quorums_survive(&self, without: usize) -> bool {
        let damaged = self.members[without].id;
        let is_good = |id: MemberId| id != damaged && !self.is_lost(id) && !self.is_flipped(id);
        self.memberships_in_use().iter().all(|membership| has_quorum(membership, is_good))
    }

    fn is_flipped(&self, id: MemberId) -> bool {
        self.members.get(place_of(id)).is_some_and(|member| member.flipped)
    }

    fn operate(&mut self, kind: ActionKind, place: usize, number: u64) -> Result<bool, Violation> {
        if !self.is_awake(place) {
            return Ok(false);
        }
        let target = MemberId(1 + number % self.members.len() as u64);
        let Some(process) = &mut self.members[place].process else { return Ok(false) };
        match kind {
            ActionKind::Transfer => {
                let _ = process.driver.transfer(target);
            }
            ActionKind::Campaign => process.driver.campaign(),
            ActionKind::Trim => {
                let snapshot = process.driver.raft().log_status().snapshot.index;
                process.driver.trim(snapshot);
            }
            _ => {
                let client = self.clients.count() + 1;
                for _ in 0..1 + number % 30 {
                    let (operation, request) = self.clients.next_request(client);
                    self.submit(place, operation, request)?;
                }
            }
        }
        self.pump(place)?;
        Ok(true)
    }

    fn change_members(
        &mut self,
        kind: ActionKind,
        place: usize,
        number: u64,
    ) -> Result<bool, Violation> {
        if !self.is_awake(place) {
            return Ok(false);
        }
        let new_members = match kind {
            ActionKind::AddLearner | ActionKind::AddGhost => 1,
            ActionKind::GoalWithNew => 1 + number % 2,
            _ => 0,
        };
        if self.members.len() + new_members as usize > MEMBERS_MAX {
            return Ok(false);
        }
        let new: Vec<MemberId> = (0..new_members).map(|_| self.add_place(kind)).collect();
        let leader = self.leader().map(|place| self.members[place].id);
        let now = self.membership();
        let lost: BTreeSet<MemberId> =
            now.members().iter().filter(|id| self.is_lost(*id)).collect();
        let is_healthy = |id: MemberId| !lost.contains(&id);
        let Some(change) = self.admin.change(kind, number, &now, leader, &new, &is_healthy) else {
            return Ok(false);
        };
        self.report.cancels += u64::from(kind == ActionKind::Cancel);
        self.ask_change(place, change)?;
        Ok(true)
    }

    pub(crate) fn ask_change(&mut self, place: usize, change: Change) -> Checked {
        let (number, change) = self.admin.number(change, self.now);
        let (run, timeout) = (self.members[place].run, self.admin.timeout);
        let Some(process) = &mut self.members[place].process else { return Ok(()) };
        let token = process.driver.change(change, ChangeWait::Settled { ticks: timeout });
        self.admin.on_submitted((place, run, token), number);
        self.pump(place)
    }
}

/// The maximum number of members in one simulation, including removed ones.
pub(crate) const MEMBERS_MAX: usize = 24;
