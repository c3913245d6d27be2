//! What becomes of requests: offered to whoever leads, offered again when that
//! leader is lost, and answered once.
//!
//! A command may be offered any number of times, because it runs once however often
//! it is logged ([`origin`](crate::origin)); a read, because it changes nothing; a transfer,
//! because who leads cannot lead twice. A membership change is offered once: when nobody
//! can say what became of it, the answer is "unknown".

use bytes::Bytes;
use quorate_core::{
    Accepted, Dropped, Entries, EntryId, Event, Index, Input, Membership, Refusal, RequestId,
    SnapshotMeta, Term,
};

use crate::applier::{CommandOutcome, MachineJob};
use crate::command_id::{CommandDedup, CommandId};
use crate::driver::Driver;
use crate::outcome::{
    OutcomeUnknown, RequestError, RequestOutcome, RequestRefused, RequestReply, is_transient,
};
use crate::requests::{Asked, Open, RequestToken, Stage};

impl Driver {
    pub(crate) fn ask(&mut self, asked: Asked, ticks: u64) -> RequestToken {
        let bar = self.bar(&asked);
        self.open(asked, ticks, false, bar)
    }

    /// A command that only the leader of this term may log, and only if it is this member.
    pub(crate) fn ask_once(&mut self, command: Bytes, term: Term) -> RequestToken {
        let asked = Asked::Command(command);
        let leader = self.raft.leader();
        let leads = leader == Some(self.own.member) && self.raft.term() == term;
        let elsewhere = RequestRefused::ByLeader(Refusal::NotLeader { leader });
        let bar = if leads { self.bar(&asked) } else { Some(elsewhere) };
        self.open(asked, self.options.request_ticks, true, bar)
    }

    /// A query that needs no leader: it goes to the machine at once.
    pub(crate) fn ask_locally(&mut self, query: Bytes) -> RequestToken {
        let asked = Asked::Read(None);
        let bar = self.bar(&asked).filter(|why| *why != RequestRefused::NotMember);
        let (once, stage, attempt, refusal) = (true, Stage::Asking, None, None);
        let ticks = self.options.request_ticks;
        let deadline = self.now.saturating_add(ticks.max(1));
        let (offers, offer_at) = (0, deadline);
        let open = Open { asked, once, stage, offers, attempt, refusal, offer_at, deadline, ticks };
        let token = self.requests.insert(open);
        match bar {
            Some(why) => self.answer(token, Err(why.into())),
            None => {
                self.look_at = self.look_at.min(deadline);
                self.jobs.push(MachineJob::Query(token, Some(query)));
            }
        }
        token
    }

    fn open(
        &mut self,
        asked: Asked,
        ticks: u64,
        once: bool,
        bar: Option<RequestRefused>,
    ) -> RequestToken {
        // What nobody has committed by then, nobody may ever have heard of.
        let patience = ticks.clamp(1, self.options.request_ticks.max(1));
        let deadline = self.now.saturating_add(patience);
        let (stage, offer_at, attempt, refusal) = (Stage::Waiting, deadline, None, None);
        let offers = 0;
        let open = Open { asked, once, stage, offers, attempt, refusal, offer_at, deadline, ticks };
        let ticket = self.requests.insert(open);
        match bar {
            Some(why) => self.answer(ticket, Err(RequestError::Refused(why))),
            None => {
                self.look_at = self.look_at.min(deadline);
                self.offer(ticket);
            }
        }
        ticket
    }

    /// Why a request is not even offered.
    fn bar(&self, asked: &Asked) -> Option<RequestRefused> {
        let limit = self.options.requests_max;
        if self.requests.len() >= limit {
            return Some(RequestRefused::TooManyRequests { limit });
        }
        if self.removed {
            return Some(RequestRefused::NotMember);
        }
        // Nobody could send it, and a leader that has it in its log would try for ever.
        let limit = self.options.command_bytes_max;
        match asked {
            Asked::Command(sealed) if sealed.len() > limit => {
                Some(RequestRefused::TooLarge { bytes: sealed.len(), limit })
            }
            _ => None,
        }
    }

    /// The only place where a request ends.
    pub(crate) fn answer(&mut self, ticket: RequestToken, answer: RequestOutcome) {
        if self.requests.remove(ticket).is_some() {
            self.answers.push((ticket, answer));
        }
    }

    fn offer(&mut self, ticket: RequestToken) {
        self.attempts += 1;
        let attempt = RequestId(self.attempts);
        let now = self.now;
        let Some(open) = self.requests.get_mut(ticket) else { return };
        open.offers += 1;
        open.offer_at = now + self.options.retry_ticks;
        self.look_at = self.look_at.min(open.offer_at);
        let input = match &open.asked {
            Asked::Command(command) => Input::Propose(attempt, command.clone()),
            Asked::Read(_) => Input::Read(attempt),
            Asked::Change(change) => Input::Change(attempt, (**change).clone()),
            Asked::Transfer(to) => Input::Transfer(*to),
        };
        match self.step(input) {
            Ok(Accepted::Logged(id)) => self.set_stage(ticket, Stage::Logged(id)),
            Ok(Accepted::Forwarded(_) | Accepted::Queued) => {
                self.requests.expect(ticket, attempt);
                self.set_stage(ticket, Stage::Offered);
            }
            Ok(Accepted::Done) => self.set_stage(ticket, Stage::Offered),
            Err(Dropped::NothingToDo) => self.on_nothing_to_do(ticket),
            Err(Dropped::Refused(refusal)) => self.on_not_taken(ticket, refusal),
            Err(_) => {}
        }
    }

    fn set_stage(&mut self, ticket: RequestToken, stage: Stage) {
        if let Some(open) = self.requests.get_mut(ticket) {
            open.stage = stage;
        }
    }

    /// A change is committed: what is left to wait for is that it settles or, if it set a
    /// goal, that the goal ends. Both are told once, and may have been told by now.
    fn on_committed(&mut self, ticket: RequestToken, id: EntryId, membership: &Membership) {
        let now = self.now;
        let Some(open) = self.requests.get_mut(ticket) else { return };
        open.deadline = now.saturating_add(open.ticks.max(1));
        let pursued = membership.goal().is_some_and(|goal| goal.id == id);
        let ended = membership.ended_goals().iter().any(|ended| ended.id == id);
        open.stage = if pursued || ended { Stage::Pursued(id) } else { Stage::Committed(id) };
        if let Some(ended) = self.raft.ended_goal(id) {
            self.answer(ticket, Ok(RequestReply::GoalEnded(ended)));
        } else if self.raft.settled() >= id.index {
            self.on_settled(EntryId::new(id.term, self.raft.settled()));
        }
    }

    pub(crate) fn on_accepted(&mut self, attempt: RequestId, id: EntryId) {
        let Some(ticket) = self.requests.answered(attempt) else { return };
        self.set_stage(ticket, Stage::Logged(id));
        let changes = self
            .requests
            .get_mut(ticket)
            .is_some_and(|open| matches!(open.asked, Asked::Change(_)));
        // The entry may have come before the word that it is there.
        if changes && id.index <= self.raft.log_status().applying {
            let membership = self.raft.membership_at(id.index);
            if membership.since() == id {
                self.on_committed(ticket, id, &membership);
            }
        }
    }

    pub(crate) fn on_confirmed(&mut self, attempt: RequestId, index: Index) {
        if let Some(ticket) = self.requests.answered(attempt) {
            self.set_stage(ticket, Stage::Confirmed(index));
            self.confirmed.entry(index).or_default().push(ticket);
        }
    }

    /// A leader that was offered a request would not take it.
    pub(crate) fn on_refused(&mut self, attempt: RequestId, refusal: Refusal) {
        if let Some(ticket) = self.requests.answered(attempt) {
            self.on_not_taken(ticket, refusal);
        }
    }

    /// The newest offer was refused. Only if no other one is out, the request has
    /// surely not happened.
    fn on_not_taken(&mut self, ticket: RequestToken, refusal: Refusal) {
        let Some(open) = self.requests.get_mut(ticket) else { return };
        open.offers = open.offers.saturating_sub(1);
        let harmless = matches!(open.asked, Asked::Read(_));
        let certain = open.offers == 0 || harmless;
        if certain {
            open.stage = Stage::Waiting;
            open.offers = 0;
            if open.once || !is_transient(&refusal) {
                self.answer(ticket, Err(RequestRefused::ByLeader(refusal).into()));
                return;
            }
            // The leader has another change in progress: it may be over at the next tick.
            if matches!(refusal, Refusal::Change(_)) {
                open.offer_at = self.now + 1;
                self.look_at = self.look_at.min(open.offer_at);
            }
            open.refusal = Some(refusal);
        }
    }

    fn on_nothing_to_do(&mut self, ticket: RequestToken) {
        let Some(open) = self.requests.get_mut(ticket) else { return };
        if let Asked::Transfer(to) = open.asked {
            if self.raft.leader() == Some(to) {
                self.answer(ticket, Ok(RequestReply::Transferred { to }));
            } else {
                open.stage = Stage::Offered;
            }
        }
    }

    /// One of our own requests was run, or passed over, by the machine.
    pub(crate) fn on_outcome(&mut self, ticket: RequestToken, outcome: CommandOutcome) {
        let answer = match outcome {
            CommandOutcome::Ran { index, reply } => Ok(RequestReply::Ran { index, reply }),
            CommandOutcome::NotMember => Err(RequestError::Refused(RequestRefused::NotMember)),
        };
        self.answer(ticket, answer);
    }

    /// The machine ran the entry that removed this member. Commands that it has not run
    /// by then stand behind that entry or nowhere, and are never run: their origin is no
    /// member. Nor will anybody tell it what became of anything else.
    pub(crate) fn on_removed(&mut self) {
        for ticket in self.requests.tickets(|_| true) {
            let Some(open) = self.requests.get_mut(ticket) else { continue };
            let answer = match (&open.asked, open.stage) {
                (Asked::Change(_), Stage::Committed(id) | Stage::Pursued(id)) => {
                    Err(RequestError::Unknown(OutcomeUnknown::NotSettledInTime { id }))
                }
                (Asked::Change(_) | Asked::Transfer(_), Stage::Offered | Stage::Logged(_)) => {
                    Err(RequestError::Unknown(OutcomeUnknown::Removed))
                }
                _ => Err(RequestError::Refused(RequestRefused::NotMember)),
            };
            self.answer(ticket, answer);
        }
    }

    /// A snapshot took the place of entries: what they would have told is lost.
    pub(crate) fn on_installed(&mut self, meta: &SnapshotMeta, origins: &CommandDedup) {
        let passed = |open: &Open| open.stage != Stage::Waiting;
        for ticket in self.requests.tickets(passed) {
            let origin = CommandId { number: ticket.0, ..self.own };
            let Some(open) = self.requests.get_mut(ticket) else { continue };
            match (&open.asked, open.stage) {
                (Asked::Command(_), _) if origins.has_run(origin) => {
                    self.answer(ticket, Err(RequestError::Unknown(OutcomeUnknown::ReplyLost)));
                }
                (Asked::Change(_), Stage::Logged(id)) if id.index <= meta.id.index => {
                    if meta.membership.since() == id {
                        self.on_committed(ticket, id, &meta.membership);
                    } else {
                        self.answer(
                            ticket,
                            Err(RequestError::Unknown(OutcomeUnknown::PassedBySnapshot)),
                        );
                    }
                }
                _ => {}
            }
        }
        let membership = &meta.membership;
        let own = self.own.member;
        self.removed = membership.removed().contains(&own) && !membership.contains(own);
        if self.removed {
            self.on_removed();
        }
    }

    /// These entries are committed: changes that wait for one of them took effect, or
    /// lost their place.
    pub(crate) fn on_handed(&mut self, first: Index, entries: &Entries) {
        let last = first + entries.len() as u64;
        let logged = |open: &Open| match open.stage {
            Stage::Logged(id) if matches!(open.asked, Asked::Change(_)) => Some(id),
            _ => None,
        };
        let waits = |open: &Open| logged(open).is_some_and(|id| (first..last).contains(&id.index));
        for ticket in self.requests.slow_tickets(waits) {
            let Some(id) = self.requests.get_mut(ticket).and_then(|open| logged(open)) else {
                continue;
            };
            let there = entries.iter().find(|entry| entry.id.index == id.index);
            let Some(there) = there else { continue };
            match there.change() {
                Some(change) if there.id == id => {
                    self.on_committed(ticket, id, &change.membership);
                }
                _ => {
                    let by = there.id;
                    self.answer(
                        ticket,
                        Err(RequestError::Refused(RequestRefused::Overwritten { by })),
                    );
                }
            }
        }
    }

    pub(crate) fn on_event(&mut self, event: &Event) {
        match event {
            Event::Leader { leader: Some(leader), .. } => {
                let done = |open: &Open| open.asked == Asked::Transfer(*leader);
                for ticket in self.requests.slow_tickets(done) {
                    self.answer(ticket, Ok(RequestReply::Transferred { to: *leader }));
                }
                self.offer_to_new_leader();
            }
            Event::TransferAborted { to, .. } => {
                for ticket in self.requests.slow_tickets(|open| open.asked == Asked::Transfer(*to))
                {
                    self.answer(
                        ticket,
                        Err(RequestError::Refused(RequestRefused::TransferAborted)),
                    );
                }
            }
            Event::Settled { id, .. } => self.on_settled(*id),
            Event::GoalEnded(ended) => {
                let pursues = |open: &Open| open.stage == Stage::Pursued(ended.id);
                for ticket in self.requests.slow_tickets(pursues) {
                    self.answer(ticket, Ok(RequestReply::GoalEnded(*ended)));
                }
            }
            _ => {}
        }
    }

    fn on_settled(&mut self, settled: EntryId) {
        let covered = |open: &Open| match open.stage {
            Stage::Committed(id) => id.index <= settled.index,
            _ => false,
        };
        for ticket in self.requests.slow_tickets(covered) {
            let Some(Stage::Committed(id)) = self.requests.get_mut(ticket).map(|open| open.stage)
            else {
                continue;
            };
            self.answer(ticket, Ok(RequestReply::Changed { id }));
        }
    }

    /// Whatever an earlier leader was offered, this one may not have.
    fn offer_to_new_leader(&mut self) {
        for ticket in self.requests.tickets(may_be_offered) {
            self.offer(ticket);
        }
    }

    /// Ends what has waited too long, and offers again what may have been lost.
    pub(crate) fn look_after_requests(&mut self) {
        let now = self.now;
        for ticket in self.requests.tickets(|open| open.deadline <= now) {
            self.end_late(ticket);
        }
        let due = |open: &Open| open.offer_at <= now && may_be_offered(open);
        for ticket in self.requests.tickets(due) {
            let logged = |open: &mut Open| matches!(open.stage, Stage::Logged(_));
            if !self.requests.get_mut(ticket).is_some_and(logged) {
                self.offer(ticket);
            }
        }
        let next = self.requests.iter().map(|(_, open)| {
            if open.offer_at > now { open.deadline.min(open.offer_at) } else { open.deadline }
        });
        self.look_at = next.min().unwrap_or(u64::MAX);
    }

    fn end_late(&mut self, ticket: RequestToken) {
        let Some(open) = self.requests.get_mut(ticket) else { return };
        let answer = match (&open.asked, open.stage) {
            (Asked::Read(_), Stage::Waiting) => {
                Err(RequestError::Refused(RequestRefused::NoLeader))
            }
            (Asked::Read(_), _) => Err(RequestError::Refused(RequestRefused::ReadTimedOut)),
            (_, Stage::Waiting) => match open.refusal.take() {
                Some(refusal @ Refusal::Change(_)) => Err(RequestRefused::ByLeader(refusal).into()),
                _ => Err(RequestRefused::NoLeader.into()),
            },
            (_, Stage::Committed(id) | Stage::Pursued(id)) => {
                Err(RequestError::Unknown(OutcomeUnknown::NotSettledInTime { id }))
            }
            _ => Err(RequestError::Unknown(OutcomeUnknown::TimedOut)),
        };
        self.answer(ticket, answer);
    }
}

/// Commands, reads and transfers may be offered again; a change only while no leader can
/// have heard of it.
fn may_be_offered(open: &Open) -> bool {
    if open.once {
        return false;
    }
    match (&open.asked, open.stage) {
        (_, Stage::Waiting) => true,
        (Asked::Command(_), Stage::Offered | Stage::Logged(_)) => true,
        (Asked::Read(_) | Asked::Transfer(_), Stage::Offered) => true,
        _ => false,
    }
}
