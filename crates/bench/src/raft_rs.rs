//! Three members of raft-rs, with a minimal storage.

use std::hint::black_box;

use raft::eraftpb::{ConfState, Entry, HardState, Message, Snapshot};
use raft::{GetEntriesContext, RaftState, RawNode, StateRole, Storage, StorageError};

use crate::cluster::{
    APPEND_BYTES_MAX, AppliedCommands, BenchCluster, INFLIGHT_MESSAGES_MAX, MEMBERS, TRIM_KEEP,
    expect_ok,
};
use crate::counting::Counts;
use crate::idle::{IDLE_TICKS, Memory, Probe, Probes, VOTERS};

pub(crate) struct RaftRs {
    members: [RaftRsMember; MEMBERS],
    inboxes: [Vec<Message>; MEMBERS],
}

struct RaftRsMember {
    raft: Box<RawNode<VecStorage>>,
    applied: AppliedCommands,
}

impl RaftRs {
    /// An idle cluster whose first member leads.
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(adjust: impl Fn(&mut raft::Config)) -> Self {
        let members = [1, 2, 3]
            .map(|id| RaftRsMember::new(id, ConfState::from((vec![1, 2, 3], vec![])), &adjust));
        let mut cluster = Self { members, inboxes: Default::default() };
        expect_ok("campaign", cluster.members[0].raft.campaign());
        cluster.settle();
        assert_eq!(cluster.members[0].raft.raft.state, StateRole::Leader);
        cluster
    }
}

fn deliver(messages: Vec<Message>, inboxes: &mut [Vec<Message>; MEMBERS]) {
    if messages.is_empty() {
        return;
    }
    for message in messages {
        inboxes[message.to as usize - 1].push(message);
    }
}

impl RaftRsMember {
    fn new(id: u64, voters: ConfState, adjust: &impl Fn(&mut raft::Config)) -> Self {
        let mut config = raft::Config {
            id,
            election_tick: 10,
            heartbeat_tick: 1,
            applied: 1,
            max_size_per_msg: APPEND_BYTES_MAX,
            max_inflight_msgs: INFLIGHT_MESSAGES_MAX as usize,
            check_quorum: true,
            pre_vote: true,
            batch_append: true,
            ..raft::Config::default()
        };
        adjust(&mut config);
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raft =
            Box::new(expect_ok("boot", RawNode::new(&config, VecStorage::new(voters), &logger)));
        let applied = AppliedCommands { last_index: 1, ..AppliedCommands::default() };
        Self { raft, applied }
    }

    fn apply(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            self.applied.run(entry.index, &entry.data);
        }
    }
}

impl BenchCluster for RaftRs {
    fn propose(&mut self, command: Vec<u8>) {
        expect_ok("propose", self.members[0].raft.propose(Vec::new(), command));
    }

    fn has_messages(&self, at: usize) -> bool {
        !self.inboxes[at].is_empty()
    }

    /// One member processes its messages and its `Ready`s.
    fn turn(&mut self, at: usize) {
        let member = &mut self.members[at];
        for message in self.inboxes[at].drain(..) {
            expect_ok("message", member.raft.step(message));
        }
        while member.raft.has_ready() {
            let mut ready = member.raft.ready();
            deliver(ready.take_messages(), &mut self.inboxes);
            member.apply(ready.take_committed_entries());
            let store = member.raft.mut_store();
            store.append(ready.take_entries());
            if let Some(hard_state) = ready.hs() {
                store.hard_state = hard_state.clone();
            }
            deliver(ready.take_persisted_messages(), &mut self.inboxes);
            let mut light = member.raft.advance(ready);
            if let Some(commit) = light.commit_index() {
                member.raft.mut_store().hard_state.commit = commit;
            }
            let committed = light.take_committed_entries();
            if !committed.is_empty() {
                member.apply(committed);
                member.raft.advance_apply();
            }
            deliver(light.take_messages(), &mut self.inboxes);
        }
    }

    fn trim(&mut self) {
        for member in &mut self.members {
            let to = member.applied.last_index.saturating_sub(TRIM_KEEP);
            member.raft.mut_store().trim(to);
        }
    }

    fn applied(&self) -> [AppliedCommands; MEMBERS] {
        [0, 1, 2].map(|at| self.members[at].applied)
    }

    fn held(&self) -> u64 {
        self.members[0].raft.store().entries.len() as u64
    }
}

/// A saved log in one vector. Entries are moved in, and cloned only where the trait returns
/// them.
struct VecStorage {
    hard_state: HardState,
    voters: ConfState,
    /// Index and term of the entry before the first one.
    base: (u64, u64),
    entries: Vec<Entry>,
}

impl VecStorage {
    /// The state after a snapshot at index 1, so that the voters are known.
    fn new(voters: ConfState) -> Self {
        let hard_state = HardState { term: 1, commit: 1, ..HardState::default() };
        Self { hard_state, voters, base: (1, 1), entries: Vec::new() }
    }

    fn append(&mut self, mut entries: Vec<Entry>) {
        if let Some(first) = entries.first() {
            let keep = first.index - self.base.0 - 1;
            self.entries.truncate(keep as usize);
            self.entries.append(&mut entries);
        }
    }

    fn trim(&mut self, to: u64) {
        if to > self.base.0 {
            let base = (to, expect_ok("term", self.term(to)));
            self.entries.drain(..(to - self.base.0) as usize);
            self.base = base;
        }
    }
}

impl Storage for VecStorage {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), self.voters.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.base.0 {
            return Err(StorageError::Compacted.into());
        }
        let place = |index: u64| (index - self.base.0 - 1) as usize;
        let wanted = &self.entries[place(low)..place(high)];
        let mut left = max_size.into().unwrap_or(u64::MAX);
        let fits = |entry: &&Entry| {
            let bytes = entry.data.len() as u64 + ENTRY_OVERHEAD_BYTES;
            let fits = bytes <= left;
            left = left.saturating_sub(bytes);
            fits
        };
        let count = wanted.iter().take_while(fits).count().max(1).min(wanted.len());
        Ok(wanted[..count].to_vec())
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.base.0 {
            return Ok(self.base.1);
        }
        if index < self.base.0 {
            return Err(StorageError::Compacted.into());
        }
        match self.entries.get((index - self.base.0 - 1) as usize) {
            Some(entry) => Ok(entry.term),
            None => Err(StorageError::Unavailable.into()),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.base.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.base.0 + self.entries.len() as u64)
    }

    fn snapshot(&self, _: u64, _: u64) -> raft::Result<Snapshot> {
        Err(StorageError::SnapshotTemporarilyUnavailable.into())
    }
}

/// The approximate overhead of an entry in a message.
const ENTRY_OVERHEAD_BYTES: u64 = 16;

/// The measurements of idle members.
pub(crate) fn probes() -> Probes {
    let [mut leader, mut follower, _] = idle_members(IDLE_TICKS);
    let [mut beating, _, _] = idle_members(1);
    Probes {
        tick_follower: Box::new(move |times| tick(&mut follower, times)),
        tick_leader: Box::new(move |times| tick(&mut leader, times)),
        beat: Box::new(move |times| {
            for _ in 0..times {
                beating.tick();
                let mut ready = beating.ready();
                black_box(ready.take_messages());
                black_box(beating.advance(ready));
            }
        }),
        quorums: VOTERS.map(|(incoming, outgoing)| quorum(incoming, outgoing)),
        memory: memory(),
        hibernated: None,
    }
}

/// The members of an idle cluster without elections.
fn idle_members(heartbeat_ticks: u32) -> [Box<RawNode<VecStorage>>; MEMBERS] {
    let cluster = RaftRs::with(|config| {
        config.election_tick = IDLE_TICKS as usize + 1;
        config.heartbeat_tick = heartbeat_ticks as usize;
    });
    cluster.members.map(|member| member.raft)
}

fn tick(raft: &mut RawNode<VecStorage>, times: u64) {
    for _ in 0..times {
        raft.tick();
        assert!(!black_box(raft.has_ready()), "an idle tick has no output");
    }
}

fn quorum(incoming: &[u64], outgoing: &[u64]) -> Probe {
    let mut voters = ConfState::from((incoming.to_vec(), vec![]));
    voters.voters_outgoing = outgoing.to_vec();
    let mut member = RaftRsMember::new(1, voters, &|_| {});
    for (id, progress) in member.raft.raft.mut_prs().iter_mut() {
        progress.matched = id * 37 % 11;
    }
    Box::new(move |times| {
        let tracker = member.raft.raft.mut_prs();
        for _ in 0..times {
            black_box(black_box(&mut *tracker).maximal_committed_index());
        }
    })
}

/// The bytes that dropping an idle member frees, without its storage.
fn memory() -> Memory {
    let [leader, follower, _] = idle_members(1);
    let freed = |mut raft: Box<RawNode<VecStorage>>| {
        raft.mut_store().entries = Vec::new();
        raft.raft.maybe_free_inflight_buffers();
        let before = Counts::now();
        drop(raft);
        (-Counts::since(before).live) as u64
    };
    Memory { follower: freed(follower), leader: freed(leader) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Shape, TRIM_EVERY};

    #[test]
    fn every_member_applies_every_command_and_the_log_stays_bounded() {
        for batch in [1, 256] {
            let mut cluster = RaftRs::new();
            assert_eq!(cluster.run(Shape { size: 64, batch }, 4 * TRIM_EVERY), 4 * TRIM_EVERY);
            assert!(cluster.held() <= TRIM_EVERY + TRIM_KEEP, "{} entries held", cluster.held());
        }
    }
}
