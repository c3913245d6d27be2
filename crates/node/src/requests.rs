//! The lifecycle of requests: sent to the leader, retried with the next leader when that one
//! is lost, and finished once. This is the only layer that retries.
//!
//! A command may be sent any number of times, because it runs once however often it is logged
//! (see `command_id.rs`); a read, because it changes nothing; a transfer, because repeating it
//! has no effect. A membership change is sent again only if the leader certainly did not log it:
//! otherwise its outcome is unknown.

use bytes::Bytes;
use quorate_core::{
    Accepted, Dropped, Entries, EntryId, Event, Index, Input, Membership, Refusal, RequestId,
    SnapshotMeta, Term,
};

use crate::applier::{CommandOutcome, MachineJob};
use crate::command_id::{CommandDedup, CommandId};
use crate::driver::Driver;
use crate::outcome::{OutcomeUnknown, RequestOutcome, RequestRefused, RequestReply, is_transient};
use crate::request_table::{
    ChangeWait, OpenRequest, RequestBody, RequestStage, RequestToken, RetryPolicy,
};

impl Driver {
    pub(crate) fn request(&mut self, body: RequestBody) -> RequestToken {
        let refused = self.refuse_early(&body);
        let open = OpenRequest::new(body, self.request_deadline());
        self.open_request(open, refused)
    }

    fn request_deadline(&self) -> u64 {
        self.now.saturating_add(self.options.request_ticks.max(1))
    }

    /// A command that only the leader of this term may log, and only if it is this member.
    pub(crate) fn request_once(&mut self, command: Bytes, term: Term) -> RequestToken {
        let body = RequestBody::Command(command);
        let leader = self.raft.leader();
        let leads = leader == Some(self.own.member) && self.raft.term() == term;
        let elsewhere = RequestRefused::ByLeader(Refusal::NotLeader { leader });
        let refused = if leads { self.refuse_early(&body) } else { Some(elsewhere) };
        let open = OpenRequest {
            retries: RetryPolicy::SingleAttempt,
            ..OpenRequest::new(body, self.request_deadline())
        };
        self.open_request(open, refused)
    }

    /// A query that needs no leader: it goes to the machine at once.
    pub(crate) fn request_locally(&mut self, query: Bytes) -> RequestToken {
        let body = RequestBody::Read(None);
        let refused = self.refuse_early(&body).filter(|why| *why != RequestRefused::NotMember);
        let deadline = self.request_deadline();
        let open = OpenRequest {
            retries: RetryPolicy::SingleAttempt,
            stage: RequestStage::Querying,
            ..OpenRequest::new(body, deadline)
        };
        let token = self.requests.insert(open);
        match refused {
            Some(why) => self.finish(token, Err(why.into())),
            None => {
                self.next_check = self.next_check.min(deadline);
                self.jobs.push(MachineJob::Query(token, Some(query)));
            }
        }
        token
    }

    fn open_request(&mut self, open: OpenRequest, refused: Option<RequestRefused>) -> RequestToken {
        let deadline = open.deadline;
        let token = self.requests.insert(open);
        match refused {
            Some(why) => self.finish(token, Err(why.into())),
            None => {
                self.next_check = self.next_check.min(deadline);
                self.attempt(token);
            }
        }
        token
    }

    /// Why a request is refused before it is sent to a leader.
    fn refuse_early(&self, body: &RequestBody) -> Option<RequestRefused> {
        let limit = self.options.requests_max;
        if self.requests.len() >= limit {
            return Some(RequestRefused::TooManyRequests { limit });
        }
        if self.removed {
            return Some(RequestRefused::NotMember);
        }
        // The transport could not carry it, and a leader with it in its log would retry forever.
        let limit = self.options.command_bytes_max;
        match body {
            RequestBody::Command(logged) if logged.len() > limit => {
                Some(RequestRefused::TooLarge { bytes: logged.len(), limit })
            }
            _ => None,
        }
    }

    /// The only place where a request ends.
    pub(crate) fn finish(&mut self, token: RequestToken, outcome: RequestOutcome) {
        if self.requests.remove(token).is_some() {
            self.outcomes.push((token, outcome));
        }
    }

    /// Gives the request to the core, which logs it, forwards it to the leader, or refuses it.
    fn attempt(&mut self, token: RequestToken) {
        let now = self.now;
        let is_joining = !self.raft.membership().contains(self.own.member);
        let Some(open) = self.requests.get_mut(token) else { return };
        // A member without a state gets the leader's current one. If its request was logged before,
        // that state would replace the reply.
        let gets_entry = matches!(open.body, RequestBody::Command(_) | RequestBody::Change(..));
        if is_joining && gets_entry && may_be_retried(open) {
            open.retry_at = now + 1;
            self.next_check = self.next_check.min(open.retry_at);
            return;
        }
        self.attempt_count += 1;
        let attempt = RequestId(self.attempt_count);
        open.open_attempts += 1;
        open.sent_in = self.raft.term();
        open.retry_at = now + self.options.retry_ticks;
        self.next_check = self.next_check.min(open.retry_at);
        let input = match &open.body {
            RequestBody::Command(command) => Input::Propose(attempt, command.clone()),
            RequestBody::Read(_) => Input::Read(attempt),
            RequestBody::Change(change, _) => Input::Change(attempt, (**change).clone()),
            RequestBody::Transfer(to) => Input::Transfer(*to),
        };
        match self.step(input) {
            Ok(Accepted::Logged(id)) => self.set_stage(token, RequestStage::Logged(id)),
            Ok(Accepted::Forwarded(_) | Accepted::Queued) => {
                self.requests.expect_reply(token, attempt);
                self.set_stage(token, RequestStage::Sent);
            }
            Ok(Accepted::Done) => self.set_stage(token, RequestStage::Sent),
            Err(Dropped::NothingToDo) => self.on_nothing_to_do(token),
            Err(Dropped::Refused(refusal)) => self.on_attempt_refused(token, refusal),
            Err(_) => {}
        }
    }

    fn set_stage(&mut self, token: RequestToken, stage: RequestStage) {
        if let Some(open) = self.requests.get_mut(token) {
            open.stage = stage;
        }
    }

    /// A change is committed. Unless that is all its caller waits for, the request now waits until
    /// the change is settled or, if it set a goal, until the goal has ended. Each event comes once,
    /// and may have come already.
    fn on_committed(&mut self, token: RequestToken, id: EntryId, membership: &Membership) {
        let now = self.now;
        let Some(open) = self.requests.get_mut(token) else { return };
        let RequestBody::Change(_, ChangeWait::Settled { ticks }) = open.body else {
            self.finish(token, Ok(RequestReply::ChangeCommitted { id }));
            return;
        };
        open.deadline = now.saturating_add(ticks.max(1));
        let pursued = membership.goal().is_some_and(|goal| goal.id == id);
        let ended = membership.ended_goals().iter().any(|ended| ended.id == id);
        open.stage =
            if pursued || ended { RequestStage::Pursued(id) } else { RequestStage::Committed(id) };
        if let Some(ended) = self.raft.ended_goal(id) {
            self.finish(token, Ok(RequestReply::GoalEnded(ended)));
        } else if self.raft.settled() >= id.index {
            self.on_settled(EntryId::new(id.term, self.raft.settled()));
        }
    }

    pub(crate) fn on_accepted(&mut self, attempt: RequestId, id: EntryId) {
        let Some(token) = self.requests.take_attempt(attempt) else { return };
        self.set_stage(token, RequestStage::Logged(id));
        let changes = self
            .requests
            .get_mut(token)
            .is_some_and(|open| matches!(open.body, RequestBody::Change(..)));
        // The entry may have been applied here before the leader's reply arrived.
        if changes && id.index <= self.raft.log_status().applying {
            let membership = self.raft.membership_at(id.index);
            if membership.since() == id {
                self.on_committed(token, id, &membership);
            }
        }
    }

    pub(crate) fn on_confirmed(&mut self, attempt: RequestId, index: Index) {
        if let Some(token) = self.requests.take_attempt(attempt) {
            self.set_stage(token, RequestStage::Confirmed(index));
            self.confirmed.entry(index).or_default().push(token);
        }
    }

    /// The leader refused a forwarded request.
    pub(crate) fn on_refused(&mut self, attempt: RequestId, refusal: Refusal) {
        if let Some(token) = self.requests.take_attempt(attempt) {
            self.on_attempt_refused(token, refusal);
        }
    }

    /// The newest attempt was refused. The request has certainly not happened only if no other
    /// attempt may have been accepted.
    fn on_attempt_refused(&mut self, token: RequestToken, refusal: Refusal) {
        let Some(open) = self.requests.get_mut(token) else { return };
        open.open_attempts = open.open_attempts.saturating_sub(1);
        let is_read = matches!(open.body, RequestBody::Read(_));
        let certain = open.open_attempts == 0 || is_read;
        if certain {
            open.stage = RequestStage::Waiting;
            open.open_attempts = 0;
            if open.retries == RetryPolicy::SingleAttempt || !is_transient(&refusal) {
                self.finish(token, Err(RequestRefused::ByLeader(refusal).into()));
                return;
            }
            // The leader has another change in progress: it may be over at the next tick.
            if matches!(refusal, Refusal::Change(_)) {
                open.retry_at = self.now + 1;
                self.next_check = self.next_check.min(open.retry_at);
            }
            open.refusal = Some(refusal);
        }
    }

    fn on_nothing_to_do(&mut self, token: RequestToken) {
        let Some(open) = self.requests.get_mut(token) else { return };
        if let RequestBody::Transfer(to) = open.body {
            if self.raft.leader() == Some(to) {
                self.finish(token, Ok(RequestReply::Transferred { to }));
            } else {
                open.stage = RequestStage::Sent;
            }
        }
    }

    /// The machine has run, or skipped, a command of this member.
    pub(crate) fn on_outcome(&mut self, token: RequestToken, outcome: CommandOutcome) {
        let outcome = match outcome {
            CommandOutcome::Ran { index, reply } => Ok(RequestReply::Ran { index, reply }),
            CommandOutcome::NotMember => Err(RequestRefused::NotMember.into()),
            CommandOutcome::Superseded { start } => {
                if self.requests.get_mut(token).is_none() {
                    return; // A copy of a command that ran.
                }
                self.own.start = self.own.start.max(start.saturating_add(1));
                Err(RequestRefused::Superseded.into())
            }
            CommandOutcome::Implausible => Err(RequestRefused::Superseded.into()),
        };
        self.finish(token, outcome);
    }

    /// The machine ran the entry that removed this member. Commands that it has not run by then
    /// come after that entry or are not logged, and never run: their proposer is not a member.
    /// This member does not hear of the outcome of anything else.
    pub(crate) fn on_removed(&mut self) {
        for token in self.requests.tokens(|_| true) {
            let Some(open) = self.requests.get_mut(token) else { continue };
            let outcome = match (&open.body, open.stage) {
                (
                    RequestBody::Change(..),
                    RequestStage::Committed(id) | RequestStage::Pursued(id),
                ) => Err(OutcomeUnknown::NotSettledInTime { id }.into()),
                (
                    RequestBody::Change(..) | RequestBody::Transfer(_),
                    RequestStage::Sent | RequestStage::Logged(_),
                ) => Err(OutcomeUnknown::Removed.into()),
                _ => Err(RequestRefused::NotMember.into()),
            };
            self.finish(token, outcome);
        }
    }

    /// A snapshot replaced entries: the replies that they would have given are lost.
    pub(crate) fn on_installed(&mut self, meta: &SnapshotMeta, dedup: &CommandDedup) {
        let _ = self.step(Input::Applied(meta.id.index));
        let sent = |open: &OpenRequest| open.stage != RequestStage::Waiting;
        for token in self.requests.tokens(sent) {
            let Some(open) = self.requests.get_mut(token) else { continue };
            let has_run =
                |logged| CommandId::split_from(logged).is_some_and(|(id, _)| dedup.has_run(id));
            match (&open.body, open.stage) {
                (RequestBody::Command(logged), _) if has_run(logged) => {
                    self.finish(token, Err(OutcomeUnknown::ReplyLost.into()));
                }
                (RequestBody::Change(..), RequestStage::Logged(id))
                    if id.index <= meta.id.index =>
                {
                    if meta.membership.since() == id {
                        self.on_committed(token, id, &meta.membership);
                    } else {
                        self.finish(token, Err(OutcomeUnknown::PassedBySnapshot.into()));
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

    /// These entries are committed: changes that wait for one of them took effect, or another
    /// entry took their index.
    pub(crate) fn on_committed_entries(&mut self, first: Index, entries: &Entries) {
        let last = first + entries.len() as u64;
        let logged = |open: &OpenRequest| match open.stage {
            RequestStage::Logged(id) if matches!(open.body, RequestBody::Change(..)) => Some(id),
            _ => None,
        };
        let waits =
            |open: &OpenRequest| logged(open).is_some_and(|id| (first..last).contains(&id.index));
        for token in self.requests.slow_tokens(waits) {
            let Some(id) = self.requests.get_mut(token).and_then(|open| logged(open)) else {
                continue;
            };
            let committed = entries.iter().find(|entry| entry.id.index == id.index);
            let Some(committed) = committed else { continue };
            match committed.change() {
                Some(change) if committed.id == id => {
                    self.on_committed(token, id, &change.membership);
                }
                _ => {
                    let by = committed.id;
                    self.finish(token, Err(RequestRefused::Overwritten { by }.into()));
                }
            }
        }
    }

    pub(crate) fn on_event(&mut self, event: &Event) {
        match event {
            Event::Leader { leader: Some(leader), .. } => {
                let done = |open: &OpenRequest| open.body == RequestBody::Transfer(*leader);
                for token in self.requests.slow_tokens(done) {
                    self.finish(token, Ok(RequestReply::Transferred { to: *leader }));
                }
                self.retry_with_new_leader();
            }
            Event::TransferAborted { to, .. } => {
                for token in
                    self.requests.slow_tokens(|open| open.body == RequestBody::Transfer(*to))
                {
                    self.finish(token, Err(RequestRefused::TransferAborted.into()));
                }
            }
            Event::Settled { id, .. } => self.on_settled(*id),
            Event::GoalEnded(ended) => {
                let pursues = |open: &OpenRequest| open.stage == RequestStage::Pursued(ended.id);
                for token in self.requests.slow_tokens(pursues) {
                    self.finish(token, Ok(RequestReply::GoalEnded(*ended)));
                }
            }
            _ => {}
        }
    }

    fn on_settled(&mut self, settled: EntryId) {
        let covered = |open: &OpenRequest| match open.stage {
            RequestStage::Committed(id) => id.index <= settled.index,
            _ => false,
        };
        for token in self.requests.slow_tokens(covered) {
            let Some(RequestStage::Committed(id)) =
                self.requests.get_mut(token).map(|open| open.stage)
            else {
                continue;
            };
            self.finish(token, Ok(RequestReply::Changed { id }));
        }
    }

    /// A new leader may not have what an earlier one was sent. A change that the earlier one did
    /// not acknowledge is not sent again, and there is little reason to wait for the reply: its
    /// outcome is soon unknown, and the caller can look at the membership.
    fn retry_with_new_leader(&mut self) {
        let (term, give_up) = (self.raft.term(), self.now.saturating_add(self.options.retry_ticks));
        let unacknowledged = |open: &OpenRequest| {
            let sent = open.stage == RequestStage::Sent && open.sent_in < term;
            sent && matches!(open.body, RequestBody::Change(..))
        };
        for token in self.requests.slow_tokens(unacknowledged) {
            let Some(open) = self.requests.get_mut(token) else { continue };
            open.deadline = open.deadline.min(give_up);
            self.next_check = self.next_check.min(give_up);
        }
        for token in self.requests.tokens(may_be_retried) {
            self.attempt(token);
        }
    }

    /// Ends requests at their deadline, and retries those that may have been lost.
    pub(crate) fn check_requests(&mut self) {
        let now = self.now;
        for token in self.requests.tokens(|open| open.deadline <= now) {
            self.time_out(token);
        }
        let due = |open: &OpenRequest| open.retry_at <= now && may_be_retried(open);
        for token in self.requests.tokens(due) {
            let logged = |open: &mut OpenRequest| matches!(open.stage, RequestStage::Logged(_));
            if !self.requests.get_mut(token).is_some_and(logged) {
                self.attempt(token);
            }
        }
        let next = self.requests.iter().map(|(_, open)| {
            if open.retry_at > now { open.deadline.min(open.retry_at) } else { open.deadline }
        });
        self.next_check = next.min().unwrap_or(u64::MAX);
    }

    fn time_out(&mut self, token: RequestToken) {
        let Some(open) = self.requests.get_mut(token) else { return };
        let outcome = match (&open.body, open.stage) {
            (RequestBody::Read(_), RequestStage::Waiting) => Err(RequestRefused::NoLeader.into()),
            (RequestBody::Read(_), _) => Err(RequestRefused::ReadTimedOut.into()),
            (_, RequestStage::Waiting) => match open.refusal.take() {
                Some(refusal @ Refusal::Change(_)) => Err(RequestRefused::ByLeader(refusal).into()),
                _ => Err(RequestRefused::NoLeader.into()),
            },
            (_, RequestStage::Committed(id) | RequestStage::Pursued(id)) => {
                Err(OutcomeUnknown::NotSettledInTime { id }.into())
            }
            _ => Err(OutcomeUnknown::TimedOut.into()),
        };
        self.finish(token, outcome);
    }
}

/// Commands, reads and transfers may be sent again; a change only while no leader can have
/// logged it.
fn may_be_retried(open: &OpenRequest) -> bool {
    if open.retries == RetryPolicy::SingleAttempt {
        return false;
    }
    let stage = open.stage;
    match open.body {
        RequestBody::Change(..) => stage == RequestStage::Waiting,
        RequestBody::Command(_) => {
            matches!(stage, RequestStage::Waiting | RequestStage::Sent | RequestStage::Logged(_))
        }
        RequestBody::Read(_) | RequestBody::Transfer(_) => {
            matches!(stage, RequestStage::Waiting | RequestStage::Sent)
        }
    }
}
