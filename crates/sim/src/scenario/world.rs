//! The cluster of a story: all members, the network between them, and what the commands do.
//!
//! A member is handed an input, then everything it asks for is carried out: saves
//! go to its disk, messages to the network, entries to its state machine, unless
//! the story holds them back. Messages never arrive by themselves.

use std::collections::{BTreeMap, BTreeSet};

use quorate_core::config::Activation;
use quorate_core::event::SettledEvidence;
use quorate_core::status::RoleKind;
use quorate_core::{
    Accepted, Dropped, Envelope, Event, Index, Input, LoadTarget, MemberId, Membership, Output,
    Raft, RequestId, Status,
};

use crate::short_ids::short_ids;

use super::command::WorkKind;
use super::member::StoryMember;
use super::message::{envelope_text, goal_end_text, identity_text, kind, shown_as};
use super::network::{SendResult, StoryNetwork};
use super::notation::entries_text;
use super::page::TranscriptPage;
use super::requests::StoryRequests;
use super::setting::ConfigSetting;
use super::words::NamedMembers;
use crate::checkers::{Invariants, Violation};

/// How a command went; an error fails the story.
pub(super) type CommandResult = Result<(), String>;

#[derive(Clone, Debug, Default)]
pub(super) struct StoryWorld {
    pub(super) members: BTreeMap<MemberId, StoryMember>,
    pub(super) network: StoryNetwork,
    pub(super) page: TranscriptPage,
    pub(super) requests: StoryRequests,
    /// Why inputs had no effect, since the last command that was no question.
    pub(super) drops: Vec<Drop>,
    pub(super) invariants: Invariants,
    /// Laid out by hand and not yet shown.
    pub(super) fresh: BTreeSet<MemberId>,
    /// What `config all` said, for members that come later.
    pub(super) settings: Vec<ConfigSetting>,
    pub(super) first: Membership,
    /// When the memberships of this cluster count.
    pub(super) activation: Activation,
    /// Inputs that members were handed.
    pub(super) steps: u64,
    /// One chosen message is being delivered: even a late reply is worth a line.
    pub(super) close_up: bool,
}

/// An input without effect.
#[derive(Clone, Debug)]
pub(super) struct Drop {
    pub(super) refused: bool,
    pub(super) name: &'static str,
    pub(super) why: String,
}

impl StoryWorld {
    pub(super) fn member(&self, id: MemberId) -> Result<&StoryMember, String> {
        self.members.get(&id).ok_or_else(|| no_member(id))
    }

    pub(super) fn member_mut(&mut self, id: MemberId) -> Result<&mut StoryMember, String> {
        self.members.get_mut(&id).ok_or_else(|| no_member(id))
    }

    pub(super) fn running(&mut self, id: MemberId) -> Result<&mut Raft, String> {
        self.member_mut(id)?.core.raft.as_mut().ok_or_else(|| format!("{id} is down"))
    }

    pub(super) fn is_up(&self, id: MemberId) -> bool {
        self.members.get(&id).is_some_and(|member| member.core.raft.is_some())
    }

    pub(super) fn ids(&self, who: &NamedMembers) -> Result<Vec<MemberId>, String> {
        match who {
            NamedMembers::All => Ok(self.members.keys().copied().collect()),
            NamedMembers::These(ids) => {
                ids.iter().map(|id| self.member(*id).map(|_| *id)).collect()
            }
        }
    }

    /// Those that run: all of them, or these, of which none may be down.
    pub(super) fn ids_up(&mut self, who: &NamedMembers) -> Result<Vec<MemberId>, String> {
        let ids = self.ids(who)?;
        if *who == NamedMembers::All {
            return Ok(ids.into_iter().filter(|id| self.is_up(*id)).collect());
        }
        ids.iter().try_for_each(|id| self.running(*id).map(|_| ()))?;
        Ok(ids)
    }

    pub(super) fn statuses(&self) -> impl Iterator<Item = Status> + '_ {
        self.members.values().filter_map(|member| Some(member.core.raft.as_ref()?.status()))
    }

    /// Hands a member one input and carries out what it asks for.
    pub(super) fn tell(&mut self, id: MemberId, what: &str, input: Input) -> CommandResult {
        self.step(id, what, input).map(drop)?;
        self.drain(id)
    }

    /// Hands a member one input. What it asks for waits for [`StoryWorld::drain`].
    pub(super) fn step(
        &mut self,
        id: MemberId,
        what: &str,
        input: Input,
    ) -> Result<Result<Accepted, Dropped>, String> {
        let taken = self.stepping(id)?.core.step(input).map_err(text)?;
        if let Err(dropped) = &taken {
            self.show_drop(id, what, dropped);
        }
        Ok(taken)
    }

    /// The state machine was captured, and the capture is on disk.
    pub(super) fn capture(&mut self, id: MemberId, index: Index) -> CommandResult {
        match self.stepping(id)?.core.snapshot(index).map_err(text)? {
            Ok(Some(meta)) => self.page.say(format!("{id} snapshot {}", meta.id)),
            Ok(None) => {}
            Err(dropped) => self.show_drop(id, "snapshot", &dropped),
        }
        Ok(())
    }

    /// A member that is about to get an input.
    fn stepping(&mut self, id: MemberId) -> Result<&mut StoryMember, String> {
        self.running(id)?;
        self.steps += 1;
        let member = self.member_mut(id)?;
        member.stepped = true;
        Ok(member)
    }

    fn show_drop(&mut self, id: MemberId, what: &str, dropped: &Dropped) {
        let refused = matches!(dropped, Dropped::Refused(_));
        let why = short_ids(&dropped.to_string());
        if refused {
            self.page.tell("requests", format!("{id} {what} refused: {why}"));
        } else if is_late(dropped, what) && !self.close_up {
            self.page.tell("late", format!("{id} drops {what}: {why}"));
        } else {
            self.page.tell("drops", format!("{id} drops {what}: {why}"));
        }
        self.drops.push(Drop { refused, name: dropped.name(), why });
    }

    /// Hands a member a message that has arrived.
    pub(super) fn receive(&mut self, at: MemberId, envelope: Envelope) -> CommandResult {
        let what = format!("{} from {}", kind(&envelope.message), envelope.from);
        self.tell(at, &what, Input::Received(envelope))
    }

    /// Carries out what a member asks for, until it asks for nothing more.
    pub(super) fn drain(&mut self, id: MemberId) -> CommandResult {
        for _ in 0..STEPS_MAX {
            let worked = self.work(id)?;
            self.running(id)?;
            let member = self.members.get_mut(&id).ok_or_else(|| no_member(id))?;
            match member.core.take_output(&mut self.invariants).map_err(text)? {
                Some(output) => self.route(id, output)?,
                None if !worked => return Ok(()),
                None => {}
            }
        }
        Err(format!("{id} has been asking for more for {STEPS_MAX} steps"))
    }

    /// Does the oldest piece of work that is not held back; false when there is none.
    fn work(&mut self, id: MemberId) -> Result<bool, String> {
        let member = self.member(id)?;
        let free = if !member.saves.held && member.has_work(WorkKind::Saves) {
            WorkKind::Saves
        } else if !member.applies.held && member.core.may_apply(&member.config) {
            WorkKind::Applies
        } else if !member.loads.held && member.has_work(WorkKind::Loads) {
            WorkKind::Loads
        } else {
            return Ok(false);
        };
        self.complete(id, free)?;
        Ok(true)
    }

    /// Completes the oldest piece of this work. Answers what it was.
    pub(super) fn complete(&mut self, id: MemberId, work: WorkKind) -> Result<String, String> {
        let text = match work {
            WorkKind::Saves => self.complete_save(id)?,
            WorkKind::Applies => self.complete_apply(id)?,
            WorkKind::Loads => self.complete_load(id)?,
        };
        text.ok_or_else(|| format!("{id} waits for no such work"))
    }

    fn complete_save(&mut self, id: MemberId) -> Result<Option<String>, String> {
        let member = self.members.get_mut(&id).ok_or_else(|| no_member(id))?;
        let save = member.core.write_save(&mut self.invariants).map_err(text)?;
        let Some(save) = save else { return Ok(None) };
        let words = member.saves.texts.pop_front().unwrap_or_default();
        if member.saves.held {
            self.page.tell("saves", format!("{id} saved {words}"));
        }
        save.then_send.into_iter().for_each(|envelope| self.send(envelope));
        self.step(id, "saved", Input::Saved(save.id)).map(|_| Some(words))
    }

    fn complete_apply(&mut self, id: MemberId) -> Result<Option<String>, String> {
        let member = self.member_mut(id)?;
        if member.has_work(WorkKind::Applies) && !member.core.may_apply(&member.config) {
            return Err(format!("{id} may not apply before its save is complete"));
        }
        let Some(last) = member.core.run_apply() else { return Ok(None) };
        let words = member.applies.texts.pop_front().unwrap_or_default();
        if member.applies.held {
            self.page.tell("applies", format!("{id} applied {words}"));
        }
        self.step(id, "applied", Input::Applied(last)).map(|_| Some(words))
    }

    fn complete_load(&mut self, id: MemberId) -> Result<Option<String>, String> {
        let member = self.member_mut(id)?;
        let Some(loaded) = member.core.read_load() else { return Ok(None) };
        let words = member.loads.texts.pop_front().unwrap_or_default();
        if let (true, Input::Loaded(_, entries)) = (member.loads.held, &loaded) {
            let line = format!("{id} loaded {}", entries_text(entries.iter()));
            self.page.tell("loads", line);
        }
        self.step(id, "loaded", loaded).map(|_| Some(words))
    }

    /// Shows an output and puts each part of it where it goes.
    fn route(&mut self, id: MemberId, output: Output) -> CommandResult {
        for event in &output.events {
            self.on_event(id, event)?;
        }
        for (request, entry) in output.accepted {
            self.requests.logged(request, entry);
            self.say_request(id, request, format!("logged {entry}"));
        }
        for (request, index) in output.served {
            self.requests.served(request, index);
            self.say_request(id, request, format!("served at {index}"));
        }
        for (request, refusal) in output.refused {
            let why = short_ids(&refusal.to_string());
            self.requests.refused(request, &why);
            self.say_request(id, request, format!("refused: {why}"));
            self.drops.push(Drop { refused: true, name: "refused", why });
        }
        self.show_commit(id)?;
        output.send.into_iter().for_each(|envelope| self.send(envelope));
        let member = self.members.get_mut(&id).ok_or_else(|| no_member(id))?;
        if let Some(save) = output.save {
            let text = member.save_text(&save);
            if !text.is_empty() {
                self.page.tell("saves", format!("{id} save {text}{}", member.saves.suffix()));
            }
            member.saves.texts.push_back(text);
            member.core.saves.push_back(save);
        }
        if !output.apply.is_empty() {
            let text = entries_text(output.apply.iter());
            self.page.tell("applies", format!("{id} apply {text}{}", member.applies.suffix()));
            member.applies.texts.push_back(text);
            member.core.applies.push_back(output.apply);
        }
        for load in output.load {
            let reader = match load.target {
                LoadTarget::Peer(id) => id.to_string(),
                LoadTarget::Machine => "its machine".to_owned(),
            };
            let text = format!("{}..{} for {reader}", load.range.start, load.range.end);
            self.page.tell("loads", format!("{id} load {text}{}", member.loads.suffix()));
            member.loads.texts.push_back(text);
            member.core.loads.push_back(load);
        }
        if let Some(to) = output.trim {
            member.core.trim(to);
            self.page.tell("trims", format!("{id} trim to {to}"));
        }
        Ok(())
    }

    fn say_request(&mut self, id: MemberId, request: RequestId, what: String) {
        let line = format!("{id} {} {what}", self.requests.name(request));
        self.page.tell("requests", line);
    }

    /// A leader's commit index is news; a follower's shows in what it applies.
    fn show_commit(&mut self, id: MemberId) -> CommandResult {
        let member = self.members.get_mut(&id).ok_or_else(|| no_member(id))?;
        let Some(status) = member.core.raft.as_ref().map(Raft::status) else { return Ok(()) };
        let commit = status.log.commit;
        if status.role == RoleKind::Leader && commit > member.commit_shown {
            self.page.tell("commits", format!("{id} commit={commit}"));
        }
        member.commit_shown = commit;
        Ok(())
    }

    fn send(&mut self, envelope: Envelope) {
        if envelope.from == envelope.to {
            return; // The core counts its own promises by itself.
        }
        let (shown_as, mut line) = (shown_as(&envelope.message), envelope_text(&envelope));
        let up = self.is_up(envelope.to);
        let fate = if up { self.network.send(envelope) } else { SendResult::Lost };
        line.push_str(match fate {
            SendResult::InFlight => "",
            SendResult::Held => " (held)",
            SendResult::Lost => " (lost)",
        });
        self.page.tell_message(shown_as, line);
    }

    fn on_event(&mut self, id: MemberId, event: &Event) -> CommandResult {
        match event {
            Event::Role { from, to, term } => {
                self.page.tell("roles", format!("{id} {from} => {to} term={term}"));
            }
            Event::Leader { leader: Some(leader), .. } if *leader == id => {}
            Event::Leader { leader: Some(leader), term } => {
                self.page.tell("leaders", format!("{id} follows {leader} term={term}"));
            }
            Event::Leader { leader: None, term } => {
                self.page.tell("leaders", format!("{id} follows nobody term={term}"));
            }
            Event::Membership { id: entry, membership } => {
                self.page.tell("memberships", format!("{id} membership {entry} {membership}"));
            }
            Event::GoalStep { step } => {
                self.page.tell("memberships", format!("{id} step: {step}"));
            }
            Event::GoalEnded(ended) => {
                let end = goal_end_text(ended.end);
                let line = format!("{id} goal {} {end} at {}", ended.id, ended.at);
                self.page.tell("memberships", line);
            }
            Event::Settled { id: entry, evidence, .. } => {
                self.member_mut(id)?.settled = Some(*entry);
                // That the first membership is known needs no line in every story.
                if entry.index > 1 {
                    let line = format!("{id} settled {entry} {}", evidence_text(evidence));
                    self.page.tell("memberships", line);
                }
            }
            Event::IdentityRejected { by, known } => {
                self.member_mut(id)?.disowned = Some(*by);
                self.page.say(format!(
                    "{id} is disowned by {by}, which knows {}",
                    identity_text(*known)
                ));
            }
            Event::LogLost { leader, confirmed, last } => self.page.say(format!(
                "{id} had confirmed {confirmed} to {leader}, but its log ends at {last}"
            )),
            Event::LogComplete => self.page.say(format!("{id} has all that it confirmed")),
            Event::PeerLostLog { peer, confirmed, last } => self.page.say(format!(
                "{id} counts {peer} no longer: it had confirmed {confirmed}, its log ends at {last}"
            )),
            Event::TransferBegan { to } => self.page.say(format!("{id} hands over to {to}")),
            Event::TransferAborted { to, reason } => {
                self.page.say(format!("{id} stops handing over to {to}: {}", aborted(*reason)));
            }
            Event::SnapshotInstalled(entry) => {
                self.page.say(format!("{id} installed snapshot {entry}"));
            }
            other => self.page.say(format!("{id} {other:?}")),
        }
        Ok(())
    }
}

/// A reply that no member waits for any longer: every election, every step down and
/// every removal leaves some behind.
fn is_late(dropped: &Dropped, what: &str) -> bool {
    what.contains("Reply from") && !matches!(dropped, Dropped::Malformed(_))
}

fn evidence_text(evidence: &SettledEvidence) -> String {
    match evidence {
        SettledEvidence::Counted(known) => {
            let known: Vec<String> =
                known.iter().map(|(id, commit)| format!("{id}:{commit}")).collect();
            format!("known=({})", known.join(" "))
        }
        SettledEvidence::ReportedBy(leader) => format!("says {leader}"),
    }
}

fn aborted(why: quorate_core::event::AbortReason) -> &'static str {
    use quorate_core::event::AbortReason::{Replaced, TargetLeft, TimedOut};
    match why {
        TimedOut => "it did not take over in time",
        TargetLeft => "it is no longer a voter",
        Replaced => "another transfer was asked for",
    }
}

/// A broken invariant fails the story.
#[allow(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(super) fn text(violation: Violation) -> String {
    violation.to_string()
}

fn no_member(id: MemberId) -> String {
    format!("there is no {id}; name it in `cluster` or `empty`")
}

/// More steps than any story needs, so that a loop ends as a failure.
pub(super) const STEPS_MAX: usize = 100_000;
