//! How a member forms batches: what it takes out of its mailbox in one turn, and when the requests
//! among it are processed (`batch_pace.rs`).

use std::time::{Duration, Instant};

use quorate_core::Envelope;
use quorate_core::message::{Message, Proposal};

use super::super::batch_pace::BatchesInProgress;
use super::super::batch_queue::QuietKinds;
use super::super::mailbox::{ClientRequest, HeldBytes, RequestKind};
use super::super::pending_replies::ReplyReceiver;
use super::Member;

/// Commands and reads that followers forwarded, until they become part of a batch. Reads of one batch
/// share a round of heartbeats, which leaves with the entries of the batch.
#[derive(Default)]
pub(super) struct ForwardedRequests {
    commands: Vec<Envelope>,
    reads: Vec<Envelope>,
    /// What they count for in the transport.
    held: Vec<HeldBytes>,
    kept_so_far: u64,
}

/// This many saves may be in progress before peers have to wait. A correct leader stops earlier: this
/// is beyond the number of appends that it has in flight.
const IN_PROGRESS_FOR_PEERS: usize = 2_048;
/// How much is taken out of a queue in one turn.
const REQUESTS_PER_TURN: usize = 4_096;
const DELIVERIES_PER_TURN: usize = 256;

impl ForwardedRequests {
    pub(super) fn len(&self) -> usize {
        self.commands.len() + self.reads.len()
    }

    /// How many were kept since the last batch, also those that have been processed before it.
    pub(super) fn kept_so_far(&self) -> u64 {
        self.kept_so_far
    }

    /// What the newest of them count for in the transport, until they are processed.
    pub(super) fn hold(&mut self, held: Option<HeldBytes>) {
        self.held.extend(held);
    }

    /// Keeps a command or a read that a follower forwarded. Any other message, and what is beyond what a
    /// turn takes, is returned. Proposals among it come after the commands that are kept.
    pub(super) fn keep(&mut self, envelope: Envelope) -> Option<Envelope> {
        let kept = match envelope.message {
            Message::Propose(_, Proposal::Command(_)) => &mut self.commands,
            Message::Read(_) => &mut self.reads,
            _ => return Some(envelope),
        };
        if kept.len() >= REQUESTS_PER_TURN {
            return Some(envelope);
        }
        kept.push(envelope);
        self.kept_so_far += 1;
        None
    }
}

impl Member {
    /// Waits until there is something to do, then takes what is in the mailbox.
    pub(super) async fn receive_batch(&mut self) {
        let in_progress = self.batches_in_progress();
        let kept = self.kept_requests();
        let so_far = self.shared.arrivals.so_far();
        let waiting = self.waiting_requests();
        // If no request is open, the machine does not report when it is done.
        let jobs = if self.driver.open_requests() == 0 { 0 } else { in_progress.jobs };
        let now = Instant::now();
        let pace = &self.state.pace;
        let clients = self.state.requests.is_empty()
            && (pace.was_single()
                || pace.may_begin(now, BatchesInProgress { jobs, ..in_progress }, waiting));
        // The core bounds the machine's work for peers.
        let peers = self.state.saves_waiting < IN_PROGRESS_FOR_PEERS;
        // Nothing else wakes the member when requests that it keeps may be processed.
        let waits = !clients || kept > 0;
        let gathers = now < pace.gathers_until() && !pace.are_enough(waiting);
        let missing =
            pace.enough().filter(|_| gathers).map(|enough| enough.saturating_sub(waiting));
        self.shared.arrivals.wait_for(so_far, missing.unwrap_or(0));
        // The next batch waits for the quorum first, and then for the own disk.
        let without_saves = BatchesInProgress { saves: 0, ..in_progress };
        let quorum_waits =
            in_progress.is_committing && now < pace.next_check(without_saves, waiting);
        let awaited = self.awaited(waits && !gathers && !quorum_waits || !peers, !gathers);
        let check = waits.then(|| match awaited {
            _ if gathers => self.state.pace.gathers_until(),
            QuietKinds { saves: true, .. } => self.state.pace.next_check(in_progress, waiting),
            QuietKinds { saves: false, .. } => self.state.pace.next_check(without_saves, waiting),
        });
        let reads = (!self.state.forwarded.reads.is_empty()).then(|| self.state.pace.reads_due());
        let wake_at = check.into_iter().chain(reads).chain(self.state.delayed.next_due()).min();
        self.mailbox.done.set_awaited(awaited);
        let (state, mailbox) = (&mut self.state, &mut self.mailbox);
        tokio::select! {
            biased;
            () = mailbox.done.ready() => {}
            _ = mailbox.peers.recv_many(&mut state.from_peers, DELIVERIES_PER_TURN), if peers => {}
            _ = mailbox.clients.recv_many(&mut state.requests, REQUESTS_PER_TURN), if clients => {}
            () = self.barriers.0.ready(), if clients => {}
            () = self.shared.arrivals.ready(), if gathers => {}
            () = self.barriers.0.ended_while_callers_wait(), if gathers => {}
            () = self.clock.changed() => {}
            () = self.timer.wait_until(wake_at) => {}
        }
        mailbox.done.take_all(&mut state.completions);
        while peers && state.from_peers.len() < DELIVERIES_PER_TURN {
            let Ok(delivery) = mailbox.peers.try_recv() else { break };
            state.from_peers.push(delivery);
        }
        self.shared.counters.turns.add(1);
    }

    /// How many requests wait for the next batch. Callers that share a barrier count as one.
    fn kept_requests(&self) -> usize {
        let barrier = usize::from(self.barriers.0.are_waiting());
        self.state.requests.len() + self.state.forwarded.len() + barrier
    }

    /// How many requests the next batch would have.
    fn waiting_requests(&self) -> usize {
        let kept = self.state.requests.len() + self.state.forwarded.len();
        kept + self.mailbox.clients.len() + self.barriers.0.waiting_callers()
    }

    /// What something waits for; `saves` is whether requests wait for the own disk, `next_batch` whether
    /// the next batch may begin as soon as the last one has ended. For the rest the member is not
    /// woken; it learns it with whatever comes next, a tick at the latest.
    fn awaited(&self, saves: bool, next_batch: bool) -> QuietKinds {
        let raft = self.driver.raft();
        if !raft.is_membership_at_rest() {
            return QuietKinds { saves: true, jobs: true };
        }
        let kept = self.kept_requests();
        let log = raft.log_status();
        let has_open = self.driver.open_requests() > 0 && !self.state.pace.was_single();
        let jobs = next_batch && (kept > 0 || has_open)
            || self.state.jobs_waiting > 1
            || log.commit > log.applying;
        let saves = saves || raft.is_own_copy_awaited() || self.driver.messages_wait_for_saves();
        QuietKinds { saves, jobs }
    }

    /// How long requests are gathered, if a message waits for a save in progress.
    pub(super) fn gathers_for_save(&self) -> Option<Duration> {
        let gathers = self.state.pace.gather_time_of_messages(Instant::now());
        (!gathers.is_zero() && self.driver.messages_wait_for_saves()).then_some(gathers)
    }

    fn batches_in_progress(&self) -> BatchesInProgress {
        let raft = self.driver.raft();
        let log = raft.log_status();
        BatchesInProgress {
            saves: self.state.saves_waiting,
            jobs: self.state.jobs_waiting,
            is_committing: raft.leader() == Some(self.key.member) && log.commit < log.last.index,
        }
    }

    /// Processes a message that is not kept. Proposals keep their order: the core takes one that comes
    /// after much newer ones of its sender for a repeated one, and drops it.
    pub(super) fn receive_in_order(&mut self, envelope: Envelope) {
        if matches!(envelope.message, Message::Propose(..)) {
            for command in std::mem::take(&mut self.state.forwarded.commands) {
                self.receive(command);
            }
        }
        self.receive(envelope);
    }

    /// Begins a batch, if it is time: after what has arrived from peers and the disk, so that a
    /// commit index leaves with the entries of the next batch.
    pub(super) fn process_requests(&mut self) {
        let now = Instant::now();
        let (in_progress, waiting) = (self.batches_in_progress(), self.waiting_requests());
        if !self.state.pace.may_begin(now, in_progress, waiting) {
            if now >= self.state.pace.reads_due() {
                if self.state.forwarded.commands.is_empty() {
                    self.state.forwarded.held.clear();
                }
                for read in std::mem::take(&mut self.state.forwarded.reads) {
                    self.receive(read);
                }
            }
            return;
        }
        let forwarded = std::mem::take(&mut self.state.forwarded);
        let mut requests = std::mem::take(&mut self.state.requests);
        while requests.len() < REQUESTS_PER_TURN {
            let Ok(request) = self.mailbox.clients.try_recv() else { break };
            requests.push(request);
        }
        let size = forwarded.len() + requests.len() + self.begin_barrier();
        let writes = requests.iter().filter(|request| !request.kind.is_read()).count();
        let writes = writes + forwarded.commands.len();
        for envelope in forwarded.commands.into_iter().chain(forwarded.reads) {
            self.receive(envelope);
        }
        for request in requests.drain(..) {
            self.on_request(request);
        }
        if size > 0 {
            self.state.pace.begin(now, size, writes);
        }
        self.state.requests = requests;
    }

    /// Begins a barrier for all who wait for one. Returns how many these are.
    pub(super) fn begin_barrier(&mut self) -> usize {
        let Some(callers) = self.barriers.0.begin() else { return 0 };
        self.shared.counters.reads.add(1);
        let count = callers.count();
        let token = self.driver.barrier();
        self.state.waiting.insert(token, ReplyReceiver::Barrier(callers));
        count
    }

    pub(super) fn on_request(&mut self, request: ClientRequest) {
        let counters = &self.shared.counters;
        let token = match request.kind {
            RequestKind::Propose(command) => {
                counters.proposals.add(1);
                self.driver.propose(command)
            }
            RequestKind::ProposeIn(term, command) => {
                counters.proposals.add(1);
                self.driver.propose_in(term, command)
            }
            RequestKind::Read(question) => {
                counters.reads.add(1);
                self.driver.read(question)
            }
            RequestKind::ReadLocal(query) => self.driver.read_local(query),
            RequestKind::Change(change, wait) => self.driver.change(*change, wait),
            RequestKind::Transfer(to) => self.driver.transfer(to),
        };
        self.state.waiting.insert(token, ReplyReceiver::Single(request.reply));
    }
}
