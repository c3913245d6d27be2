//! The leader's work on leases at simulated members: the server's tasks, as events.

use bytes::Bytes;
use quorate::driver::{RequestOutcome, RequestReply, RequestToken};
use quorate_core::Term;
use quorate_core::status::RoleKind;
use quorate_kv::{
    Command, KvCommandReply, KvError, LeaseAnswer, LeaseInquiry, LeaseInquiryStep, LeaseWork,
};

use super::super::member::MemberProcess;
use super::super::setting::TICK;
use super::super::simulation::{SimEvent, Simulation, place_of};
use super::super::workload::WorkloadRequest;
use super::TICK_MS;
use super::ledger::LeaderClock;
use crate::checkers::{Checked, Violation};

/// A request to the driver that is about leases.
pub(crate) enum LeaseTask {
    /// A new leader catches up before it counts.
    Start(Term),
    Revoke(i64),
    Checkpoint,
    /// A question of another member, by its number.
    Inquiry(LeaseInquiry, usize),
}

/// Such a request has ended.
pub(crate) struct LeaseTaskDone {
    task: LeaseTask,
    succeeded: bool,
}

/// Leases revoked in one poll.
const REVOKED_AT_ONCE: usize = 20;

impl MemberProcess {
    /// The term that this member leads.
    fn leading_term(&self) -> Option<Term> {
        let raft = self.driver.raft();
        (raft.role() == RoleKind::Leader).then(|| raft.term())
    }
}

impl Simulation {
    /// The clock of a member, in milliseconds. It drifts and jumps, and is never set back.
    pub(crate) fn clock_ms(&self, place: usize) -> u64 {
        let member = &self.members[place];
        self.now * TICK_MS / member.tick_every + member.clock_jumped_ms
    }

    /// The leader revokes expired leases and logs the remaining time of others.
    pub(crate) fn poll_leases(&mut self, place: usize) -> Checked {
        if self.etcd.is_none() {
            return Ok(());
        }
        let now = self.clock_ms(place);
        let Some(process) = &mut self.members[place].process else { return Ok(()) };
        let Some(store) = process.applier.machine().store() else { return Ok(()) };
        let leads = process.leading_term();
        match process.lessor.poll(&store, &store.read(), leads, now, REVOKED_AT_ONCE) {
            LeaseWork::Nothing | LeaseWork::Stopped => Ok(()),
            LeaseWork::CatchUp { term } => self.catch_up_for(place, LeaseTask::Start(term)),
            LeaseWork::Propose { term, revoke, checkpoints } => {
                let (at, tick_every) = (self.now, self.members[place].tick_every);
                let leader = |number| LeaderClock { number, place, at, clock_ms: now, tick_every };
                for id in revoke {
                    let command = Command::LeaseRevoke(id);
                    let number = self.propose_for(place, term, &command, LeaseTask::Revoke(id))?;
                    if let Some(etcd) = &mut self.etcd {
                        etcd.ledger.expires(id, leader(number));
                    }
                    self.report.count("lease expires");
                }
                if checkpoints.is_empty() {
                    return Ok(());
                }
                self.report.count("lease checkpoint");
                let ids: Vec<i64> = checkpoints.iter().map(|one| one.id).collect();
                let command = Command::LeaseCheckpoint(checkpoints);
                let number = self.propose_for(place, term, &command, LeaseTask::Checkpoint)?;
                if let Some(etcd) = &mut self.etcd {
                    ids.iter().for_each(|id| etcd.ledger.checkpointed(*id, leader(number)));
                }
                Ok(())
            }
        }
    }

    fn catch_up_for(&mut self, place: usize, task: LeaseTask) -> Checked {
        let Some(process) = &mut self.members[place].process else { return Ok(()) };
        let token = process.driver.barrier();
        process.lease_tasks.insert(token, task);
        self.pump(place)
    }

    /// Proposes a command of the server itself. Returns its number.
    fn propose_for(
        &mut self,
        place: usize,
        term: Term,
        command: &Command,
        task: LeaseTask,
    ) -> Result<usize, Violation> {
        let client = self.clients.count() + 3;
        let request = WorkloadRequest::Command(command.encode());
        let (number, request) = self.clients.push(client, request);
        let WorkloadRequest::Command(bytes) = request else { return Ok(number) };
        let run = self.members[place].run;
        let Some(process) = &mut self.members[place].process else { return Ok(number) };
        let token = process.driver.propose_in(term, &bytes);
        process.lease_tasks.insert(token, task);
        let submitted = self.clients.on_submitted((place, run, token), number);
        submitted.map_err(|why| Violation::new("R2", why))?;
        self.pump(place)?;
        Ok(number)
    }

    /// A request about leases has ended. Its task continues as an event of its own.
    pub(crate) fn note_lease_task(
        &mut self,
        place: usize,
        token: RequestToken,
        outcome: &RequestOutcome,
    ) {
        let member = &mut self.members[place];
        let Some(process) = &mut member.process else { return };
        let Some(task) = process.lease_tasks.remove(&token) else { return };
        let succeeded = match outcome {
            Ok(RequestReply::Ran { reply, .. }) => is_done(reply),
            Ok(_) => true,
            Err(_) => false,
        };
        process.lease_tasks_done.push(LeaseTaskDone { task, succeeded });
        let run = member.run;
        self.schedule(self.now, SimEvent::LeaseTasks { place, run });
    }

    pub(crate) fn on_lease_tasks(&mut self, place: usize, run: u64) -> Checked {
        let now = self.clock_ms(place);
        let member = &mut self.members[place];
        if member.run != run {
            return Ok(());
        }
        let Some(process) = &mut member.process else { return Ok(()) };
        let Some(store) = process.applier.machine().store() else { return Ok(()) };
        for LeaseTaskDone { task, succeeded } in std::mem::take(&mut process.lease_tasks_done) {
            let Some(process) = &mut self.members[place].process else { return Ok(()) };
            let leads = process.leading_term();
            match task {
                LeaseTask::Start(term) if succeeded && leads == Some(term) => {
                    process.lessor.start(&store, &store.read(), term, now);
                    self.report.count("lease deadlines started");
                }
                LeaseTask::Start(term) => process.lessor.start_failed(term),
                LeaseTask::Revoke(id) if succeeded => {
                    process.lessor.forget(&store, &store.read(), id, now)
                }
                LeaseTask::Revoke(_) | LeaseTask::Checkpoint => {}
                LeaseTask::Inquiry(mut inquiry, question) => {
                    let lessor = &mut process.lessor;
                    let step =
                        inquiry.proceed(lessor, &store, &store.read(), succeeded, leads, now);
                    self.continue_inquiry(place, inquiry, question, step)?;
                }
            }
        }
        Ok(())
    }

    /// A member asks the leader that it knows about a lease.
    pub(super) fn ask_leader(&mut self, from: usize, question: usize) {
        let process = self.members[from].process.as_ref();
        let leader = process.and_then(|process| process.driver.raft().leader());
        let Some(place) = leader.map(place_of).filter(|place| *place < self.members.len()) else {
            return;
        };
        let event = SimEvent::LeaseAsked { place, from, question };
        self.send_beside(from, place, event);
    }

    /// A message between servers that is not Raft's.
    fn send_beside(&mut self, from: usize, to: usize, event: SimEvent) {
        let at = if from == to { Some(self.now) } else { self.network.send(from, to, self.now)[0] };
        if let Some(at) = at {
            self.schedule(at, event);
        }
    }

    pub(crate) fn on_lease_asked(&mut self, place: usize, from: usize, question: usize) -> Checked {
        if self.network.is_cut(from, place) {
            return Ok(());
        }
        let now = self.clock_ms(place);
        let Some(query) = self.etcd.as_ref().map(|etcd| etcd.ledger.question(question)) else {
            return Ok(());
        };
        let Some(process) = &mut self.members[place].process else { return Ok(()) };
        let Some(store) = process.applier.machine().store() else { return Ok(()) };
        match LeaseInquiry::begin(&mut process.lessor, &store, &store.read(), query, now) {
            Some((inquiry, step)) => self.continue_inquiry(place, inquiry, question, step),
            None => Ok(()),
        }
    }

    fn continue_inquiry(
        &mut self,
        place: usize,
        inquiry: LeaseInquiry,
        question: usize,
        step: LeaseInquiryStep,
    ) -> Checked {
        match step {
            LeaseInquiryStep::CatchUp => {
                self.catch_up_for(place, LeaseTask::Inquiry(inquiry, question))
            }
            LeaseInquiryStep::Propose(term, command) => {
                let task = LeaseTask::Inquiry(inquiry, question);
                self.propose_for(place, term, &command, task).map(drop)
            }
            LeaseInquiryStep::Answer(answer) => {
                let Some(etcd) = &self.etcd else { return Ok(()) };
                let to = etcd.ledger.asked_at(question);
                let event = SimEvent::LeaseAnswered { place: to, from: place, question, answer };
                self.send_beside(place, to, event);
                Ok(())
            }
            LeaseInquiryStep::NoAnswer => Ok(()),
        }
    }

    pub(crate) fn on_lease_answered(
        &mut self,
        place: usize,
        from: usize,
        question: usize,
        answer: LeaseAnswer,
    ) {
        if self.network.is_cut(from, place) || !self.members[place].is_up() {
            return;
        }
        self.report.count("lease answered");
        if let Some(etcd) = &mut self.etcd {
            etcd.ledger.answered(question, self.now, answer);
        }
    }

    /// After the faults: leases that no client keeps alive expire, by the clock of any leader.
    pub(crate) fn leases_end(&mut self) -> Checked {
        // Without pre-vote and check-quorum a removed member disturbs the others for ever, and
        // every new leader gives every lease its time again.
        let is_calm = self.setting.pre_vote == 1 && self.setting.check_quorum == 1;
        if self.etcd.is_none() || !is_calm {
            return Ok(());
        }
        let ticks = (LEASE_MS_MAX / TICK_MS) * 5 / 4 + 40 * self.setting.election_ticks_max();
        let end = self.deadline(0) + ticks * TICK;
        while self.now < end {
            let leader = self.leader().and_then(|place| self.members[place].process.as_ref());
            let store = leader.and_then(|process| process.applier.machine().store());
            if store.is_some_and(|store| store.read().leases().next().is_none()) {
                return Ok(());
            }
            self.run_until(self.now + TICK)?;
        }
        Err(Violation::new("K2", "a lease that no client keeps alive does not expire"))
    }
}

/// The longest time of a lease in a simulation, with the grace and a retry.
const LEASE_MS_MAX: u64 = 9_000 + 1_000 + 3_000;

/// A command succeeded, or there was nothing left to do.
fn is_done(reply: &Bytes) -> bool {
    let reply = KvCommandReply::decode(reply);
    reply.is_some_and(|reply| matches!(reply.result, Ok(_) | Err(KvError::LeaseNotFound)))
}
