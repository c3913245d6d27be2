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

use super::member::StoryMember;
use super::message::{envelope_text, goal_end_text, identity_text, kind, shown_as};
use super::network::{SendResult, StoryNetwork};
use super::notation::entries_text;
use super::page::TranscriptPage;
use super::requests::StoryRequests;
use super::setting::ConfigSetting;
use super::variables::Variables;
use super::words::NamedMembers;
use crate::checkers::{Invariants, Violation};
use crate::cluster::{CoreMember, HeldWork, MemberDriver, WorkKind};

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
    pub(super) variables: Variables,
    /// Snapshots that were lost and not reported yet; none while they are not reported.
    pub(super) lost_snapshots: Option<Vec<(MemberId, MemberId)>>,
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
    pub(super) fn step_and_drain(
        &mut self,
        id: MemberId,
        what: &str,
        input: Input,
    ) -> CommandResult {
        self.give(id, what, input).map(drop)?;
        self.do_work(id)
    }

    /// Hands a member one input. What it asks for waits for [`StoryWorld::do_work`].
    pub(super) fn give(
        &mut self,
        id: MemberId,
        what: &str,
        input: Input,
    ) -> Result<Result<Accepted, Dropped>, String> {
        self.running(id)?;
        let taken = self.step(id, what, input).map_err(text)?;
        taken.ok_or_else(|| format!("{id} is down"))
    }

    /// Carries out what a member asks for, until it asks for nothing more.
    pub(super) fn do_work(&mut self, id: MemberId) -> CommandResult {
        self.running(id)?;
        self.drain(id).map_err(text)
    }

    /// Completes the oldest piece of this work, and what follows from it.
    pub(super) fn complete_one(&mut self, id: MemberId, work: WorkKind) -> CommandResult {
        let waits = self.member(id)?.has_work(work);
        if !self.complete(id, work).map_err(text)? {
            return Err(match (waits, work) {
                (true, WorkKind::Applies) => {
                    format!("{id} may not apply before its save is complete")
                }
                _ => format!("{id} waits for no such work"),
            });
        }
        self.do_work(id)
    }

    /// The state machine was captured, and the capture is on disk.
    pub(super) fn capture(&mut self, id: MemberId, index: Index) -> CommandResult {
        self.running(id)?;
        self.note_step(id);
        match self.member_mut(id)?.core.snapshot(index).map_err(text)? {
            Ok(Some(meta)) => self.page.say(format!("{id} snapshot {}", meta.id)),
            Ok(None) => {}
            Err(dropped) => self.show_drop(id, "snapshot", &dropped),
        }
        Ok(())
    }

    fn note_step(&mut self, id: MemberId) {
        self.steps += 1;
        if let Some(member) = self.members.get_mut(&id) {
            member.stepped = true;
        }
    }

    fn show_drop(&mut self, id: MemberId, what: &str, dropped: &Dropped) {
        let refused = matches!(dropped, Dropped::Refused(_));
        let why = short_ids(&dropped.to_string());
        if refused {
            self.page.print_about("requests", format!("{id} {what} refused: {why}"));
        } else if is_late(dropped, what) && !self.close_up {
            self.page.print_about("late", format!("{id} drops {what}: {why}"));
        } else {
            self.page.print_about("drops", format!("{id} drops {what}: {why}"));
        }
        self.drops.push(Drop { refused, name: dropped.name(), why });
    }

    /// Hands a member a message that has arrived.
    pub(super) fn receive(&mut self, at: MemberId, envelope: Envelope) -> CommandResult {
        let what = format!("{} from {}", kind(&envelope.message), envelope.from);
        self.step_and_drain(at, &what, Input::Received(envelope))
    }

    /// Shows what an output reports and answers.
    fn show_reports(&mut self, id: MemberId, output: &Output) {
        for event in &output.events {
            self.on_event(id, event);
        }
        for (request, entry) in &output.accepted {
            self.requests.logged(*request, *entry);
            self.say_request(id, *request, format!("logged {entry}"));
        }
        for (request, index) in &output.served {
            self.requests.served(*request, *index);
            self.say_request(id, *request, format!("served at {index}"));
        }
        for (request, refusal) in &output.refused {
            let why = short_ids(&refusal.to_string());
            self.requests.refused(*request, &why);
            self.say_request(id, *request, format!("refused: {why}"));
            self.drops.push(Drop { refused: true, name: "refused", why });
        }
    }

    /// Shows the work that an output asks for.
    fn show_work(&mut self, id: MemberId, output: &Output) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let HeldWork { saves, applies, loads } = member.core.held;
        let suffix = |held| if held { " (held)" } else { "" };
        if let Some(save) = &output.save {
            let text = member.save_text(save);
            if !text.is_empty() {
                self.page.print_about("saves", format!("{id} save {text}{}", suffix(saves)));
            }
            member.texts.saves.push_back(text);
        }
        if !output.apply.is_empty() {
            let text = entries_text(output.apply.iter());
            self.page.print_about("applies", format!("{id} apply {text}{}", suffix(applies)));
            member.texts.applies.push_back(text);
        }
        for load in &output.load {
            let reader = match load.target {
                LoadTarget::Peer(id) => id.to_string(),
                LoadTarget::Machine => "its machine".to_owned(),
            };
            let text = format!("{}..{} for {reader}", load.range.start, load.range.end);
            self.page.print_about("loads", format!("{id} load {text}{}", suffix(loads)));
            member.texts.loads.push_back(text);
        }
        if let Some(to) = output.trim {
            self.page.print_about("trims", format!("{id} trim to {to}"));
        }
    }

    fn say_request(&mut self, id: MemberId, request: RequestId, what: String) {
        let line = format!("{id} {} {what}", self.requests.name(request));
        self.page.print_about("requests", line);
    }

    /// A leader's commit index is news; a follower's shows in what it applies.
    fn show_commit(&mut self, id: MemberId) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let Some(status) = member.core.raft.as_ref().map(Raft::status) else { return };
        let commit = status.log.commit;
        if status.role == RoleKind::Leader && commit > member.commit_shown {
            self.page.print_about("commits", format!("{id} commit={commit}"));
        }
        member.commit_shown = commit;
    }

    fn send_one(&mut self, envelope: Envelope) {
        if envelope.from == envelope.to {
            return; // The core counts its own promises by itself.
        }
        let (shown_as, mut line) = (shown_as(&envelope.message), envelope_text(&envelope));
        let up = self.is_up(envelope.to);
        let sent = envelope.clone();
        let fate = if up { self.network.send(envelope) } else { SendResult::Lost };
        if matches!(fate, SendResult::Lost) {
            self.note_lost_snapshot(&sent);
        }
        line.push_str(match fate {
            SendResult::InFlight => "",
            SendResult::Held => " (held)",
            SendResult::Lost => " (lost)",
        });
        self.page.tell_message(shown_as, line);
    }

    fn on_event(&mut self, id: MemberId, event: &Event) {
        match event {
            Event::Role { from, to, term } => {
                self.page.print_about("roles", format!("{id} {from} => {to} term={term}"));
            }
            Event::Leader { leader: Some(leader), .. } if *leader == id => {}
            Event::Leader { leader: Some(leader), term } => {
                self.page.print_about("leaders", format!("{id} follows {leader} term={term}"));
            }
            Event::Leader { leader: None, term } => {
                self.page.print_about("leaders", format!("{id} follows no leader term={term}"));
            }
            Event::Membership { id: entry, membership } => {
                self.page
                    .print_about("memberships", format!("{id} membership {entry} {membership}"));
            }
            Event::GoalStep { step } => {
                self.page.print_about("memberships", format!("{id} step: {step}"));
            }
            Event::GoalEnded(ended) => {
                let end = goal_end_text(ended.end);
                let line = format!("{id} goal {} {end} at {}", ended.id, ended.at);
                self.page.print_about("memberships", line);
            }
            Event::Settled { id: entry, evidence, .. } => {
                if let Some(member) = self.members.get_mut(&id) {
                    member.settled = Some(*entry);
                }
                // That the first membership is known needs no line in every story.
                if entry.index > 1 {
                    let line = format!("{id} settled {entry} {}", evidence_text(evidence));
                    self.page.print_about("memberships", line);
                }
            }
            Event::IdentityRejected { by, known } => {
                if let Some(member) = self.members.get_mut(&id) {
                    member.identity_rejected_by = Some(*by);
                }
                self.page.say(format!(
                    "{id} is rejected by {by}, which knows the identity {}",
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
            Event::Stalled(stalled) => {
                self.page.say(format!("{id} stalled: {stalled}"));
            }
            Event::DiskSlow { others_ticks } => {
                let others = format!("others take {others_ticks} ticks");
                self.page.say(format!("{id} has a slow disk: {others}"));
            }
            Event::SnapshotInstalled(entry) => {
                self.page.say(format!("{id} installed snapshot {entry}"));
            }
            other => self.page.say(format!("{id} {other:?}")),
        }
    }
}

impl MemberDriver for StoryWorld {
    type Checks = Invariants;

    fn parts(&mut self, id: MemberId) -> Option<(&mut CoreMember, &mut Invariants)> {
        Some((&mut self.members.get_mut(&id)?.core, &mut self.invariants))
    }

    fn stepping(&mut self, id: MemberId) {
        self.note_step(id);
    }

    fn send(&mut self, envelopes: Vec<Envelope>) {
        envelopes.into_iter().for_each(|envelope| self.send_one(envelope));
    }

    fn output(&mut self, id: MemberId, output: &mut Output) {
        self.show_reports(id, output);
        self.show_commit(id);
        self.send(std::mem::take(&mut output.send));
        self.show_work(id, output);
    }

    /// Work that was held is shown when it is done.
    fn completed(&mut self, id: MemberId, work: WorkKind, input: &Input) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let held = member.core.held;
        let texts = &mut member.texts;
        let (held, kind, line) = match (work, input) {
            (WorkKind::Saves, _) => {
                (held.saves, "saves", texts.saves.pop_front().map(|text| format!("saved {text}")))
            }
            (WorkKind::Applies, _) => {
                let text = texts.applies.pop_front();
                (held.applies, "applies", text.map(|text| format!("applied {text}")))
            }
            (WorkKind::Loads, Input::Loaded(_, entries)) => {
                texts.loads.pop_front();
                (held.loads, "loads", Some(format!("loaded {}", entries_text(entries.iter()))))
            }
            (WorkKind::Loads, _) => return,
        };
        if let (true, Some(line)) = (held, line) {
            self.page.print_about(kind, format!("{id} {line}"));
        }
    }

    fn dropped(&mut self, id: MemberId, what: &str, why: &Dropped) {
        self.show_drop(id, what, why);
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
        Replaced => "another transfer was requested",
        _ => "for another reason",
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
