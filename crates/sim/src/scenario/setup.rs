//! Laying out the stage: members, logs and settings by hand, crashes and restarts.

use std::sync::Arc;

use quorate_core::{MemberId, Membership, Raft};

use super::command::{ClusterCommand, LogByHand, Restart, Unsynced};
use super::member::StoryMember;
use super::notation;
use super::setting::ConfigSetting;
use super::words::NamedMembers;
use super::world::{CommandResult, StoryWorld, text};
use crate::cluster::{DiskState, LogView, MemberDriver};

impl StoryWorld {
    pub(super) fn cluster(&mut self, cluster: &ClusterCommand) -> CommandResult {
        if !self.members.is_empty() {
            return Err("there is a cluster already; `cluster` comes first, and once".to_owned());
        }
        let membership = match cluster.parts.majorities {
            Some(_) => cluster.parts.membership(self.activation),
            None => Membership::new(cluster.voters.clone(), cluster.learners.clone())
                .with_activation(self.activation),
        };
        membership.check().map_err(|why| format!("{membership} is impossible: {why}"))?;
        self.first = membership;
        self.settings.clone_from(&cluster.settings);
        let disk = DiskState::first(self.first.clone(), cluster.term.unwrap_or(1));
        for id in self.first.members().iter() {
            self.enter(id, disk.clone())?;
        }
        Ok(())
    }

    /// Members that know nothing and wait for the log.
    pub(super) fn empty(&mut self, ids: &[MemberId]) -> CommandResult {
        for id in ids {
            if self.members.contains_key(id) {
                return Err(format!("there is a {id} already"));
            }
            self.enter(*id, DiskState::default())?;
        }
        Ok(())
    }

    fn enter(&mut self, id: MemberId, disk: DiskState) -> CommandResult {
        let mut member = StoryMember::new(id, disk);
        member.config.activation = self.activation;
        for setting in &self.settings {
            setting.put(&mut member.config)?;
        }
        self.members.insert(id, member);
        self.start(id, None);
        Ok(())
    }

    /// Starts a member; when it cannot, the transcript says why and it stays down.
    fn start(&mut self, id: MemberId, tail: Option<usize>) {
        let Some(member) = self.members.get_mut(&id) else { return };
        match member.start(tail) {
            Ok(()) => {
                self.fresh.insert(id);
            }
            Err(why) => {
                self.fresh.remove(&id);
                self.page.say(format!("{id} cannot start: {why}"));
            }
        }
    }

    /// Shows the members that were laid out, and lets them begin.
    pub(super) fn show_fresh(&mut self) -> CommandResult {
        for id in std::mem::take(&mut self.fresh) {
            let boot = self.member(id)?.boot.clone();
            self.started(id, &boot).map_err(text)?;
            self.say_status(id)?;
            self.do_work(id)?;
        }
        Ok(())
    }

    pub(super) fn say_status(&mut self, id: MemberId) -> CommandResult {
        let line = match &self.member(id)?.core.raft {
            Some(raft) => raft.status().to_string(),
            None => format!("{id} down"),
        };
        self.page.say(line);
        Ok(())
    }

    /// Writes members' disks by hand and starts them from there.
    pub(super) fn log(&mut self, who: &NamedMembers, log: &LogByHand) -> CommandResult {
        for id in self.ids(who)? {
            let member = self.member(id)?;
            if member.stepped {
                return Err(format!("{id} has acted already; `log` sets the stage before that"));
            }
            let disk = laid_out(&member.core.disk, log, &self.first)?;
            self.member_mut(id)?.core.replace_disk(disk);
            self.invariants.forget_member(id);
            self.start(id, None);
        }
        Ok(())
    }

    pub(super) fn config(
        &mut self,
        who: &NamedMembers,
        settings: &[ConfigSetting],
    ) -> CommandResult {
        if *who == NamedMembers::All {
            self.settings.extend_from_slice(settings);
        }
        for id in self.ids(who)? {
            let member = self.member_mut(id)?;
            settings.iter().try_for_each(|setting| setting.put(&mut member.config))?;
            if !member.stepped && member.core.raft.is_some() {
                self.start(id, None);
            } else {
                let said: Vec<String> = settings.iter().map(ConfigSetting::text).collect();
                self.page.say(format!("{id} from its next start: {}", said.join(" ")));
            }
        }
        Ok(())
    }

    pub(super) fn crash(&mut self, who: &NamedMembers, unsynced: Unsynced) -> CommandResult {
        for id in self.ids_up(who)? {
            let member = self.member_mut(id)?;
            let lost = member.texts.saves.clone();
            member.crash(unsynced);
            self.page.say(format!("{id} crashes"));
            for text in lost {
                self.page.print_about("saves", format!("{id} never saved {text}"));
            }
            for envelope in self.network.take_to(id) {
                self.say_lost(&envelope);
            }
        }
        Ok(())
    }

    /// Starts members again from their disks, crashing those that run.
    pub(super) fn restart(&mut self, who: &NamedMembers, restart: &Restart) -> CommandResult {
        for id in self.ids(who)? {
            if self.is_up(id) {
                self.crash(&NamedMembers::These(vec![id]), Unsynced::Kept)?;
            }
            let member = self.member_mut(id)?;
            for setting in &restart.settings {
                setting.put(&mut member.config)?;
            }
            if let Some(applied) = restart.applied {
                Arc::make_mut(&mut member.core.disk).applied = applied;
            }
            self.start(id, restart.tail);
        }
        self.show_fresh()
    }

    /// Replaces the disk of a member that is down by an empty one.
    pub(super) fn wipe(&mut self, who: &NamedMembers) -> CommandResult {
        for id in self.ids(who)? {
            if self.is_up(id) {
                return Err(format!("{id} is running; crash it before you wipe its disk"));
            }
            self.member_mut(id)?.core.replace_disk(DiskState::default());
            self.invariants.disk_lost(id);
            self.page.say(format!("{id} has lost its disk"));
        }
        Ok(())
    }

    /// Keeps a copy of the disks of members, for `roll-back`.
    pub(super) fn keep_disk(&mut self, who: &NamedMembers) -> CommandResult {
        for id in self.ids(who)? {
            let member = self.member_mut(id)?;
            member.kept_disk = Some(member.core.disk.clone());
        }
        Ok(())
    }

    /// Puts the kept disk of a member that is down back: what was saved since is lost.
    pub(super) fn roll_back(&mut self, who: &NamedMembers) -> CommandResult {
        for id in self.ids(who)? {
            if self.is_up(id) {
                return Err(format!("{id} is running; crash it before you roll its disk back"));
            }
            let kept = self.member(id)?.kept_disk.clone();
            let disk = kept.ok_or_else(|| format!("no disk of {id} was kept; use `keep-disk`"))?;
            self.member_mut(id)?.core.replace_disk((*disk).clone());
            self.invariants.forget_member(id);
            self.page.say(format!("{id} has an older disk"));
        }
        Ok(())
    }

    /// Ticks until a follower or candidate campaigns, given to it by hand.
    pub(super) fn timeout(&mut self, who: &NamedMembers, ticks: u32) -> CommandResult {
        for id in self.ids_up(who)? {
            let raft: &mut Raft = self.running(id)?;
            raft.set_timeout_ticks(ticks);
        }
        Ok(())
    }
}

/// What a `log` command makes of a disk.
fn laid_out(old: &DiskState, log: &LogByHand, first: &Membership) -> Result<DiskState, String> {
    let mut disk = old.clone();
    if let Some(parts) = &log.parts {
        disk.snapshot.membership = Arc::new(parts.membership(first.activation()));
    }
    if let Some(id) = log.snapshot {
        disk.snapshot.id = id;
        if disk.snapshot.membership.is_empty() && log.parts.is_none() {
            disk.snapshot.membership = Arc::new(first.clone());
        }
    }
    let base = log.base.unwrap_or(disk.snapshot.id);
    let mut drafts = log.entries.as_slice();
    if let [head, rest @ ..] = drafts
        && head.id == base
    {
        drafts = rest;
    }
    disk.log = LogView { base, entries: notation::entries(drafts, &disk.snapshot.membership)? };
    let hard_state = &mut disk.hard_state;
    hard_state.commit = log.commit.unwrap_or(disk.snapshot.id.index);
    hard_state.vote = log.vote;
    let newest = disk.log.last().term;
    hard_state.term = log.term.unwrap_or(hard_state.term.max(newest));
    disk.applied = log.applied.unwrap_or(hard_state.commit);
    Ok(disk)
}
