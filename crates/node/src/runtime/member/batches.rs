//! How a member forms batches: what it takes out of its mailbox in one turn, and when the requests
//! among it are processed (`batch_pace.rs`).

use std::time::Instant;

use quorate_core::Envelope;
use quorate_core::message::{Message, Proposal};
use tokio::time::sleep_until;

use super::super::batch_pace::BatchesInProgress;
use super::super::mailbox::{ClientRequest, HeldBytes, RequestKind};
use super::Member;

/// Commands that followers forwarded, until they become part of a batch.
#[derive(Default)]
pub(super) struct ForwardedCommands {
    envelopes: Vec<Envelope>,
    /// What they count for in the transport.
    held: Vec<HeldBytes>,
}

/// So many saves may be in progress before peers have to wait. A correct leader stops earlier: this
/// is beyond the number of appends that it has in flight.
const IN_PROGRESS_FOR_PEERS: usize = 2_048;
/// How much is taken out of a queue in one turn.
const REQUESTS_PER_TURN: usize = 4_096;
const DELIVERIES_PER_TURN: usize = 256;

impl ForwardedCommands {
    pub(super) fn len(&self) -> usize {
        self.envelopes.len()
    }

    /// What the newest commands count for in the transport, until they are processed.
    pub(super) fn hold(&mut self, held: Option<HeldBytes>) {
        self.held.extend(held);
    }

    /// Keeps a command that a follower forwarded. Any other message, and a command beyond what a
    /// turn takes, is returned.
    pub(super) fn keep(&mut self, envelope: Envelope) -> Option<Envelope> {
        let is_command = matches!(envelope.message, Message::Propose(_, Proposal::Command(_)));
        if !is_command || self.envelopes.len() >= REQUESTS_PER_TURN {
            return Some(envelope);
        }
        self.envelopes.push(envelope);
        None
    }
}

impl Member {
    /// Waits until there is something to do, then takes what is in the mailbox.
    pub(super) async fn receive_batch(&mut self) {
        let in_progress = self.batches_in_progress();
        let clients = self.state.pace.may_begin(Instant::now(), in_progress);
        // Nothing else wakes the member when commands that it keeps may be processed.
        let waits = !clients || self.state.forwarded.len() > 0;
        let check = self.state.pace.next_check(in_progress);
        // The core bounds the machine's work for peers.
        let peers = self.state.saves_waiting < IN_PROGRESS_FOR_PEERS;
        let (state, mailbox) = (&mut self.state, &mut self.mailbox);
        tokio::select! {
            biased;
            () = mailbox.done.ready() => {}
            _ = mailbox.peers.recv_many(&mut state.from_peers, DELIVERIES_PER_TURN), if peers => {}
            _ = mailbox.clients.recv_many(&mut state.requests, REQUESTS_PER_TURN), if clients => {}
            () = self.clock.changed() => {}
            () = sleep_until(check.into()), if waits => {}
        }
        mailbox.done.take_all(&mut state.completions);
        while peers && state.from_peers.len() < DELIVERIES_PER_TURN {
            let Ok(delivery) = mailbox.peers.try_recv() else { break };
            state.from_peers.push(delivery);
        }
        self.shared.counters.turns.add(1);
    }

    fn batches_in_progress(&self) -> BatchesInProgress {
        let raft = self.driver.raft();
        let log = raft.log_status();
        BatchesInProgress {
            steps: self.state.saves_waiting.max(self.state.jobs_waiting),
            is_committing: raft.leader() == Some(self.key.member) && log.commit < log.last.index,
        }
    }

    /// Begins a batch, if it is time: after what has arrived from peers and the disk, so that a
    /// commit index leaves with the entries of the next batch.
    pub(super) fn process_requests(&mut self) {
        let now = Instant::now();
        let mut forwarded = ForwardedCommands::default();
        if self.state.pace.may_begin(now, self.batches_in_progress()) {
            forwarded = std::mem::take(&mut self.state.forwarded);
            while self.state.requests.len() < REQUESTS_PER_TURN {
                let Ok(request) = self.mailbox.clients.try_recv() else { break };
                self.state.requests.push(request);
            }
        }
        if forwarded.envelopes.is_empty() && self.state.requests.is_empty() {
            return;
        }
        self.state.pace.begin(now, forwarded.envelopes.len() + self.state.requests.len());
        for envelope in forwarded.envelopes {
            self.receive(envelope);
        }
        let mut requests = std::mem::take(&mut self.state.requests);
        for request in requests.drain(..) {
            self.on_request(request);
        }
        self.state.requests = requests;
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
            RequestKind::Barrier => {
                counters.reads.add(1);
                self.driver.barrier()
            }
            RequestKind::Change(change, wait) => self.driver.change(*change, wait),
            RequestKind::Transfer(to) => self.driver.transfer(to),
        };
        self.state.waiting.insert(token, request.reply);
    }
}
