//! What each command does.

use bytes::Bytes;
use quorate_core::message::Message;
use quorate_core::{Accepted, Change, Envelope, Index, Input, MemberId, RequestId};

use crate::short_ids::short_ids;

use super::command::{StoryCommand, Ticks};
use super::message::{ByHand, envelope_text, shown_as};
use super::network::Filter;
use super::notation::entries_text;
use super::words::NamedMembers;
use super::world::{CommandResult, STEPS_MAX, StoryWorld};
use crate::cluster::WorkKind;

impl StoryWorld {
    /// Plays one command; a complaint fails the story.
    pub(super) fn play(&mut self, command: &StoryCommand) -> CommandResult {
        if let StoryCommand::WithVariables(line) = command {
            return self.play_filled(line);
        }
        if !matches!(command, StoryCommand::Expect(_)) {
            self.drops.clear();
        }
        self.play_read(command)?;
        self.report_lost_snapshots()
    }

    fn play_read(&mut self, command: &StoryCommand) -> CommandResult {
        match command {
            StoryCommand::Cluster(cluster) => self.cluster(cluster),
            StoryCommand::Empty(ids) => self.empty(ids),
            StoryCommand::Log(who, log) => self.log(who, log),
            StoryCommand::Config(who, settings) => self.config(who, settings),
            StoryCommand::Hide(things) => {
                self.page.hide(things);
                Ok(())
            }
            StoryCommand::Show(things) => {
                self.page.show(things);
                Ok(())
            }
            StoryCommand::Tell(who, what, input) => self.tell_each(who, what, input),
            StoryCommand::Tick(who, count) => self.tick(who, *count),
            StoryCommand::Timeout(who, ticks) => self.timeout(who, *ticks),
            StoryCommand::Propose(id, commands) => self.propose(*id, commands),
            StoryCommand::Change(id, change) => self.change(*id, change),
            StoryCommand::Read(id) => self.read(*id),
            StoryCommand::Snapshot(id, index) => self.snapshot(*id, *index),
            StoryCommand::Crash(who, unsynced) => self.crash(who, *unsynced),
            StoryCommand::Restart(who, restart) => self.restart(who, restart),
            StoryCommand::Wipe(who) => self.wipe(who),
            StoryCommand::HoldWork(work, who) => self.hold_work(*work, who),
            StoryCommand::Complete(work, who, count) => self.complete_work(*work, who, *count),
            StoryCommand::ReleaseWork(work, who) => self.release_work(*work, who),
            StoryCommand::Remember(name, id, fact) => self.remember(name, *id, fact),
            StoryCommand::KeepDisk(who) => self.keep_disk(who),
            StoryCommand::RollBack(who) => self.roll_back(who),
            StoryCommand::Inject(hand) => self.inject(hand),
            StoryCommand::Expect(expectation) => self.expect(expectation),
            StoryCommand::Settle(ticks) => self.settle(*ticks),
            StoryCommand::Status(who) => {
                self.ids(who)?.into_iter().try_for_each(|id| self.say_status(id))
            }
            StoryCommand::Logs(who) => {
                self.ids(who)?.into_iter().try_for_each(|id| self.say_log(id))
            }
            StoryCommand::Disks(who) => {
                self.ids(who)?.into_iter().try_for_each(|id| self.say_disk(id))
            }
            other => self.play_network(other),
        }
    }

    fn play_network(&mut self, command: &StoryCommand) -> CommandResult {
        match command {
            StoryCommand::Partition(sides) => self.partition(sides),
            StoryCommand::Cut(filter) => self.cut(filter.clone()),
            StoryCommand::Heal(filter) => {
                found(self.network.heal(filter), "nothing was cut in these words")
            }
            StoryCommand::Hold(filter) => found(self.network.hold(filter.clone()), NO_MESSAGE),
            StoryCommand::Release(filter) => {
                found(self.network.release(filter), "nothing is held in these words")
            }
            StoryCommand::Duplicate(filter) => {
                found(self.network.duplicate(filter) > 0, NO_MESSAGE)
            }
            StoryCommand::Reorder(filter) => found(self.network.reorder(filter) > 0, NO_MESSAGE),
            StoryCommand::Drop(filter) => {
                let lost = self.network.take(filter);
                lost.iter().for_each(|envelope| self.say_lost(envelope));
                found(!lost.is_empty(), NO_MESSAGE)
            }
            StoryCommand::Deliver(filter) => self.deliver(filter),
            StoryCommand::ReportLostSnapshots => {
                self.lost_snapshots = Some(Vec::new());
                Ok(())
            }
            StoryCommand::Messages => {
                self.say_messages();
                Ok(())
            }
            other => Err(format!("{other:?} is not played")),
        }
    }

    fn tell_each(&mut self, who: &NamedMembers, what: &str, input: &Input) -> CommandResult {
        for id in self.ids_up(who)? {
            self.step_and_drain(id, what, input.clone())?;
        }
        Ok(())
    }

    /// One tick for each in turn, as often as asked.
    pub(super) fn tick(&mut self, who: &NamedMembers, count: u32) -> CommandResult {
        for _ in 0..count {
            self.tell_each(who, "tick", &Input::Tick)?;
        }
        Ok(())
    }

    /// All at once: what they lead to is asked for once.
    fn propose(&mut self, id: MemberId, commands: &[Bytes]) -> CommandResult {
        for command in commands {
            let request = self.requests.ask("proposal");
            let input = Input::Propose(request, command.clone());
            self.request(id, request, input)?;
        }
        self.do_work(id)
    }

    fn change(&mut self, id: MemberId, change: &Change) -> CommandResult {
        let request = self.requests.ask("change");
        self.request(id, request, Input::Change(request, change.clone()))?;
        self.do_work(id)
    }

    fn read(&mut self, id: MemberId) -> CommandResult {
        let request = self.requests.ask("read");
        self.request(id, request, Input::Read(request))?;
        self.do_work(id)
    }

    fn request(&mut self, id: MemberId, request: RequestId, input: Input) -> CommandResult {
        let name = self.requests.name(request);
        let said = match self.give(id, &name, input)? {
            Ok(Accepted::Logged(entry)) => {
                self.requests.logged(request, entry);
                format!("logged {entry}")
            }
            Ok(Accepted::Forwarded(leader)) => format!("passed on to {leader}"),
            Ok(Accepted::Queued) => "waits".to_owned(),
            Ok(Accepted::Done) => return Ok(()),
            Err(dropped) => {
                self.requests.refused(request, &short_ids(&dropped.to_string()));
                return Ok(());
            }
        };
        self.page.print_about("requests", format!("{id} {name} {said}"));
        Ok(())
    }

    fn snapshot(&mut self, id: MemberId, index: Option<Index>) -> CommandResult {
        let index = index.unwrap_or(self.running(id)?.log_status().applied);
        self.capture(id, index)?;
        self.do_work(id)
    }

    fn hold_work(&mut self, work: WorkKind, who: &NamedMembers) -> CommandResult {
        for id in self.ids(who)? {
            self.member_mut(id)?.core.held.set(work, true);
        }
        Ok(())
    }

    fn complete_work(&mut self, work: WorkKind, who: &NamedMembers, count: usize) -> CommandResult {
        for id in self.ids_up(who)? {
            for _ in 0..count {
                self.complete_one(id, work)?;
            }
        }
        Ok(())
    }

    fn release_work(&mut self, work: WorkKind, who: &NamedMembers) -> CommandResult {
        for id in self.ids(who)? {
            for _ in 0..STEPS_MAX {
                if !self.member(id)?.has_work(work) {
                    break;
                }
                self.complete_one(id, work)?;
            }
            self.member_mut(id)?.core.held.set(work, false);
        }
        Ok(())
    }

    fn partition(&mut self, sides: &[Vec<MemberId>]) -> CommandResult {
        sides.iter().flatten().try_for_each(|id| self.member(*id).map(|_| ()))?;
        for (at, side) in sides.iter().enumerate() {
            for other in sides.iter().skip(at + 1) {
                self.cut(Filter::between(side, other))?;
            }
        }
        Ok(())
    }

    fn cut(&mut self, filter: Filter) -> CommandResult {
        filter.members().try_for_each(|id| self.member(id).map(|_| ()))?;
        for envelope in self.network.cut(filter) {
            self.say_lost(&envelope);
        }
        Ok(())
    }

    /// Hands over the chosen messages, but not what they lead to.
    fn deliver(&mut self, filter: &Filter) -> CommandResult {
        let chosen = self.network.take(filter);
        let count = chosen.len();
        for envelope in chosen {
            if !self.is_up(envelope.to) {
                self.say_lost(&envelope);
                continue;
            }
            let line = format!("deliver {}", envelope_text(&envelope));
            self.page.tell_message(shown_as(&envelope.message), line);
            self.receive_alone(envelope.to, envelope)?;
        }
        found(count > 0, NO_MESSAGE)
    }

    /// Delivers until nothing is in flight; then, tick by tick, the same again.
    pub(super) fn settle(&mut self, ticks: Ticks) -> CommandResult {
        let configs = || self.members.values().map(|member| &member.config);
        let count = match ticks {
            Ticks::Number(count) => count,
            Ticks::Heartbeat => configs().map(|config| config.heartbeat_ticks).max().unwrap_or(0),
            Ticks::Election => configs().map(|config| config.election_ticks).max().unwrap_or(0),
        };
        self.deliver_all()?;
        for _ in 0..count {
            self.report_lost_snapshots()?;
            self.tick(&NamedMembers::All, 1)?;
            self.deliver_all()?;
        }
        Ok(())
    }

    fn deliver_all(&mut self) -> CommandResult {
        for _ in 0..STEPS_MAX {
            match self.network.next() {
                Some(envelope) if self.is_up(envelope.to) => self.receive(envelope.to, envelope)?,
                Some(envelope) => self.note_lost_snapshot(&envelope),
                None => return Ok(()),
            }
        }
        Err(format!("it does not settle: {STEPS_MAX} messages and no end"))
    }

    fn inject(&mut self, hand: &ByHand) -> CommandResult {
        let follows = self.running(hand.at)?.membership_at(hand.after());
        let envelope = hand.envelope(&follows)?;
        self.page.say(format!("inject {}", envelope_text(&envelope)));
        self.receive_alone(hand.at, envelope)
    }

    fn receive_alone(&mut self, at: MemberId, envelope: Envelope) -> CommandResult {
        self.close_up = true;
        let received = self.receive(at, envelope);
        self.close_up = false;
        received
    }

    /// The transport notices that a snapshot did not arrive.
    pub(super) fn note_lost_snapshot(&mut self, envelope: &Envelope) {
        if let (Some(lost), Message::Snapshot(_)) = (&mut self.lost_snapshots, &envelope.message) {
            lost.push((envelope.from, envelope.to));
        }
    }

    /// Senders that run are told of snapshots that did not arrive.
    fn report_lost_snapshots(&mut self) -> CommandResult {
        let lost = self.lost_snapshots.as_mut().map(std::mem::take).unwrap_or_default();
        for (from, to) in lost {
            if self.is_up(from) {
                self.page.say(format!("{from} lost a snapshot to {to}"));
                self.step_and_drain(from, "report", Input::SnapshotLost(to))?;
            }
        }
        Ok(())
    }

    pub(super) fn say_lost(&mut self, envelope: &Envelope) {
        self.note_lost_snapshot(envelope);
        let line = format!("{} (lost)", envelope_text(envelope));
        self.page.tell_message(shown_as(&envelope.message), line);
    }

    fn say_messages(&mut self) {
        let flight = self.network.flight().iter().map(envelope_text);
        let held = self.network.held().iter().map(|held| format!("{} (held)", envelope_text(held)));
        let lines: Vec<String> = flight.chain(held).collect();
        if lines.is_empty() {
            self.page.say("no messages".to_owned());
        }
        lines.into_iter().for_each(|line| self.page.say(line));
    }

    fn say_log(&mut self, id: MemberId) -> CommandResult {
        let member = self.member(id)?;
        let (view, disk) = (member.view(), &member.core.disk);
        let mut line = format!("{id} log after {}:", view.log.base);
        let (saved, unsaved): (Vec<_>, Vec<_>) = view
            .log
            .entries
            .iter()
            .partition(|entry| disk.log.entry(entry.id.index) == Some(entry));
        for (before, part) in [(" ", saved), (" unsaved ", unsaved)] {
            if !part.is_empty() {
                line.push_str(before);
                line.push_str(&entries_text(part));
            }
        }
        self.page.say(line);
        Ok(())
    }

    fn say_disk(&mut self, id: MemberId) -> CommandResult {
        let disk = &self.member(id)?.core.disk;
        let vote = disk.hard_state.vote.map_or("none".to_owned(), |vote| vote.to_string());
        let mut line = format!("{id} disk term={} vote={vote}", disk.hard_state.term);
        line.push_str(&format!(" commit={} applied={}", disk.hard_state.commit, disk.applied));
        line.push_str(&format!(" snapshot={}", disk.snapshot.id));
        line.push_str(&format!(
            " log after {}: {}",
            disk.log.base,
            entries_text(&disk.log.entries)
        ));
        self.page.say(line.trim_end().to_owned());
        Ok(())
    }
}

/// A command that finds nothing to do is most likely a mistake.
fn found(any: bool, otherwise: &str) -> CommandResult {
    if any { Ok(()) } else { Err(otherwise.to_owned()) }
}

const NO_MESSAGE: &str = "no message in flight matches; see `messages`";
